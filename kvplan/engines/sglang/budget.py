"""One rank's memory under SGLang: a static share of what is free before loading, for weights and pools."""

from dataclasses import replace

from kvplan.engines.base import Budget, BudgetTerm, Deployment
from kvplan.engines.corrections import corrected
from kvplan.engines.sglang.drafting import draft_term
from kvplan.engines.sglang.reserve import serves_vision, static_fraction
from kvplan.engines.sglang.rules import Pools, kv_memory
from kvplan.engines.weights import load_rank
from kvplan.model import ModelSpec
from kvplan.units import GIB, MIB

_CONTEXT_BYTES = int(0.45 * GIB)
_COMMUNICATION_BYTES = GIB // 2
_LINKED_COMMUNICATION_BYTES = 2 * GIB
_WIDE_GPUS = 8
VISION_CACHE_BYTES = 100 * MIB
"""``SGLANG_VLM_CACHE_SIZE_MB`` by default."""
_BAND_BYTES = int(0.3 * GIB)
_WIDE_BAND_BYTES = int(0.8 * GIB)
"""Half widths beside the weights' own: contexts of 0.45 to 0.7, and what eight GPUs and more hold to communicate."""


def before_loading_bytes(deployment: Deployment) -> int:
    """What is taken on each GPU before weights are loaded: the driver's context, and communication.

    One GPU: 0.45 on an L40S, 0.7 on H100 and H200. Eight: 2.5 linked by NVLink (H200), 1.0 without (RTX PRO 6000).
    """
    if deployment.gpus == 1:
        return _CONTEXT_BYTES
    is_linked = deployment.gpu is not None and deployment.gpu.link_bytes_per_s is not None
    wide = is_linked and deployment.gpus >= _WIDE_GPUS
    return _CONTEXT_BYTES + (_LINKED_COMMUNICATION_BYTES if wide else _COMMUNICATION_BYTES)


def rank_budget(model: ModelSpec, deployment: Deployment, stage: int) -> Budget | None:
    """One rank, None where the KV memory was given: the static share is of what is free before loading."""
    if deployment.kv_memory_bytes is not None:
        return None
    loaded = load_rank(model, deployment, stage)
    before = before_loading_bytes(deployment)
    fraction = static_fraction(model, deployment, loaded.total_bytes)
    inside = [BudgetTerm(name="weights", bytes=loaded.weights.bytes, formula=loaded.weights.formula)]
    if serves_vision(model):
        inside.append(BudgetTerm(name="vision_cache", bytes=VISION_CACHE_BYTES, formula="SGLANG_VLM_CACHE_SIZE_MB"))
    draft = draft_term(model, deployment)
    if draft is not None:
        inside.append(draft)
    taken, free = sum(term.bytes for term in inside), loaded.total_bytes - before
    left = kv_memory(free, free - taken, fraction)
    requested = taken + left
    outside = (
        BudgetTerm(
            name="before_loading",
            bytes=before,
            formula="the driver's context and communication buffers",
            inside_fraction=False,
        ),
        BudgetTerm(
            name="activations_and_graphs",
            bytes=free - requested,
            formula=f"free before loading × (1 − {float(fraction):.4g})",
            inside_fraction=False,
        ),
    )
    band = _BAND_BYTES if deployment.gpus < _WIDE_GPUS else _WIDE_BAND_BYTES
    half = int(loaded.weights.bytes * loaded.weights.unsure_share) + band
    answer = Budget(
        rank=loaded.rank,
        total_bytes=loaded.total_bytes,
        requested_bytes=requested,
        terms=(*outside, *inside),
        kv_bytes=left,
        kv_bytes_low=left - half,
        kv_bytes_high=left + half,
    )
    return corrected(answer, deployment.corrections)


def with_states(budget: Budget | None, pools: Pools) -> Budget | None:
    """The budget with the state pool as a term of its own."""
    if budget is None or not pools.state_bytes:
        return budget
    formula = f"{pools.state_slots:,} states, and one that pads a batch"
    return replace(
        budget,
        terms=(*budget.terms, BudgetTerm(name="state_pool", bytes=pools.state_bytes, formula=formula)),
        kv_bytes=pools.kv_bytes,
        kv_bytes_low=budget.kv_bytes_low - pools.state_bytes,
        kv_bytes_high=budget.kv_bytes_high - pools.state_bytes,
    )
