"""What the memory of a vLLM rank leaves no room for, and which setting takes it."""

from collections.abc import Iterator
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import Budget, Finding, Settings
from kvplan.engines.memory_share import graph_bytes, start_findings
from kvplan.engines.vllm.releases import is_first_engine, release_of
from kvplan.engines.vllm.settings import is_whole_prompt
from kvplan.model import ModelSpec
from kvplan.units import GIB, MIB, format_bytes

PROMPT_LOGITS_TOKENS = 1024
"""vLLM 0.33 computes prompt log-probabilities of this many tokens at a time (``prompt_logprobs`` of its sampler)."""

_LARGE_GRAPHS = 3 * GIB
"""V0 itself says "CUDA graphs can take additional 1~3 GiB memory per GPU"; 2.41 on a 4090 (vLLM issue 7553)."""

_MUCH = Fraction(1, 20)
"""From this share of the engine's memory on, a setting that moves it is worth mentioning."""


def budget_findings(model: ModelSpec, deployment: Deployment, settings: Settings, budget: Budget) -> Iterator[Finding]:
    """Findings on the memory of the rank that decides."""
    vocabulary = model.shape.vocabulary or 0
    yield from start_findings(deployment, budget)
    if deployment.memory_utilization is not None:
        yield from graphs_inside_findings(budget, settings.memory_utilization)
    beside = graph_bytes(budget, inside_fraction=False)
    left = budget.total_bytes - deployment.other_processes_bytes - budget.requested_bytes - beside
    is_measured = any(name == "cuda_graphs" for name, _ in deployment.corrections)
    if is_first_engine(release_of(deployment)) and beside and not is_measured and 0 <= left < _LARGE_GRAPHS - beside:
        yield Finding(
            code="graphs-may-not-fit",
            severity="warning",
            message="graphs of this release lie beside the share and may take 1 to 3 GiB: from "
            f"{format_bytes(left + beside)} on budget plus graphs exceeds the card, the server starts and runs out of "
            "memory under load",
            hint="lower --gpu-memory-utilization, or --enforce-eager; a log says what they took (kvplan calibrate)",
        )
    if not model.shape.is_pooling:
        yield from prompt_logits_findings(vocabulary, min(settings.max_num_batched_tokens, PROMPT_LOGITS_TOKENS), left)
    yield from _sampler_findings(budget, vocabulary, settings.max_num_seqs)


def graphs_inside_findings(budget: Budget, share: Fraction) -> Iterator[Finding]:
    """What a share chosen for a release that did not count graphs costs, and the share that costs nothing.

    share + graphs / total: 0.935 of 23.56 GiB and 0.58 GiB of graphs give 0.9596.
    """
    graphs = graph_bytes(budget, inside_fraction=True)
    same_pool = share + Fraction(graphs, budget.total_bytes)
    if graphs > 0 and same_pool <= 1:
        yield Finding(
            code="graphs-inside-share",
            severity="info",
            message=f"{format_bytes(graphs)} of graphs count inside the share asked for; a release that did not count "
            f"them had that much more for KV. The same pool: a share of {float(same_pool):.4f}",
            hint="counting them can be turned off, but then they lie beside the share and can run out of memory under "
            "load",
        )


def prompt_logits_findings(vocabulary: int, tokens: int, left_bytes: int) -> Iterator[Finding]:
    """Whether one request for prompt log-probabilities fits beside the pool: tokens × vocabulary × 2 B of logits.

    1,024 × 154,880 × 2 B = 302.5 MiB, where 218.81 MiB are left, end the engine.
    """
    need = tokens * vocabulary * 2
    if need > left_bytes:
        yield Finding(
            code="prompt-logprobs-do-not-fit",
            severity="warning",
            message=f"a request for prompt log-probabilities takes {need / MIB:,.1f} MiB ({tokens:,} tokens × "
            f"{vocabulary:,} × 2 B) beside the pool, where {max(0, left_bytes) / MIB:,.1f} MiB are left: it would end "
            "the engine",
            hint="reject or cap prompt_logprobs, or lower --gpu-memory-utilization",
        )


def _sampler_findings(budget: Budget, vocabulary: int, sequences: int) -> Iterator[Finding]:
    """What sampling over all sequences takes, where that is much of the memory: 12 B × vocabulary × S at once (a
    float32 copy of the logits, and the indices of their order).

    152,064 × 1,024 × 4 B = 0.58 GiB a copy, 1.74 GiB the largest allocation (vllm-project/vllm issue 15105).
    """
    taken = sum(term.bytes for term in budget.terms if "sampler" in term.name and term.inside_fraction)
    if taken >= _MUCH * budget.requested_bytes:
        copy = sequences * vocabulary * 4
        yield Finding(
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
    """That the peak beside KV grows with the tokens of a step, where a step is a whole prompt or takes much.

    V0 computes a prompt of up to 32,768 tokens at once: 20,000 and 35,000 start on a card where 29,000 does not
    (vllm-project/vllm issue 10517).
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
