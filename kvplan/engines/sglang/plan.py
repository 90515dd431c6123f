"""SGLang's plan: a block is one page of tokens with its share of the window pool.

Rules hold for 0.5 (``rules.py``, ``reserve.py`` and ``classes.py`` name the sources); older ones had other defaults.
"""

from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.base import (
    Budget,
    CacheGroup,
    CacheLayout,
    Deployment,
    EnginePlan,
    Settings,
)
from kvplan.engines.devices import capability_of, device_bytes, window_of
from kvplan.engines.engine import ADAPTERS
from kvplan.engines.ranks import Kept, keep, rank_stages, refuse_options, refuse_other_kinds
from kvplan.engines.sglang.budget import adapters_are_priced, rank_budget, with_states
from kvplan.engines.sglang.classes import has_window_pool
from kvplan.engines.sglang.drafting import SEQUENCES, drafter_of, with_draft
from kvplan.engines.sglang.findings import asked_findings, host_finding, memory_findings, parallel_findings
from kvplan.engines.sglang.reserve import chunk_tokens, static_fraction
from kvplan.engines.sglang.rules import (
    STATE_POOL_RATIO,
    WINDOW_POOL_RATIO,
    Pools,
    as_stored,
    kv_types,
    page_tokens,
    share_out,
    states_per_request,
)
from kvplan.engines.sglang.sparse import with_index_keys
from kvplan.engines.token_pool import model_notes, one_pool, pool_bytes, windows_as_full, windows_kept_whole
from kvplan.errors import InputError
from kvplan.layers import (
    ChunkedAttention,
    FullAttention,
    GatedDeltaState,
    IndexKeys,
    IndexTail,
    KdaState,
    LatentAttention,
    LightningState,
    Mamba2State,
    SharedKv,
    ShortConvState,
    SlidingAttention,
)
from kvplan.model import ModelSpec

_STATES = (Mamba2State, GatedDeltaState, KdaState, LightningState, ShortConvState)
_PRICED = (FullAttention, SlidingAttention, ChunkedAttention, LatentAttention, SharedKv, *_STATES)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One pipeline stage: what a rank of it keeps, and the pools that its memory makes."""

    kept: Kept
    budget: Budget | None
    pools: Pools
    layout: CacheLayout

    @property
    def pages(self) -> int:
        """Pages of the token pool."""
        return max(0, self.pools.kv_bytes // self.layout.bytes_per_block)


def plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    """Pools from the budget, or from the memory that was given; the stage with the fewest pages decides."""
    _refuse(model, deployment)
    kv = kv_types(model, deployment.kv_dtype, capability_of(deployment), deployment.engine.release)
    pooled = deployment.hybrid_kv_cache_manager and has_window_pool(model.architecture, deployment.engine.release)
    ratio = _window_ratio(model, deployment, pooled=pooled)
    stages, windows, drafter = [], 0, drafter_of(model, deployment)
    for index, layers in enumerate(rank_stages(model, deployment)):
        indexed = with_index_keys(layers, deployment.engine.release)
        kept = keep((as_stored(layer, model.architecture) for layer in indexed), kv)
        windows += kept.counts[1]
        kept = with_draft(kept if pooled else windows_as_full(kept), drafter, model, kv)
        stages.append(_stage(model, deployment, kept, index, ratio))
    chosen = min(stages, key=lambda stage: stage.pages)
    page = chosen.layout.block_tokens
    tokens = chosen.pages * page
    settings = _settings(model, deployment, tokens, chosen.pools)
    return EnginePlan(
        settings=settings,
        kv_types=kv,
        layout=chosen.layout,
        kv_bytes=chosen.pools.kv_bytes,
        blocks=chosen.pages,
        budget=with_states(chosen.budget, chosen.pools),
        findings=(
            *model_notes(model),
            *memory_findings(
                chosen.kept,
                chosen.budget,
                settings,
                deployment.max_num_seqs,
                chosen.pools.state_slots,
                tokens,
                ratio,
                page,
            ),
            *windows_kept_whole("SGLang", 0 if pooled else windows),
            *asked_findings(deployment, settings, drafter),
            *parallel_findings(model, deployment),
            *filter(None, [host_finding(deployment, chosen.layout, chosen.pages)]),
        ),
        tokens=tokens,
        unpriced=(ADAPTERS,) if deployment.lora_slots and not adapters_are_priced(model) else (),
    )


def _window_ratio(model: ModelSpec, deployment: Deployment, *, pooled: bool) -> Fraction:
    """The window pool's tokens per token of the full pool."""
    asked = deployment.window_pool_ratio
    if asked is None:
        return WINDOW_POOL_RATIO
    if not pooled:
        raise InputError(
            f"SGLang has no window pool for {model.id}: every layer keeps every token",
            hint="leave --swa-full-tokens-ratio out",
            key="window_pool_ratio",
        )
    if not 0 < asked <= 1:
        raise InputError(
            f"a window pool ratio of {float(asked):g} is not in (0, 1]",
            hint="0.8 is SGLang's own",
            key="window_pool_ratio",
        )
    return asked


def _stage(model: ModelSpec, deployment: Deployment, kept: Kept, index: int, ratio: Fraction) -> Stage:
    budget = rank_budget(model, deployment, index)
    memory = pool_bytes(deployment, budget)
    slots = deployment.max_num_seqs if deployment.prefix_caching is False else None
    pools = share_out(memory, kept.state_bytes, deployment.state_pool_ratio or STATE_POOL_RATIO, slots=slots)
    return Stage(kept=kept, budget=budget, pools=pools, layout=_layout(kept, page_tokens(model, deployment), ratio))


def _layout(kept: Kept, page: int, ratio: Fraction) -> CacheLayout:
    growing, windows, states = kept.counts
    if growing and not windows:
        return one_pool(kept, page, reserved_blocks=1)
    if windows and growing:
        cell = (kept.growing_per_token + ratio * kept.windowed_per_token) * page
        group = CacheGroup(
            kind="full attention with a window pool",
            layers=growing + windows,
            rule="paired",
            block_tokens=page,
            page_bytes=-(-cell.numerator // cell.denominator),
            window_tokens=kept.window_tokens,
            pool_ratio=ratio,
        )
    elif windows:
        group = CacheGroup(
            kind="sliding window",
            layers=windows,
            rule="sliding",
            block_tokens=page,
            page_bytes=int(kept.token_bytes * page),
            window_tokens=kept.window_tokens,
        )
    else:
        group = CacheGroup(
            kind="recurrent state",
            layers=states,
            rule="fixed",
            block_tokens=1,
            page_bytes=max(1, kept.state_bytes),
            fixed_blocks=1,
        )
    return CacheLayout(
        block_tokens=page, bytes_per_block=group.page_bytes, groups=(group,), in_flight_tokens=0, reserved_blocks=1
    )


def _settings(model: ModelSpec, deployment: Deployment, tokens: int, pools: Pools) -> Settings:
    """Requests at once: 512 × tokens / window, from 2,048 to 4,096; at most one for two tokens of the pool, and for the
    states that a request takes; 48 over all replicas where tokens are guessed ahead. Attention data parallelism shares
    out the prefill chunk.
    """
    window = window_of(model, deployment)
    most = max(1, SEQUENCES // deployment.data_parallel) if deployment.speculative_tokens else 4096
    sequences = deployment.max_num_seqs or min(max(512 * tokens // window, 2048), most)
    sequences = max(1, min(sequences, tokens // 2))
    if pools.state_slots:
        sequences = max(1, min(sequences, pools.state_slots // states_per_request(model, deployment)))
    return Settings(
        max_model_len=window,
        max_num_seqs=sequences,
        max_num_batched_tokens=max(1, chunk_tokens(deployment) // deployment.data_parallel),
        memory_utilization=static_fraction(model, deployment, device_bytes(deployment)),
        async_scheduling=deployment.async_scheduling is not False,
        prefix_caching=deployment.prefix_caching is not False,
        in_flight_tokens=0,
    )


def _refuse(model: ModelSpec, deployment: Deployment) -> None:
    refuse_other_kinds(model, "SGLang", but=(*_PRICED, IndexKeys, IndexTail) if model.has_sparse_latents else _PRICED)
    refuse_options(
        "SGLang",
        (deployment.context_parallel > 1, "decode context parallelism"),
        (
            deployment.speculative_tokens > 0 and deployment.pipeline_parallel > 1,
            "speculative decoding with pipeline stages",
        ),
    )
