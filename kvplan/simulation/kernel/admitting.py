"""Who is admitted: waiting requests, those preempted last before all others, while tokens, seats and blocks last.

The first that does not fit stops the admissions. All blocks for its whole known input must be free, though only those
of the chunk computed now are taken.
"""

from kvplan.simulation.kernel.identities import find_blocks, hold_found, remember, take_blocks
from kvplan.simulation.kernel.kept import evict, kept_blocks, take_out
from kvplan.simulation.kernel.paging import blocks_at_admission, blocks_taken
from kvplan.simulation.kernel.places import (
    ADMITTED,
    BLOCKED,
    BUDGET,
    CELL,
    CHUNKS,
    CONTEXT,
    FINISH,
    FORM,
    FREE,
    GENERATED,
    KEEPS,
    KINDS_NUMBER,
    LINK,
    LONGEST,
    NAMED,
    OFF,
    OUTCOME,
    PREEMPTED,
    PROMPT,
    QUEUE_HEAD,
    RUNNING,
    SCHEDULED,
    SEATS,
    SPARE_SLOT,
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
from kvplan.simulation.kernel.running import read_chunk, sit_down


def leave_queue(st: Ints, conf: Conf, rows: Rows, pool: Pool) -> None:
    """The head of the queue waits no more."""
    link = rows[2][LINK]
    if st[PREEMPTED] < 0:
        st[QUEUE_HEAD] = rows[0][link + st[QUEUE_HEAD]]
        return
    st[PREEMPTED] = rows[0][link + st[PREEMPTED]]
    if conf[KEEPS]:
        take_out(st, pool[CELL])


def first_waiting(now_s: float, st: Ints, conf: Conf, rows: Rows, pool: Pool) -> int:
    """The head of the queue as a batch formed at ``now_s`` sees it; −1 for an empty one. Those whose clients walked
    away are passed over."""
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
    """The cap on one request's chunk in this batch: the setting, but none for a request that is alone; 0 for none."""
    row, time, column, moment = rows
    others = st[RUNNING]
    for head in (st[PREEMPTED], st[QUEUE_HEAD]):
        i = head
        while i >= 0 and others < 2 and time[moment[ADMITTED] + i] <= now_s:
            if row[column[OUTCOME] + i] == UNFINISHED or time[moment[FINISH] + i] > now_s:
                others += 1
            i = row[column[LINK] + i]
    return conf[LONGEST] if others > 1 else 0


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
    """Admit at ``now_s`` whoever fits into the batch that is being formed; ``cap`` as in ``longest_chunk``."""
    row, time, column, moment = rows
    size = shape[FORM][0]
    while st[BUDGET] > 0 and st[RUNNING] < conf[SEATS]:
        i = first_waiting(now_s, st, conf, rows, pool)
        if i < 0:
            return
        known = row[column[PROMPT] + i] + row[column[GENERATED] + i]
        unheld = 0
        hits = 0
        if conf[NAMED]:
            hits, unheld = find_blocks(st[SPARE_SLOT], i, known, pool)
        elif conf[KEEPS] and st[PREEMPTED] >= 0:
            unheld = kept_blocks(st, pool[CELL])
            hits = unheld
        old = hits * size
        tokens = known - old
        if cap and tokens > cap:
            tokens = cap
        if tokens > st[BUDGET]:
            if conf[CHUNKS] == 0:
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
            st[BLOCKED] = 1 if shape[KINDS_NUMBER] == 0 and conf[LONGEST] == 0 else 0
            return
        leave_queue(st, conf, rows, pool)
        s = sit_down(i, st, shape, slots, rows)
        slots[0][slots[1][OFF] + s] = old
        if conf[NAMED]:
            hold_found(s, hits, pool)
            take_blocks(s, taken, pool)
            remember(s, i, (old + tokens) // size, pool)
        elif conf[KEEPS]:
            evict(taken, st, pool[CELL])
        st[FREE] -= taken + unheld
        if time[moment[SCHEDULED] + i] < 0.0:
            time[moment[SCHEDULED] + i] = now_s
        st[BUDGET] -= tokens
        st[CONTEXT] += old + tokens
        read_chunk(s, tokens, st, heap, shape, slots, rows)
