"""llama.cpp's plan: a block is one cell of the full cache on one device.

Source: ``llama-context.cpp``, ``llama-kv-cache*.cpp``, ``llama-memory-recurrent.cpp`` and ``tools/server`` of the build
in llama-cpp-python 0.3.36. Buffers are exact; the scratch (compute) buffer and the driver's context are estimates, for
flash attention (the default where the device has it) and all layers on the GPUs. ``--tensor-parallel`` and
``--pipeline-parallel`` both count GPUs over which layers are split, its default mode.
"""

from fractions import Fraction

from kvplan.engines.base import (
    Budget,
    BudgetTerm,
    CacheGroup,
    CacheLayout,
    Deployment,
    EnginePlan,
    Settings,
)
from kvplan.engines.devices import device_memories
from kvplan.engines.engine import ADAPTERS
from kvplan.engines.ggml_types import cache_types
from kvplan.engines.llama_cpp.devices import adapter_bytes, adapters_are_priced, device_layers, device_weights
from kvplan.engines.llama_cpp.findings import (
    cache_findings,
    device_findings,
    slot_findings,
    training_findings,
    weights_findings,
)
from kvplan.engines.llama_cpp.slots import (
    FIRST_AUTO_SLOTS,
    FIRST_PADDED_BUILD,
    FIRST_WINDOW_CACHES,
    PADDING_CELLS,
    UBATCH_TOKENS,
    Buffers,
    Slots,
    buffers,
    divide_context,
    ignored_windows,
    is_before,
    kept_by,
    logits_bytes,
    served_tokens,
)
from kvplan.engines.memory_share import others_term
from kvplan.engines.ranks import Kept, refuse_options, refuse_other_kinds
from kvplan.engines.token_pool import CONTEXT, model_notes, pool_bytes, windows_kept_whole
from kvplan.engines.weights import RankWeights
from kvplan.errors import InputError
from kvplan.layers import (
    ChunkedAttention,
    FullAttention,
    KvTypes,
    SlidingAttention,
)
from kvplan.model import ModelSpec
from kvplan.units import MIB

FIRST_BUILD_WITH_FEW_LOGITS = (9400,)
"""The build of pull request 23861 (June 2026)."""
_SCRATCH_BAND_BYTES = 256 * MIB
"""Half width for the compute buffer, which backends size by the operations they run, and the driver's context."""


def kv_types(model: ModelSpec, deployment: Deployment) -> KvTypes:
    """The types of K and V; InputError where they do not suit the model's heads."""
    kv = cache_types(deployment.cache_type_k, deployment.cache_type_v, deployment.kv_dtype)
    _check_blocks(model, kv)
    return kv


def plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    """The static cache, where it goes, and whether it fits beside the weights."""
    _refuse(model, deployment)
    kv = kv_types(model, deployment)
    context = deployment.max_model_len or model.max_context_tokens
    if context is None:
        raise InputError(f"{model.id} does not say its context", hint="give --context", key="max_model_len")
    release = deployment.engine.release
    padding = 1 if is_before(release, FIRST_PADDED_BUILD) else PADDING_CELLS
    asked_slots = deployment.max_num_seqs or (1 if is_before(release, FIRST_AUTO_SLOTS) else None)
    slots = divide_context(context, asked_slots, deployment.kv_unified, padding)
    swa_full = deployment.swa_full or is_before(release, FIRST_WINDOW_CACHES)
    ubatch = deployment.max_num_batched_tokens or UBATCH_TOKENS
    devices = deployment.tensor_parallel * deployment.pipeline_parallel
    memories = (1,) * devices if deployment.kv_memory_bytes is not None else device_memories(deployment)
    stages = device_layers(len(model.layers), memories, deployment.pipeline_layers)
    parts = [buffers(model, kv, slots, ubatch, swa_full=swa_full, part=stage) for stage in stages]
    budget, device = None, max(range(len(stages)), key=lambda index: parts[index].kv_bytes)
    if deployment.kv_memory_bytes is None:
        spare = spare_logits_bytes(model, deployment, slots, ubatch)
        weights = [device_weights(model, stages, index, deployment.weight_bytes) for index in range(devices)]
        slots_of = deployment.lora_slots if adapters_are_priced(model) else 0
        adapters = [adapter_bytes(model, stage, slots_of, deployment.lora_rank) for stage in stages]
        budgets = [
            _budget(deployment, part, index, memories[index], weights[index], adapters[index], spare)
            for index, part in enumerate(parts)
        ]
        device = min(range(len(stages)), key=lambda index: budgets[index].kv_bytes - parts[index].pool_bytes)
        budget = budgets[device]
    layout, asked = _layout(kept_by(model, kv, stages[device]), slots)
    memory = pool_bytes(deployment, budget)
    held = max(0, memory // layout.bytes_per_block)
    blocks = held if budget is None else min(asked, held)
    return EnginePlan(
        settings=Settings(
            max_model_len=served_tokens(model, slots),
            max_num_seqs=slots.slots,
            max_num_batched_tokens=ubatch,
            memory_utilization=Fraction(1),
            async_scheduling=False,
            prefix_caching=True,
            in_flight_tokens=0,
        ),
        kv_types=kv,
        layout=layout,
        kv_bytes=memory if budget is None else parts[device].kv_bytes or parts[device].pool_bytes,
        blocks=blocks,
        budget=budget,
        findings=(
            *model_notes(model),
            *windows_kept_whole("llama.cpp", ignored_windows(model)),
            *cache_findings(slots, held, asked, layout, has_budget=budget is not None),
            *(weights_findings(model) if budget is not None else ()),
            *slot_findings(slots),
            *training_findings(model, slots),
            *device_findings(stages, [part.kv_bytes for part in parts]),
        ),
        tokens=blocks * layout.block_tokens,
        unpriced=(ADAPTERS,) if deployment.lora_slots and not adapters_are_priced(model) else (),
    )


def _layout(kept: Kept, slots: Slots) -> tuple[CacheLayout, int]:
    """One block is a cell of every growing layer; where none grows, what one slot keeps. And the blocks asked for."""
    growing, windows, states = kept.counts
    if growing:
        group = CacheGroup(
            kind="full attention", layers=growing, rule="full", block_tokens=1, page_bytes=int(kept.growing_per_token)
        )
        return _pool(group), slots.all_cells
    group = CacheGroup(
        kind="recurrent state" if states else "window",
        layers=states or windows,
        rule="fixed",
        block_tokens=slots.window_tokens,
        page_bytes=max(1, kept.state_bytes),
        fixed_blocks=1,
    )
    return _pool(group), slots.slots


def _pool(group: CacheGroup) -> CacheLayout:
    return CacheLayout(
        block_tokens=group.block_tokens,
        bytes_per_block=group.page_bytes,
        groups=(group,),
        in_flight_tokens=0,
        reserved_blocks=0,
    )


def _refuse(model: ModelSpec, deployment: Deployment) -> None:
    refuse_other_kinds(model, "llama.cpp")
    refuse_options(
        "llama.cpp",
        (deployment.context_parallel > 1, "decode context parallelism"),
        (deployment.data_parallel > 1, "attention data parallelism"),
        (deployment.speculative_tokens > 0, "a draft model or next-token layers"),
    )


def _check_blocks(model: ModelSpec, kv: KvTypes) -> None:
    """Quantised types hold 32 elements a group: a head must be made of whole groups."""
    widths = {
        width
        for kept in model.caches
        if isinstance(kept, (FullAttention, SlidingAttention, ChunkedAttention))
        for width in (kept.head_dim, kept.value_head_dim)
    }
    for stored in (kv.key, kv.value):
        for width in widths:
            if width % stored.elements_per_group:
                raise InputError(
                    f"a head of {width} elements is not made of whole groups of {stored.elements_per_group}, as "
                    f"{stored.name} needs",
                    hint="use f16 or bf16",
                    key="cache_type",
                )


def spare_logits_bytes(model: ModelSpec, deployment: Deployment, slots: Slots, ubatch_tokens: int) -> int:
    """Logits of a micro-batch that the newest builds do not reserve: they keep one row a slot."""
    if is_before(deployment.engine.release, FIRST_BUILD_WITH_FEW_LOGITS):
        return 0
    return logits_bytes(max(0, ubatch_tokens - slots.slots), model.shape.vocabulary or 0)


def _budget(
    deployment: Deployment,
    part: Buffers,
    index: int,
    total: int,
    weights: RankWeights,
    adapters: int,
    spare_bytes: int,
) -> Budget:
    """What one device holds; ``kv_bytes`` is what is left for the full cache, ``spare_bytes`` more at best."""
    terms = [
        BudgetTerm(name="weights", bytes=weights.bytes, formula=weights.formula),
        CONTEXT,
        *others_term(deployment),
        BudgetTerm(
            name="compute_buffer", bytes=part.scratch_bytes, formula="micro-batch × 4 B × (vocabulary + hidden)"
        ),
    ]
    if adapters:
        terms.append(BudgetTerm(name="adapters", bytes=adapters, formula="files × rank × Σ (inputs + outputs) × 2 B"))
    if part.window_bytes:
        terms.append(
            BudgetTerm(
                name="window_cache", bytes=part.window_bytes, formula="(window × slots sharing + micro-batch) cells"
            )
        )
    if part.state_bytes and part.full_bytes:
        terms.append(BudgetTerm(name="recurrent_state", bytes=part.state_bytes, formula="slots × state, float32"))
    left = total - sum(term.bytes for term in terms)
    half = int(weights.bytes * weights.unsure_share) + _SCRATCH_BAND_BYTES
    answer = Budget(
        rank=index,
        total_bytes=total,
        requested_bytes=total,
        terms=tuple(terms),
        kv_bytes=left,
        kv_bytes_low=left - half,
        kv_bytes_high=left + half + spare_bytes,
    )
    return answer.corrected(deployment.corrections)
