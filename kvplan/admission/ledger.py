"""The ledger: reservations against a fixed capacity."""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


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
