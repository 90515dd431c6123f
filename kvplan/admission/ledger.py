"""The ledger of reservations."""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class Ledger:
    """Weighted reservations that never exceed a fixed capacity, each released exactly once by its id.

    Every operation is one short critical section under a lock and never waits inside it. So a ledger can be shared by
    threads and coroutines, and ``release`` can be called in a ``finally`` block that is being cancelled. Use an id for
    one reservation only: a counter or a UUID.

    At every moment, reserved + free = capacity.

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
        """The most that can be reserved at once."""
        return self._capacity

    @property
    def reserved(self) -> int:
        """The weight of all current reservations."""
        return self._reserved

    @property
    def free(self) -> int:
        """The weight that a new reservation can take."""
        return self._capacity - self._reserved

    @property
    def holders(self) -> int:
        """The number of current reservations."""
        return len(self._weights)

    def weight_of(self, holder: Hashable) -> int | None:
        """What ``holder`` has reserved; None if it holds nothing."""
        return self._weights.get(holder)

    def try_reserve(self, holder: Hashable, weight: int) -> bool:
        """Reserve ``weight`` for ``holder`` if that much is free; return whether it was.

        Raises ValueError for a negative weight, and for a holder that has a reservation already.
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
        """Lower the reservation of ``holder`` to ``weight``; it never grows. Return whether it changed."""
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
        """Release what ``holder`` reserved. Return False if it held nothing, as after a first release."""
        with self._lock:
            weight = self._weights.pop(holder, None)
            if weight is None:
                return False
            self._reserved -= weight
            return True

    @contextmanager
    def reserve(self, holder: Hashable, weight: int) -> Iterator[bool]:
        """Hold ``weight`` during a ``with`` block; yields whether there was room.

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
