"""What a reader of a vLLM plan should know: options that are not priced, and settings that the pool cannot carry."""

from collections.abc import Iterator, Sequence

from kvplan.engines.base import OVER_STATE_BLOCKS, CacheLayout, Deployment, Finding, Settings
from kvplan.engines.devices import DEFAULT_WINDOW
from kvplan.engines.vllm.removed import ENCODER_DECODERS, LAST_FIRST_ENGINE, last_release
from kvplan.engines.vllm.settings import groups_windows, release_of
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import LatentAttention, RecurrentLayer, SlidingAttention
from kvplan.model import ModelSpec
from kvplan.units import format_bytes

_ALL_OR_NO_WINDOWS = frozenset(
    {
        "Qwen2ForCausalLM",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
    }
)
"""Classes built on vLLM 0.33's ``Qwen2Model``, which asserts that a window is in every layer or in none."""

_FIRST_LATENTS = (0, 7)
"""The release whose cache holds MLA's latents ("MLA is enabled", logs of 0.7.1); DeepSeek-V2 of 16 heads a rank had
13,360 tokens under 0.5 where latents would be fourteen times as many (deepseek-ai/DeepSeek-V2 issue 83)."""

_HOST_PAGE_BYTES = 4096
"""What a block of all ranks is rounded up to in the host's memory (vLLM 0.33, ``CPUOffloadingSpec``, which allocates
nothing else)."""

_LARGE_BLOCK = 256
"""From here on a block is longer than many a system prompt."""

_EVEN = 0.95
"""Stages whose pools differ by less are even: one layer of many."""

_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM 0.33 takes (``config/lora.py``)."""

_CHECKED_CAPABILITIES = frozenset({(8, 0), (8, 6), (8, 9), (9, 0)})


def check_asked(model: ModelSpec, deployment: Deployment) -> None:
    """Raises for what vLLM refuses whatever the pool: InputError for an option, UnsupportedModelError for a model."""
    if deployment.lora_slots and deployment.lora_rank not in _LORA_RANKS:
        raise InputError(
            f"vLLM has no adapters of rank {deployment.lora_rank}",
            hint=f"--max-lora-rank is one of {', '.join(map(str, _LORA_RANKS))}",
            key="lora_rank",
        )
    if release_of(deployment)[:2] < _FIRST_LATENTS and model.keeps(LatentAttention):
        raise UnsupportedModelError(
            f"vLLM before 0.7 stores keys and values of every head of {model.id}, padded, in place of MLA's latents, "
            "many times as much: not modelled",
            hint="--engine vllm@0.7.3 or newer",
            key="engine",
        )
    if model.architecture in _ALL_OR_NO_WINDOWS and _slides_from_a_layer_on(model):
        raise UnsupportedModelError(
            f"vLLM refuses {model.id}: a sliding window for some but not all layers (max_window_layers below the "
            "number of layers) is not supported in this class",
            hint="set use_sliding_window to false in its config (--hf-overrides), which is how the class is served",
            key="max_window_layers",
        )


def uneven_finding(pools: Sequence[int], fewest: int) -> Finding | None:
    """Pipeline stages that could hold more than the one that decides: what of their pool is of use."""
    most = max(range(len(pools)), key=pools.__getitem__)
    if not pools[fewest] or pools[most] * _EVEN <= pools[fewest]:
        return None
    return Finding(
        code="stages-uneven",
        severity="info",
        message=f"stage {fewest} holds {pools[fewest]:,} blocks and decides; stage {most} could hold "
        f"{pools[most]:,}, of which {pools[fewest] / pools[most]:.1%} is of use",
        hint="move layers to the stage with room: --pp-layers",
    )


def _slides_from_a_layer_on(model: ModelSpec) -> bool:
    """Whether the first layers keep every token and all others a window: what ``max_window_layers`` means."""
    kinds = [isinstance(kept, SlidingAttention) for kept in model.caches]
    return any(kinds) and not all(kinds) and kinds == sorted(kinds)


def layout_findings(
    model: ModelSpec, deployment: Deployment, settings: Settings, layout: CacheLayout, blocks: int
) -> Iterator[Finding]:
    """Findings that follow from pages and pool; those about memory come with the budget."""
    yield from _asked_findings(model, deployment)
    yield from _sequence_findings(model, deployment, settings, layout, blocks)
    yield from _class_findings(model, release_of(deployment))
    yield from _charge_findings(model, deployment, settings, layout)
    yield from _parallel_findings(model, deployment, layout)
    if deployment.gpu is not None and deployment.gpu.compute_capability not in _CHECKED_CAPABILITIES:
        yield Finding(
            code="gpu-generation-unchecked",
            severity="info",
            message=f"blocks were checked on Ampere, Ada and Hopper; {deployment.gpu.name} may take other kernels",
            hint="compare the block size and the KV cache size with a start-up log",
        )


def _class_findings(model: ModelSpec, release: tuple[int, ...]) -> Iterator[Finding]:
    """Whether the release still has the model's class."""
    last = last_release(model.architecture, release)
    if last is not None:
        yield Finding(
            code="model-class-dropped",
            severity="warning",
            message=f"vLLM has no class of its own for {model.architecture} since {last}: it starts only where its "
            "generic Transformers class can run the model",
            hint=f"--engine vllm@{last}",
        )
    if model.is_encoder_decoder and model.architecture not in ENCODER_DECODERS and release > LAST_FIRST_ENGINE:
        yield Finding(
            code="model-class-by-plugin",
            severity="warning",
            message=f"vLLM has no class of its own for {model.architecture}, and its generic Transformers class runs "
            "no encoder-decoder: it starts only with a plugin that has one",
            hint=f"price it without an engine: kvplan model {model.id}",
        )


def _charge_findings(
    model: ModelSpec, deployment: Deployment, settings: Settings, layout: CacheLayout
) -> Iterator[Finding]:
    """Why a request of several groups is charged more than its layers store, and what the hybrid manager is for."""
    has_windows = any(group.window_tokens for group in layout.groups) and len(layout.groups) > 1
    is_early = not groups_windows(release_of(deployment))
    none_kept = any(layer.window_tokens for layer in model.caches) and not any(
        group.window_tokens for group in layout.groups
    )
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
            "that is shorter is computed anew each time",
        )
    if _mixes_kinds(model):
        why = "whole blocks of every group, and states and windows share the page of the largest"
    elif has_windows:
        why = "whole blocks of every group, and of a window also the tokens in flight and one block more"
    else:
        return
    hint = "plan with the charged bytes; --prompt N shows beside them what the layers store"
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


def _parallel_findings(model: ModelSpec, deployment: Deployment, layout: CacheLayout) -> Iterator[Finding]:
    """How uneven stages are asked for, how experts are dealt, and that KV in the host's memory takes no GPU's."""
    if deployment.pipeline_layers is not None:
        partition = ",".join(map(str, deployment.pipeline_layers))
        yield Finding(
            code="pipeline-layers-by-environment",
            severity="info",
            message=f"vLLM takes uneven stages from its environment: VLLM_PP_LAYER_PARTITION={partition}",
        )
    ranks, experts = deployment.tensor_parallel * deployment.data_parallel, model.shape.experts
    if deployment.expert_parallel:
        held = f"each of {ranks} ranks holds {-(-(experts or 0) // ranks)} of {experts} experts whole; the buffers for "
        yield Finding(
            code="expert-parallel-buffers",
            severity="info",
            message=f"{held}sending tokens to them are not priced" if experts else f"{model.id} has no experts to deal",
        )
    if deployment.kv_offload_bytes is not None:
        workers = deployment.tensor_parallel * deployment.pipeline_parallel
        chunk = -(-layout.bytes_per_block * workers // _HOST_PAGE_BYTES) * _HOST_PAGE_BYTES
        yield Finding(
            code="kv-offload",
            severity="info",
            message=f"{format_bytes(deployment.kv_offload_bytes)} of pinned host memory keep "
            f"{deployment.kv_offload_bytes // chunk:,} blocks, of all ranks together; it takes nothing of a GPU's",
        )


def _asked_findings(model: ModelSpec, deployment: Deployment) -> Iterator[Finding]:
    """What the model's source leaves open, and a window that nobody said."""
    for note in model.notes:
        yield Finding(code="model-note", severity="info", message=note)
    if model.max_context_tokens is None and deployment.max_model_len is None:
        yield Finding(
            code="window-not-said",
            severity="warning",
            message=f"neither the config nor the command says a window: vLLM then takes {DEFAULT_WINDOW:,} tokens",
            hint="say how long requests may become: --max-model-len N",
        )


def _sequence_findings(
    model: ModelSpec, deployment: Deployment, settings: Settings, layout: CacheLayout, blocks: int
) -> Iterator[Finding]:
    """What max_num_seqs asks of the pool. With recurrent state vLLM refuses to start if it is above the blocks, because
    a captured graph needs a state block for each sequence (source: vLLM 0.33, ``resolve_cudagraph_mode_and_sizes``).
    An error where it was asked for; the default is as many, and the plan's own flags give fewer."""
    if model.keeps(RecurrentLayer) and not deployment.enforce_eager and 0 < blocks < settings.max_num_seqs:
        yield Finding(
            code=OVER_STATE_BLOCKS,
            severity="warning" if deployment.max_num_seqs is None else "error",
            message=f"max_num_seqs {settings.max_num_seqs:,} is above the {blocks:,} blocks that hold recurrent state: "
            "vLLM loads the weights and then refuses to start",
            hint=f"--max-num-seqs {blocks}",
        )
        return
    usable, least = blocks - layout.reserved_blocks, layout.request_blocks(1)
    if usable >= least and usable // least < settings.max_num_seqs:
        yield Finding(
            code="max-num-seqs-above-pool",
            severity="info",
            message=f"the shortest request takes {least:,} of {usable:,} usable blocks, so at most "
            f"{usable // least:,} can run; max_num_seqs is {settings.max_num_seqs:,}",
            hint=f"--max-num-seqs {usable // least}",
        )


def _mixes_kinds(model: ModelSpec) -> bool:
    """Whether recurrent state and attention share the pool."""
    return 0 < sum(isinstance(layer, RecurrentLayer) for layer in model.caches) < len(model.caches)
