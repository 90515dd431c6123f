"""SGLang's plan: budget, pools and settings of the pipeline stage with the fewest pages.

The rules are those of 0.5; ``storage``, ``pools``, ``budget``, ``static_fraction`` and ``classes`` name their sources.
"""

from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.devices import device_bytes, window_of
from kvplan.engines.engine import ADAPTERS
from kvplan.engines.engine_plan import EnginePlan, Settings
from kvplan.engines.ranks import CacheSizes, cache_sizes, rank_stages, refuse_options, refuse_other_kinds
from kvplan.engines.sglang.budget import rank_budget, with_states
from kvplan.engines.sglang.classes import has_window_pool
from kvplan.engines.sglang.drafting import MAX_SEQUENCES, drafter_of, with_draft
from kvplan.engines.sglang.findings import host_findings, memory_findings, option_findings, parallel_findings
from kvplan.engines.sglang.pools import (
    STATE_POOL_RATIO,
    WINDOW_POOL_RATIO,
    Stage,
    paged,
    share_out,
    states_per_request,
)
from kvplan.engines.sglang.static_fraction import chunk_tokens, static_fraction
from kvplan.engines.sglang.storage import kv_types, page_tokens, stored_layers
from kvplan.engines.token_pool import (
    dense_adapters_are_priced,
    model_notes,
    pool_bytes,
    windows_as_full,
    windows_kept_whole,
)
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


def plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    """Pools from the budget, or from the memory that was given."""
    _refuse(model, deployment)
    kv, release = kv_types(model, deployment), deployment.engine.release
    is_pooled = deployment.hybrid_kv_cache_manager and has_window_pool(model.architecture, release)
    ratio = _window_ratio(model, deployment, is_pooled=is_pooled)
    stages, windows, drafter = [], 0, drafter_of(model, deployment)
    for index, layers in enumerate(rank_stages(model, deployment)):
        kept = cache_sizes(stored_layers(model, layers, release), kv)
        windows += kept.window_layers
        kept = with_draft(kept if is_pooled else windows_as_full(kept), drafter, model, kv)
        stages.append(_stage(model, deployment, kept, index, ratio))
    chosen = min(stages, key=lambda stage: stage.pages)
    settings = _settings(model, deployment, chosen)
    return EnginePlan(
        settings=settings,
        kv_types=kv,
        layout=chosen.layout,
        kv_bytes=chosen.pools.kv_bytes,
        blocks=chosen.pages,
        budget=with_states(chosen.budget, chosen.pools),
        findings=(
            *model_notes(model),
            *memory_findings(chosen, deployment, settings, ratio),
            *windows_kept_whole("SGLang", 0 if is_pooled else windows),
            *option_findings(deployment, settings, drafter),
            *parallel_findings(model, deployment),
            *host_findings(deployment, chosen),
        ),
        tokens=chosen.tokens,
        unpriced=(ADAPTERS,) if deployment.lora_slots and not dense_adapters_are_priced(model) else (),
    )


def _window_ratio(model: ModelSpec, deployment: Deployment, *, is_pooled: bool) -> Fraction:
    """The window pool's tokens per token of the full pool."""
    asked = deployment.window_pool_ratio
    if asked is None:
        return WINDOW_POOL_RATIO
    if not is_pooled:
        raise InputError(
            f"SGLang has no window pool for {model.id}: every layer keeps every token",
            hint="leave --swa-full-tokens-ratio out",
            key="swa_full_tokens_ratio",
        )
    if not 0 < asked <= 1:
        raise InputError(
            f"a window pool ratio of {float(asked):g} is not in (0, 1]",
            hint="SGLang's default is 0.8",
            key="swa_full_tokens_ratio",
        )
    return asked


def _stage(model: ModelSpec, deployment: Deployment, kept: CacheSizes, index: int, ratio: Fraction) -> Stage:
    budget = rank_budget(model, deployment, index)
    memory = pool_bytes(deployment, budget)
    slots = deployment.max_num_seqs if deployment.prefix_caching is False else None
    pools = share_out(memory, kept.state_bytes, deployment.state_pool_ratio or STATE_POOL_RATIO, slots=slots)
    return Stage(kept=kept, budget=budget, pools=pools, layout=paged(kept, page_tokens(model, deployment), ratio))


def _settings(model: ModelSpec, deployment: Deployment, stage: Stage) -> Settings:
    """Concurrent requests: 512 × tokens / window, between 2,048 and 4,096 (with speculative decoding 48 over all
    replicas); at most one for two tokens of the pool, and one for each set of states that a request takes. Attention
    data parallelism divides the prefill chunk.
    """
    window, tokens = window_of(model, deployment), stage.tokens
    limit = max(1, MAX_SEQUENCES // deployment.data_parallel) if deployment.speculative_tokens else 4096
    sequences = deployment.max_num_seqs or min(max(512 * tokens // window, 2048), limit)
    sequences = max(1, min(sequences, tokens // 2))
    if stage.pools.state_slots:
        sequences = max(1, min(sequences, stage.pools.state_slots // states_per_request(model, deployment)))
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
    has_stages = deployment.pipeline_parallel > 1
    refuse_options(
        "SGLang",
        (deployment.context_parallel > 1, "decode context parallelism"),
        (deployment.speculative_tokens > 0 and has_stages, "speculative decoding with pipeline stages"),
    )
