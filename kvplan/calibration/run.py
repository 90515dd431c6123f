"""A measured run as a calibration: its engine's settings, the fit of one constant, and the file that keeps it."""

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kvplan.calibration_file import PARALLELISM, CalibrationFile, file_text, load_calibration, settings_of
from kvplan.errors import InputError, unreadable
from kvplan.simulation.backend import build_backend
from kvplan.simulation.efficiency import EfficiencyFit, fit_efficiency
from kvplan.simulation.measured_run import MeasuredRun
from kvplan.traffic.spec import Traffic

_HEADER = """\
# kvplan calibration from a measured run.
# kvplan simulate|recommend … --calibration FILE (or deployment.calibration in a traffic file) takes a step's
# time from it: the roofline of the plan's model and GPU, divided by this efficiency.
"""
_REQUESTS, _META = "_requests.", "_meta.json"
_LARGEST_BYTES = 2**24
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
"""vLLM's engine arguments, and the keys of a traffic file's deployment that mean the same."""


def calibrate_run(
    run: MeasuredRun,
    traffic: Traffic,
    *,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
) -> EfficiencyFit:
    """Fit the efficiency of ``traffic``'s deployment on a run that it served; nothing else of the traffic is used.

    A ``service`` in the file is ignored: it is what the fit replaces. Raises InputError where the file names no model
    or no GPU.
    """
    for key, value in (("model", traffic.model), ("gpu", traffic.deployment.gpu_name)):
        if value is None:
            raise InputError(
                f"a measured run is compared with a roofline, which needs the {'GPU' if key == 'gpu' else key}",
                hint=f"name it: --{key} {'h100' if key == 'gpu' else 'org/name'}, or --traffic with the deployment",
                key=key,
            )
    plain = replace(traffic, deployment=replace(traffic.deployment, service=None))
    return fit_efficiency(run, build_backend(plain, offline=offline, profiles_folder=profiles_folder))


def run_calibration_text(found: EfficiencyFit, traffic: Traffic, source: str) -> str:
    """The file's text. ``source`` names the run. It keeps the calibration of a start-up log that the plan used."""
    wanted = traffic.deployment
    sources = f"{source}, {found.requests} requests"
    if wanted.calibration is None:
        kept = CalibrationFile(
            engine=wanted.engine,
            model=(found.backend.model.id if found.backend.model is not None else traffic.model) or "",
            **{name: getattr(wanted, name) for name in PARALLELISM},
            gpu=found.backend.gpu,
        )
    else:
        kept = load_calibration(Path(wanted.calibration))
        sources = sources if kept.source is None else f"{kept.source}; {sources}"
    calibration = replace(
        kept, source=sources, settings={**kept.settings, **settings_of(wanted)}, efficiency_share=found.efficiency
    )
    constants = "".join(f"#   {name}: {value:.4g}\n" for name, value in vars(found.backend.service.step).items())
    return (
        file_text(calibration, _HEADER)
        + f"# One step of this run, as deployment.service in a traffic file would say it:\n{constants}"
    )


def settings_beside(run: Path) -> tuple[Path, dict[str, object]] | None:
    """The file ``NAME_meta.json`` (or ``.gz``) beside ``NAME_requests.…``, and the deployment's keys that it states.

    None without such a file. It is read as LLMServingSim's benchmark writes it
    (github.com/casys-kaist/LLMServingSim @ 5daddb21): the model and engine arguments, vLLM's version, the pool in
    blocks, the device's name, and vLLM's resolved switches.
    """
    stem, mark, _ = run.name.partition(_REQUESTS)
    found = (run.with_name(f"{stem}{_META}{ending}") for ending in ("", ".gz"))
    path = next((path for path in found if mark and path.is_file()), None)
    return None if path is None else (path, _deployment_keys(_read(path)))


def _read(path: Path) -> Mapping[str, object]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            document = json.loads(stream.read(_LARGEST_BYTES))
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path} is not JSON", hint="fix it, or move it away and give the options", file=str(path)
        ) from error
    return document if isinstance(document, Mapping) else {}


def _deployment_keys(document: Mapping[str, object]) -> dict[str, object]:
    arguments, resolved = _part(document, "engine_kwargs"), _part(document, "resolved_config")
    keys = {key: arguments[name] for name, key in _ARGUMENTS.items() if arguments.get(name) is not None}
    blocks = _part(document, "kv_cache").get("num_gpu_blocks")
    if blocks is not None:
        keys["kv_pool"] = {"blocks": blocks}
    version = document.get("vllm_version")
    known = (
        ("model", arguments.get("model"), str),
        ("engine", f"vllm@{version}" if isinstance(version, str) else None, str),
        ("gpu", _part(document, "hardware").get("device_name"), str),
        ("async_scheduling", _part(resolved, "scheduler_config").get("async_scheduling"), bool),
        ("prefix_caching", _part(resolved, "cache_config").get("enable_prefix_caching"), bool),
    )
    return keys | {key: value for key, value, kind in known if isinstance(value, kind)}


def _part(document: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = document.get(name)
    return part if isinstance(part, Mapping) else {}
