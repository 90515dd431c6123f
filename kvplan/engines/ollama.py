"""Ollama: a llama-server for each model, with one window per parallel request.

Source: ``llm/server.go`` (``-c num_ctx × parallel -np parallel``, the window cut to the model's) and
``server/routes.go`` (the window by the memory of all GPUs) of 0.33.
"""

import shlex
from dataclasses import replace

from kvplan.engines.deployment import Deployment, EngineVersion
from kvplan.engines.devices import device_bytes
from kvplan.engines.engine import EAGER, Engine, EngineMetrics
from kvplan.engines.engine_plan import EnginePlan
from kvplan.engines.flag_values import Served
from kvplan.engines.llama_cpp import ENGINE as LLAMA_CPP
from kvplan.engines.llama_cpp.cache import cache_word
from kvplan.model import ModelSpec
from kvplan.units import GIB

_WINDOWS = ((47 * GIB, 262_144), (23 * GIB, 32_768), (0, 4096))
"""Memory of all GPUs together → the default ``num_ctx``."""
_HINTS = {
    "cache-does-not-fit": "a smaller OLLAMA_CONTEXT_LENGTH or OLLAMA_NUM_PARALLEL, or OLLAMA_KV_CACHE_TYPE=q8_0",
    "no-output-cap-by-default": "PARAMETER num_predict N in the Modelfile, or num_predict with each request",
}
"""Hints in Ollama's words, where llama.cpp's are flags that Ollama does not have."""


def _as_llama_server(model: ModelSpec, deployment: Deployment) -> Deployment:
    """The deployment of the llama-server that Ollama starts: its context is all windows together."""
    gpus = deployment.tensor_parallel * deployment.pipeline_parallel
    default = next(window for least, window in _WINDOWS if device_bytes(deployment) * gpus >= least)
    window = min(deployment.max_model_len or default, model.max_context_tokens or default)
    slots = deployment.max_num_seqs or 1
    return replace(
        deployment,
        engine=EngineVersion(name=LLAMA_CPP.name),
        max_model_len=window * slots,
        max_num_seqs=slots,
        kv_unified=False,
    )


def _plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    plan = LLAMA_CPP.plan(model, _as_llama_server(model, deployment))
    findings = (replace(finding, hint=_HINTS.get(finding.code, finding.hint)) for finding in plan.findings)
    return replace(plan, findings=tuple(findings))


def _command(served: Served) -> str:
    """The environment that its service is started with."""
    kv_dtype = served.deployment.kv_dtype
    variables = {
        "OLLAMA_CONTEXT_LENGTH": served.window_tokens,
        "OLLAMA_NUM_PARALLEL": served.settings.max_num_seqs,
        "OLLAMA_KV_CACHE_TYPE": None if kv_dtype == "auto" else cache_word(kv_dtype),
    }
    words = [f"{name}={shlex.quote(str(value))}" for name, value in variables.items() if value is not None]
    return " ".join([*words, "ollama serve"])


ENGINE = Engine(
    name="ollama",
    not_on=frozenset(),
    has=frozenset(),
    unpriced=(EAGER,),
    kv_types=LLAMA_CPP.kv_types,
    plan=_plan,
    flags={},
    command=_command,
    metrics=lambda _: EngineMetrics(kv_usage=None, waiting=None),
)
