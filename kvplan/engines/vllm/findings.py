"""What the user of a vLLM plan should know about its options, pages and pool. Findings on memory are in
``memory_findings``."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from kvplan.engines.deployment import Deployment, MediaLimit
from kvplan.engines.devices import DEFAULT_WINDOW
from kvplan.engines.drafting import Drafter, counted
from kvplan.engines.engine_plan import OVER_STATE_BLOCKS, CacheLayout, Finding, Settings
from kvplan.engines.vllm.releases import class_findings, groups_windows, keeps_every_state, release_of
from kvplan.layers import RecurrentLayer
from kvplan.model import ModelSpec
from kvplan.units import format_bytes

_HOST_PAGE_BYTES = 4096
"""A block of all ranks is rounded up to this in host memory (vLLM 0.33, ``CPUOffloadingSpec``, which allocates nothing
else)."""

_LARGE_BLOCK = 256
"""Many a system prompt is shorter than a block of this many tokens."""

_EVEN = 0.95
"""Stages whose pools differ by less are even: it is one layer of many."""

_WHOLE_STATE_BLOCKS = ((0, 17), (0, 27))
"""The releases that refuse a step shorter than a block at whose end a state is kept (``VllmConfig`` of 0.17 to 0.26:
"In Mamba cache align mode, block_size must be <= max_num_batched_tokens"; not in 0.13 and 0.27)."""

_CHECKED_CAPABILITIES = frozenset({(8, 0), (8, 6), (8, 9), (9, 0)})
"""Compute capabilities on which blocks were compared with vLLM's own."""
_ENCODED = ("image", "video")
"""Modalities whose encoder is left out where both are limited to none."""


def plan_findings(
    model: ModelSpec, deployment: Deployment, settings: Settings, layout: CacheLayout, blocks: int
) -> Iterator[Finding]:
    """Findings that follow from the options, the pages and the pool of ``blocks``."""
    for note in model.notes:
        yield Finding(code="model-note", severity="info", message=note)
    if model.max_context_tokens is None and deployment.max_model_len is None:
        yield Finding(
            code="window-not-said",
            severity="warning",
            message=f"neither the config nor the command gives a window: vLLM then uses {DEFAULT_WINDOW:,} tokens",
            hint="say how long requests may become: --max-model-len N",
        )
    yield from _sequence_findings(model, deployment, settings, layout, blocks)
    yield from class_findings(model, release_of(deployment))
    yield from _charge_findings(model, deployment, settings, layout)
    yield from _parallel_findings(model, deployment, layout)
    if deployment.gpu is not None and deployment.gpu.compute_capability not in _CHECKED_CAPABILITIES:
        yield Finding(
            code="gpu-generation-unchecked",
            severity="info",
            message=f"blocks were checked on Ampere, Ada and Hopper; {deployment.gpu.name} may use other kernels",
            hint="compare the block size and the KV cache size with a start-up log",
        )


def _sequence_findings(
    model: ModelSpec, deployment: Deployment, settings: Settings, layout: CacheLayout, blocks: int
) -> Iterator[Finding]:
    """What max_num_seqs asks of the pool. With recurrent state vLLM refuses to start where it exceeds the blocks,
    because a captured graph needs a state block for each sequence (vLLM 0.33, ``resolve_cudagraph_mode_and_sizes``).
    That is an error only where the user gave it: the plan's own flags lower the default."""
    if model.keeps(RecurrentLayer) and not deployment.enforce_eager and 0 < blocks < settings.max_num_seqs:
        yield Finding(
            code=OVER_STATE_BLOCKS,
            severity="warning" if deployment.max_num_seqs is None else "error",
            message=f"max_num_seqs {settings.max_num_seqs:,} is above the {blocks:,} blocks that hold recurrent state: "
            "vLLM loads the weights and then refuses to start",
            hint=f"--max-num-seqs {blocks}",
        )
        return
    usable, shortest = blocks - layout.reserved_blocks, layout.request_blocks(1)
    if usable >= shortest and usable // shortest < settings.max_num_seqs:
        yield Finding(
            code="max-num-seqs-above-pool",
            severity="info",
            message=f"the shortest request takes {shortest:,} of {usable:,} usable blocks, so at most "
            f"{usable // shortest:,} can run; max_num_seqs is {settings.max_num_seqs:,}",
            hint=f"--max-num-seqs {usable // shortest}",
        )


def _charge_findings(
    model: ModelSpec, deployment: Deployment, settings: Settings, layout: CacheLayout
) -> Iterator[Finding]:
    """Why a request of several groups is charged more than its layers store, and what the hybrid manager does."""
    groups_keep_windows = any(group.window_tokens for group in layout.groups)
    has_windows = groups_keep_windows and len(layout.groups) > 1
    is_early = not groups_windows(release_of(deployment))
    none_kept = any(layer.window_tokens for layer in model.caches) and not groups_keep_windows
    if none_kept and (is_early or not deployment.hybrid_kv_cache_manager):
        yield Finding(
            code="windows-charged-in-full",
            severity="info",
            message=("vLLM before 0.9.1 has no hybrid manager" if is_early else "the hybrid manager is off")
            + ": layers with a window are charged every token, like full ones",
            hint=None if is_early else "leave --no-hybrid-kv-cache-manager out for the number with windows",
        )
    if settings.prefix_caching and layout.block_tokens >= _LARGE_BLOCK:
        yield Finding(
            code="prefix-hits-in-large-blocks",
            severity="info",
            message=f"cached prefixes are found in whole blocks of {layout.block_tokens:,} tokens: a shared prompt "
            "that is shorter is recomputed every time",
        )
    if settings.prefix_caching and model.keeps(RecurrentLayer):
        yield from _cached_state_findings(model, release_of(deployment), settings, layout)
    if 0 < sum(isinstance(layer, RecurrentLayer) for layer in model.caches) < len(model.caches):
        why = "whole blocks of every group, and states and windows share the page size of the largest"
    elif has_windows:
        why = "whole blocks of every group; a window adds the tokens in flight and one block"
    else:
        return
    hint = "plan with the charged bytes; --prompt N also shows what the layers store"
    if has_windows and not model.keeps(RecurrentLayer):
        window = settings.max_model_len
        kept = layout.request_blocks(window) * layout.bytes_per_block
        full = sum(-(-window // group.block_tokens) * group.page_bytes for group in layout.groups)
        hint += (
            f". A full window takes {format_bytes(kept)} here, {format_bytes(full)} with every layer in full "
            "(--no-hybrid-kv-cache-manager)"
        )
    yield Finding(
        code="hybrid-charges-more-than-stored",
        severity="info",
        message=f"a request of this hybrid is charged {why}; what is stored is less",
        hint=hint,
    )


def _cached_state_findings(
    model: ModelSpec, release: tuple[int, ...], settings: Settings, layout: CacheLayout
) -> Iterator[Finding]:
    """How earlier releases keep recurrent states for prefixes: one of every block, or one at the end of a block, which
    a step must then reach."""
    first, until = _WHOLE_STATE_BLOCKS
    if keeps_every_state(model.architecture, release):
        yield Finding(
            code="states-of-every-block",
            severity="warning",
            message=f"with prefix caching this release keeps a state for every block of a prompt of "
            f"{model.architecture}; the plan counts two per request",
            hint="--no-prefix-caching, or --engine vllm@0.28 or newer",
        )
    elif first <= release < until and layout.block_tokens > settings.max_num_batched_tokens:
        yield Finding(
            code="step-below-state-block",
            severity="error",
            message=f"with prefix caching this release refuses to start: a step of {settings.max_num_batched_tokens:,} "
            f"tokens is shorter than the block of {layout.block_tokens:,} at whose end it keeps the state",
            hint=f"--max-num-batched-tokens {layout.block_tokens} or more, or --no-prefix-caching",
        )


def _parallel_findings(model: ModelSpec, deployment: Deployment, layout: CacheLayout) -> Iterator[Finding]:
    """How to ask for uneven stages, how experts are distributed, and that KV in host memory takes no GPU's."""
    if deployment.pipeline_layers is not None:
        partition = ",".join(map(str, deployment.pipeline_layers))
        yield Finding(
            code="pipeline-layers-by-environment",
            severity="info",
            message=f"vLLM takes uneven stages from its environment: VLLM_PP_LAYER_PARTITION={partition}",
        )
    ranks, experts = deployment.tensor_parallel * deployment.data_parallel, model.shape.experts
    if deployment.expert_parallel:
        held = f"each of {ranks} ranks holds {-(-(experts or 0) // ranks)} of {experts} whole experts; the buffers for "
        yield Finding(
            code="expert-parallel-buffers",
            severity="info",
            message=f"{held}sending tokens to them are not priced" if experts else f"{model.id} has no experts",
        )
    if deployment.kv_offload_bytes is not None:
        workers = deployment.tensor_parallel * deployment.pipeline_parallel
        chunk = -(-layout.bytes_per_block * workers // _HOST_PAGE_BYTES) * _HOST_PAGE_BYTES
        yield Finding(
            code="kv-offload",
            severity="info",
            message=f"{format_bytes(deployment.kv_offload_bytes)} of pinned host memory hold "
            f"{deployment.kv_offload_bytes // chunk:,} blocks, of all ranks together; no GPU memory is used for them",
        )


def media_findings(model: ModelSpec, deployment: Deployment, settings: Settings) -> Iterator[Finding]:
    """What limits on media change, and prompts with more media than the start-up run ever sees at once."""
    limits = deployment.media_limits
    if limits is None:
        return
    if not model.shape.has_vision:
        message = f"{model.id} has no vision encoder in this plan; encoders of other media are loaded by default"
    elif loads_encoder(deployment):
        message = (
            "the start-up run encodes as many items as one step's tokens hold, whatever the limit: memory is the same; "
            "only limits of 0 for images and videos leave the encoder out"
        )
    else:
        message = "images and videos are limited to none: the vision encoder is not loaded"
    yield Finding(code="media-limits", severity="info", message=message)
    largest = None if model.shape.encoder is None else model.shape.encoder.item_tokens or None
    limits = tuple(replace(limit, item_tokens=limit.item_tokens or largest) for limit in limits)
    worst, profiled = worst_case_tokens(limits), settings.max_num_batched_tokens
    if any(limit.items > 1 and limit.item_tokens is None for limit in limits):
        yield Finding(
            code="media-tokens-not-said",
            severity="info",
            message="the tokens of the largest item are not known, so the length of a prompt's media is not priced",
            hint='give them: {"image": {"count": 10, "tokens": 1024}}',
        )
    if worst > profiled:
        yield Finding(
            code="media-beyond-profile",
            severity="warning",
            message=f"a prompt's media can be {worst:,} tokens, the start-up run sees {profiled:,}: encoder inputs "
            "exceed the profiled length; lower the limits or image size",
            hint="or raise --max-num-batched-tokens, and see whether the pool still suffices",
        )


def loads_encoder(deployment: Deployment) -> bool:
    """False where images and videos are both limited to none (vLLM 0.33, ``MultiModalBudget``)."""
    items = {limit.modality: limit.items for limit in deployment.media_limits or ()}
    return any(items.get(modality, 1) for modality in _ENCODED)


def worst_case_tokens(limits: Iterable[MediaLimit]) -> int:
    """Σ items × tokens of an item, of the media whose tokens are known.

    >>> worst_case_tokens([MediaLimit(modality="image", items=10, item_tokens=16384)])
    163840
    """
    return sum(limit.items * limit.item_tokens for limit in limits if limit.item_tokens is not None)


def drafting_findings(
    drafter: Drafter | None, settings: Settings, window: int, *, has_states: bool
) -> Iterator[Finding]:
    """What drafts tokens, the caches it adds to the pool, and a ``window`` asked for that it shortens."""
    if drafter is None:
        return
    if settings.max_model_len < window and drafter.model is not None:
        yield Finding(
            code="window-cut-to-draft",
            severity="warning",
            message=f"{drafter.model.id} was made for {settings.max_model_len:,} tokens: vLLM shortens the window of "
            f"{window:,} to that",
            hint="use a draft model with a longer context",
        )
    caches = sum(len(kept) for kept in drafter.layers)
    kept = f"{counted(caches, 'cache')} of its own in the pool" if caches else "it keeps no caches"
    states = ", and every sequence keeps one more recurrent state for each" if has_states else ""
    yield Finding(
        code="speculation",
        severity="info",
        message=f"{drafter.engine_word} drafts {counted(drafter.tokens, 'token')} ahead: {kept}{states}",
    )


def uneven_findings(pools: Sequence[int], fewest: int) -> Iterator[Finding]:
    """How much of the largest stage's pool can be used, where the stage with the fewest blocks decides."""
    most = max(range(len(pools)), key=pools.__getitem__)
    if 0 < pools[fewest] < pools[most] * _EVEN:
        yield Finding(
            code="stages-uneven",
            severity="info",
            message=f"stage {fewest} holds {pools[fewest]:,} blocks and decides; stage {most} could hold "
            f"{pools[most]:,}, of which {pools[fewest] / pools[most]:.1%} is used",
            hint="move layers to the stage with room: --pp-layers",
        )
