"""What an engine makes of layers and a GPU: pages, pools, budgets. One file or folder per engine."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module

from kvplan.engines.base import Deployment, EnginePlan, EngineVersion
from kvplan.engines.options import check_belongs, check_options, unpriced_options
from kvplan.engines.sharing import sharing_findings
from kvplan.engines.statement import Engine
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
"""Name → the module that states the engine, as ``ENGINE``; it is imported only when it is asked for."""

_ALIASES = {
    **dict.fromkeys(("tensorrt", "trt", "trtllm", "trt-llm"), "tensorrt-llm"),
    **dict.fromkeys(("llamacpp", "llama-cpp", "llama-server"), "llama.cpp"),
    "text-generation-inference": "tgi",
}
_VERSION = re.compile(r"[vb]?([0-9]+(?:\.[0-9]+)*)(?:[.+\-]?[A-Za-z].*)?")


def parse_engine(text: str) -> EngineVersion:
    """The engine and release named by ``text``: ``vllm``, or ``vllm@0.20``.

    Raises InputError for an engine that is not in the table and for a release that is not numbers.

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
    """What the engine ``name`` states of itself. Raises InputError for one that is not in the table."""
    _check_name(name)
    engine: Engine = import_module(ENGINES[name]).ENGINE
    return engine


def every_engine() -> Iterator[Engine]:
    """All of them, each imported as it is reached."""
    return map(engine_of, ENGINES)


def engine_plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    """What the engine of ``deployment`` makes of ``model``."""
    engine = engine_of(deployment.engine.name)
    check_options(deployment, engine, every_engine())
    check_belongs(deployment)
    plan = engine.plan(model, deployment)
    shared = () if plan.budget is None else sharing_findings(deployment, plan.budget)
    return replace(
        plan, findings=(*plan.findings, *shared), unpriced=(*unpriced_options(deployment, engine), *plan.unpriced)
    )
