"""What a reader of a vLLM plan should know: options that are not priced, and settings that the pool cannot carry."""

from collections.abc import Iterator, Sequence

from kvplan.engines.base import Budget, CacheLayout, Deployment, Finding, Settings
from kvplan.engines.devices import DEFAULT_WINDOW
from kvplan.engines.graphs import inside_finding
from kvplan.engines.vllm.lora import check_rank
from kvplan.engines.vllm.removed import last_release
from kvplan.engines.vllm.settings import release_of
from kvplan.errors import UnsupportedModelError
from kvplan.layers import RecurrentLayer, SlidingAttention
from kvplan.model import ModelSpec
from kvplan.units import MIB

_ALL_OR_NO_WINDOWS = frozenset(
    {
        "Qwen2ForCausalLM",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
    }
)
"""Classes built on vLLM 0.33's ``Qwen2Model``, which asserts that a window is in every layer or in none."""

PROMPT_LOGITS_TOKENS = 1024
"""vLLM 0.33 computes prompt log-probabilities for so many tokens at a time (``prompt_logprobs`` of its sampler)."""

_EVEN = 0.95
"""Stages whose pools differ by less are even: one layer of many."""

_CHECKED_CAPABILITIES = frozenset({(8, 0), (8, 6), (8, 9), (9, 0)})


def check_asked(model: ModelSpec, deployment: Deployment) -> None:
    """Raises for what vLLM refuses whatever the pool: InputError for an option, UnsupportedModelError for a model."""
    if deployment.lora_slots:
        check_rank(deployment.lora_rank)
    if model.architecture in _ALL_OR_NO_WINDOWS and _slides_from_a_layer_on(model):
        raise UnsupportedModelError(
            f"vLLM refuses {model.id}: a sliding window for some but not all layers (max_window_layers below the "
            "number of layers) is not supported in this class",
            hint="set use_sliding_window to false in its config (--hf-overrides), which is how the class is served",
            key="max_window_layers",
        )


def budget_findings(model: ModelSpec, deployment: Deployment, settings: Settings, budget: Budget) -> Iterator[Finding]:
    """What the memory of a rank leaves no room for, and what the share asked for means."""
    if deployment.memory_utilization is not None:
        found = inside_finding(budget, deployment.memory_utilization)
        if found is not None:
            yield found
    beside = sum(term.bytes for term in budget.terms if not term.inside_fraction and term.name == "cuda_graphs")
    left = budget.total_bytes - budget.requested_bytes - beside
    chunk = min(settings.max_num_batched_tokens, PROMPT_LOGITS_TOKENS)
    killed = prompt_logits_finding(model.shape.vocabulary or 0, chunk, left)
    if killed is not None and not model.shape.is_pooling:
        yield killed


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
    yield from _charge_findings(model, layout)
    yield from _parallel_findings(deployment)
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


def _charge_findings(model: ModelSpec, layout: CacheLayout) -> Iterator[Finding]:
    """Why a request of several groups is charged more than its layers store."""
    if _mixes_kinds(model):
        why = "whole blocks of every group, and states and windows share the page of the largest"
    elif any(group.rule == "sliding" for group in layout.groups) and len(layout.groups) > 1:
        why = "whole blocks of every group, and of a window also the tokens in flight and one block more"
    else:
        return
    yield Finding(
        code="hybrid-charges-more-than-stored",
        severity="info",
        message=f"a request of this hybrid is charged {why}; what is stored is less",
        hint="plan with the charged bytes; --prompt N shows beside them what the layers store",
    )


def _parallel_findings(deployment: Deployment) -> Iterator[Finding]:
    """How uneven stages are asked for, and that experts' parallelism is not priced."""
    if deployment.pipeline_layers is not None:
        partition = ",".join(map(str, deployment.pipeline_layers))
        yield Finding(
            code="pipeline-layers-by-environment",
            severity="info",
            message=f"vLLM takes uneven stages from its environment: VLLM_PP_LAYER_PARTITION={partition}",
        )
    if deployment.expert_parallel:
        yield Finding(
            code="expert-parallel-not-priced",
            severity="warning",
            message="cannot tell how expert parallelism moves weights between ranks; the pages are not touched",
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
    a captured graph needs a state block for each sequence (source: vLLM 0.33, ``resolve_cudagraph_mode_and_sizes``)."""
    if model.keeps(RecurrentLayer) and not deployment.enforce_eager and 0 < blocks < settings.max_num_seqs:
        yield Finding(
            code="max-num-seqs-above-state-blocks",
            severity="error",
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
