"""What a recorder wrote beside a measured run: the engine's settings, as the keys of a deployment."""

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path

from kvplan.errors import InputError, unreadable

_REQUESTS, _META = "_requests.", "_meta.json"
_ARGUMENTS = {
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "data_parallel_size": "data_parallel",
    "decode_context_parallel_size": "context_parallel",
    "enable_expert_parallel": "expert_parallel",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "kv_cache_dtype": "kv_dtype",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "enforce_eager": "enforce_eager",
}
"""vLLM's engine arguments, and the keys of a traffic file's deployment that say the same."""
_LARGEST_BYTES = 2**24


def settings_beside(run: Path) -> tuple[Path, dict[str, object]] | None:
    """The file ``NAME_meta.json`` (or ``.gz``) beside ``NAME_requests.…``, and the keys that it says; None without one.

    Understood is what LLMServingSim's benchmark writes (github.com/casys-kaist/LLMServingSim @ 5daddb21): the model and
    engine arguments, vLLM's version, the pool in blocks, the device's name, and vLLM's resolved switches.
    """
    stem, mark, _ = run.name.partition(_REQUESTS)
    found = (run.with_name(f"{stem}{_META}{ending}") for ending in ("", ".gz"))
    path = next((path for path in found if mark and path.is_file()), None)
    return None if path is None else (path, _keys(_read(path)))


def _read(path: Path) -> Mapping[str, object]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            document = json.loads(stream.read(_LARGEST_BYTES))
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path} is not JSON", hint="mend it, or move it away and give options", file=str(path)
        ) from error
    return document if isinstance(document, Mapping) else {}


def _keys(document: Mapping[str, object]) -> dict[str, object]:
    arguments = _part(document, "engine_kwargs")
    keys = {key: arguments[name] for name, key in _ARGUMENTS.items() if arguments.get(name) is not None}
    keys |= {"model": arguments["model"]} if isinstance(arguments.get("model"), str) else {}
    if isinstance(document.get("vllm_version"), str):
        keys["engine"] = f"vllm@{document['vllm_version']}"
    pool = _part(document, "kv_cache")
    if pool.get("num_gpu_blocks") is not None:
        keys["kv_pool"] = {"blocks": pool["num_gpu_blocks"]}
    device = _part(document, "hardware").get("device_name")
    if isinstance(device, str):
        keys["gpu"] = device
    resolved = _part(document, "resolved_config")
    for section, name, key in (
        ("scheduler_config", "async_scheduling", "async_scheduling"),
        ("cache_config", "enable_prefix_caching", "prefix_caching"),
    ):
        value = _part(resolved, section).get(name)
        if isinstance(value, bool):
            keys[key] = value
    return keys


def _part(document: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = document.get(name)
    return part if isinstance(part, Mapping) else {}
