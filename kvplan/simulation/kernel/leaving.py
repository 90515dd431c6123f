"""Who leaves the running list: a sequence that ends, is preempted, or is abandoned by its client."""

from kvplan.simulation.kernel.blocks import blocks_taken, check_sliding
from kvplan.simulation.kernel.prefix_cache import cache_blocks, keep_blocks, return_blocks, return_empty
from kvplan.simulation.kernel.running import free_slot, stop_decoding
from kvplan.simulation.kernel.state import (
    ANSWER,
    BATCHES,
    BLOCK,
    BLOCKED,
    CACHES,
    CAP,
    CELL,
    COMPLETED,
    COMPUTED_ONCE,
    DONE_HEAD,
    END_AT,
    END_S,
    ENDING,
    FINISH,
    FIRST_BATCH,
    FORM,
    FREE,
    GENERATED,
    GENERATED_BEFORE,
    GENERATING,
    HELD,
    IDENTITIES,
    KEY_SHIFT,
    KIND_ROW,
    KINDS,
    KINDS_NUMBER,
    LAG,
    LATE,
    LEFT_HEAD,
    LEFT_LINK,
    LINK,
    NEXT_ENDING,
    OFFSET,
    ORDER,
    OUTCOME,
    PHASE,
    PREEMPTED,
    PREEMPTIONS,
    PREFILLING,
    PREFILLS,
    REQUEST,
    RUNNING,
    SLID,
    SLIDE_AT,
    SLIDES,
    SLIDING,
    SLIDING_BLOCKS,
    SLOT_MASK,
    SLOT_OF,
    UNFINISHED,
    WAITING,
    WASTED,
    Conf,
    Ints,
    Pool,
    Reals,
    Rows,
    Shape,
    Slots,
    join,
    next_key,
    pop_key,
    push_key,
)


def release_slot(s: int, st: Ints, conf: Conf, shape: Shape, slots: Slots, rows: Rows, pool: Pool) -> int:
    """Slot ``s`` leaves and its blocks come back; how many of them its request would find again.

    Where content is cached, full blocks keep theirs. What the batch in flight computes is placed, but the token behind
    it is not known yet, unless that batch completed the input, or no batch is in flight because the end was noticed.
    """
    slot, field = slots
    batch = st[BATCHES]
    phase = slot[field[PHASE] + s]
    computed = slot[field[OFFSET] + s]
    unsure = 1 if shape[LAG] and slot[field[FIRST_BATCH] + s] < batch else 0
    if phase == PREFILLING:
        st[PREFILLS] -= 1
        unsure = 0
        blocks = blocks_taken(computed, shape)
        kinds = shape[KINDS_NUMBER]
        for k in range(kinds):
            blocks -= shape[FORM][shape[KINDS] + KIND_ROW * k + 3] * slot[field[SLID] + s * kinds + k]
        slot[field[HELD] + s] = blocks
    elif phase == ENDING:
        last = slot[field[END_AT] + s] - 2
        unsure = 1 if slot[field[FIRST_BATCH] + s] < last else 0
    else:
        computed += batch
        stop_decoding(s, st, shape, slots)
    own = 0
    if conf[IDENTITIES]:
        cache_blocks(s, slot[field[REQUEST] + s], (computed - unsure) // pool[BLOCK], pool)
        st[FREE] += return_blocks(s, pool)
    else:
        blocks = slot[field[HELD] + s]
        back = slot[field[SLIDING] + s]
        slot[field[SLIDING] + s] = 0
        st[SLIDING_BLOCKS] -= back
        st[FREE] += blocks + back
        if conf[CACHES]:
            own = (computed - unsure) // shape[FORM][0]
            return_empty(blocks - own, st, pool[CELL])
    free_slot(s, st, slots, rows)
    st[RUNNING] -= 1
    st[BLOCKED] = 0
    return own


def preempt(s: int, st: Ints, conf: Conf, shape: Shape, slots: Slots, rows: Rows, pool: Pool) -> None:
    """Slot ``s`` loses its blocks and goes to the head of the queue; what a batch in flight computes still counts."""
    slot, field = slots
    row, column = rows[0], rows[2]
    batch = st[BATCHES]
    i = slot[field[REQUEST] + s]
    phase = slot[field[PHASE] + s]
    computed = slot[field[OFFSET] + s]
    if phase not in (PREFILLING, ENDING):
        computed += batch
    row[column[COMPUTED_ONCE] + i] = max(row[column[COMPUTED_ONCE] + i], computed)
    known_after = -1
    if phase == GENERATING:
        known_after = -3 - batch
        row[column[GENERATED] + i] = slot[field[GENERATED_BEFORE] + s] + batch - slot[field[FIRST_BATCH] + s] + 1
    own = release_slot(s, st, conf, shape, slots, rows, pool)
    row[column[PREEMPTIONS] + i] += 1
    if phase in (PREFILLING, GENERATING):
        row[column[SLOT_OF] + i] = known_after
        row[column[LINK] + i] = st[PREEMPTED]
        st[PREEMPTED] = i
        st[WAITING] += 1
        if conf[CACHES]:
            keep_blocks(own, st, pool[CELL])


def note_end(s: int, end_s: float, st: Ints, heap: Ints, shape: Shape, slots: Slots, rows: Rows) -> bool:
    """The last token of slot ``s`` is in the last batch. True where the slot is free at once: otherwise the next batch
    computes it in vain, or knows that it must not."""
    slot, field = slots
    row, time, column, moment = rows
    i = slot[field[REQUEST] + s]
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
        slot[field[PHASE] + s] = WASTED
    else:
        slot[field[PHASE] + s] = ENDING
        stop_decoding(s, st, shape, slots)
        slot[field[OFFSET] + s] += batch
    return False


def drop_abandoned(
    now_s: float, strictly: int, st: Ints, conf: Conf, shape: Shape, slots: Slots, rows: Rows, pool: Pool
) -> None:
    """Requests abandoned until ``now_s``, or ``strictly`` before it, leave the running list; those in the queue are
    skipped when they are reached."""
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
            if slot[field[PHASE] + s] != PREFILLING:
                returned = batch - 1 if shape[LAG] and st[LATE] == 0 else batch
                if time[moment[FINISH] + i] < now_s:
                    returned -= 1
                written = slot[field[GENERATED_BEFORE] + s] + max(0, returned - slot[field[FIRST_BATCH] + s] + 1)
                row[column[GENERATED] + i] = min(row[column[ANSWER] + i], written)
            release_slot(s, st, conf, shape, slots, rows, pool)


def end_slot(
    s: int, at: int, st: Ints, ck: Reals, heap: Ints, conf: Conf, shape: Shape, slots: Slots, rows: Rows, pool: Pool
) -> None:
    """Slot ``s`` was due to end before batch ``at``. If it still is, its end is noticed, and its blocks come back once
    no batch computes it any more."""
    slot, field = slots
    end_at = field[END_AT] + s
    if slot[end_at] == at and (
        slot[field[PHASE] + s] != GENERATING or note_end(s, ck[END_S], st, heap, shape, slots, rows)
    ):
        slot[end_at] = -1
        i = slot[field[REQUEST] + s]
        release_slot(s, st, conf, shape, slots, rows, pool)
        rows[0][rows[2][SLOT_OF] + i] = -2


def process_ends(
    st: Ints, ck: Reals, heap: Ints, conf: Conf, shape: Shape, slots: Slots, rows: Rows, pool: Pool
) -> None:
    """Process what the last batch ended, in order of admission; then check the windows that may slide before the next
    one."""
    slot, field = slots
    order, later = field[ORDER], field[NEXT_ENDING]
    limit = (st[BATCHES] + 2 + st[LATE]) << KEY_SHIFT
    while next_key(heap) < limit:
        key = pop_key(heap)
        at = key >> KEY_SHIFT
        s = key & SLOT_MASK
        if key & SLIDES:
            phase = slot[field[PHASE] + s]
            if slot[field[SLIDE_AT] + s] == at and phase in (GENERATING, WASTED):
                check_sliding(s, st, heap, conf, shape, slots)
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
            end_slot(s, at, st, ck, heap, conf, shape, slots, rows, pool)
            s = after
