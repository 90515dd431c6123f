"""How engines turn layers and a GPU into pages, pools and budgets: one file or folder per engine."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module

from kvplan.engines.deployment import Deployment, EngineVersion
from kvplan.engines.engine import Engine
from kvplan.engines.engine_plan import EnginePlan
from kvplan.engines.memory_share import share_findings
from kvplan.engines.options import check_options, unpriced_options
from kvplan.errors import InputError
from kvplan.model import ModelSpec

ENGINES: Mapping[str, str] = {
    "vllm": "kvplan.engines.vllm",
    "sglang": "kvplan.engines.sglang",
    "tensorrt-llm": "kvplan.engines.tensorrt_llm",
    "llama.cpp": "kvplan.engines.llama_cpp",
    "tgi": "kvplan.engines.tgi",
    "ollama": "kvplan.engines.ollama",
}
"""Name → the module whose ``ENGINE`` declares it, imported when the engine is first used."""

_ALIASES = {
    **dict.fromkeys(("tensorrt", "trt", "trtllm", "trt-llm"), "tensorrt-llm"),
    **dict.fromkeys(("llamacpp", "llama-cpp", "llama-server"), "llama.cpp"),
    "text-generation-inference": "tgi",
}
_VERSION = re.compile(r"[vb]?([0-9]+(?:\.[0-9]+)*)(?:[.+\-]?[A-Za-z].*)?")


def parse_engine(text: str) -> EngineVersion:
    """The engine and release that ``text`` names: ``vllm`` or ``vllm@0.20``.

    Raises InputError for an unknown engine, and for a release that is not made of numbers.

    >>> parse_engine("vllm@0.20").release, parse_engine("vllm").release, parse_engine("llama_cpp").name
    ((0, 20), None, 'llama.cpp')
    """
    name, at, version = text.strip().partition("@")
    plain = name.lower().replace("_", "-")
    name = _ALIASES.get(plain, plain)
    _check_name(name)
    if not at:
        return EngineVersion(name=name)
    match = _VERSION.fullmatch(version)
    if match is None:
        raise InputError(f"{version!r} is not a release", hint=f"write it like {name}@0.20", key="engine")
    return EngineVersion(name=name, release=tuple(int(part) for part in match[1].split(".")))


def _check_name(name: str) -> None:
    if name not in ENGINES:
        raise InputError(
            f"{name!r} is not an engine that kvplan knows", hint=f"one of {', '.join(ENGINES)}", key="engine"
        )


def engine_of(name: str) -> Engine:
    """The declaration of the engine ``name``. Raises InputError for an unknown one."""
    _check_name(name)
    engine: Engine = import_module(ENGINES[name]).ENGINE
    return engine


def every_engine() -> Iterator[Engine]:
    """All engines, each imported as it is reached."""
    return map(engine_of, ENGINES)


def engine_plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    """The plan of the deployment's engine for ``model``."""
    engine = engine_of(deployment.engine.name)
    check_options(deployment, engine, every_engine())
    plan = engine.plan(model, deployment)
    shared = () if plan.budget is None else share_findings(deployment, plan.budget)
    return replace(
        plan, findings=(*plan.findings, *shared), unpriced=(*unpriced_options(deployment, engine), *plan.unpriced)
    )
