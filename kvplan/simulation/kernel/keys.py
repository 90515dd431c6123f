"""What orders requests: lists through a column of their rows, and the heap of what batches bring.

The heap says which batch ends a sequence, or lets blocks slide out of its windows: (batch, sort, slot). It is apart,
so that all that only passes it on is compiled without counting who holds it.
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


def join(i: int, link: int, head: int, st: Ints, row: Ints) -> None:
    """Request ``i`` goes to the end of the list that begins at place ``head`` of ``st`` and ends at the next place; the
    column at ``link`` names who follows."""
    row[link + i] = -1
    if st[head] >= 0:
        row[link + st[head + 1]] = i
    else:
        st[head] = i
    st[head + 1] = i
