"""llama.cpp's plan: a block is one cell of the full cache on one device.

Source: ``llama-context.cpp``, ``llama-kv-cache*.cpp``, ``llama-memory-recurrent.cpp`` and ``tools/server`` of the build
in llama-cpp-python 0.3.36. Buffers are exact. The compute buffer and the driver's context are estimates, for flash
attention (the default where the device has it) and all layers on the GPUs. ``--tensor-parallel`` and
``--pipeline-parallel`` both count the GPUs that layers are split over, its default mode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.deployment import Deployment, is_since
from kvplan.engines.devices import device_memories
from kvplan.engines.engine import ADAPTERS
from kvplan.engines.engine_plan import Budget, BudgetTerm, CacheGroup, CacheLayout, EnginePlan, Settings
from kvplan.engines.llama_cpp.cache import (
    FIRST_AUTO_SLOTS,
    FIRST_PADDED_BUILD,
    FIRST_WINDOW_CACHES,
    PADDING_CELLS,
    UBATCH_TOKENS,
    Buffers,
    Slots,
    buffers,
    cache_types,
    divide_context,
    ignored_windows,
    logits_bytes,
    part_sizes,
    served_tokens,
)
from kvplan.engines.llama_cpp.devices import device_layers, device_weights
from kvplan.engines.llama_cpp.findings import (
    cache_findings,
    device_findings,
    slot_findings,
    training_findings,
    weights_findings,
)
from kvplan.engines.memory_share import others_term
from kvplan.engines.ranks import CacheSizes, refuse_options, refuse_other_kinds
from kvplan.engines.token_pool import (
    CONTEXT,
    adapters_term,
    dense_adapters_are_priced,
    model_notes,
    one_pool,
    pool_bytes,
    windows_kept_whole,
)
from kvplan.errors import InputError
from kvplan.layers import ChunkedAttention, FullAttention, KvTypes, SlidingAttention
from kvplan.model import ModelSpec
from kvplan.units import MIB

_FIRST_FEW_LOGITS = (9400,)
"""The build of pull request 23861 (June 2026)."""
_BAND_BYTES = 256 * MIB
"""Half width for the driver's context and the compute buffer, whose size depends on the backend's operations."""


def kv_types(model: ModelSpec, deployment: Deployment) -> KvTypes:
    """The types of K and V; InputError where they do not suit the model's heads."""
    kv = cache_types(deployment.cache_type_k, deployment.cache_type_v, deployment.kv_dtype)
    _check_heads(model, kv)
    return kv


@dataclass(frozen=True, kw_only=True)
class _Device:
    """One GPU: its memory, and the buffers of its decoder layers."""

    index: int
    layers: range
    total_bytes: int
    buffers: Buffers


def plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    """The static cache, where it is allocated, and whether it fits beside the weights."""
    _refuse(model, deployment)
    kv, slots = kv_types(model, deployment), _slots(model, deployment)
    ubatch = deployment.max_num_batched_tokens or UBATCH_TOKENS
    devices = _devices(model, deployment, kv, slots, ubatch)
    stages = [device.layers for device in devices]
    budget, device = None, max(devices, key=lambda device: device.buffers.kv_bytes)
    if deployment.kv_memory_bytes is None:
        spare = _spare_logits_bytes(model, deployment, slots, ubatch)
        budgets = [_budget(model, deployment, stages, device, spare) for device in devices]
        device = min(devices, key=lambda device: budgets[device.index].kv_bytes - device.buffers.pool_bytes)
        budget = budgets[device.index]
    layout, asked = _layout(part_sizes(model, kv, device.layers), slots)
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
        kv_bytes=memory if budget is None else device.buffers.kv_bytes or device.buffers.pool_bytes,
        blocks=blocks,
        budget=budget,
        findings=(
            *model_notes(model),
            *windows_kept_whole("llama.cpp", ignored_windows(model)),
            *cache_findings(slots, held, asked, layout, has_budget=budget is not None),
            *(weights_findings(model) if budget is not None else ()),
            *slot_findings(slots),
            *training_findings(model, slots),
            *device_findings(stages, [device.buffers.kv_bytes for device in devices]),
        ),
        tokens=blocks * layout.block_tokens,
        unpriced=(ADAPTERS,) if deployment.lora_slots and not dense_adapters_are_priced(model) else (),
    )


def _slots(model: ModelSpec, deployment: Deployment) -> Slots:
    """The slots as asked for, or by the build's defaults."""
    context, release = deployment.max_model_len or model.max_context_tokens, deployment.engine.release
    if context is None:
        raise InputError(f"{model.id} does not say its context", hint="give --context", key="max_model_len")
    return divide_context(
        context,
        deployment.max_num_seqs or (None if is_since(release, FIRST_AUTO_SLOTS) else 1),
        deployment.kv_unified,
        PADDING_CELLS if is_since(release, FIRST_PADDED_BUILD) else 1,
    )


def _devices(model: ModelSpec, deployment: Deployment, kv: KvTypes, slots: Slots, ubatch_tokens: int) -> list[_Device]:
    """The GPUs and their layers: in equal parts where the pool's memory was given and theirs is not known."""
    count = deployment.tensor_parallel * deployment.pipeline_parallel
    memories = (1,) * count if deployment.kv_memory_bytes is not None else device_memories(deployment)
    swa_full = deployment.swa_full or not is_since(deployment.engine.release, FIRST_WINDOW_CACHES)
    parts = device_layers(len(model.layers), memories, deployment.pipeline_layers)
    return [
        _Device(
            index=index,
            layers=part,
            total_bytes=memories[index],
            buffers=buffers(model, kv, slots, ubatch_tokens, swa_full=swa_full, part=part),
        )
        for index, part in enumerate(parts)
    ]


def _layout(kept: CacheSizes, slots: Slots) -> tuple[CacheLayout, int]:
    """The layout, and the blocks asked for. A block is a cell of every growing layer, or one slot where none grows."""
    if kept.growing_layers:
        return one_pool(kept, 1, reserved_blocks=0), slots.all_cells
    group = CacheGroup(
        kind="recurrent state" if kept.state_layers else "window",
        layers=kept.state_layers or kept.window_layers,
        rule="fixed",
        block_tokens=slots.window_tokens,
        page_bytes=max(1, kept.state_bytes),
        fixed_blocks=1,
    )
    layout = CacheLayout(
        block_tokens=group.block_tokens,
        bytes_per_block=group.page_bytes,
        groups=(group,),
        in_flight_tokens=0,
        reserved_blocks=0,
    )
    return layout, slots.slots


def _refuse(model: ModelSpec, deployment: Deployment) -> None:
    refuse_other_kinds(model, "llama.cpp")
    refuse_options(
        "llama.cpp",
        (deployment.context_parallel > 1, "decode context parallelism"),
        (deployment.data_parallel > 1, "attention data parallelism"),
        (deployment.speculative_tokens > 0, "a draft model or next-token layers"),
    )


def _check_heads(model: ModelSpec, kv: KvTypes) -> None:
    """Refuses heads that are not whole groups of the stored type's elements (32 for quantised types)."""
    widths = {
        width
        for kept in model.caches
        if isinstance(kept, (FullAttention, SlidingAttention, ChunkedAttention))
        for width in (kept.head_dim, kept.value_head_dim)
    }
    for stored, option in ((kv.key, "cache_type_k"), (kv.value, "cache_type_v")):
        for width in widths:
            if width % stored.elements_per_group:
                raise InputError(
                    f"a head of {width} elements is not made of whole groups of {stored.elements_per_group}, as "
                    f"{stored.name} needs",
                    hint="use f16 or bf16",
                    key=option,
                )


def _spare_logits_bytes(model: ModelSpec, deployment: Deployment, slots: Slots, ubatch_tokens: int) -> int:
    """Logits of a micro-batch that the newest builds do not reserve: they keep one row per slot."""
    if not is_since(deployment.engine.release, _FIRST_FEW_LOGITS):
        return 0
    return logits_bytes(max(0, ubatch_tokens - slots.slots), model.shape.vocabulary or 0)


def _budget(
    model: ModelSpec, deployment: Deployment, stages: Sequence[range], device: _Device, spare_bytes: int
) -> Budget:
    """What one device holds; ``kv_bytes`` is left for the full cache, at best ``spare_bytes`` more."""
    held = device.buffers
    weights = device_weights(model, stages, device.index, deployment.weight_bytes)
    terms = [
        BudgetTerm(name="weights", bytes=weights.bytes, formula=weights.formula),
        CONTEXT,
        *others_term(deployment),
        BudgetTerm(
            name="compute_buffer", bytes=held.compute_bytes, formula="micro-batch × 4 B × (vocabulary + hidden)"
        ),
    ]
    if deployment.lora_slots and dense_adapters_are_priced(model):
        terms.append(adapters_term(model, deployment, device.layers, tensor_parallel=1))
    if held.window_bytes:
        formula = "(window × slots sharing + micro-batch) cells"
        terms.append(BudgetTerm(name="window_cache", bytes=held.window_bytes, formula=formula))
    if held.state_bytes and held.full_bytes:
        terms.append(BudgetTerm(name="recurrent_state", bytes=held.state_bytes, formula="slots × state, float32"))
    left = device.total_bytes - sum(term.bytes for term in terms)
    half = int(weights.bytes * weights.uncertainty_share) + _BAND_BYTES
    return Budget(
        rank=device.index,
        total_bytes=device.total_bytes,
        requested_bytes=device.total_bytes,
        terms=tuple(terms),
        kv_bytes=left,
        kv_bytes_low=left - half,
        kv_bytes_high=left + half + spare_bytes,
    ).corrected(deployment.corrections)
