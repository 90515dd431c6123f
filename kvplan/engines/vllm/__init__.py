"""vLLM: exact for 0.33 on Hopper; other releases and GPUs by the rules known of them, with a finding."""

import shlex
from collections.abc import Mapping

from kvplan.engines.base import Deployment, EnginePlan
from kvplan.engines.devices import capability_of
from kvplan.engines.engine import Engine, EngineMetrics
from kvplan.engines.flag_values import FlagValue, Served
from kvplan.layers import KvTypes
from kvplan.model import ModelSpec

_FIRST_RENAMED_GAUGE = (0, 10)
"""V1 calls its gauge kv_cache_usage_perc; rules on the old name, gpu_cache_usage_perc, never fire there
(github.com/kubernetes-sigs/gateway-api-inference-extension/pull/1905)."""


def _kv_types(model: ModelSpec, deployment: Deployment) -> KvTypes:
    from kvplan.engines.vllm.storage import kv_types

    return kv_types(model, deployment.kv_dtype, capability=capability_of(deployment))


def _plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    from kvplan.engines.vllm.plan import plan

    return plan(model, deployment)


def _flags() -> Mapping[str, FlagValue]:
    from kvplan.engines.vllm.flags import FLAGS

    return FLAGS


def _command(served: Served) -> str:
    stages = served.deployment.pipeline_layers
    partition = f"VLLM_PP_LAYER_PARTITION={','.join(map(str, stages))} " if stages else ""
    return f"{partition}vllm serve {shlex.quote(served.model.id)}"


def _metrics(release: tuple[int, ...] | None) -> EngineMetrics:
    is_early = release is not None and release < _FIRST_RENAMED_GAUGE
    used = "vllm:gpu_cache_usage_perc" if is_early else "vllm:kv_cache_usage_perc"
    return EngineMetrics(kv_usage=used, waiting="vllm:num_requests_waiting")


ENGINE = Engine(
    name="vllm",
    has=frozenset(
        {
            "expert_parallel",
            "memory_utilization",
            "async_scheduling",
            "prefix_caching",
            "chunked_prefill",
            "hybrid_kv_cache_manager",
            "block_size",
            "pipeline_layers",
            "media_limits",
            "kv_offload_bytes",
        }
    ),
    kv_types=_kv_types,
    plan=_plan,
    flags=_flags,
    command=_command,
    metrics=_metrics,
)
