"""What the reader of an SGLang plan should know: pools that a prefill does not fit in, states that bound requests."""

from collections.abc import Iterator
from fractions import Fraction

from kvplan.engines.base import Budget, CacheLayout, Deployment, Finding, Settings
from kvplan.engines.drafting import Drafter
from kvplan.engines.ranks import Kept
from kvplan.engines.sglang.classes import CHECKED_RELEASE
from kvplan.engines.sglang.drafting import draft_finding
from kvplan.engines.sglang.rules import smallest_fraction, window_pool_tokens
from kvplan.model import ModelSpec
from kvplan.units import format_bytes


def memory_findings(
    kept: Kept,
    budget: Budget | None,
    settings: Settings,
    asked_seqs: int | None,
    state_slots: int,
    tokens: int,
    ratio: Fraction,
    page: int,
) -> Iterator[Finding]:
    """Findings on pools of ``tokens`` tokens and ``state_slots`` states, where ``asked_seqs`` were to run at once."""
    if budget is not None and budget.kv_bytes <= 0:
        yield fraction_finding(budget, settings.memory_utilization)
    if kept.counts[0] and kept.window_tokens is not None:
        window_pool = window_pool_tokens(tokens, ratio, page)
        chunk = min(settings.max_num_batched_tokens, settings.max_model_len)
        yield window_pool_finding(window_pool, chunk, ratio, kept.window_tokens, page)
    if kept.state_bytes:
        fewer = asked_seqs is not None and asked_seqs > settings.max_num_seqs
        yield Finding(
            code="states-bound-sequences",
            severity="warning" if fewer else "info",
            message=f"the state pool holds {state_slots:,} states, several for each request: requests at once are "
            f"at most {settings.max_num_seqs:,}" + (f", not the {asked_seqs:,} asked for" if fewer else ""),
            hint="--mamba-full-memory-ratio moves memory between states and tokens, --mamba-ssm-dtype bfloat16 "
            "halves a state",
        )


def asked_findings(deployment: Deployment, settings: Settings, drafter: Drafter | None) -> Iterator[Finding]:
    """Findings that follow from the options and the release, and how requests are admitted."""
    if drafter is not None:
        yield draft_finding(drafter)
    if deployment.chunked_prefill is False:
        yield Finding(
            code="prompts-in-one-step",
            severity="warning",
            message="without chunks a prompt is computed in one step: one longer than "
            f"{settings.max_num_batched_tokens:,} tokens takes more memory than is kept for it",
            hint="--chunked-prefill-size bounds a step",
        )
    release = deployment.engine.release
    if release is not None and release[:2] != CHECKED_RELEASE[:2]:
        yield Finding(
            code="engine-version-priced-as-0.5",
            severity="warning",
            message=f"SGLang {'.'.join(map(str, release))}: defaults are those of 0.5",
            hint="give --mem-fraction-static and --max-num-batched-tokens (chunked_prefill_size) as you run it",
        )
    yield Finding(
        code="engine-reserves-less-than-worst-case",
        severity="info",
        message="SGLang admits a request at a share of its cap, and at most 4,096 new tokens: its own reservation "
        "is not the worst case, and it retracts requests when the pool runs out",
    )


def parallel_findings(model: ModelSpec, deployment: Deployment) -> Iterator[Finding]:
    """How experts are dealt, and what limits on media change."""
    experts, ranks = model.shape.experts, deployment.tensor_parallel * deployment.data_parallel
    if deployment.expert_parallel and experts:
        yield Finding(
            code="experts-whole",
            severity="info",
            message=f"each of {ranks} ranks holds {-(-experts // ranks)} of {experts} experts whole; buffers of "
            "backends that send tokens to them (--moe-a2a-backend) are not priced",
        )
    elif deployment.expert_parallel:
        yield Finding(code="no-experts", severity="info", message=f"{model.id} has no experts to deal to ranks")
    if deployment.media_limits is not None:
        yield Finding(
            code="media-limits-take-no-memory",
            severity="info",
            message="SGLang tries no encoder when it starts: limits refuse prompts and leave the pool as it is; the "
            "encoder runs in what is kept for activations",
        )


def host_finding(deployment: Deployment, layout: CacheLayout, pages: int) -> Finding | None:
    """What the host keeps of a pool of ``pages`` pages: its part of a rank's memory in whole pages.

    Source: ``HostKVCache`` of ``mem_cache/pool_host/base.py`` 0.5.23; ``--hicache-size`` is in GB of 10**9 a rank.
    """
    if deployment.kv_offload_bytes is None:
        return None
    kept = host_bytes(deployment) // layout.bytes_per_block
    return Finding(
        code="kv-offload",
        severity="info" if kept > pages else "warning",
        message=f"{format_bytes(host_bytes(deployment))} of pinned host memory for each rank keep up to "
        f"{kept * layout.block_tokens:,} tokens; it takes nothing of a GPU's"
        + ("" if kept > pages else ", and keeps no more than the GPU's own pool does"),
        hint=None if kept > pages else "a larger --kv-offload; SGLang's own default is twice the GPU's pool",
    )


def host_bytes(deployment: Deployment) -> int:
    """One rank's part of the host's memory, in whole GB."""
    ranks = deployment.tensor_parallel * deployment.pipeline_parallel
    return (deployment.kv_offload_bytes or 0) // ranks // 10**9 * 10**9


def window_pool_finding(window_pool: int, chunk_tokens: int, ratio: Fraction, window: int, page: int = 1) -> Finding:
    """Whether one window and a page, and one prefill chunk, fit in the window pool.

    Source: ``validate_swa_pool_size`` of 0.5.23, which refuses to start.
    """
    if window_pool <= window + page:
        return Finding(
            code="window-pool-smaller-than-window",
            severity="error",
            message=f"the sliding pool of {window_pool:,} tokens does not hold one window of {window:,} and a page of "
            f"{page}: the server refuses to start",
            hint="raise --swa-full-tokens-ratio, or the memory for KV",
        )
    if window_pool < chunk_tokens:
        return Finding(
            code="window-pool-smaller-than-chunk",
            severity="error",
            message=f"the sliding pool of {window_pool:,} tokens is smaller than one prefill chunk of "
            f"{chunk_tokens:,}: the server accepts requests and hangs",
            hint="raise --swa-full-tokens-ratio, or lower --chunked-prefill-size",
        )
    return Finding(
        code="window-pool",
        severity="info",
        message=f"windows of {window:,} have a pool of their own: {window_pool:,} tokens, {float(ratio):g} of the full "
        "one",
    )


def fraction_finding(budget: Budget, fraction: Fraction) -> Finding:
    """The static share is below the weights': which one would be above."""
    inside = [term for term in budget.terms if term.inside_fraction]
    free = budget.total_bytes - next(term.bytes for term in budget.terms if term.name == "before_loading")
    weights = smallest_fraction(free, sum(term.bytes for term in inside if "weights" in term.name))
    smallest = smallest_fraction(free, sum(term.bytes for term in inside))
    possible = smallest < 1
    return Finding(
        code="static-share-below-weights",
        severity="error",
        message=f"mem_fraction_static {float(fraction):g} leaves nothing for KV: the weights alone take "
        f"{float(weights):.4f} of what is free",
        hint=f"--mem-fraction-static above {float(smallest):.4f}" if possible else "more GPUs, or smaller weights",
    )
