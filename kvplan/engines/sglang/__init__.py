"""SGLang: what its static share leaves beside the weights is a pool of tokens, with a window or a state pool beside it.

The rules hold for 0.5; older releases had other defaults.
"""

import shlex
from collections.abc import Mapping

from kvplan.engines.base import Deployment, EnginePlan
from kvplan.engines.devices import capability_of
from kvplan.engines.engine import Engine, EngineMetrics
from kvplan.engines.flag_values import FlagValue, Served
from kvplan.layers import KvTypes
from kvplan.model import ModelSpec


def _kv_types(model: ModelSpec, deployment: Deployment) -> KvTypes:
    from kvplan.engines.sglang.rules import kv_types

    return kv_types(model, deployment.kv_dtype, capability_of(deployment), deployment.engine.release)


def _plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    from kvplan.engines.sglang.plan import plan

    return plan(model, deployment)


def _flags() -> Mapping[str, FlagValue]:
    from kvplan.engines.sglang.flags import FLAGS

    return FLAGS


def _command(served: Served) -> str:
    stages = served.deployment.pipeline_layers
    partition = f"SGLANG_PP_LAYER_PARTITION={','.join(map(str, stages))} " if stages else ""
    return f"{partition}python -m sglang.launch_server --model-path {shlex.quote(served.model.id)}"


ENGINE = Engine(
    name="sglang",
    has=frozenset(
        {
            "expert_parallel",
            "memory_utilization",
            "async_scheduling",
            "prefix_caching",
            "chunked_prefill",
            "hybrid_kv_cache_manager",
            "block_size",
            "window_pool_ratio",
            "state_pool_ratio",
            "pipeline_layers",
            "media_limits",
            "kv_offload_bytes",
        }
    ),
    kv_types=_kv_types,
    plan=_plan,
    flags=_flags,
    command=_command,
    metrics=lambda _: EngineMetrics(kv_usage="sglang:token_usage", waiting="sglang:num_queue_reqs"),
)
