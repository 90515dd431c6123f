"""One rank's memory under SGLang: a static fraction of what is free before loading holds weights and pools."""

from dataclasses import replace

from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import Budget, BudgetTerm
from kvplan.engines.memory_share import others_term
from kvplan.engines.ranks import stage_layers
from kvplan.engines.sglang.drafting import draft_term
from kvplan.engines.sglang.pools import Pools, kv_memory
from kvplan.engines.sglang.static_fraction import serves_vision, static_fraction
from kvplan.engines.token_pool import adapters_term, dense_adapters_are_priced
from kvplan.engines.weights import load_rank
from kvplan.model import ModelSpec
from kvplan.units import GIB, MIB

_CONTEXT_BYTES = int(0.45 * GIB)
_HOPPER_CONTEXT_BYTES = int(0.7 * GIB)
_HOPPER = (9, 0)
_COMMUNICATION_BYTES = GIB // 10
_WIDE_COMMUNICATION_BYTES = GIB // 2
_LINKED_COMMUNICATION_BYTES = int(1.4 * GIB)
LOADED_BESIDE_BYTES = int(0.15 * GIB)
"""What loading takes besides the weights: rotary tables, and the allocator's rounding (0.06 to 0.28 GiB in seven
logs)."""
_WIDE_GPUS = 8
VISION_CACHE_BYTES = 100 * MIB
"""``SGLANG_VLM_CACHE_SIZE_MB`` by default."""
_BAND_BYTES = int(0.3 * GIB)
_WIDE_BAND_BYTES = int(0.8 * GIB)
"""Half widths besides the weights' own: for contexts of 0.4 to 0.75 GiB, and communication on eight or more GPUs."""


def before_loading_bytes(deployment: Deployment) -> int:
    """What each GPU holds before weights are loaded: the driver's context, and communication buffers.

    In GiB, on one GPU: 0.38 on an L40S, 0.37 to 0.75 on six H100s. With NVLink: 1.8 to 2.0 on two, four and eight
    H100s, 2.5 on eight H200s, 3.0 on four B200s. Without: 0.43 on four A10Gs, 0.52 on four cards and 0.65 on two of 24
    GiB, 1.0 on eight RTX PRO 6000s.
    """
    gpu = deployment.gpu
    is_new = gpu is not None and (gpu.compute_capability or (0, 0)) >= _HOPPER and gpu.link_bytes_per_s is not None
    context = _HOPPER_CONTEXT_BYTES if is_new else _CONTEXT_BYTES
    if deployment.gpus == 1:
        return context
    if gpu is not None and gpu.link_bytes_per_s is not None:
        return context + _LINKED_COMMUNICATION_BYTES
    return context + (_WIDE_COMMUNICATION_BYTES if deployment.gpus >= _WIDE_GPUS else _COMMUNICATION_BYTES)


def rank_budget(model: ModelSpec, deployment: Deployment, stage: int) -> Budget | None:
    """The budget of one rank, None where the KV memory was given."""
    if deployment.kv_memory_bytes is not None:
        return None
    loaded = load_rank(model, deployment, stage)
    before = before_loading_bytes(deployment)
    fraction = static_fraction(model, deployment, loaded.total_bytes)
    inside = [
        BudgetTerm(name="weights", bytes=loaded.weights.bytes, formula=loaded.weights.formula),
        BudgetTerm(name="loaded_beside", bytes=LOADED_BESIDE_BYTES, formula="rotary tables, rounding of the allocator"),
    ]
    if serves_vision(model):
        inside.append(BudgetTerm(name="vision_cache", bytes=VISION_CACHE_BYTES, formula="SGLANG_VLM_CACHE_SIZE_MB"))
    draft = draft_term(model, deployment)
    if draft is not None:
        inside.append(draft)
    if deployment.lora_slots and dense_adapters_are_priced(model):
        layers = stage_layers(len(model.layers), deployment.pipeline_parallel, deployment.pipeline_layers)[stage]
        inside.append(adapters_term(model, deployment, layers, deployment.tensor_parallel))
    taken, free = sum(term.bytes for term in inside), loaded.total_bytes - before - deployment.other_processes_bytes
    left = kv_memory(free, free - taken, fraction)
    requested = taken + left
    outside = (
        BudgetTerm(
            name="before_loading",
            bytes=before,
            formula="the driver's context and communication buffers",
            inside_fraction=False,
        ),
        *others_term(deployment, inside_fraction=False),
        BudgetTerm(
            name="activations_and_graphs",
            bytes=free - requested,
            formula=f"free before loading × (1 − {float(fraction):.4g})",
            inside_fraction=False,
        ),
    )
    band = _BAND_BYTES if deployment.gpus < _WIDE_GPUS else _WIDE_BAND_BYTES
    half = int(loaded.weights.bytes * loaded.weights.uncertainty_share) + band
    answer = Budget(
        rank=loaded.rank,
        total_bytes=loaded.total_bytes,
        requested_bytes=requested,
        terms=(*outside, *inside),
        kv_bytes=left,
        kv_bytes_low=left - half,
        kv_bytes_high=left + half,
    )
    return answer.corrected(deployment.corrections)


def with_states(budget: Budget | None, pools: Pools) -> Budget | None:
    """``budget`` with the state pool as a term."""
    if budget is None or not pools.state_bytes:
        return budget
    formula = f"{pools.state_slots:,} states, and one that pads batches"
    return replace(
        budget,
        terms=(*budget.terms, BudgetTerm(name="state_pool", bytes=pools.state_bytes, formula=formula)),
        kv_bytes=pools.kv_bytes,
        kv_bytes_low=budget.kv_bytes_low - pools.state_bytes,
        kv_bytes_high=budget.kv_bytes_high - pools.state_bytes,
    )
