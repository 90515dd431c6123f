"""The deployment that wrote a log: the settings that the log prints, and what the user adds."""

import re
from dataclasses import replace
from fractions import Fraction

from kvplan.engine_logs import EngineStart
from kvplan.engines.deployment import Deployment, EngineVersion
from kvplan.engines.sglang.budget import before_loading_bytes
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.profiles.kinds import GpuProfile

_CACHED = re.compile(r"models--([^/\\]+?)--([^/\\]+)[/\\]snapshots")
_RELEASE = re.compile(r"v?b?(\d+(?:\.\d+)*)")
_KV_TYPES = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "float4_e2m1fn_x2": "fp4_e2m1"}
"""PyTorch's names, which SGLang prints, and the words that ask for the same types."""


def release_in(version: str | None) -> tuple[int, ...] | None:
    """The numbers that a printed version begins with.

    >>> release_in("0.20.2rc1.dev9+g01d4d1ad3"), release_in("b8999"), release_in("unknown")
    ((0, 20, 2), (8999,), None)
    """
    match = None if version is None else _RELEASE.match(version)
    return None if match is None else tuple(int(part) for part in match[1].split("."))


def model_id_in(name: str) -> str:
    """The model's id, where an engine was started with a folder of the Hub's cache.

    >>> model_id_in("/cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/989aa7980e"), model_id_in("org/m")
    ('Qwen/Qwen3-8B', 'org/m')
    """
    found = _CACHED.search(name)
    return name if found is None else f"{found[1]}/{found[2]}"


def logged_deployment(start: EngineStart, gpu: GpuProfile | None = None, weight_bytes: int | None = None) -> Deployment:
    """What was deployed: the log's settings where it prints them, the engine's defaults elsewhere.

    Raises InputError where neither the log nor ``gpu`` says how much memory there was.
    """
    share = start.memory_utilization
    found = Deployment(
        engine=EngineVersion(name=start.engine, release=release_in(start.version)),
        gpu=gpu,
        tensor_parallel=start.tensor_parallel or 1,
        pipeline_parallel=start.pipeline_parallel or 1,
        data_parallel=start.data_parallel or 1,
        context_parallel=start.context_parallel or 1,
        kv_dtype=_KV_TYPES.get(start.kv_dtype or "", start.kv_dtype or "auto"),
        max_model_len=start.max_model_len or start.concurrency_tokens,
        max_num_seqs=start.max_num_seqs,
        max_num_batched_tokens=start.max_num_batched_tokens,
        memory_utilization=None if share is None else Fraction(str(round(share, 6))),
        async_scheduling=start.async_scheduling,
        prefix_caching=start.prefix_caching,
        enforce_eager=bool(start.enforce_eager),
        performance_mode=start.performance_mode or "balanced",
        weight_bytes=weight_bytes,
        block_size=start.asked_block_tokens if start.engine == "vllm" else start.block_tokens,
    )
    if start.engine == "llama.cpp":
        key_type, _, value_type = (start.kv_dtype or "").partition("/")
        found = replace(
            found,
            engine=EngineVersion(name=start.engine),
            kv_dtype="auto",
            cache_type_k=key_type or None,
            cache_type_v=value_type or key_type or None,
            max_model_len=start.kv_tokens,
            max_num_seqs=start.slots,
            kv_unified=start.kv_unified,
            block_size=None,
        )
    memory = _memory(start, found)
    if memory is None and gpu is None:
        raise InputError("the log does not say how much memory the GPU has", hint="name the GPU: --gpu h100", key="gpu")
    return found if memory is None else replace(found, gpu_memory_bytes=(memory,))


def with_drafter_of(start: EngineStart, model: ModelSpec, deployment: Deployment) -> Deployment:
    """``deployment`` with the log's speculative decoding, where the log says enough to plan it.

    That is n-grams, or the model's own next-token layers (every vLLM method that ends in "mtp"). A log does not print
    a draft model's config.
    """
    method = start.speculative_method or ""
    known = "mtp" if method.endswith("mtp") and model.next_token_layers else "ngram" if method == "ngram" else None
    if known is None or start.speculative_tokens is None:
        return deployment
    return replace(deployment, speculative_tokens=start.speculative_tokens, speculative_method=known)


def _memory(start: EngineStart, found: Deployment) -> int | None:
    """The GPU's memory as printed. SGLang prints only what is free before loading, llama.cpp that or the total."""
    if start.engine == "llama.cpp" and start.free_before_bytes is not None:
        return start.free_before_bytes
    if start.total_bytes is not None:
        return start.total_bytes
    if start.engine == "sglang" and start.free_before_bytes is not None:
        return start.free_before_bytes + before_loading_bytes(found)
    return None
