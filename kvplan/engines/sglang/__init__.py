"""SGLang: what its static share leaves beside the weights is a pool of tokens, with a window or a state pool beside it.

Rules hold for 0.5 (``rules.py`` names the sources); older releases had other defaults.
"""

from fractions import Fraction

from kvplan.engines.base import (
    Budget,
    BudgetTerm,
    CacheGroup,
    CacheLayout,
    Deployment,
    EnginePlan,
    Settings,
)
from kvplan.engines.corrections import corrected
from kvplan.engines.ranks import Kept, keep, rank_stages, refuse_options, refuse_other_kinds
from kvplan.engines.sglang.findings import plan_findings
from kvplan.engines.sglang.rules import (
    SPARSE_PAGE_TOKENS,
    STATE_POOL_RATIO,
    STATE_SLOTS_PER_REQUEST,
    WINDOW_POOL_RATIO,
    Pools,
    default_fraction,
    is_sparse,
    kv_types,
    share_out,
    tier_of,
)
from kvplan.engines.vllm.budget import device_memories
from kvplan.engines.vllm.settings import device_bytes, window_of
from kvplan.engines.vllm.weights import rank_weights
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.units import GIB

BEFORE_LOADING_BYTES = int(0.45 * GIB)
BEFORE_LOADING_PARALLEL_BYTES = GIB // 2
_BAND_BYTES = int(0.3 * GIB)


class Sglang:
    """SGLang as an ``Engine``: a block is one page of tokens with its share of the window pool."""

    name = "sglang"

    def plan(self, model: ModelSpec, deployment: Deployment) -> EnginePlan:
        """Pools from the budget, or from the memory that was given."""
        _refuse(model, deployment)
        kv = kv_types(model, deployment.kv_dtype)
        stages = [keep(layers, kv) for layers in rank_stages(model, deployment)]
        ratio = deployment.window_pool_ratio or WINDOW_POOL_RATIO
        if not 0 < ratio <= 1:
            raise InputError(f"a window pool ratio of {float(ratio):g} is not in (0, 1]", key="window_pool_ratio")
        page = deployment.block_size or (SPARSE_PAGE_TOKENS if is_sparse(model) else 1)
        radix = deployment.prefix_caching is not False
        fixed_slots = None if radix else deployment.max_num_seqs
        chosen: tuple[int, Kept, Pools, Budget | None, CacheLayout] | None = None
        for stage, kept in enumerate(stages):
            budget = _budget(model, deployment, stage)
            memory = deployment.kv_memory_bytes if budget is None else budget.kv_bytes
            assert memory is not None
            state_ratio = deployment.state_pool_ratio or STATE_POOL_RATIO
            pools = share_out(memory, kept.state_bytes, state_ratio, slots=fixed_slots)
            layout = _layout(kept, page, ratio)
            blocks = max(0, pools.kv_bytes // layout.bytes_per_block)
            if chosen is None or blocks < chosen[0]:
                chosen = (blocks, kept, pools, budget, layout)
        assert chosen is not None
        blocks, kept, pools, budget, layout = chosen
        settings = _settings(model, deployment, blocks * page, pools, radix=radix)
        return EnginePlan(
            settings=settings,
            kv_types=kv,
            layout=layout,
            kv_bytes=pools.kv_bytes,
            blocks=blocks,
            budget=_with_state(budget, pools),
            findings=plan_findings(
                model, deployment, settings, kept, pools.state_slots, blocks * page, ratio, page, budget
            ),
            tokens=blocks * page,
        )


def _layout(kept: Kept, page: int, ratio: Fraction) -> CacheLayout:
    growing, windows, states = kept.counts
    if not growing and not windows:
        group = CacheGroup(
            kind="recurrent state",
            layers=states,
            rule="fixed",
            block_tokens=1,
            page_bytes=max(1, kept.state_bytes),
            fixed_blocks=1,
        )
    elif windows and growing:
        cell = kept.growing_per_token + ratio * kept.windowed_per_token
        group = CacheGroup(
            kind="full attention with a window pool",
            layers=growing + windows,
            rule="paired",
            block_tokens=page,
            page_bytes=-(-(cell * page).numerator // (cell * page).denominator),
            window_tokens=kept.window_tokens,
            pool_ratio=ratio,
        )
    else:
        group = CacheGroup(
            kind="full attention" if growing else "sliding window",
            layers=growing + windows,
            rule="full" if growing else "sliding",
            block_tokens=page,
            page_bytes=int(kept.token_bytes * page),
            window_tokens=kept.window_tokens,
        )
    return CacheLayout(
        block_tokens=page, bytes_per_block=group.page_bytes, groups=(group,), in_flight_tokens=0, reserved_blocks=1
    )


def _settings(model: ModelSpec, deployment: Deployment, tokens: int, pools: Pools, *, radix: bool) -> Settings:
    """Requests at once: min(max(512 × tokens / window, 2,048), 4,096); a third of the states where prompts are kept."""
    window, total = window_of(model, deployment), device_bytes(deployment)
    chunk = deployment.max_num_batched_tokens or tier_of(total).chunk_tokens
    sequences = deployment.max_num_seqs or min(max(512 * tokens // window, 2048), 4096)
    if pools.state_slots:
        sequences = max(1, min(sequences, pools.state_slots // (STATE_SLOTS_PER_REQUEST if radix else 1)))
    return Settings(
        max_model_len=window,
        max_num_seqs=sequences,
        max_num_batched_tokens=chunk,
        memory_utilization=_fraction(deployment, total),
        async_scheduling=deployment.async_scheduling is not False,
        prefix_caching=radix,
        in_flight_tokens=0,
    )


def _fraction(deployment: Deployment, total_bytes: int) -> Fraction:
    if deployment.memory_utilization is not None:
        return deployment.memory_utilization
    chunk = deployment.max_num_batched_tokens or tier_of(total_bytes).chunk_tokens
    ranks = deployment.tensor_parallel * deployment.data_parallel
    return default_fraction(total_bytes, chunk, ranks, deployment.pipeline_parallel)


def _refuse(model: ModelSpec, deployment: Deployment) -> None:
    refuse_other_kinds(model, "SGLang")
    refuse_options(
        "SGLang",
        (deployment.context_parallel > 1, "decode context parallelism"),
        (deployment.speculative_tokens > 0, "speculative decoding: its draft shares the pool"),
    )


def _budget(model: ModelSpec, deployment: Deployment, stage: int) -> Budget | None:
    """One rank, None where the KV memory was given: the static share is of what is free before loading."""
    if deployment.kv_memory_bytes is not None:
        return None
    first = stage * deployment.tensor_parallel
    memories = device_memories(deployment)[first : first + deployment.tensor_parallel]
    total = min(memories)
    weights = rank_weights(
        model,
        tensor_parallel=deployment.tensor_parallel,
        pipeline_parallel=deployment.pipeline_parallel,
        stage=stage,
        data_parallel=deployment.data_parallel,
        given_bytes=deployment.weight_bytes,
    )
    before = BEFORE_LOADING_BYTES + (BEFORE_LOADING_PARALLEL_BYTES if deployment.gpus > 1 else 0)
    fraction = _fraction(deployment, total)
    requested = int((total - before) * fraction)
    left = requested - weights.bytes
    half = int(weights.bytes * weights.unsure_share) + _BAND_BYTES
    answer = Budget(
        rank=first + memories.index(total),
        total_bytes=total,
        requested_bytes=requested,
        terms=(
            BudgetTerm(
                name="before_loading",
                bytes=before,
                formula="the driver's context and communication buffers",
                inside_fraction=False,
            ),
            BudgetTerm(
                name="activations_and_graphs",
                bytes=total - before - requested,
                formula=f"free before loading × (1 − {float(fraction):g})",
                inside_fraction=False,
            ),
            BudgetTerm(name="weights", bytes=weights.bytes, formula=weights.formula),
        ),
        kv_bytes=left,
        kv_bytes_low=left - half,
        kv_bytes_high=left + half,
    )
    return corrected(answer, deployment.corrections)


def _with_state(budget: Budget | None, pools: Pools) -> Budget | None:
    """The budget with the state pool as a term of its own."""
    if budget is None or not pools.state_bytes:
        return budget
    term = BudgetTerm(name="state_pool", bytes=pools.state_bytes, formula=f"{pools.state_slots:,} states")
    return Budget(
        rank=budget.rank,
        total_bytes=budget.total_bytes,
        requested_bytes=budget.requested_bytes,
        terms=(*budget.terms, term),
        kv_bytes=pools.kv_bytes,
        kv_bytes_low=budget.kv_bytes_low - pools.state_bytes,
        kv_bytes_high=budget.kv_bytes_high - pools.state_bytes,
    )


SGLANG = Sglang()
