"""Text Generation Inference: the memory that a warm-up leaves becomes slots of one token; requests are charged to their
cap.

Source: ``flash_causal_lm.py`` (``warmup``: 0.95 of what is free), the router's and launcher's defaults; the last
release is 3.3.
"""

import shlex
from dataclasses import replace
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.devices import window_of
from kvplan.engines.engine import ADAPTERS, EAGER, Engine, EngineMetrics
from kvplan.engines.engine_plan import Budget, BudgetTerm, EnginePlan, Finding, Settings
from kvplan.engines.flag_values import (
    TENSOR,
    Served,
    asked,
    kv_word,
    memory_share,
    pool_tokens,
    step_tokens,
    unless,
    window,
)
from kvplan.engines.memory_share import utilization_of_total
from kvplan.engines.ranks import refuse_options, refuse_other_kinds
from kvplan.engines.token_pool import (
    free_memory_estimated,
    free_share_budget,
    model_notes,
    named_type,
    one_pool_plan,
    step_bytes,
    window_layers,
    windows_kept_whole,
)
from kvplan.engines.weights import load_rank
from kvplan.errors import UnsupportedModelError
from kvplan.layers import (
    BFLOAT16,
    FLOAT16,
    FullAttention,
    KvTypes,
    LatentAttention,
    RecurrentLayer,
    SlidingAttention,
    StoredType,
)
from kvplan.model import ModelSpec

_TYPES = {
    "bfloat16": BFLOAT16,
    "float16": FLOAT16,
    "fp8_e4m3fn": StoredType(name="fp8_e4m3fn", bytes_per_group=1),
    "fp8_e5m2": StoredType(name="fp8_e5m2", bytes_per_group=1),
}
_PRICED = (FullAttention, SlidingAttention)
FREE_SHARE = Fraction(95, 100)
"""Of what is free after the warm-up (``MEMORY_FRACTION`` of ``warmup``)."""
CONCURRENT_REQUESTS = 128
"""Default of the router's ``--max-concurrent-requests``."""
PREFILL_TOKENS = 4096
"""In place of what release 3 derives from the GPU (``max_batch_prefill_tokens``)."""
LAST_EARLY_RELEASE = 2
EARLY_WINDOW_TOKENS = 4096
UNCHUNKED_MARGIN_TOKENS = 49
"""What the launcher adds to the window (``max_input_tokens + 50`` of a window one longer)."""
PROMPT_LOGPROB_BYTES = 8
"""Logits and their log-softmax, float32."""
_KERNELS = {1: "flashinfer", 16: "paged", 256: "flashdecoding"}
"""Tokens of a block → the attention kernel with such blocks."""
_BAND_SHARE = Fraction(6, 100)
_VISION_BAND_SHARE = Fraction(40, 100)
"""Half widths as shares of the pool, from five logs; the pool of the one vision model was 0.64 of the plan."""


def kv_types(model: ModelSpec, deployment: Deployment) -> KvTypes:
    """The stored types; ``auto`` is the model's (``--kv-cache-dtype`` knows two 8-bit types)."""
    stored = named_type(model.dtype if deployment.kv_dtype == "auto" else deployment.kv_dtype, _TYPES, "TGI")
    return KvTypes(key=stored, value=stored)


def plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    """One pool of tokens (``max_batch_total_tokens``), charged prompt + max_new_tokens.

    A block is one token (FlashInfer, the default), 16 or 256 with other attention kernels.
    """
    _refuse(model, deployment)
    settings = _settings(model, deployment)
    return one_pool_plan(
        model,
        deployment,
        settings,
        kv_types(model, deployment),
        block_tokens=deployment.block_size or 1,
        budget_of=lambda _: _budget(model, deployment, settings),
        findings=_findings(model, deployment),
    )


def _settings(model: ModelSpec, deployment: Deployment) -> Settings:
    return Settings(
        max_model_len=_window(model, deployment),
        max_num_seqs=deployment.max_num_seqs or CONCURRENT_REQUESTS,
        max_num_batched_tokens=deployment.max_num_batched_tokens or _prefill_tokens(model, deployment),
        memory_utilization=utilization_of_total(deployment) or Fraction(1),
        async_scheduling=False,
        prefix_caching=deployment.prefix_caching is not False,
        in_flight_tokens=0,
    )


def _prefill_tokens(model: ModelSpec, deployment: Deployment) -> int:
    """``max_batch_prefill_tokens``: the window where prompts are not chunked, that is up to release 2 and with a vision
    encoder. Otherwise release 3 derives it from the GPU, and 4,096 is assumed.
    """
    window = _window(model, deployment)
    if _is_early(deployment):
        return window + UNCHUNKED_MARGIN_TOKENS
    return window if model.shape.has_vision else PREFILL_TOKENS


def _window(model: ModelSpec, deployment: Deployment) -> int:
    """``max_total_tokens`` as given, else the model's window; up to release 2 at most 4,096."""
    window = window_of(model, deployment)
    return min(window, EARLY_WINDOW_TOKENS) if deployment.max_model_len is None and _is_early(deployment) else window


def _is_early(deployment: Deployment) -> bool:
    """Up to release 2: prompts are not chunked, and the warm-up asks for every prompt token's log-probability."""
    release = deployment.engine.release
    return release is not None and release[0] <= LAST_EARLY_RELEASE


def _refuse(model: ModelSpec, deployment: Deployment) -> None:
    if model.keeps(LatentAttention):
        raise UnsupportedModelError(
            "cannot tell: TGI keeps MLA models' keys and values expanded for every head and padded to the kernel's "
            "width, not their latent",
            hint="plan it for vLLM or SGLang, which keep the latent",
            key="engine",
        )
    if model.keeps(RecurrentLayer):
        raise UnsupportedModelError(
            "cannot tell: TGI runs models with recurrent state without a paged cache, in batches of a fixed size",
            hint="plan it for vLLM or SGLang",
            key="engine",
        )
    refuse_other_kinds(model, "TGI", but=_PRICED)
    refuse_options(
        "TGI",
        (deployment.pipeline_parallel > 1, "pipeline parallelism"),
        (deployment.data_parallel > 1, "attention data parallelism"),
        (deployment.context_parallel > 1, "decode context parallelism"),
        (deployment.speculative_tokens > 0, "speculation"),
    )


def _budget(model: ModelSpec, deployment: Deployment, settings: Settings) -> Budget:
    """The pool is 0.95 × (memory × cuda_memory_fraction − weights − context − the warm-up prefill)."""
    loaded = load_rank(model, deployment)
    prefill = prefill_bytes(
        model,
        settings.max_num_batched_tokens,
        deployment.tensor_parallel,
        prompt_logprobs=_is_early(deployment),
    )
    term = BudgetTerm(name="activations", bytes=prefill, formula="the warm-up prefill")
    requested = int(loaded.total_bytes * settings.memory_utilization)
    budget = free_share_budget(deployment, loaded, requested, term, FREE_SHARE)
    kv = budget.kv_bytes
    half = max(int(loaded.weights.bytes * loaded.weights.uncertainty_share) + prefill, int(abs(kv) * _BAND_SHARE))
    below = max(half, int(abs(kv) * _VISION_BAND_SHARE)) if model.shape.has_vision else half
    return replace(budget, kv_bytes_low=kv - below, kv_bytes_high=kv + half).corrected(deployment.corrections)


def prefill_bytes(model: ModelSpec, prefill_tokens: int, tensor_parallel: int, *, prompt_logprobs: bool) -> int:
    """A step of T tokens; up to release 2 the warm-up also asks for every prompt token's log-probability:
    T × 8 B × vocabulary on each rank.

    Llama-3.1-8B on an A10G, T = 4,145: 4.4 GiB, its log implies 4.2 (22.06 − 0.5 context − 14.96 weights −
    19,056 × 128 KiB / 0.95). Mistral-7B on an A100-80, T = 32,768: 11.2 GiB, its log implies 10.6.
    """
    logprobs = PROMPT_LOGPROB_BYTES * (model.shape.vocabulary or 0) if prompt_logprobs else 0
    return step_bytes(model.shape, prefill_tokens, tensor_parallel) + prefill_tokens * logprobs


def _findings(model: ModelSpec, deployment: Deployment) -> tuple[Finding, ...]:
    findings = [*model_notes(model), *windows_kept_whole("TGI", window_layers(model))]
    if deployment.kv_memory_bytes is None:
        evidence = "five logs were compared"
        if model.shape.has_vision:
            evidence += "; a vision model's pool was 0.64 of the plan, because its warm-up runs the encoder"
        findings.append(free_memory_estimated("TGI", evidence))
    findings.append(
        Finding(
            code="router-limits",
            severity="info",
            message="the router refuses (429) beyond 128 concurrent requests; a batch is charged prompt + "
            "max_new_tokens of each request, of which at most 1,024 at a time",
            hint="--max-concurrent-requests",
        )
    )
    return tuple(findings)


def _command(served: Served) -> str:
    """The launcher, and environment variables for what it has no flag for (issue 2676 of the repository)."""
    kernel = _KERNELS.get(served.deployment.block_size or 0)
    words = [] if kernel is None else [f"ATTENTION={kernel}"]
    if served.deployment.prefix_caching is False:
        words.append("PREFIX_CACHING=0")
    return " ".join([*words, f"text-generation-launcher --model-id {shlex.quote(served.model.id)}"])


ENGINE = Engine(
    name="tgi",
    has=frozenset({"memory_utilization", "prefix_caching", "block_size"}),
    unpriced=(ADAPTERS, EAGER),
    kv_types=kv_types,
    plan=plan,
    flags={
        "--num-shard": TENSOR,
        "--max-total-tokens": window,
        "--max-batch-prefill-tokens": step_tokens,
        "--max-batch-total-tokens": pool_tokens,
        "--max-concurrent-requests": asked("max_num_seqs"),
        "--cuda-memory-fraction": unless("1", memory_share),
        "--kv-cache-dtype": kv_word({"bfloat16": None, "float16": None}),
    },
    command=_command,
    metrics=lambda _: EngineMetrics(kv_usage=None, waiting="tgi_queue_size"),
)
