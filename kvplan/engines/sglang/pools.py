"""SGLang's pools: the memory that the static fraction leaves, shared between tokens, windows and states, and paged.

Source: ``kv_cache_configurator.py`` and ``pool_configurator.py`` of 0.5.23.
"""

from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.deployment import Deployment, is_since
from kvplan.engines.engine_plan import Budget, CacheGroup, CacheLayout
from kvplan.engines.ranks import CacheSizes
from kvplan.engines.sglang.classes import TRACKED_STATE_CLASSES, TRACKED_STATES
from kvplan.engines.token_pool import one_pool
from kvplan.model import ModelSpec

WINDOW_POOL_RATIO = Fraction(8, 10)
STATE_POOL_RATIO = Fraction(9, 10)
"""Defaults of ``--swa-full-tokens-ratio`` and ``--mamba-full-memory-ratio``."""
_STATES_PER_REQUEST = 3
_TRACKED_STATES_PER_REQUEST = 5
"""State slots of a request with the prefix cache; ``TRACKED_STATE_CLASSES`` keep two more."""


def kv_memory(free_before_bytes: int, free_after_bytes: int, fraction: Fraction) -> int:
    """Memory of the pools: free after loading − (free before loading) × (1 − mem_fraction_static). May be negative.

    >>> kv_memory(100, 60, Fraction(9, 10))
    50
    """
    return int(free_before_bytes * fraction) - (free_before_bytes - free_after_bytes)


def smallest_fraction(free_before_bytes: int, loaded_bytes: int) -> Fraction:
    """The ``mem_fraction_static`` that leaves nothing for KV: loaded / free before loading."""
    return Fraction(loaded_bytes, free_before_bytes)


def window_pool_tokens(full_tokens: int, ratio: Fraction, page_tokens: int) -> int:
    """Tokens of the window pool: full × ratio, rounded down to whole pages.

    >>> window_pool_tokens(32768, Fraction(1, 10), 256)
    3072
    """
    return int(full_tokens * ratio) // page_tokens * page_tokens


@dataclass(frozen=True, kw_only=True)
class Pools:
    """The pools' memory shared out: ``kv_bytes`` for tokens, the rest for ``state_slots`` states and one more, which
    pads batches."""

    kv_bytes: int
    state_bytes: int
    state_slots: int


def share_out(memory: int, state_bytes: int, ratio: Fraction, *, slots: int | None = None) -> Pools:
    """States get ratio / (1 + ratio) of the memory in whole slots, or ``slots`` of them; tokens get the rest.

    Source: ``_handle_max_mamba_cache``.
    """
    if not state_bytes:
        return Pools(kv_bytes=memory, state_bytes=0, state_slots=0)
    count = slots if slots is not None else max(0, int(memory * ratio / (1 + ratio)) // state_bytes - 1)
    held = (count + 1) * state_bytes
    return Pools(kv_bytes=memory - held, state_bytes=held, state_slots=count)


def states_per_request(model: ModelSpec, deployment: Deployment) -> int:
    """State slots for each concurrent request: 1 without the prefix cache, else 3, or 5 for tracked classes."""
    if deployment.prefix_caching is False:
        return 1
    is_tracked = model.architecture in TRACKED_STATE_CLASSES and is_since(deployment.engine.release, TRACKED_STATES)
    return _TRACKED_STATES_PER_REQUEST if is_tracked else _STATES_PER_REQUEST


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One pipeline stage: what a rank of it keeps, and the pools of its memory."""

    kept: CacheSizes
    budget: Budget | None
    pools: Pools
    layout: CacheLayout

    @property
    def pages(self) -> int:
        """Pages of the token pool."""
        return max(0, self.pools.kv_bytes // self.layout.bytes_per_block)

    @property
    def tokens(self) -> int:
        """Tokens of the token pool."""
        return self.pages * self.layout.block_tokens


def paged(kept: CacheSizes, page: int, ratio: Fraction) -> CacheLayout:
    """The layout of one rank: a block is a page of tokens, with its share of the window pool."""
    if kept.growing_layers and not kept.window_layers:
        return one_pool(kept, page, reserved_blocks=1)
    if kept.window_layers and kept.growing_layers:
        cell = (kept.growing_per_token + ratio * kept.windowed_per_token) * page
        group = CacheGroup(
            kind="full attention with a window pool",
            layers=kept.growing_layers + kept.window_layers,
            rule="paired",
            block_tokens=page,
            page_bytes=-(-cell.numerator // cell.denominator),
            window_tokens=kept.window_tokens,
            pool_ratio=ratio,
        )
    elif kept.window_layers:
        group = CacheGroup(
            kind="sliding window",
            layers=kept.window_layers,
            rule="sliding",
            block_tokens=page,
            page_bytes=int(kept.token_bytes * page),
            window_tokens=kept.window_tokens,
        )
    else:
        group = CacheGroup(
            kind="recurrent state",
            layers=kept.state_layers,
            rule="fixed",
            block_tokens=1,
            page_bytes=max(1, kept.state_bytes),
            fixed_blocks=1,
        )
    return CacheLayout(
        block_tokens=page, bytes_per_block=group.page_bytes, groups=(group,), in_flight_tokens=0, reserved_blocks=1
    )
