"""What a reader of a vLLM plan should know: options that are not priced, and settings that the pool cannot carry."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from kvplan.engines.base import OVER_STATE_BLOCKS, Budget, CacheLayout, Deployment, Finding, Settings
from kvplan.engines.devices import DEFAULT_WINDOW
from kvplan.engines.graphs import inside_finding
from kvplan.engines.sharing import start_findings
from kvplan.engines.vllm.lora import check_rank
from kvplan.engines.vllm.removed import last_release
from kvplan.engines.vllm.settings import is_whole_prompt, release_of
from kvplan.errors import UnsupportedModelError
from kvplan.layers import LatentAttention, RecurrentLayer, SlidingAttention
from kvplan.model import ModelSpec
from kvplan.units import GIB, MIB, format_bytes

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

PROMPT_LOGITS_TOKENS = 1024
"""vLLM 0.33 computes prompt log-probabilities for so many tokens at a time (``prompt_logprobs`` of its sampler)."""

_MUCH = Fraction(1, 20)
"""A share of the engine's memory worth a word where a setting moves it."""

_HOST_PAGE_BYTES = 4096
"""What a block of all ranks is rounded up to in the host's memory (vLLM 0.33, ``CPUOffloadingSpec``, which allocates
nothing else)."""

_LARGE_BLOCK = 256
"""From here on a block is longer than many a system prompt."""

_EVEN = 0.95
"""Stages whose pools differ by less are even: one layer of many."""

_CHECKED_CAPABILITIES = frozenset({(8, 0), (8, 6), (8, 9), (9, 0)})


def check_asked(model: ModelSpec, deployment: Deployment) -> None:
    """Raises for what vLLM refuses whatever the pool: InputError for an option, UnsupportedModelError for a model."""
    if deployment.lora_slots:
        check_rank(deployment.lora_rank)
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


def budget_findings(model: ModelSpec, deployment: Deployment, settings: Settings, budget: Budget) -> Iterator[Finding]:
    """What the memory of a rank leaves no room for, and what the share asked for means."""
    yield from start_findings(deployment, budget)
    if deployment.memory_utilization is not None:
        found = inside_finding(budget, settings.memory_utilization)
        if found is not None:
            yield found
    beside = sum(term.bytes for term in budget.terms if not term.inside_fraction and term.name == "cuda_graphs")
    left = budget.total_bytes - deployment.other_processes_bytes - budget.requested_bytes - beside
    chunk = min(settings.max_num_batched_tokens, PROMPT_LOGITS_TOKENS)
    killed = prompt_logits_finding(model.shape.vocabulary or 0, chunk, left)
    if killed is not None and not model.shape.is_pooling:
        yield killed
    sampled = sampler_finding(budget, model.shape.vocabulary or 0, settings.max_num_seqs)
    if sampled is not None:
        yield sampled


def prompt_logits_finding(vocabulary: int, tokens: int, left_bytes: int) -> Finding | None:
    """Whether one request for prompt log-probabilities fits beside the pool: tokens × vocabulary × 2 B of logits.

    1,024 × 154,880 × 2 B = 302.5 MiB, where 218.81 MiB are left, end the engine.
    """
    need = tokens * vocabulary * 2
    if need <= left_bytes:
        return None
    return Finding(
        code="prompt-logprobs-do-not-fit",
        severity="warning",
        message=f"a request for prompt log-probabilities takes {need / MIB:,.1f} MiB ({tokens:,} tokens × "
        f"{vocabulary:,} × 2 B) beside the pool, where {max(0, left_bytes) / MIB:,.1f} MiB are left: it would end the "
        "engine",
        hint="reject or cap prompt_logprobs, or lower --gpu-memory-utilization",
    )


def sampler_finding(budget: Budget, vocabulary: int, sequences: int) -> Finding | None:
    """What sampling over all sequences takes, where that is much of the memory: 12 B × vocabulary × S at once (a
    float32 copy of the logits and the places of their order).

    152,064 × 1,024 × 4 B = 0.58 GiB a copy, 1.74 GiB the largest allocation (vllm-project/vllm issue 15105).
    """
    taken = sum(term.bytes for term in budget.terms if "sampler" in term.name and term.inside_fraction)
    if taken < _MUCH * budget.requested_bytes:
        return None
    copy = sequences * vocabulary * 4
    return Finding(
        code="sampler-takes-much",
        severity="warning",
        message=f"sampling over {sequences:,} sequences takes {format_bytes(taken)}: one copy of the logits "
        f"({sequences:,} × {vocabulary:,} × 4 B) is {copy / GIB:.2f} GiB, the largest single allocation "
        f"{3 * copy / GIB:.2f} GiB",
        hint=f"lower max_num_seqs: --max-num-seqs {max(1, min(sequences // 4, 256))}",
    )


def step_findings(
    model: ModelSpec, deployment: Deployment, settings: Settings, budget: Budget | None
) -> Iterator[Finding]:
    """That the peak beside KV grows with the tokens of a step, where these are a whole prompt or take much.

    The first engine computes a prompt of up to 32,768 tokens at once: 20,000 and 35,000 start on a card where 29,000
    does not (vllm-project/vllm issue 10517).
    """
    tokens, whole = settings.max_num_batched_tokens, is_whole_prompt(model, deployment, settings)
    forward = 0 if budget is None else sum(term.bytes for term in budget.terms if term.name == "activation_forward")
    if not whole and (budget is None or forward < _MUCH * budget.requested_bytes):
        return
    took = f" takes {format_bytes(forward)}" if forward else ""
    message, hint = "", f"--max-num-batched-tokens {tokens // 2} or less"
    if whole:
        message = (
            ": it holds a whole prompt, so a longer window can fit where a shorter one fails (above 32,768 this "
            "release computes prompts in chunks)"
        )
        hint = "--chunked-prefill: steps of 2,048 tokens"
    yield Finding(
        code="peak-grows-with-step",
        severity="info",
        message=f"the non-KV peak grows with the prefill batch, a step of {tokens:,} tokens{took}{message}",
        hint=hint,
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


def _charge_findings(
    model: ModelSpec, deployment: Deployment, settings: Settings, layout: CacheLayout
) -> Iterator[Finding]:
    """Why a request of several groups is charged more than its layers store, and what the hybrid manager is for."""
    has_windows = any(group.window_tokens for group in layout.groups) and len(layout.groups) > 1
    if not deployment.hybrid_kv_cache_manager and any(layer.window_tokens for layer in model.caches):
        yield Finding(
            code="windows-charged-in-full",
            severity="info",
            message="the hybrid manager is off: layers with a window are charged every token, like full ones",
            hint="leave --no-hybrid-kv-cache-manager out for the number with windows",
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
            f"{deployment.kv_offload_bytes // chunk:,} blocks of {workers} ranks; it takes nothing of a GPU's",
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
