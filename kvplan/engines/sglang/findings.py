"""Findings on an SGLang plan: pools too small for a prefill, states that limit requests, options without effect."""

from collections.abc import Iterator
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.drafting import Drafter, counted
from kvplan.engines.engine_plan import Budget, Finding, Settings
from kvplan.engines.sglang.classes import CHECKED_RELEASE
from kvplan.engines.sglang.drafting import MAX_SEQUENCES
from kvplan.engines.sglang.pools import Stage, smallest_fraction, window_pool_tokens
from kvplan.model import ModelSpec
from kvplan.units import format_bytes


def memory_findings(stage: Stage, deployment: Deployment, settings: Settings, ratio: Fraction) -> Iterator[Finding]:
    """Findings on the pools of ``stage``, whose window pool has ``ratio`` of the full pool's tokens."""
    kept, budget = stage.kept, stage.budget
    if budget is not None and budget.kv_bytes <= 0:
        yield fraction_finding(budget, settings.memory_utilization)
    if kept.growing_layers and kept.window_tokens is not None:
        page = stage.layout.block_tokens
        window_pool = window_pool_tokens(stage.tokens, ratio, page)
        chunk = min(settings.max_num_batched_tokens, settings.max_model_len)
        yield window_pool_finding(window_pool, chunk, ratio, kept.window_tokens, page)
    if kept.state_bytes:
        asked = deployment.max_num_seqs or 0
        are_fewer = asked > settings.max_num_seqs
        yield Finding(
            code="states-bound-sequences",
            severity="warning" if are_fewer else "info",
            message=f"the state pool holds {stage.pools.state_slots:,} states, several for each request: requests at "
            f"once are limited to {settings.max_num_seqs:,}" + (f", not the {asked:,} asked for" if are_fewer else ""),
            hint="--mamba-full-memory-ratio moves memory between states and tokens, --mamba-ssm-dtype bfloat16 "
            "halves a state",
        )


def option_findings(deployment: Deployment, settings: Settings, drafter: Drafter | None) -> Iterator[Finding]:
    """What follows from the options and the release, and how requests are admitted."""
    if drafter is not None:
        layers = counted(len(drafter.layers), "layer")
        widened = f"every token of the pool has {layers} of the draft's more, " if drafter.layers else ""
        yield Finding(
            code="tokens-guessed-ahead",
            severity="info",
            message=f"{counted(drafter.tokens, 'token')} drafted per step: {widened}at most {MAX_SEQUENCES} requests "
            "run at once by default",
            hint="--max-num-seqs",
        )
    if deployment.chunked_prefill is False:
        yield Finding(
            code="prompts-in-one-step",
            severity="warning",
            message="without chunked prefill a prompt is computed in one step: a prompt of more than "
            f"{settings.max_num_batched_tokens:,} tokens takes more memory than SGLang reserves",
            hint="--chunked-prefill-size limits a step",
        )
    release = deployment.engine.release
    if release is not None and release[:2] != CHECKED_RELEASE[:2]:
        yield Finding(
            code="engine-version-priced-as-0.5",
            severity="warning",
            message=f"SGLang {'.'.join(map(str, release))}: the defaults are those of 0.5",
            hint="give --mem-fraction-static and --max-num-batched-tokens (chunked_prefill_size) as you run it",
        )
    yield Finding(
        code="engine-reserves-less-than-worst-case",
        severity="info",
        message="SGLang admits a request at a share of its cap, at most 4,096 new tokens: it does not reserve the "
        "worst case, and retracts requests when the pool runs out",
    )


def parallel_findings(model: ModelSpec, deployment: Deployment) -> Iterator[Finding]:
    """How experts are distributed, and what limits on media change."""
    experts, ranks = model.shape.experts, deployment.tensor_parallel * deployment.data_parallel
    if deployment.expert_parallel and experts:
        yield Finding(
            code="experts-whole",
            severity="info",
            message=f"each of {ranks} ranks holds {-(-experts // ranks)} of {experts} experts whole; buffers of "
            "backends that send tokens to them (--moe-a2a-backend) are not priced",
        )
    elif deployment.expert_parallel:
        yield Finding(code="no-experts", severity="info", message=f"{model.id} has no experts to distribute")
    if deployment.media_limits is not None:
        yield Finding(
            code="media-limits-take-no-memory",
            severity="info",
            message="SGLang does not run the encoder at start-up: limits refuse prompts and leave the pool as it is; "
            "the encoder runs in the memory reserved for activations",
        )


def host_findings(deployment: Deployment, stage: Stage) -> Iterator[Finding]:
    """How much KV the host keeps: its part of a rank's memory in whole pages.

    Source: ``HostKVCache`` of ``mem_cache/pool_host/base.py`` 0.5.23; ``--hicache-size`` is in GB of 10**9 per rank.
    """
    if deployment.kv_offload_bytes is None:
        return
    pages = host_bytes(deployment) // stage.layout.bytes_per_block
    is_larger = pages > stage.pages
    yield Finding(
        code="kv-offload",
        severity="info" if is_larger else "warning",
        message=f"{format_bytes(host_bytes(deployment))} of pinned host memory per rank keep up to "
        f"{pages * stage.layout.block_tokens:,} tokens and use no GPU memory"
        + ("" if is_larger else "; that is no more than the GPU's own pool"),
        hint=None if is_larger else "a larger --kv-offload; SGLang's default is twice the GPU's pool",
    )


def host_bytes(deployment: Deployment) -> int:
    """One rank's part of the host memory, in whole GB."""
    ranks = deployment.tensor_parallel * deployment.pipeline_parallel
    return (deployment.kv_offload_bytes or 0) // ranks // 10**9 * 10**9


def window_pool_finding(window_pool: int, chunk_tokens: int, ratio: Fraction, window: int, page: int = 1) -> Finding:
    """Whether the window pool holds one window and a page, and one prefill chunk.

    Source: ``validate_swa_pool_size`` of 0.5.23, which refuses to start.
    """
    if window_pool <= window + page:
        return Finding(
            code="window-pool-smaller-than-window",
            severity="error",
            message=f"the window pool of {window_pool:,} tokens does not hold one window of {window:,} and a page of "
            f"{page}: the server refuses to start",
            hint="raise --swa-full-tokens-ratio, or the memory for KV",
        )
    if window_pool < chunk_tokens:
        return Finding(
            code="window-pool-smaller-than-chunk",
            severity="error",
            message=f"the window pool of {window_pool:,} tokens is smaller than one prefill chunk of "
            f"{chunk_tokens:,}: the server accepts requests and hangs",
            hint="raise --swa-full-tokens-ratio, or lower --chunked-prefill-size",
        )
    return Finding(
        code="window-pool",
        severity="info",
        message=f"windows of {window:,} have a pool of their own: {window_pool:,} tokens, {float(ratio):g} of the full "
        "pool's",
    )


def fraction_finding(budget: Budget, fraction: Fraction) -> Finding:
    """The static fraction does not cover the weights; which fraction would."""
    inside = [term for term in budget.terms if term.inside_fraction]
    free = budget.total_bytes - next(term.bytes for term in budget.terms if term.name == "before_loading")
    weights = smallest_fraction(free, sum(term.bytes for term in inside if "weights" in term.name))
    smallest = smallest_fraction(free, sum(term.bytes for term in inside))
    return Finding(
        code="static-share-below-weights",
        severity="error",
        message=f"mem_fraction_static {float(fraction):g} leaves nothing for KV: the weights alone take "
        f"{float(weights):.4f} of the free memory",
        hint=f"--mem-fraction-static above {float(smallest):.4f}" if smallest < 1 else "more GPUs, or smaller weights",
    )
