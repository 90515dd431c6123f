"""A model's layers on one rank as vLLM pages them: caches, groups, and the bytes of a block of the shared pool."""

import math
from collections.abc import Sequence
from dataclasses import replace

from kvplan.engines.deployment import Deployment
from kvplan.engines.devices import capability_of
from kvplan.engines.drafting import Drafter
from kvplan.engines.engine_plan import CacheGroup, CacheLayout, Settings
from kvplan.engines.ranks import stage_layers
from kvplan.engines.vllm.blocks import (
    DEFAULT_BLOCK,
    attention_block,
    checkpoint_blocks,
    hybrid_block,
    kernel_block,
)
from kvplan.engines.vllm.groups import make_groups
from kvplan.engines.vllm.releases import groups_windows, release_of, reserved_blocks
from kvplan.engines.vllm.specs import (
    CHUNKED,
    FULL,
    LATENT,
    PACKED_WINDOW,
    RING,
    SLIDING,
    STATE,
    PageSpec,
    attention_spec,
    padded,
    state_spec,
)
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    IndexKeys,
    IndexTail,
    KvTypes,
    LatentAttention,
    Layer,
    RecurrentLayer,
    RgLruState,
    RwkvState,
    SharedKv,
    SlidingAttention,
)
from kvplan.model import ModelSpec

_PRICED = "kvplan model prices it without a pool"

_LATENTS_ALIGNED, _LATENT_ALIGNMENT_BYTES = (0, 7), 256
"""The release that pads each latent to multiples of 256 B (``VLLM_MLA_CUDA_MEM_ALIGN_KV_CACHE``)."""


def stage_layouts(
    model: ModelSpec, deployment: Deployment, settings: Settings, kv: KvTypes, drafter: Drafter | None = None
) -> tuple[CacheLayout, ...]:
    """The groups of the whole model for each pipeline stage, with the size of that stage's blocks.

    Groups span all stages; a rank pages its own layers of each group, and its largest group gives the bytes of a block.
    Raises InputError for a parallelism or a block size that vLLM refuses.
    """
    rank_layers = model.rank_layers(deployment.tensor_parallel)
    block, specs = _specs(rank_layers, deployment, settings, kv, drafter)
    if not specs:
        raise UnsupportedModelError(
            f"cannot tell: {model.id} has no KV cache, so there is no pool to plan", hint=f"kvplan model {model.id}"
        )
    side_by_side = any(spec.family in (PACKED_WINDOW, RING) for spec in specs)
    has_others = any(spec.family not in (FULL, LATENT, SLIDING, CHUNKED) for spec in specs)  # priced as by 0.33
    hybrid = deployment.hybrid_kv_cache_manager and (has_others or groups_windows(release_of(deployment)))
    groups = make_groups(specs, hybrid_manager=hybrid, side_by_side=side_by_side)
    _check_context_parallel(model, groups, deployment)
    stride = math.lcm(*(spec.stride_bytes for spec in specs))
    stages = stage_layers(len(model.layers), deployment.pipeline_parallel, deployment.pipeline_layers)
    return tuple(
        CacheLayout(
            block_tokens=block,
            bytes_per_block=padded(max(1, *(_page_bytes(group, stage) for group in groups)), stride),
            groups=tuple(_cache_group(group, stage, deployment.context_parallel) for group in groups),
            in_flight_tokens=settings.in_flight_tokens,
            reserved_blocks=reserved_blocks(release_of(deployment)),
        )
        for stage in stages
    )


def _page_bytes(group: Sequence[PageSpec], stage: range) -> int:
    """One block of those layers of ``group`` that ``stage`` holds."""
    return sum(spec.page_bytes for spec in group if spec.decoder_layer in stage)


def _cache_group(group: Sequence[PageSpec], stage: range, context_parallel: int) -> CacheGroup:
    """``group`` as a plan shows it: layers of all stages, page bytes of ``stage``.

    It is named after its first layer that is not an index.
    """
    named = next((spec for spec in group if not isinstance(spec.layer, IndexKeys)), group[0])
    return CacheGroup(
        kind=named.layer.kind if named.family != FULL else FullAttention.kind,
        layers=len(group),
        rule=named.rule,
        block_tokens=named.block_tokens,
        page_bytes=_page_bytes(group, stage),
        window_tokens=named.window_tokens,
        retained_tokens=named.retained_tokens,
        fixed_blocks=named.fixed_blocks,
        token_shards=context_parallel if named.keeps_all_tokens else 1,
    )


def _specs(
    rank_layers: Sequence[Sequence[Layer]],
    deployment: Deployment,
    settings: Settings,
    kv: KvTypes,
    drafter: Drafter | None,
) -> tuple[int, list[PageSpec]]:
    """The engine's block size, and every cache in layer order."""
    release = release_of(deployment)
    owned = [(index, layer) for index, layers in enumerate(rank_layers) for layer in layers]
    block, state_page = _block([layer for _, layer in owned], deployment, settings, kv)
    pools_index = any(isinstance(layer, IndexTail) for _, layer in owned)
    retained = 0 if drafter is None else drafter.retained_tokens
    specs: list[PageSpec] = []
    for index, layer in owned:
        if isinstance(layer, RecurrentLayer):
            state = state_spec(
                layer,
                index,
                kv,
                block_tokens=block if settings.prefix_caching else settings.max_model_len,
                page_bytes=state_page or layer.fixed_bytes(kv),
                blocks=_state_blocks(layer, deployment, settings, drafter),
            )
            specs.append(state)
            continue
        spec = attention_spec(
            layer,
            index,
            kv,
            block_tokens=block,
            encoder_tokens=settings.max_num_batched_tokens,
            pools_index=pools_index,
        )
        if spec is None:
            continue
        if spec.family == LATENT and release[:2] == _LATENTS_ALIGNED:
            entry = padded(spec.page_bytes // spec.block_tokens, _LATENT_ALIGNMENT_BYTES)
            spec = replace(spec, page_bytes=entry * spec.block_tokens)
        specs.append(replace(spec, retained_tokens=retained) if spec.rule == "sliding" else spec)
    return block, specs


def _block(layers: Sequence[Layer], deployment: Deployment, settings: Settings, kv: KvTypes) -> tuple[int, int | None]:
    """The engine's block size, and the page that a hybrid's states share with attention, None without one."""
    kept = [layer for layer in layers if not isinstance(layer, SharedKv)]
    attention = [layer for layer in kept if not isinstance(layer, RecurrentLayer)]
    states = [layer for layer in kept if isinstance(layer, RecurrentLayer)]
    for state in states:
        if isinstance(state, (RgLruState, RwkvState)):
            raise UnsupportedModelError(f"vLLM has no class for models with {state.kind} layers", hint=_PRICED)
    if not attention:
        return deployment.block_size or DEFAULT_BLOCK, None
    capability = capability_of(deployment)
    block = attention_block(kernel_block(kept, kv, capability), deployment.block_size)
    if not states:
        return block, None
    return hybrid_block(
        _typical(attention),
        states,
        kv,
        block_tokens=block,
        prefix_caching=settings.prefix_caching,
        capability=capability,
        release=release_of(deployment),
    )


def _state_blocks(layer: RecurrentLayer, deployment: Deployment, settings: Settings, drafter: Drafter | None) -> int:
    """Blocks of state that a request takes: one, and one per drafted token; with prefix caching one more, and another
    where the layer can export a state from within a prefill."""
    drafted = 0 if drafter is None else drafter.tokens
    if not settings.prefix_caching:
        return 1 + drafted
    return 2 + drafted + checkpoint_blocks(layer, capability_of(deployment), release_of(deployment))


def _typical(attention: Sequence[Layer]) -> Layer:
    """The layer that determines a hybrid's block: the first that keeps every token, else the first window."""
    for kinds in ((FullAttention, LatentAttention), (SlidingAttention, ChunkedAttention), (CrossAttention,)):
        for layer in attention:
            if isinstance(layer, kinds):
                return layer
    raise UnsupportedModelError("cannot tell: how vLLM sizes the blocks of this hybrid is not known", hint=_PRICED)


def _check_context_parallel(model: ModelSpec, groups: Sequence[Sequence[PageSpec]], deployment: Deployment) -> None:
    """Decode context parallelism splits tokens over ranks that would hold copies; windows cannot take part."""
    ranks, tensor_parallel = deployment.context_parallel, deployment.tensor_parallel
    if ranks == 1:
        return
    if tensor_parallel % ranks:
        raise InputError(
            f"context parallelism {ranks} does not divide tensor parallelism {tensor_parallel}",
            hint=f"--context-parallel {math.gcd(ranks, tensor_parallel)}",
            key="context_parallel",
        )
    families = {spec.family for group in groups for spec in group}
    if not families <= {FULL, LATENT, STATE}:
        raise InputError(
            "vLLM has no context parallelism for window, chunk, cross-attention or compressed layers",
            hint="leave out --context-parallel",
            key="context_parallel",
        )
    for layer in model.caches:
        if not isinstance(layer, FullAttention):
            continue
        copies = tensor_parallel // min(layer.kv_heads, tensor_parallel)
        if copies < ranks:
            raise InputError(
                f"context parallelism {ranks} needs {ranks} copies of the KV heads, but tensor parallelism "
                f"{tensor_parallel} makes {copies} of {layer.kv_heads}",
                hint=f"raise --tensor-parallel to {layer.kv_heads * ranks}",
                key="context_parallel",
            )
