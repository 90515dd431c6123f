"""What preempted requests would find again, where nobody shares content: counts say it, identities are not needed.

The free queue, in order of eviction, is then: other blocks, those of the first preempted request that waits, other
blocks, those of the second …, and the rest. New blocks come from its front. Blocks given back without content go to
the front, all others to the back. So an entry per waiting request is enough: blocks before its own, and its own. The
latest preempted is the first to be admitted again: entries are a stack, eaten from the bottom.

Source: vLLM 0.33's block pool.
"""

from kvplan.simulation.kernel.places import FREE, KEPT_BLOCKS, KEPT_END, KEPT_FROM, Ints


def evict(count: int, st: Ints, kept: Ints) -> None:
    """``count`` blocks leave the front of the queue and lose their content."""
    while count > 0 and st[KEPT_FROM] < st[KEPT_END]:
        at = 2 * st[KEPT_FROM]
        others = min(count, kept[at])
        own = min(count - others, kept[at + 1])
        kept[at] -= others
        kept[at + 1] -= own
        st[KEPT_BLOCKS] -= others + own
        count -= others + own
        if kept[at] + kept[at + 1] == 0:
            st[KEPT_FROM] += 1


def give_back(empty: int, st: Ints, kept: Ints) -> None:
    """``empty`` blocks without content go to the front of the queue; those behind all entries need no note."""
    if st[KEPT_FROM] < st[KEPT_END]:
        kept[2 * st[KEPT_FROM]] += empty
        st[KEPT_BLOCKS] += empty


def set_aside(own: int, st: Ints, kept: Ints) -> None:
    """A request is preempted: ``own`` blocks with its content, which are free already, are the last of the queue."""
    at = 2 * st[KEPT_END]
    kept[at] = st[FREE] - own - st[KEPT_BLOCKS]
    kept[at + 1] = own
    st[KEPT_END] += 1
    st[KEPT_BLOCKS] = st[FREE]


def kept_blocks(st: Ints, kept: Ints) -> int:
    """Blocks that the latest preempted request would find."""
    return kept[2 * st[KEPT_END] - 1] if st[KEPT_FROM] < st[KEPT_END] else 0


def take_out(st: Ints, kept: Ints) -> None:
    """The latest preempted request waits no more; its blocks are like all others, or held again."""
    st[KEPT_END] -= 1
    if st[KEPT_FROM] > st[KEPT_END]:
        st[KEPT_FROM] = st[KEPT_END]
    else:
        at = 2 * st[KEPT_END]
        st[KEPT_BLOCKS] -= kept[at] + kept[at + 1]
