"""TensorRT-LLM: a share of what is free after loading becomes blocks; a request has all its blocks before it starts.

Source: ``kvCacheManager.cpp`` and ``_torch/pyexecutor/_util.py`` of the public repository, and start-up logs. The pool
is exact from the memory that is free; how much is free is an estimate (weights, one step's activations, the context).
"""

from fractions import Fraction

from kvplan.engines.base import (
    Budget,
    BudgetTerm,
    CacheGroup,
    CacheLayout,
    Deployment,
    EnginePlan,
    Finding,
    Settings,
)
from kvplan.engines.corrections import corrected
from kvplan.engines.ranks import Kept, keep, rank_stages, refuse_options, refuse_other_kinds
from kvplan.engines.vllm.budget import device_memories
from kvplan.engines.vllm.settings import window_of
from kvplan.engines.vllm.weights import rank_weights
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import (
    BFLOAT16,
    FLOAT16,
    CrossAttention,
    FullAttention,
    KvTypes,
    LatentAttention,
    SharedKv,
    StoredType,
)
from kvplan.model import ModelSpec
from kvplan.units import GIB

_TYPES = {
    "bfloat16": BFLOAT16,
    "float16": FLOAT16,
    "fp8": StoredType(name="fp8", bytes_per_group=1),
}
_PRICED = (FullAttention, LatentAttention, CrossAttention, SharedKv)
FREE_FRACTION = Fraction(9, 10)
BLOCK_TOKENS = 32
MAX_SEQUENCES = 2048
MAX_STEP_TOKENS = 8192
CONTEXT_BYTES = GIB // 2
_BAND_SHARE = Fraction(5, 100)


def pool_blocks(free_bytes: int, fraction: Fraction, block_bytes: int) -> int:
    """Blocks made of ``fraction`` of what is free after loading.

    >>> pool_blocks(int(17.83 * 2**30), Fraction(9, 10), 2 * 2**20)
    8216
    """
    return int(free_bytes * fraction) // block_bytes


def kv_types(model: ModelSpec, kv_dtype: str) -> KvTypes:
    """``auto`` follows the checkpoint's KV scheme, else the model's type."""
    word = (model.kv_scheme or model.dtype) if kv_dtype == "auto" else kv_dtype
    word = "fp8" if word.startswith("fp8") else word
    if word not in _TYPES:
        raise InputError(
            f"{word!r} is not a KV type of TensorRT-LLM that kvplan knows",
            hint=f"one of auto, {', '.join(_TYPES)}",
            key="kv_dtype",
        )
    return KvTypes(key=_TYPES[word], value=_TYPES[word])


class TensorrtLlm:
    """TensorRT-LLM as an ``Engine``."""

    name = "tensorrt-llm"

    def plan(self, model: ModelSpec, deployment: Deployment) -> EnginePlan:
        """Blocks of one pool, charged ceil(L / block) and reserved to completion (GUARANTEED_NO_EVICT, the default)."""
        _refuse(model, deployment)
        kv = kv_types(model, deployment.kv_dtype)
        settings = _settings(model, deployment)
        block = deployment.block_size or BLOCK_TOKENS
        chosen: tuple[int, Budget | None, CacheLayout, int] | None = None
        for stage, layers in enumerate(rank_stages(model, deployment)):
            kept = keep(layers, kv)
            layout = _layout(kept, block)
            budget = None if deployment.kv_memory_bytes is not None else _budget(model, deployment, settings, stage)
            memory = deployment.kv_memory_bytes if budget is None else budget.kv_bytes
            assert memory is not None
            blocks = max(0, memory // layout.bytes_per_block)
            if chosen is None or blocks < chosen[0]:
                chosen = (blocks, budget, layout, memory)
        assert chosen is not None
        blocks, budget, layout, memory = chosen
        return EnginePlan(
            settings=settings,
            kv_types=kv,
            layout=layout,
            kv_bytes=memory,
            blocks=blocks,
            budget=budget,
            findings=_findings(model, deployment),
            tokens=blocks * block,
        )


def _layout(kept: Kept, block: int) -> CacheLayout:
    group = CacheGroup(
        kind="full attention",
        layers=kept.counts[0],
        rule="full",
        block_tokens=block,
        page_bytes=max(1, int(kept.growing_per_token * block)),
    )
    return CacheLayout(
        block_tokens=block, bytes_per_block=group.page_bytes, groups=(group,), in_flight_tokens=0, reserved_blocks=0
    )


def _settings(model: ModelSpec, deployment: Deployment) -> Settings:
    return Settings(
        max_model_len=window_of(model, deployment),
        max_num_seqs=deployment.max_num_seqs or MAX_SEQUENCES,
        max_num_batched_tokens=deployment.max_num_batched_tokens or MAX_STEP_TOKENS,
        memory_utilization=deployment.memory_utilization or FREE_FRACTION,
        async_scheduling=deployment.async_scheduling is not False,
        prefix_caching=deployment.prefix_caching is not False,
        in_flight_tokens=0,
    )


def _refuse(model: ModelSpec, deployment: Deployment) -> None:
    if model.is_encoder_decoder:
        raise UnsupportedModelError(
            f"cannot tell: TensorRT-LLM shares its pool between self and cross attention by a fraction of its own, "
            f"which is not modelled ({model.id})",
            hint="per request: self-attention KV to the output limit, cross-attention KV to the encoder's length "
            "(kvplan model says both); set max_input_len to the encoder's length",
            key="engine",
        )
    refuse_other_kinds(model, "TensorRT-LLM", but=_PRICED)
    refuse_options(
        "TensorRT-LLM",
        (deployment.context_parallel > 1, "decode context parallelism"),
        (deployment.speculative_tokens > 0, "speculative decoding"),
    )


def _budget(model: ModelSpec, deployment: Deployment, settings: Settings, stage: int) -> Budget:
    """Free after loading = total − weights − context − one step; the pool is the fraction of it."""
    first = stage * deployment.tensor_parallel
    memories = device_memories(deployment)[first : first + deployment.tensor_parallel]
    total = min(memories)
    weights = rank_weights(
        model,
        tensor_parallel=deployment.tensor_parallel,
        pipeline_parallel=deployment.pipeline_parallel,
        stage=stage,
        data_parallel=deployment.data_parallel,
        given_bytes=deployment.weight_bytes,
    )
    step = step_bytes(model, settings.max_num_batched_tokens, settings.max_num_seqs, deployment.tensor_parallel)
    free = total - weights.bytes - CONTEXT_BYTES - step
    kv = int(free * settings.memory_utilization) if free > 0 else free
    half = int((weights.bytes * weights.unsure_share + step) * settings.memory_utilization)
    half = max(half, int(abs(kv) * _BAND_SHARE))
    answer = Budget(
        rank=first + memories.index(total),
        total_bytes=total,
        requested_bytes=total,
        terms=(
            BudgetTerm(name="weights", bytes=weights.bytes, formula=weights.formula),
            BudgetTerm(name="context", bytes=CONTEXT_BYTES, formula="the driver's and the library's own"),
            BudgetTerm(name="activations", bytes=step, formula="one step of hidden states, and logits in float32"),
            BudgetTerm(
                name="left_free",
                bytes=free - kv,
                formula=f"(1 − {float(settings.memory_utilization):g}) × what is free after loading",
            ),
        ),
        kv_bytes=kv,
        kv_bytes_low=kv - half,
        kv_bytes_high=kv + half,
    )
    return corrected(answer, deployment.corrections)


def step_bytes(model: ModelSpec, step_tokens: int, sequences: int, tensor_parallel: int) -> int:
    """One step: T × 2 B × (3 × intermediate / tp + 3 × hidden), and float32 logits of min(S, T) sequences.

    Qwen3-0.6B on an H100: 1.3 GiB; its log implies 1.2 GiB (79.1 − 68.69 / 0.9 − 1.1 weights − 0.5 context).
    """
    shape = model.shape
    width = 3 * (shape.intermediate or 4 * shape.hidden) // tensor_parallel + 3 * shape.hidden
    logits = min(sequences, step_tokens) * (shape.vocabulary or 0) * 4
    return 2 * step_tokens * width + logits


def _findings(model: ModelSpec, deployment: Deployment) -> tuple[Finding, ...]:
    findings = [Finding(code="model-note", severity="warning", message=note) for note in model.notes]
    if deployment.kv_memory_bytes is None:
        findings.append(
            Finding(
                code="free-memory-estimated",
                severity="warning",
                message="TensorRT-LLM measures what is free after loading; here it is estimated from few logs",
                hint="start it once, then plan with its own figure: kvplan calibrate LOG",
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


TENSORRT_LLM = TensorrtLlm()
