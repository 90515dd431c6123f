"""The decision: what a request is charged, whether it fits, and what a refused client is told."""

import random
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kvplan.admission import (
    PROMPT_EXCEEDS_WINDOW,
    DrainEstimate,
    Ledger,
    Strategy,
    charge,
    effective_cap,
    permanent_refusal,
    retry_after_s,
)
from kvplan.admission import Ask as StrategyAsk
from kvplan.gateway.asks import Ask


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What the plan lets the gateway promise.

    ``request_blocks`` is the engine's own charge for a number of tokens; ``capacity`` the usable part of the pool in
    the strategy's unit (blocks, or requests for ``concurrency``). ``media_tokens`` holds the engine's maximum per item
    of a medium; a medium that is missing is refused.
    """

    window_tokens: int
    capacity: int
    request_blocks: Callable[[int], int]
    strategy: Strategy
    default_max_tokens: int | None = None
    expected_output_tokens: int = 0
    retry_after_constant_s: float | None = None
    retry_after_jitter_share: float = 0.25
    media_tokens: Mapping[str, int] = field(default_factory=dict)


class LedgerDownError(Exception):
    """A shared ledger cannot be reached, and its policy is to refuse."""


class WeightedLedger(Protocol):
    """What the gateway needs of a ledger. ``release`` is synchronous and counts once, so that it can stand in a
    ``finally`` that is being cancelled; ``acquire`` may wait (a shared ledger asks Redis)."""

    @property
    def capacity(self) -> int: ...

    @property
    def reserved(self) -> int: ...

    @property
    def free(self) -> int: ...

    async def acquire(self, holder: Hashable, weight: int) -> bool: ...

    def weight_of(self, holder: Hashable) -> int | None: ...

    def shrink(self, holder: Hashable, weight: int) -> bool: ...

    def release(self, holder: Hashable) -> bool: ...


class OwnLedger(Ledger):
    """The planner's ledger in the shape that the gateway awaits; nothing here ever waits."""

    async def acquire(self, holder: Hashable, weight: int) -> bool:
        """``try_reserve``, as a coroutine."""
        return self.try_reserve(holder, weight)


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one request is charged: ``weight`` in the ledger's unit, ``tokens`` for display, over all its sequences.

    ``cap_to_write`` is the default cap that has to stand in the forwarded body, null where the client's own bounds it
    or the window does.
    """

    weight: int
    tokens: int
    cap_to_write: int | None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a request does not enter: ``capacity`` (try again after ``retry_after_s``) or a permanent reason."""

    reason: str
    message: str
    retry_after_s: float | None = None


def price(promise: Promise, ask: Ask) -> Price:
    """Charge of one request: per sequence the engine's blocks for min(prompt + effective cap, window), summed.

    A prompt of which only a bound is known may seem longer than the window; then the window itself is the bound, for
    the engine stops there.
    """
    window, cap, written = promise.window_tokens, ask.max_output_tokens, None
    longest = max(ask.prompts)
    if cap is None and promise.default_max_tokens is not None and longest < window:
        cap = written = effective_cap(longest, None, window, promise.default_max_tokens)
    weight = tokens = 0
    for prompt in ask.prompts:
        held = min(prompt, window)
        capped = effective_cap(held, cap, window)
        one = StrategyAsk(prompt_tokens=held, cap_tokens=capped, expected_output_tokens=promise.expected_output_tokens)
        weight += charge(promise.strategy, one, promise.request_blocks)
        tokens += held + capped
    return Price(weight=weight * ask.sequences, tokens=tokens * ask.sequences, cap_to_write=written)


def filled(promise: Promise, ask: Ask, written_tokens: int) -> tuple[int, int]:
    """Blocks and tokens that a request fills once it has written so many: per sequence its prompt and an even share."""
    share = -(-written_tokens // (len(ask.prompts) * ask.sequences))
    lengths = [min(prompt + share, promise.window_tokens) for prompt in ask.prompts]
    return sum(map(promise.request_blocks, lengths)) * ask.sequences, sum(lengths) * ask.sequences


def refused_for_good(promise: Promise, ask: Ask, price: Price) -> Refusal | None:
    """A request that can never be served: its prompt fills the window, or its reservation exceeds the pool.

    Only an exact prompt can be said to fill the window; a bound cannot.
    """
    longest = max(ask.prompts)
    reason = permanent_refusal(longest if ask.is_exact else 0, promise.window_tokens, price.weight, promise.capacity)
    if reason == PROMPT_EXCEEDS_WINDOW:
        return Refusal(
            reason=reason,
            message=f"the prompt has {longest} tokens; the context window is {promise.window_tokens}",
        )
    if reason is not None:
        return Refusal(
            reason=reason,
            message=(
                f"this request may need {price.tokens} tokens of KV cache, more than can ever be reserved at once; "
                "lower max_tokens, n or the prompt"
            ),
        )
    return None


class Admission:
    """A ledger, the promise it keeps, and the memory of how fast it drains."""

    def __init__(
        self,
        promise: Promise,
        ledger: WeightedLedger,
        *,
        generator: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.promise = promise
        self.ledger = ledger
        self._drain = DrainEstimate()
        self._random = generator if generator is not None else random.Random()  # noqa: S311 - spreads retries, no secret
        self._clock = clock
        self._since_s: dict[Hashable, float] = {}

    @property
    def running(self) -> int:
        """Reservations that this gateway holds now, whatever they weigh."""
        return len(self._since_s)

    async def acquire(self, holder: Hashable, weight: int) -> bool:
        """Reserve ``weight`` if that much is free. Raises LedgerDownError where a shared ledger refuses to guess."""
        admitted = await self.ledger.acquire(holder, weight)
        if admitted:
            self._since_s[holder] = self._clock()
        return admitted

    def no_room(self, price: Price) -> Refusal:
        """The refusal of a request that lacks room now, with a Retry-After that means something."""
        missing = price.weight - self.ledger.free
        promise = self.promise
        wait_s = promise.retry_after_constant_s
        if wait_s is None:
            wait_s = self._drain.wait_s(
                missing=missing, weight=price.weight, reserved=self.ledger.reserved, now_s=self._clock()
            )
        return Refusal(
            reason="server_at_capacity",
            message="the KV cache is fully reserved; this request would not be sure to finish",
            retry_after_s=retry_after_s(
                wait_s, jitter_share=promise.retry_after_jitter_share, draw=self._random.random()
            ),
        )

    def shrink(self, holder: Hashable, weight: int) -> None:
        """Lower a reservation to what an exact count showed; it never grows."""
        self.ledger.shrink(holder, weight)

    def release(self, holder: Hashable) -> float | None:
        """Give a reservation back, once: how long it was held, which the drain estimate notes; None if it was not."""
        weight, reserved = self.ledger.weight_of(holder), self.ledger.reserved
        since_s = self._since_s.pop(holder, None)
        if not self.ledger.release(holder) or weight is None or since_s is None:
            return None
        held_s = self._clock() - since_s
        self._drain.released(weight, held_s=held_s, reserved=reserved)
        return held_s
