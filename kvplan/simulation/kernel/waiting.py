"""The waiting queue: requests are admitted to the running list while tokens, slots and blocks last, preempted ones
first.

The first that does not fit ends the admissions. Blocks for its whole known input must be free, although only those of
the chunk computed now are taken.
"""

from kvplan.simulation.kernel.blocks import blocks_at_admission, blocks_taken
from kvplan.simulation.kernel.prefix_cache import (
    blocks_kept,
    cache_blocks,
    drop_kept,
    evict,
    find_blocks,
    hold_found,
    take_blocks,
)
from kvplan.simulation.kernel.running import prefill_chunk, take_slot
from kvplan.simulation.kernel.state import (
    ADMITTED,
    BLOCKED,
    BUDGET,
    CACHES,
    CELL,
    CHUNKED,
    CONTEXT_TOKENS,
    FINISH,
    FORM,
    FREE,
    FREE_SLOT,
    GENERATED,
    IDENTITIES,
    KINDS_NUMBER,
    LINK,
    LONG_PREFILL,
    MAX_SEQS,
    OFFSET,
    OUTCOME,
    PREEMPTED,
    PROMPT,
    QUEUE_HEAD,
    RUNNING,
    SCHEDULED,
    UNFINISHED,
    WATERMARK,
    WHOLE_INPUT,
    Conf,
    Ints,
    Pool,
    Rows,
    Shape,
    Slots,
)


def leave_queue(st: Ints, conf: Conf, rows: Rows, pool: Pool) -> None:
    """Take the head of the queue out of it."""
    link = rows[2][LINK]
    if st[PREEMPTED] < 0:
        st[QUEUE_HEAD] = rows[0][link + st[QUEUE_HEAD]]
        return
    st[PREEMPTED] = rows[0][link + st[PREEMPTED]]
    if conf[CACHES]:
        drop_kept(st, pool[CELL])


def first_waiting(now_s: float, st: Ints, conf: Conf, rows: Rows, pool: Pool) -> int:
    """The head of the queue as a batch formed at ``now_s`` sees it; −1 where it is empty. Abandoned requests are
    skipped."""
    row, time, column, moment = rows
    while True:
        head = st[PREEMPTED]
        if head < 0:
            head = st[QUEUE_HEAD]
            if head >= 0 and time[moment[ADMITTED] + head] > now_s:
                head = -1
        if head < 0 or row[column[OUTCOME] + head] == UNFINISHED or time[moment[FINISH] + head] > now_s:
            return head
        leave_queue(st, conf, rows, pool)
        st[BLOCKED] = 0


def longest_chunk(now_s: float, st: Ints, conf: Conf, rows: Rows) -> int:
    """The longest chunk of one request in this batch: as configured, but 0 (no limit) for a request that is alone."""
    row, time, column, moment = rows
    others = st[RUNNING]
    for head in (st[PREEMPTED], st[QUEUE_HEAD]):
        i = head
        while i >= 0 and others < 2 and time[moment[ADMITTED] + i] <= now_s:
            if row[column[OUTCOME] + i] == UNFINISHED or time[moment[FINISH] + i] > now_s:
                others += 1
            i = row[column[LINK] + i]
    return conf[LONG_PREFILL] if others > 1 else 0


def admit(
    now_s: float,
    cap: int,
    st: Ints,
    heap: Ints,
    conf: Conf,
    shape: Shape,
    slots: Slots,
    rows: Rows,
    pool: Pool,
) -> None:
    """Admit at ``now_s`` what fits into the batch being formed; ``cap`` as in ``longest_chunk``."""
    row, time, column, moment = rows
    size = shape[FORM][0]
    while st[BUDGET] > 0 and st[RUNNING] < conf[MAX_SEQS]:
        i = first_waiting(now_s, st, conf, rows, pool)
        if i < 0:
            return
        known = row[column[PROMPT] + i] + row[column[GENERATED] + i]
        unheld = 0
        hits = 0
        if conf[IDENTITIES]:
            hits, unheld = find_blocks(st[FREE_SLOT], i, known, pool)
        elif conf[CACHES] and st[PREEMPTED] >= 0:
            unheld = blocks_kept(st, pool[CELL])
            hits = unheld
        old = hits * size
        tokens = known - old
        if cap and tokens > cap:
            tokens = cap
        if tokens > st[BUDGET]:
            if conf[CHUNKED] == 0:
                return
            tokens = st[BUDGET]
        taken = blocks_taken(old + tokens, shape) - hits
        need = taken
        if conf[WHOLE_INPUT]:
            need = blocks_at_admission(known, shape) - hits
        need += unheld
        if st[RUNNING]:
            need += conf[WATERMARK]
        if need > st[FREE]:
            st[BLOCKED] = 1 if shape[KINDS_NUMBER] == 0 and conf[LONG_PREFILL] == 0 else 0
            return
        leave_queue(st, conf, rows, pool)
        s = take_slot(i, st, shape, slots, rows)
        slots[0][slots[1][OFFSET] + s] = old
        if conf[IDENTITIES]:
            hold_found(s, hits, pool)
            take_blocks(s, taken, pool)
            cache_blocks(s, i, (old + tokens) // size, pool)
        elif conf[CACHES]:
            evict(taken, st, pool[CELL])
        st[FREE] -= taken + unheld
        if time[moment[SCHEDULED] + i] < 0.0:
            time[moment[SCHEDULED] + i] = now_s
        st[BUDGET] -= tokens
        st[CONTEXT_TOKENS] += old + tokens
        prefill_chunk(s, tokens, st, heap, shape, slots, rows)
