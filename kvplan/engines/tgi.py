"""Text Generation Inference: what a warm-up leaves free becomes slots of one token; requests are charged to their cap.

Source: ``flash_causal_lm.py`` (``warmup``: 0.95 of what is free), the router's and launcher's defaults; last release
3.3.
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
from kvplan.engines.ranks import keep, rank_stages, refuse_options, refuse_other_kinds
from kvplan.engines.vllm.budget import device_memories
from kvplan.engines.vllm.settings import window_of
from kvplan.engines.vllm.weights import rank_weights
from kvplan.errors import InputError
from kvplan.layers import BFLOAT16, FLOAT16, FullAttention, KvTypes, SharedKv, SlidingAttention, StoredType
from kvplan.model import ModelSpec
from kvplan.units import GIB

_TYPES = {
    "bfloat16": BFLOAT16,
    "float16": FLOAT16,
    "fp8_e4m3fn": StoredType(name="fp8_e4m3fn", bytes_per_group=1),
    "fp8_e5m2": StoredType(name="fp8_e5m2", bytes_per_group=1),
}
_PRICED = (FullAttention, SlidingAttention, SharedKv)
FREE_SHARE = Fraction(95, 100)
CONCURRENT_REQUESTS = 128
PREFILL_TOKENS = 4096
CONTEXT_BYTES = GIB // 2
_BAND_SHARE = Fraction(6, 100)


def kv_types(model: ModelSpec, kv_dtype: str) -> KvTypes:
    """``auto`` is the model's type (``--kv-cache-dtype`` knows two 8-bit ones)."""
    word = model.dtype if kv_dtype == "auto" else kv_dtype
    if word not in _TYPES:
        raise InputError(f"{word!r} is not a KV type of TGI", hint=f"one of auto, {', '.join(_TYPES)}", key="kv_dtype")
    return KvTypes(key=_TYPES[word], value=_TYPES[word])


class Tgi:
    """TGI as an ``Engine``: a block is one token (FlashInfer, the default), 16 or 256 with other attention kernels."""

    name = "tgi"

    def plan(self, model: ModelSpec, deployment: Deployment) -> EnginePlan:
        """One pool of tokens (``max_batch_total_tokens``), charged prompt + max_new_tokens."""
        _refuse(model, deployment)
        kv = kv_types(model, deployment.kv_dtype)
        settings = _settings(model, deployment)
        kept = keep(rank_stages(model, deployment)[0], kv)
        block = deployment.block_size or 1
        # every layer is paged to the request's full length: a window only masks
        group = CacheGroup(
            kind="full attention",
            layers=kept.counts[0] + kept.counts[1],
            rule="full",
            block_tokens=block,
            page_bytes=max(1, int(kept.token_bytes * block)),
        )
        layout = CacheLayout(
            block_tokens=block, bytes_per_block=group.page_bytes, groups=(group,), in_flight_tokens=0, reserved_blocks=0
        )
        budget = None if deployment.kv_memory_bytes is not None else _budget(model, deployment, settings)
        memory = deployment.kv_memory_bytes if budget is None else budget.kv_bytes
        assert memory is not None
        blocks = max(0, memory // layout.bytes_per_block)
        return EnginePlan(
            settings=settings,
            kv_types=kv,
            layout=layout,
            kv_bytes=memory,
            blocks=blocks,
            budget=budget,
            findings=_findings(model, deployment, windows=kept.counts[1]),
            tokens=blocks * block,
        )


def _settings(model: ModelSpec, deployment: Deployment) -> Settings:
    return Settings(
        max_model_len=window_of(model, deployment),
        max_num_seqs=deployment.max_num_seqs or CONCURRENT_REQUESTS,
        max_num_batched_tokens=deployment.max_num_batched_tokens or PREFILL_TOKENS,
        memory_utilization=deployment.memory_utilization or Fraction(1),
        async_scheduling=False,
        prefix_caching=deployment.prefix_caching is not False,
        in_flight_tokens=0,
    )


def _refuse(model: ModelSpec, deployment: Deployment) -> None:
    refuse_other_kinds(model, "TGI", but=_PRICED)
    refuse_options(
        "TGI",
        (deployment.pipeline_parallel > 1, "pipeline parallelism"),
        (deployment.data_parallel > 1, "attention data parallelism"),
        (deployment.context_parallel > 1, "decode context parallelism"),
        (deployment.speculative_tokens > 0, "speculation"),
    )


def _budget(model: ModelSpec, deployment: Deployment, settings: Settings) -> Budget:
    """0.95 × (memory × cuda_memory_fraction − weights − context − the warm-up prefill)."""
    memories = device_memories(deployment)
    total = min(memories)
    requested = int(total * settings.memory_utilization)
    weights = rank_weights(model, tensor_parallel=deployment.tensor_parallel, given_bytes=deployment.weight_bytes)
    prefill = prefill_bytes(model, settings.max_num_batched_tokens, deployment.tensor_parallel)
    free = requested - weights.bytes - CONTEXT_BYTES - prefill
    kv = int(free * FREE_SHARE) if free > 0 else free
    half = max(int(weights.bytes * weights.unsure_share) + prefill, int(abs(kv) * _BAND_SHARE))
    answer = Budget(
        rank=memories.index(total),
        total_bytes=total,
        requested_bytes=requested,
        terms=(
            BudgetTerm(name="weights", bytes=weights.bytes, formula=weights.formula),
            BudgetTerm(name="context", bytes=CONTEXT_BYTES, formula="the driver's and the library's own"),
            BudgetTerm(name="activations", bytes=prefill, formula="the warm-up prefill, and its logits"),
            BudgetTerm(name="left_free", bytes=free - kv, formula="0.05 × what is free after the warm-up"),
        ),
        kv_bytes=kv,
        kv_bytes_low=kv - half,
        kv_bytes_high=kv + half,
    )
    return corrected(answer, deployment.corrections)


def prefill_bytes(model: ModelSpec, prefill_tokens: int, tensor_parallel: int) -> int:
    """T × 2 B × (3 × intermediate / tp + 3 × hidden) of a prefill of T tokens."""
    shape = model.shape
    width = 3 * (shape.intermediate or 4 * shape.hidden) // tensor_parallel + 3 * shape.hidden
    return 2 * prefill_tokens * width


def _findings(model: ModelSpec, deployment: Deployment, *, windows: int) -> tuple[Finding, ...]:
    findings = [Finding(code="model-note", severity="warning", message=note) for note in model.notes]
    if windows:
        findings.append(
            Finding(
                code="windows-kept-whole",
                severity="info",
                message=f"{windows} window layers keep every token: TGI pages all layers alike",
            )
        )
    if deployment.kv_memory_bytes is None:
        findings.append(
            Finding(
                code="free-memory-estimated",
                severity="warning",
                message="TGI measures what is free after a warm-up; here it is estimated, and no log was compared",
                hint="start it once, then plan with its own figure: kvplan calibrate LOG",
            )
        )
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


TGI = Tgi()
