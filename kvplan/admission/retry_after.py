"""The Retry-After of a refusal: when enough should have been released, spread so that clients do not return at once."""

import math
import threading


class DrainEstimate:
    """When refused requests can expect to fit: how fast the ledger drains, and how much of that is promised already.

    By Little's law a ledger that holds ``reserved``, each unit for ``hold_s`` on average, releases reserved / hold_s a
    second. ``hold_s`` is a running mean over about one turnover of the ledger: the release of w out of R reserved moves
    it by w / R of the way to the time that w was held. So it is right after the first release, and an idle hour changes
    nothing.

    A refused request that lacks ``missing`` waits for those that were refused before it, and then missing × hold_s /
    reserved. Each of those will take its whole ``weight``, not only what it lacked, from a ledger that stays full. So
    requests refused together get waits that are weight × hold_s / capacity apart (capacity = reserved + weight −
    missing), and come back one by one. Before any release the wait is ``unknown_s``.

    >>> drain = DrainEstimate()
    >>> drain.wait_s(missing=50, weight=100, reserved=1_000, now_s=0.0)
    2.0
    >>> drain.released(50, held_s=20.0, reserved=1_000)
    >>> [round(drain.wait_s(missing=50, weight=100, reserved=950, now_s=300.0), 1) for _ in range(3)]
    [1.1, 3.1, 5.1]
    >>> drain.wait_s(missing=0, weight=100, reserved=1_000, now_s=305.0)
    1.0
    """

    def __init__(self, *, unknown_s: float = 2.0, longest_s: float = 60.0) -> None:
        self._unknown_s = unknown_s
        self._longest_s = longest_s
        self._hold_s: float | None = None
        self._promised_until_s = 0.0
        self._lock = threading.Lock()

    def released(self, weight: int, *, held_s: float, reserved: int) -> None:
        """Note that ``weight`` of the ``reserved`` was released after ``held_s``."""
        if weight <= 0:
            return
        with self._lock:
            hold_s = held_s if self._hold_s is None else self._hold_s
            self._hold_s = hold_s + (held_s - hold_s) * weight / reserved

    def wait_s(self, *, missing: int, weight: int, reserved: int, now_s: float) -> float:
        """Seconds until ``missing`` more should have been released beyond what others wait for; at most ``longest_s``.

        Each call promises ``weight``: the next request waits behind it.
        """
        with self._lock:
            if self._hold_s is None:
                return self._unknown_s
            ahead_s = max(self._promised_until_s - now_s, 0.0)
            wait_s = self._drained_s(ahead_s, max(missing, 0) * self._hold_s, reserved)
            capacity = reserved + weight - max(missing, 0)
            self._promised_until_s = now_s + self._drained_s(ahead_s, weight * self._hold_s, capacity)
            return wait_s

    def _drained_s(self, ahead_s: float, held_unit_s: float, reserved: int) -> float:
        """``ahead_s`` + ``held_unit_s`` / ``reserved``, at most ``longest_s``."""
        if held_unit_s < reserved * (self._longest_s - ahead_s):
            return ahead_s + held_unit_s / reserved
        return self._longest_s


def retry_after_s(wait_s: float, *, jitter_share: float, draw: float, longest_s: float = 60.0) -> float:
    """Seconds for ``retry-after-ms``: the wait, at least one second, spread upwards by up to ``jitter_share``.

    ``draw`` is uniform in [0, 1). No SDK spreads a Retry-After that it honours, so the server must, even where the wait
    is at its longest: the spread ends at ``longest_s``, which the most cautious client still honours. ``Retry-After``
    itself is this value, rounded up.

    >>> retry_after_s(4.0, jitter_share=0.25, draw=0.5), retry_after_s(0.1, jitter_share=0.0, draw=0.9)
    (4.5, 1.0)
    >>> [retry_after_s(500.0, jitter_share=0.25, draw=draw) for draw in (0.0, 0.5)]
    [48.0, 54.0]
    """
    shortest = min(max(wait_s, 1.0), longest_s / (1.0 + jitter_share))
    return shortest * (1.0 + jitter_share * draw)


def whole_seconds(seconds: float) -> int:
    """The value of the ``Retry-After`` header: rounded up, at least 1."""
    return max(1, math.ceil(seconds))
