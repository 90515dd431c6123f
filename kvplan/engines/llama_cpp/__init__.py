"""llama.cpp (also under Ollama): a static cache per server, shared by its slots or divided among them."""

from collections.abc import Mapping

from kvplan.engines.base import Deployment, EnginePlan
from kvplan.engines.engine import EAGER, Engine, EngineMetrics
from kvplan.engines.flag_values import FlagValue, Served
from kvplan.layers import KvTypes
from kvplan.model import ModelSpec


def _kv_types(model: ModelSpec, deployment: Deployment) -> KvTypes:
    from kvplan.engines.llama_cpp.plan import kv_types

    return kv_types(model, deployment)


def _plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    from kvplan.engines.llama_cpp.plan import plan

    return plan(model, deployment)


def _flags() -> Mapping[str, FlagValue]:
    from kvplan.engines.llama_cpp.flags import FLAGS

    return FLAGS


def _command(served: Served) -> str:
    from kvplan.engines.llama_cpp.flags import model_words

    return f"llama-server {model_words(served.model.id)}"


ENGINE = Engine(
    name="llama.cpp",
    has=frozenset({"cache_type_k", "cache_type_v", "kv_unified", "swa_full", "pipeline_layers"}),
    unpriced=(EAGER,),
    kv_types=_kv_types,
    plan=_plan,
    flags=_flags,
    command=_command,
    metrics=lambda _: EngineMetrics(kv_usage=None, waiting="llamacpp:requests_deferred"),
    not_on=frozenset(),
)
