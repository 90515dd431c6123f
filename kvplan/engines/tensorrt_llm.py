"""TensorRT-LLM: a share of what is free after loading becomes blocks; a request gets all its blocks before it starts.

Source: ``kvCacheManager.cpp``, ``_torch/pyexecutor/_util.py`` and ``kv_cache/vswa.py`` of the public repository, and
start-up logs. The pool follows exactly from the free memory; how much is free is an estimate (weights, one step's
activations, the context).
"""

import shlex
from dataclasses import replace
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.devices import window_of
from kvplan.engines.engine import ADAPTERS, CHUNKS, EAGER, EXPERTS, OFFLOAD, Engine, EngineMetrics
from kvplan.engines.engine_plan import Budget, BudgetTerm, EnginePlan, Finding, Settings
from kvplan.engines.flag_values import (
    EXPERT_RANKS,
    STAGES,
    attention_ranks,
    kv_word,
    memory_share,
    sequences,
    step_tokens,
    unless,
    when,
    window,
)
from kvplan.engines.memory_share import utilization_of_free
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
    FP8,
    NVFP4,
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    KvTypes,
    LatentAttention,
    RecurrentLayer,
    SharedKv,
    SlidingAttention,
)
from kvplan.model import ModelSpec

_TYPES = {
    "bfloat16": BFLOAT16,
    "float16": FLOAT16,
    "fp8": FP8,
    "nvfp4": NVFP4,  # the scales have a pool of their own
}
_PRICED = (FullAttention, SlidingAttention, ChunkedAttention, LatentAttention, CrossAttention)
FREE_FRACTION = Fraction(9, 10)
BLOCK_TOKENS = 32
MAX_SEQUENCES = 2048
MAX_STEP_TOKENS = 8192
"""Defaults of ``free_gpu_memory_fraction``, ``tokens_per_block``, ``max_batch_size`` and ``max_num_tokens``."""
_BAND_SHARE = Fraction(5, 100)
"""The least half width, as a share of the pool: one log was compared."""


def kv_types(model: ModelSpec, deployment: Deployment) -> KvTypes:
    """The stored types; ``auto`` is the checkpoint's KV scheme, else the model's type."""
    word = (model.kv_scheme or model.dtype) if deployment.kv_dtype == "auto" else deployment.kv_dtype
    stored = named_type("fp8" if word.startswith("fp8") else word, _TYPES, "TensorRT-LLM")
    return KvTypes(key=stored, value=stored)


def plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    """Blocks of one pool, charged ceil(L / block) and reserved to completion (GUARANTEED_NO_EVICT, the default).

    Windows have pools of their own only where ``max_attention_window`` is given; by default all layers have one window
    of ``max_seq_len``.
    """
    _refuse(model, deployment)
    settings = _settings(model, deployment)
    return one_pool_plan(
        model,
        deployment,
        settings,
        kv_types(model, deployment),
        block_tokens=deployment.block_size or BLOCK_TOKENS,
        budget_of=lambda stage: _budget(model, deployment, settings, stage),
        findings=_findings(model, deployment),
    )


def _settings(model: ModelSpec, deployment: Deployment) -> Settings:
    return Settings(
        max_model_len=window_of(model, deployment),
        max_num_seqs=deployment.max_num_seqs or MAX_SEQUENCES,
        max_num_batched_tokens=deployment.max_num_batched_tokens or MAX_STEP_TOKENS,
        memory_utilization=utilization_of_free(deployment, "TensorRT-LLM") or FREE_FRACTION,
        async_scheduling=deployment.async_scheduling is not False,
        prefix_caching=deployment.prefix_caching is not False,
        in_flight_tokens=0,
    )


def _refuse(model: ModelSpec, deployment: Deployment) -> None:
    kept = model.caches
    if model.is_encoder_decoder:
        raise UnsupportedModelError(
            f"cannot tell: TensorRT-LLM divides its pool between self and cross attention by a fraction that is not "
            f"modelled ({model.id})",
            hint="per request: self-attention KV up to the output limit, cross-attention KV of the encoder's length "
            "(kvplan model shows both); set max_input_len to the encoder's length",
            key="engine",
        )
    if any(isinstance(layer, RecurrentLayer) for layer in kept):
        raise UnsupportedModelError(
            "cannot tell: TensorRT-LLM keeps recurrent states for max_batch_size sequences, and snapshots of them for "
            "block reuse, in a way that differs from release to release",
            hint="plan it for vLLM or SGLang, or start the engine once and read its log: kvplan calibrate LOG",
            key="engine",
        )
    widths = {layer.head_dim for layer in kept if isinstance(layer, (FullAttention, SlidingAttention))}
    if len(widths) > 1 or any(isinstance(layer, SharedKv) for layer in kept):
        raise UnsupportedModelError(
            "cannot tell: for layers with heads of several widths, or that share KV, TensorRT-LLM makes pools of "
            "several page sizes, which are not modelled",
            hint="plan it for vLLM, or start the engine once and read its log: kvplan calibrate LOG",
            key="engine",
        )
    refuse_other_kinds(model, "TensorRT-LLM", but=_PRICED)
    refuse_options(
        "TensorRT-LLM",
        (deployment.context_parallel > 1, "decode context parallelism"),
        (deployment.speculative_tokens > 0, "speculative decoding"),
    )


def _budget(model: ModelSpec, deployment: Deployment, settings: Settings, stage: int) -> Budget:
    """The pool is the fraction of total − weights − context − one step."""
    loaded, share = load_rank(model, deployment, stage), settings.memory_utilization
    step = logits_and_step_bytes(
        model, settings.max_num_batched_tokens, settings.max_num_seqs, deployment.tensor_parallel
    )
    term = BudgetTerm(name="activations", bytes=step, formula="one step of hidden states, and logits in float32")
    budget = free_share_budget(deployment, loaded, loaded.total_bytes, term, share)
    kv, unsure = budget.kv_bytes, loaded.weights.bytes * loaded.weights.uncertainty_share + step
    half = max(int(unsure * share), int(abs(kv) * _BAND_SHARE))
    return replace(budget, kv_bytes_low=kv - half, kv_bytes_high=kv + half).corrected(deployment.corrections)


def logits_and_step_bytes(model: ModelSpec, step_tokens: int, sequences: int, tensor_parallel: int) -> int:
    """One step of T tokens, and float32 logits of min(S, T) sequences.

    Qwen3-0.6B on an H100: 1.3 GiB; its log implies 1.2 GiB (79.1 − 68.69 / 0.9 − 1.1 weights − 0.5 context).
    """
    logits = min(sequences, step_tokens) * (model.shape.vocabulary or 0) * 4
    return step_bytes(model.shape, step_tokens, tensor_parallel) + logits


def _findings(model: ModelSpec, deployment: Deployment) -> tuple[Finding, ...]:
    whole = windows_kept_whole(
        "TensorRT-LLM",
        window_layers(model),
        "with max_attention_window each window gets a pool with an equal share of the memory, which is not modelled",
    )
    findings = [*model_notes(model), *whole]
    if deployment.kv_memory_bytes is None:
        findings.append(free_memory_estimated("TensorRT-LLM", "one log was compared"))
    lines = _file_lines(deployment)
    if lines:
        findings.append(
            Finding(
                code="options-by-file",
                severity="warning",
                message="trtllm-serve reads these options only from a YAML file: " + "; ".join(lines),
                hint="--extra_llm_api_options FILE",
            )
        )
    findings.append(
        Finding(
            code="no-evict",
            severity="info",
            message="GUARANTEED_NO_EVICT (the default) reserves a request's blocks to its cap before it starts; "
            "MAX_UTILIZATION does not, and pauses requests when the pool runs out",
        )
    )
    return tuple(findings)


def _file_lines(deployment: Deployment) -> list[str]:
    """The options that trtllm-serve has no flag for (``KvCacheConfig`` and ``TorchLlmArgs`` of 1.2), as YAML."""
    pool_options = {
        "tokens_per_block": deployment.block_size,
        "enable_block_reuse": "false" if deployment.prefix_caching is False else None,
        "max_gpu_total_bytes": deployment.kv_memory_bytes,
    }
    pool = ", ".join(f"{key}: {value}" for key, value in pool_options.items() if value is not None)
    lines = [f"kv_cache_config: {{{pool}}}"] if pool else []
    return [*lines, "disable_overlap_scheduler: true"] if deployment.async_scheduling is False else lines


ENGINE = Engine(
    name="tensorrt-llm",
    has=frozenset(
        {
            "expert_parallel",
            "memory_utilization",
            "async_scheduling",
            "prefix_caching",
            "chunked_prefill",
            "block_size",
            "kv_offload_bytes",
        }
    ),
    unpriced=(ADAPTERS, OFFLOAD, EAGER, EXPERTS, CHUNKS),
    kv_types=kv_types,
    plan=plan,
    flags={
        "--tp_size": unless(1, attention_ranks),
        "--pp_size": STAGES,
        "--enable_attention_dp": when(lambda deployment: deployment.data_parallel > 1),
        "--ep_size": EXPERT_RANKS,
        "--max_seq_len": window,
        "--max_batch_size": sequences,
        "--max_num_tokens": step_tokens,
        "--kv_cache_free_gpu_memory_fraction": memory_share,
        "--kv_cache_dtype": kv_word({"bfloat16": None, "float16": None}),
    },
    command=lambda served: f"trtllm-serve {shlex.quote(served.model.id)}",
    metrics=lambda _: EngineMetrics(
        kv_usage='nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',
        waiting='nv_trt_llm_request_metrics{request_type="waiting"}',
    ),
    not_on=frozenset({"amd", "apple"}),
)
