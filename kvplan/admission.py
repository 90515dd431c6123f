"""Admission is a promise about the future: a request enters only if what it may become still fits.

The ledger and the policies here are used as they stand by the gateway and mirrored by the simulation's kernel.
"""

import math
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PROMPT_EXCEEDS_WINDOW = "prompt_exceeds_window"
RESERVATION_EXCEEDS_POOL = "reservation_exceeds_pool"


class Ledger:
    """Reservations against a fixed capacity: weighted, never above it, each released exactly once by its id.

    Every operation is one short critical section under a lock, without waiting inside it; so the ledger may be used
    from threads and from coroutines alike, and ``release`` may stand in a ``finally`` that is being cancelled.
    An id names one reservation for the ledger's life: use a counter or a UUID.

    Law: reserved + free = capacity, at every moment.

    >>> ledger = Ledger(10)
    >>> ledger.try_reserve("a", 6), ledger.try_reserve("b", 6), ledger.free
    (True, False, 4)
    >>> ledger.release("a"), ledger.release("a"), ledger.free
    (True, False, 10)
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"a ledger cannot hold {capacity}")
        self._capacity = capacity
        self._reserved = 0
        self._weights: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    @property
    def capacity(self) -> int:
        """The most that may be reserved together."""
        return self._capacity

    @property
    def reserved(self) -> int:
        """Weight of all living reservations."""
        return self._reserved

    @property
    def free(self) -> int:
        """Weight that a new reservation may still take."""
        return self._capacity - self._reserved

    @property
    def holders(self) -> int:
        """Living reservations."""
        return len(self._weights)

    def weight_of(self, holder: Hashable) -> int | None:
        """What ``holder`` has reserved; None where it holds nothing."""
        return self._weights.get(holder)

    def try_reserve(self, holder: Hashable, weight: int) -> bool:
        """Reserve ``weight`` for ``holder`` if that much is free; say whether it was.

        A negative weight or a second reservation under a living id is a mistake of the caller: ValueError.
        """
        if weight < 0:
            raise ValueError(f"a reservation of {weight} would create room")
        with self._lock:
            if holder in self._weights:
                raise ValueError(f"{holder!r} already holds a reservation")
            if weight > self._capacity - self._reserved:
                return False
            self._weights[holder] = weight
            self._reserved += weight
            return True

    def shrink(self, holder: Hashable, weight: int) -> bool:
        """Lower the reservation of ``holder`` to ``weight``; it never grows. False where nothing changed."""
        if weight < 0:
            raise ValueError(f"a reservation of {weight} would create room")
        with self._lock:
            held = self._weights.get(holder)
            if held is None or weight >= held:
                return False
            self._weights[holder] = weight
            self._reserved -= held - weight
            return True

    def release(self, holder: Hashable) -> bool:
        """Give back what ``holder`` reserved. Only the first release counts; the others return False."""
        with self._lock:
            weight = self._weights.pop(holder, None)
            if weight is None:
                return False
            self._reserved -= weight
            return True

    @contextmanager
    def reserve(self, holder: Hashable, weight: int) -> Iterator[bool]:
        """Hold ``weight`` for the length of a ``with`` block; yields whether there was room.

        >>> ledger = Ledger(1)
        >>> with ledger.reserve("a", 1) as admitted:
        ...     print(admitted, ledger.free)
        True 0
        >>> ledger.free
        1
        """
        admitted = self.try_reserve(holder, weight)
        try:
            yield admitted
        finally:
            if admitted:
                self.release(holder)


def usable_blocks(blocks: int, safety_fraction: float, reserved_blocks: int = 1) -> int:
    """Blocks that the front door may promise: floor((blocks − reserved) × safety_fraction).

    The engine always has the whole pool; only the ledger is held below it. The fraction is read as the decimal it was
    written as, so 0.9 of 26,568 is not spoilt by binary rounding.

    >>> usable_blocks(26_569, 0.90), usable_blocks(11, 0.3)
    (23911, 3)
    """
    scaled = round(safety_fraction * 10**9)
    return (blocks - reserved_blocks) * scaled // 10**9


def effective_cap(
    prompt_tokens: int, max_tokens: int | None, window_tokens: int, default_max_tokens: int | None = None
) -> int:
    """Tokens that the answer may reach: min(asked, window − prompt).

    Unset means the default where the server has one (and then forwards it), else the rest of the window: the most that
    a request can promise. Zero or less means that the prompt leaves no room for an answer.

    >>> effective_cap(1_000, 4_096, 32_768), effective_cap(30_000, 4_096, 32_768), effective_cap(1_000, None, 32_768)
    (4096, 2768, 31768)
    >>> effective_cap(1_000, None, 32_768, default_max_tokens=1_024)
    1024
    """
    asked = max_tokens if max_tokens is not None else default_max_tokens
    room = window_tokens - prompt_tokens
    return room if asked is None else min(asked, room)


def permanent_refusal(prompt_tokens: int, window_tokens: int, weight: int, capacity: int) -> str | None:
    """Why this request can never be served here, or None; such a request must not be told to try again.

    >>> permanent_refusal(40_000, 32_768, 1, 100), permanent_refusal(10, 32_768, 101, 100)
    ('prompt_exceeds_window', 'reservation_exceeds_pool')
    >>> permanent_refusal(10, 32_768, 100, 100) is None
    True
    """
    if prompt_tokens >= window_tokens:
        return PROMPT_EXCEEDS_WINDOW
    return RESERVATION_EXCEEDS_POOL if weight > capacity else None


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a strategy may look at: the prompt, the effective cap, and the class's usual long answer (its p95, not
    above the cap)."""

    prompt_tokens: int
    cap_tokens: int
    expected_output_tokens: int


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One admission rule. ``counts`` is the ledger's unit: ``blocks`` (of ``tokens(ask)`` tokens, by the engine's own
    rule), ``requests`` (one each), or ``nothing``. ``fills_default_cap``: clients that send no cap get the default, and
    so does the engine. ``engine_caps``: the engine itself refuses when its queue is full."""

    name: str
    counts: str
    summary: str
    tokens: Callable[[Ask], int] | None = None
    fills_default_cap: bool = False
    engine_caps: bool = False


def _worst_case(ask: Ask) -> int:
    return ask.prompt_tokens + ask.cap_tokens


def _prompt_only(ask: Ask) -> int:
    return ask.prompt_tokens


def _ratio(ask: Ask) -> int:
    """0.7 × the cap, rounded up, on top of the prompt; 0.7 is SGLang's starting new-token ratio."""
    return ask.prompt_tokens + -(-7 * ask.cap_tokens // 10)


def _quantile(ask: Ask) -> int:
    return ask.prompt_tokens + ask.expected_output_tokens


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy(
            name="worst_case",
            counts="blocks",
            summary="prompt + effective cap, held whole to the end",
            tokens=_worst_case,
        ),
        Strategy(
            name="worst_case_default_cap",
            counts="blocks",
            summary="the same, with a default cap for clients that send none",
            tokens=_worst_case,
            fills_default_cap=True,
        ),
        Strategy(name="prompt_only", counts="blocks", summary="the prompt alone", tokens=_prompt_only),
        Strategy(name="concurrency", counts="requests", summary="a number of requests, whatever their size"),
        Strategy(name="none", counts="nothing", summary="everything; the engine queues and preempts"),
        Strategy(
            name="ratio", counts="blocks", summary="prompt + 0.7 × effective cap, as SGLang starts", tokens=_ratio
        ),
        Strategy(
            name="quantile", counts="blocks", summary="prompt + the class's p95 of output tokens", tokens=_quantile
        ),
        Strategy(
            name="engine_queue",
            counts="nothing",
            summary="the engine's own caps on queued requests and tokens",
            engine_caps=True,
        ),
    )
}
DEFAULT_STRATEGIES = ("worst_case", "worst_case_default_cap", "prompt_only", "concurrency", "none")


def charge(strategy: Strategy, ask: Ask, request_blocks: Callable[[int], int]) -> int:
    """Weight of one request in the ledger: blocks of the tokens that the strategy counts, one, or nothing.

    >>> ask = Ask(prompt_tokens=100, cap_tokens=60, expected_output_tokens=20)
    >>> def blocks(tokens: int) -> int:
    ...     return -(-tokens // 16)
    >>> [charge(strategy, ask, blocks) for strategy in STRATEGIES.values()]
    [10, 10, 7, 1, 0, 9, 8, 0]
    """
    if strategy.counts == "requests":
        return 1
    return 0 if strategy.tokens is None else request_blocks(strategy.tokens(ask))


class DrainEstimate:
    """When refused requests may hope to fit: how fast the ledger drains, and how much of that is promised already.

    By Little's law a ledger that holds ``reserved``, each unit for ``hold_s`` on average, gives back reserved / hold_s
    a second. ``hold_s`` is a running mean over about one turnover of the ledger: the release of w out of R reserved
    moves it by w / R of the way to how long w was held. So it is right after the first release, and an idle hour
    changes nothing. A refused request that lacks ``missing`` waits for those that were told a time before it, and then
    missing × hold_s / reserved; so of many refused at once each is told a later time than the one before it, instead
    of all the same. Before any release nothing is known: ``unknown_s``.

    >>> drain = DrainEstimate()
    >>> drain.wait_s(missing=100, reserved=1_000, now_s=0.0)
    2.0
    >>> drain.released(50, held_s=20.0, reserved=1_000)
    >>> [drain.wait_s(missing=100, reserved=1_000, now_s=300.0) for _ in range(3)]
    [2.0, 4.0, 6.0]
    >>> drain.wait_s(missing=0, reserved=1_000, now_s=305.0)
    1.0
    """

    def __init__(self, *, unknown_s: float = 2.0, longest_s: float = 60.0) -> None:
        self._unknown_s = unknown_s
        self._longest_s = longest_s
        self._hold_s: float | None = None
        self._promised_until_s = 0.0
        self._lock = threading.Lock()

    def released(self, weight: int, *, held_s: float, reserved: int) -> None:
        """Note that ``weight`` of the ``reserved`` came back after ``held_s``."""
        if weight <= 0:
            return
        with self._lock:
            hold_s = held_s if self._hold_s is None else self._hold_s
            self._hold_s = hold_s + (held_s - hold_s) * weight / reserved

    def wait_s(self, *, missing: int, reserved: int, now_s: float) -> float:
        """Seconds until ``missing`` more should have been released beyond what others were told to wait for; at most
        ``longest_s``. Telling it is a promise: the next one asked waits behind it."""
        with self._lock:
            if self._hold_s is None:
                return self._unknown_s
            ahead_s = max(self._promised_until_s - now_s, 0.0)
            needed = max(missing, 0) * self._hold_s
            wait_s = self._longest_s
            if needed < reserved * (self._longest_s - ahead_s):
                wait_s = ahead_s + needed / reserved
            self._promised_until_s = now_s + wait_s
            return wait_s


def retry_after_s(wait_s: float, *, jitter_share: float, draw: float, longest_s: float = 60.0) -> float:
    """Seconds to put into ``retry-after-ms``: the wait, at least one second, spread upwards by up to ``jitter_share``.

    ``draw`` is uniform in [0, 1). No SDK spreads a Retry-After that it honours, so the server must, also where the wait
    is at its longest: the spread ends at ``longest_s``, which the most cautious client still honours. ``Retry-After``
    itself is this, rounded up.

    >>> retry_after_s(4.0, jitter_share=0.25, draw=0.5), retry_after_s(0.1, jitter_share=0.0, draw=0.9)
    (4.5, 1.0)
    >>> [retry_after_s(500.0, jitter_share=0.25, draw=draw) for draw in (0.0, 0.5)]
    [48.0, 54.0]
    """
    shortest = min(max(wait_s, 1.0), longest_s / (1.0 + jitter_share))
    return shortest * (1.0 + jitter_share * draw)


def whole_seconds(seconds: float) -> int:
    """The header's value: rounded up, at least 1."""
    return max(1, math.ceil(seconds))
