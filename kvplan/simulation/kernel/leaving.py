"""Who leaves the running list: a sequence that ends, one that loses its blocks, one whose client walked away."""

from kvplan.simulation.kernel.identities import remember, return_blocks
from kvplan.simulation.kernel.kept import give_back, set_aside
from kvplan.simulation.kernel.keys import join, next_key, pop_key, push_key
from kvplan.simulation.kernel.paging import blocks_taken
from kvplan.simulation.kernel.places import (
    ANSWER,
    BATCHES,
    BEFORE,
    BLOCK,
    BLOCKED,
    CAP,
    CELL,
    CERTAIN,
    COMPLETED,
    DONE_HEAD,
    END_AT,
    END_S,
    FINISH,
    FIRST_BATCH,
    FORM,
    FREE,
    GENERATED,
    GIVE,
    GIVE_AT,
    HELD,
    HIGH,
    IN_VAIN,
    KEEPS,
    KEY_SHIFT,
    KIND_ROW,
    KINDS,
    KINDS_NUMBER,
    LAG,
    LATE,
    LEFT_HEAD,
    LEFT_LINK,
    LINK,
    NAMED,
    NEXT_ENDING,
    OFF,
    ORDER,
    OUTCOME,
    PHASE,
    PREEMPTED,
    PREEMPTIONS,
    READING,
    READING_NOW,
    RUNNING,
    SLID,
    SLIDES,
    SLIDING_BACK,
    SLOT_MASK,
    SLOT_OF,
    UNFINISHED,
    WAITING,
    WHO,
    WRITING,
    Conf,
    Ints,
    Pool,
    Reals,
    Rows,
    Shape,
    Slots,
)
from kvplan.simulation.kernel.running import leave_batches, vacate
from kvplan.simulation.kernel.windows import look_for_slides


def release_slot(s: int, st: Ints, conf: Conf, shape: Shape, slots: Slots, rows: Rows, pool: Pool) -> int:
    """Slot ``s`` leaves and its blocks come back; how many of them its request would find again.

    Where content is cached, full blocks keep theirs. What the batch in flight computes is placed, but the token behind
    it is not known yet, unless that batch is the one that read the input, or none is: its end was seen.
    """
    slot, field = slots
    batch = st[BATCHES]
    phase = slot[field[PHASE] + s]
    computed = slot[field[OFF] + s]
    unsure = 1 if shape[LAG] and slot[field[FIRST_BATCH] + s] < batch else 0
    if phase == READING:
        st[READING_NOW] -= 1
        unsure = 0
        blocks = blocks_taken(computed, shape)
        kinds = shape[KINDS_NUMBER]
        for k in range(kinds):
            blocks -= shape[FORM][shape[KINDS] + KIND_ROW * k + 3] * slot[field[SLID] + s * kinds + k]
        slot[field[HELD] + s] = blocks
    elif phase == CERTAIN:
        last = slot[field[END_AT] + s] - 2
        unsure = 1 if slot[field[FIRST_BATCH] + s] < last else 0
    else:
        computed += batch
        leave_batches(s, st, shape, slots)
    own = 0
    if conf[NAMED]:
        remember(s, slot[field[WHO] + s], (computed - unsure) // pool[BLOCK], pool)
        st[FREE] += return_blocks(s, pool)
    else:
        blocks = slot[field[HELD] + s]
        back = slot[field[GIVE] + s]
        slot[field[GIVE] + s] = 0
        st[SLIDING_BACK] -= back
        st[FREE] += blocks + back
        if conf[KEEPS]:
            own = (computed - unsure) // shape[FORM][0]
            give_back(blocks - own, st, pool[CELL])
    vacate(s, st, slots, rows)
    st[RUNNING] -= 1
    st[BLOCKED] = 0
    return own


def preempt(s: int, st: Ints, conf: Conf, shape: Shape, slots: Slots, rows: Rows, pool: Pool) -> None:
    """Slot ``s`` loses its blocks and goes to the head of the queue; what a batch in flight computes still counts."""
    slot, field = slots
    row, column = rows[0], rows[2]
    batch = st[BATCHES]
    i = slot[field[WHO] + s]
    phase = slot[field[PHASE] + s]
    computed = slot[field[OFF] + s]
    if phase not in (READING, CERTAIN):
        computed += batch
    row[column[HIGH] + i] = max(row[column[HIGH] + i], computed)
    known_after = -1
    if phase == WRITING:
        known_after = -3 - batch
        row[column[GENERATED] + i] = slot[field[BEFORE] + s] + batch - slot[field[FIRST_BATCH] + s] + 1
    own = release_slot(s, st, conf, shape, slots, rows, pool)
    row[column[PREEMPTIONS] + i] += 1
    if phase in (READING, WRITING):
        row[column[SLOT_OF] + i] = known_after
        row[column[LINK] + i] = st[PREEMPTED]
        st[PREEMPTED] = i
        st[WAITING] += 1
        if conf[KEEPS]:
            set_aside(own, st, pool[CELL])


def see_end(s: int, end_s: float, st: Ints, heap: Ints, shape: Shape, slots: Slots, rows: Rows) -> bool:
    """The last token of slot ``s`` is in the last batch. True where its seat is free at once: a batch behind that one
    works on it in vain, or knows that it must not."""
    slot, field = slots
    row, time, column, moment = rows
    i = slot[field[WHO] + s]
    answer = row[column[ANSWER] + i]
    if row[column[OUTCOME] + i] == UNFINISHED:
        row[column[OUTCOME] + i] = COMPLETED
        time[moment[FINISH] + i] = end_s
        row[column[GENERATED] + i] = answer
        join(i, column[LINK], DONE_HEAD, st, row)
    else:
        row[column[GENERATED] + i] = answer - 1
    if shape[LAG] == 0:
        return True
    batch = st[BATCHES]
    slot[field[END_AT] + s] = batch + 2
    push_key(((batch + 2) << KEY_SHIFT) | s, heap)
    if answer < row[column[CAP] + i]:
        slot[field[PHASE] + s] = IN_VAIN
    else:
        slot[field[PHASE] + s] = CERTAIN
        leave_batches(s, st, shape, slots)
        slot[field[OFF] + s] += batch
    return False


def let_go(
    now_s: float, strictly: int, st: Ints, conf: Conf, shape: Shape, slots: Slots, rows: Rows, pool: Pool
) -> None:
    """Clients that walked away until ``now_s``, or ``strictly`` before, leave the running list; those in the queue are
    passed over later."""
    slot, field = slots
    row, time, column, moment = rows
    while st[LEFT_HEAD] >= 0 and time[moment[FINISH] + st[LEFT_HEAD]] <= now_s:
        i = st[LEFT_HEAD]
        if strictly and time[moment[FINISH] + i] == now_s:
            return
        st[LEFT_HEAD] = row[column[LEFT_LINK] + i]
        s = row[column[SLOT_OF] + i] + 0  # compiled, rows have narrower numbers than slots; this widens one
        if s == -1 or s <= -3:
            st[WAITING] -= 1
            if s != -1 and shape[LAG] and st[BATCHES] + s <= -2 and time[moment[FINISH] + i] < now_s:
                row[column[GENERATED] + i] -= 1
        elif s >= 0:
            batch = st[BATCHES]
            if slot[field[PHASE] + s] != READING:
                returned = batch - 1 if shape[LAG] and st[LATE] == 0 else batch
                if time[moment[FINISH] + i] < now_s:
                    returned -= 1
                written = slot[field[BEFORE] + s] + max(0, returned - slot[field[FIRST_BATCH] + s] + 1)
                row[column[GENERATED] + i] = min(row[column[ANSWER] + i], written)
            release_slot(s, st, conf, shape, slots, rows, pool)


def end(
    s: int, at: int, st: Ints, ck: Reals, heap: Ints, conf: Conf, shape: Shape, slots: Slots, rows: Rows, pool: Pool
) -> None:
    """Slot ``s`` was to end before batch ``at``: if it still is, its end is seen, and its blocks come back when nobody
    works on it any more."""
    slot, field = slots
    end_at = field[END_AT] + s
    if slot[end_at] == at and (
        slot[field[PHASE] + s] != WRITING or see_end(s, ck[END_S], st, heap, shape, slots, rows)
    ):
        slot[end_at] = -1
        i = slot[field[WHO] + s]
        release_slot(s, st, conf, shape, slots, rows, pool)
        rows[0][rows[2][SLOT_OF] + i] = -2


def see_ends(st: Ints, ck: Reals, heap: Ints, conf: Conf, shape: Shape, slots: Slots, rows: Rows, pool: Pool) -> None:
    """What the last batch ended is seen, in order of admission; then, where windows may slide before the next one."""
    slot, field = slots
    order, later = field[ORDER], field[NEXT_ENDING]
    limit = (st[BATCHES] + 2 + st[LATE]) << KEY_SHIFT
    while next_key(heap) < limit:
        key = pop_key(heap)
        at = key >> KEY_SHIFT
        s = key & SLOT_MASK
        if key & SLIDES:
            phase = slot[field[PHASE] + s]
            if slot[field[GIVE_AT] + s] == at and phase in (WRITING, IN_VAIN):
                look_for_slides(s, st, heap, conf, shape, slots)
            continue
        slot[later + s] = -1
        while next_key(heap) < (at << KEY_SHIFT) + SLIDES:
            other = pop_key(heap)
            if other == key:
                continue
            key = other
            one = key & SLOT_MASK
            if slot[order + one] < slot[order + s]:
                slot[later + one] = s
                s = one
            else:
                before = s
                while slot[later + before] >= 0 and slot[order + slot[later + before]] < slot[order + one]:
                    before = slot[later + before]
                slot[later + one] = slot[later + before]
                slot[later + before] = one
        while s >= 0:
            after = slot[later + s]
            end(s, at, st, ck, heap, conf, shape, slots, rows, pool)
            s = after
