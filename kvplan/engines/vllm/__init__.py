"""vLLM: exact for 0.33 on Hopper; other releases and GPUs by the rules known for them, with a finding.

The flags are those of the argument parser of 0.33. The plan is imported when one is made: ``kvplan model`` asks the
default engine only for its KV types, and must start fast.
"""

import json
import shlex
from collections.abc import Mapping
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.devices import capability_of
from kvplan.engines.engine import Engine, EngineMetrics
from kvplan.engines.engine_plan import EnginePlan
from kvplan.engines.flag_values import (
    LORA,
    LORA_SLOTS,
    NO_GRAPHS,
    NO_PREFIX_CACHE,
    ONE_POOL,
    REPLICAS,
    STAGES,
    TENSOR,
    FlagValue,
    Served,
    asked,
    decimal,
    lora_rank,
    media_items,
    memory_share,
    partition_variable,
    sequences,
    step_tokens,
    unless,
    when,
    window,
)
from kvplan.layers import KvTypes
from kvplan.model import ModelSpec
from kvplan.units import GIB

_FIRST_RENAMED_GAUGE = (0, 10)
"""V1 calls its gauge kv_cache_usage_perc; rules on the old name, gpu_cache_usage_perc, never fire there
(github.com/kubernetes-sigs/gateway-api-inference-extension/pull/1905)."""


def _kv_types(model: ModelSpec, deployment: Deployment) -> KvTypes:
    from kvplan.engines.vllm.kv_types import kv_types

    return kv_types(model, deployment.kv_dtype, capability=capability_of(deployment))


def _plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    from kvplan.engines.vllm.plan import plan

    return plan(model, deployment)


def _command(served: Served) -> str:
    return f"{partition_variable(served, 'VLLM_PP_LAYER_PARTITION')}vllm serve {shlex.quote(served.model.id)}"


def _speculation(served: Served) -> str | None:
    """The method, its model if it has one, and the number of tokens, in one JSON value."""
    from kvplan.engines.vllm.drafting import drafter_of

    drafter = drafter_of(served.model, served.deployment)
    if drafter is None:
        return None
    config: dict[str, object] = {"method": drafter.engine_word, "num_speculative_tokens": drafter.tokens}
    return json.dumps(config if drafter.model is None else {"model": drafter.model.id, **config})


def _offload_gib(served: Served) -> str | None:
    """GiB of host memory, of all ranks together."""
    size_bytes = served.deployment.kv_offload_bytes
    return None if size_bytes is None else decimal(Fraction(size_bytes, GIB))


def _default_cap(served: Served) -> str | None:
    """The generation config, by which vLLM caps every request, even one that asks for more (0.33, get_max_tokens)."""
    cap = served.largest_cap_tokens
    return None if cap is None else json.dumps({"max_new_tokens": cap})


_FLAGS: Mapping[str, FlagValue] = {
    "--tensor-parallel-size": TENSOR,
    "--pipeline-parallel-size": STAGES,
    "--data-parallel-size": REPLICAS,
    "--decode-context-parallel-size": unless(1, asked("context_parallel")),
    "--max-model-len": window,
    "--max-num-seqs": sequences,
    "--max-num-batched-tokens": step_tokens,
    "--performance-mode": unless("balanced", asked("performance_mode")),
    "--gpu-memory-utilization": memory_share,
    "--kv-cache-memory-bytes": asked("kv_memory_bytes"),
    "--kv-cache-dtype": unless("auto", asked("kv_dtype")),
    "--block-size": asked("block_size"),
    "--enable-chunked-prefill": when(lambda deployment: bool(deployment.chunked_prefill)),
    "--no-enable-chunked-prefill": when(lambda deployment: deployment.chunked_prefill is False),
    "--enforce-eager": NO_GRAPHS,
    "--speculative-config": _speculation,
    "--limit-mm-per-prompt": media_items,
    "--enable-expert-parallel": when(lambda deployment: deployment.expert_parallel),
    "--enable-lora": LORA,
    "--max-loras": LORA_SLOTS,
    "--max-lora-rank": lora_rank,
    "--kv-offloading-size": _offload_gib,
    "--async-scheduling": when(lambda deployment: bool(deployment.async_scheduling)),
    "--no-async-scheduling": when(lambda deployment: deployment.async_scheduling is False),
    "--enable-prefix-caching": when(lambda deployment: bool(deployment.prefix_caching)),
    "--no-enable-prefix-caching": NO_PREFIX_CACHE,
    "--disable-hybrid-kv-cache-manager": ONE_POOL,
    "--override-generation-config": _default_cap,
}


def _metrics(release: tuple[int, ...] | None) -> EngineMetrics:
    is_early = release is not None and release < _FIRST_RENAMED_GAUGE
    used = "vllm:gpu_cache_usage_perc" if is_early else "vllm:kv_cache_usage_perc"
    return EngineMetrics(kv_usage=used, waiting="vllm:num_requests_waiting")


ENGINE = Engine(
    name="vllm",
    default_release=(0, 33),
    has=frozenset(
        {
            "expert_parallel",
            "memory_utilization",
            "async_scheduling",
            "prefix_caching",
            "chunked_prefill",
            "performance_mode",
            "hybrid_kv_cache_manager",
            "block_size",
            "pipeline_layers",
            "media_limits",
            "kv_offload_bytes",
        }
    ),
    kv_types=_kv_types,
    plan=_plan,
    flags=_FLAGS,
    command=_command,
    metrics=_metrics,
)
