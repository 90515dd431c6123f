"""The admission decision: what the plan promises, what a request is charged, whether it fits, and what a refused client
is told."""

import random
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kvplan.admission import (
    PROMPT_EXCEEDS_WINDOW,
    STRATEGIES,
    DrainEstimate,
    Ledger,
    RequestSize,
    Strategy,
    charge,
    effective_cap,
    permanent_refusal,
    retry_after_s,
)
from kvplan.gateway.responses import Refusal
from kvplan.gateway.routes import Demand

if TYPE_CHECKING:
    from kvplan.simulation.backend import Backend
    from kvplan.traffic.spec import Traffic

_USUAL_QUANTILE = 0.95
_NO_LIMIT = 2**62


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What the plan lets the gateway promise.

    ``request_blocks`` is the engine's own charge for a number of tokens; ``capacity`` the usable part of the pool in
    the strategy's unit (blocks, or requests for ``concurrency``). ``media_tokens`` holds the engine's maximum per item
    of each medium; a request with another medium is refused.
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


@dataclass(frozen=True, kw_only=True)
class GatewayPlan:
    """The promise, and the engine's pool it was made for: ``blocks`` of ``block_tokens``, the reserved one included."""

    promise: Promise
    blocks: int
    block_tokens: int

    def __str__(self) -> str:
        """What is promised, in a line of at most 60 columns."""
        strategy = self.promise.strategy
        units = {"blocks": f"of {self.blocks:,} blocks", "requests": "requests"}.get(strategy.counts)
        promises = "admits everything" if units is None else f"promises {self.promise.capacity:,} {units}"
        return f"{strategy.name} {promises}"


def gateway_plan(
    traffic: "Traffic", backend: "Backend", *, media_tokens: Mapping[str, int] | None = None
) -> GatewayPlan:
    """What ``traffic.admission`` lets one gateway promise for one engine, with the pool and charge of the simulation.

    The usual answer that ``quantile`` charges is the largest p95 of the file's classes, since a request does not say
    which class it belongs to.
    """
    admission = traffic.admission
    strategy = STRATEGIES[admission.policy]
    capacity = _NO_LIMIT
    if strategy.counts == "blocks":
        capacity = backend.promised_blocks(admission.safety_fraction)
    elif strategy.counts == "requests":
        capacity = admission.concurrency or backend.settings.max_num_seqs
    answers = [group.output_tokens for group in traffic.classes if group.output_tokens is not None]
    return GatewayPlan(
        promise=Promise(
            window_tokens=backend.settings.max_model_len,
            capacity=capacity,
            request_blocks=backend.layout.request_blocks,
            strategy=strategy,
            default_max_tokens=admission.default_max_tokens,
            expected_output_tokens=max((lengths.quantile(_USUAL_QUANTILE) for lengths in answers), default=0),
            retry_after_constant_s=admission.retry_after.seconds,
            retry_after_jitter_share=admission.retry_after.jitter_share,
            media_tokens=dict(media_tokens or {}),
        ),
        blocks=backend.blocks,
        block_tokens=backend.layout.block_tokens,
    )


class LedgerDownError(Exception):
    """A shared ledger cannot be reached, and is configured to refuse then."""


class WeightedLedger(Protocol):
    """What the gateway needs of a ledger. ``release`` is synchronous and counts once, so that it can stand in the
    ``finally`` of a cancelled task; ``acquire`` may wait (a shared ledger asks Redis)."""

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
    """The planner's ledger, for one gateway alone; it never waits."""

    async def acquire(self, holder: Hashable, weight: int) -> bool:
        """``try_reserve`` as a coroutine."""
        return self.try_reserve(holder, weight)


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one request is charged: ``weight`` in the ledger's unit; ``tokens``, over all its sequences, to show.

    ``cap_to_write`` is the default cap to write into the forwarded body, None if the client's own cap or the window
    bounds the request.
    """

    weight: int
    tokens: int
    cap_to_write: int | None


def price(promise: Promise, demand: Demand) -> Price:
    """Charge of one request: per sequence the engine's blocks for min(prompt + effective cap, window), summed.

    The bound of a prompt may exceed the window; then the window is the bound, because the engine stops there.
    """
    window, cap, written = promise.window_tokens, demand.max_output_tokens, None
    longest = max(demand.prompts)
    if cap is None and promise.default_max_tokens is not None and longest < window:
        cap = written = effective_cap(longest, None, window, promise.default_max_tokens)
    weight = tokens = 0
    for prompt in demand.prompts:
        held = min(prompt, window)
        capped = effective_cap(held, cap, window)
        size = RequestSize(prompt_tokens=held, cap_tokens=capped, expected_output_tokens=promise.expected_output_tokens)
        weight += charge(promise.strategy, size, promise.request_blocks)
        tokens += held + capped
    return Price(weight=weight * demand.sequences, tokens=tokens * demand.sequences, cap_to_write=written)


def used(promise: Promise, demand: Demand, written_tokens: int) -> tuple[int, int]:
    """Blocks and tokens in use once ``written_tokens`` were generated: per sequence its prompt and an even share."""
    share = -(-written_tokens // (len(demand.prompts) * demand.sequences))
    lengths = [min(prompt + share, promise.window_tokens) for prompt in demand.prompts]
    return sum(map(promise.request_blocks, lengths)) * demand.sequences, sum(lengths) * demand.sequences


def refusal_for_good(promise: Promise, demand: Demand, price: Price) -> Refusal | None:
    """Why a request can never be served: its prompt fills the window, or its reservation exceeds the pool.

    Only an exact prompt can be said to fill the window; a bound cannot.
    """
    longest = max(demand.prompts) if demand.is_exact else 0
    reason = permanent_refusal(longest, promise.window_tokens, price.weight, promise.capacity)
    if reason is None:
        return None
    message = (
        f"this request may need {price.tokens} tokens of KV cache, more than can ever be reserved; "
        "lower max_tokens, n or the prompt"
    )
    if reason == PROMPT_EXCEEDS_WINDOW:
        message = f"the prompt has {longest} tokens; the context window is {promise.window_tokens}"
    return Refusal(status=400, code="context_length_exceeded", message=message, reason=reason)


class Admission:
    """A ledger, the promise it keeps, and an estimate of how fast it drains."""

    def __init__(self, promise: Promise, ledger: WeightedLedger) -> None:
        self.promise = promise
        self.ledger = ledger
        self._drain = DrainEstimate()
        self._since_s: dict[Hashable, float] = {}

    @property
    def running(self) -> int:
        """How many reservations this gateway holds now."""
        return len(self._since_s)

    async def acquire(self, holder: Hashable, weight: int) -> bool:
        """Reserve ``weight`` if that much is free. Raises LedgerDownError if a shared ledger is down and refuses."""
        admitted = await self.ledger.acquire(holder, weight)
        if admitted:
            self._since_s[holder] = time.monotonic()
        return admitted

    def no_room(self, price: Price) -> Refusal:
        """The refusal of a request for which there is no room now, with the wait until enough should have drained."""
        ledger, promise = self.ledger, self.promise
        wait_s = promise.retry_after_constant_s
        if wait_s is None:
            missing, now_s = price.weight - ledger.free, time.monotonic()
            wait_s = self._drain.wait_s(missing=missing, weight=price.weight, reserved=ledger.reserved, now_s=now_s)
        draw = random.random()  # noqa: S311 - spreads retries, no secret
        return Refusal(
            status=429,
            code="server_at_capacity",
            message="the KV cache is fully reserved; this request could not be sure to finish",
            retry_after_s=retry_after_s(wait_s, jitter_share=promise.retry_after_jitter_share, draw=draw),
        )

    def release(self, holder: Hashable) -> float | None:
        """Give a reservation back, once. The seconds that it was held, noted for the drain estimate; None if it was
        not."""
        weight, reserved = self.ledger.weight_of(holder), self.ledger.reserved
        since_s = self._since_s.pop(holder, None)
        if not self.ledger.release(holder) or weight is None or since_s is None:
            return None
        held_s = time.monotonic() - since_s
        self._drain.released(weight, held_s=held_s, reserved=reserved)
        return held_s
