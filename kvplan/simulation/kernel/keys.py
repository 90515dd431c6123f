"""The heap that says which batch ends a sequence, or lets blocks slide out of its windows: (batch, sort, slot).

Apart, so that all that only passes the heap on is compiled without counting who holds it.
"""

from heapq import heappop, heappush

from kvplan.simulation.kernel.places import Ints


def next_key(heap: Ints) -> int:
    """The earliest key."""
    return heap[0]


def push_key(key: int, heap: Ints) -> None:
    """``key`` joins the others."""
    heappush(heap, key)


def pop_key(heap: Ints) -> int:
    """The earliest key, taken out."""
    return heappop(heap)
