"""Ollama: a llama-server for each model, with a window for each of its parallel requests.

Source: ``llm/server.go`` (``-c num_ctx × parallel -np parallel``, the window cut to the model's) and
``server/routes.go`` (the window by the memory of all GPUs) of 0.33.
"""

import shlex
from dataclasses import replace

from kvplan.engines.base import Deployment, EnginePlan, EngineVersion, Finding
from kvplan.engines.devices import device_bytes
from kvplan.engines.engine import EAGER, Engine, EngineMetrics
from kvplan.engines.flag_values import Served
from kvplan.engines.ggml_types import cache_word
from kvplan.engines.llama_cpp import ENGINE as LLAMA_CPP
from kvplan.model import ModelSpec
from kvplan.units import GIB

_WINDOWS = ((47 * GIB, 262_144), (23 * GIB, 32_768), (0, 4096))
"""Memory of all GPUs together → ``num_ctx`` where nothing says one."""
_HINTS = {
    "cache-does-not-fit": "a smaller OLLAMA_CONTEXT_LENGTH or OLLAMA_NUM_PARALLEL, or OLLAMA_KV_CACHE_TYPE=q8_0",
    "no-output-cap-by-default": "PARAMETER num_predict N in the Modelfile, or num_predict with each request",
}
"""What to do in Ollama's words, where llama.cpp has a flag of its own."""


def _as_llama_server(model: ModelSpec, deployment: Deployment) -> Deployment:
    """The deployment of the llama-server that is started: all windows together are its context."""
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
    return replace(plan, findings=tuple(_in_its_words(finding) for finding in plan.findings))


def _in_its_words(finding: Finding) -> Finding:
    return replace(finding, hint=_HINTS.get(finding.code, finding.hint))


def _command(served: Served) -> str:
    """The environment that its service is started with."""
    kv_dtype = served.deployment.kv_dtype
    words = {
        "OLLAMA_CONTEXT_LENGTH": served.window_tokens,
        "OLLAMA_NUM_PARALLEL": served.settings.max_num_seqs,
        "OLLAMA_KV_CACHE_TYPE": None if kv_dtype == "auto" else cache_word(kv_dtype),
    }
    said = [f"{name}={shlex.quote(str(value))}" for name, value in words.items() if value is not None]
    return " ".join([*said, "ollama serve"])


ENGINE = Engine(
    name="ollama",
    not_on=frozenset(),
    has=frozenset(),
    unpriced=(EAGER,),
    kv_types=LLAMA_CPP.kv_types,
    plan=_plan,
    flags=dict,
    command=_command,
    metrics=lambda _: EngineMetrics(kv_usage=None, waiting=None),
)
