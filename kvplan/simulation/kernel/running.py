"""The running list: how a sequence begins to write, stops, loses its blocks, and leaves.

A writing sequence is kept lazily: tokens computed = offset + batches scheduled. It costs nothing while nothing happens
to it; its end and what slides out of its windows are keys (batch, sort, slot) in a heap.
"""

from heapq import heappush

from kvplan.simulation.kernel.identities import remember, return_blocks
from kvplan.simulation.kernel.paging import blocks_outside, blocks_taken
from kvplan.simulation.kernel.places import (
    AFTER,
    ANSWER,
    BEFORE,
    BLOCK,
    BLOCKED,
    CACHING,
    CERTAIN,
    CHUNK,
    COMPUTED,
    DECODING,
    END_AT,
    FIRST_BATCH,
    FIRST_SLOT,
    FORM,
    GENERATED,
    GIVE,
    GIVE_AT,
    HELD,
    HIGH,
    JOINED,
    KEY_SHIFT,
    KIND_ROW,
    KINDS,
    KINDS_NUMBER,
    LAG,
    LAST_SLOT,
    LINK,
    OFF,
    PHASE,
    PREEMPTED,
    PREEMPTIONS,
    PRIOR,
    PROMPT,
    READING,
    READING_NOW,
    READING_SLOT,
    RECOMPUTED,
    RINGS,
    RUNNING,
    SERVED,
    SIZE_ROW,
    SIZES,
    SLID,
    SLIDES,
    SLIDING_BACK,
    SLOT_OF,
    SPARE_SLOT,
    WAITING,
    WHO,
    WRITING,
    Conf,
    Ints,
    Pool,
    Rows,
    Shape,
    Slots,
)


def leave_batches(s: int, batch: int, st: Ints, shape: Shape, slots: Slots) -> None:
    """Writing slot ``s`` is in no batch after ``batch``: out of the rings; its blocks are written down."""
    slot, field = slots
    form, rings, lag = shape[FORM], shape[RINGS], shape[LAG]
    off = slot[field[OFF] + s]
    computed = off + batch
    for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
        rings[form[q + 3] + -off % form[q]] -= 1
    blocks = blocks_taken(computed, shape)
    kinds = shape[KINDS_NUMBER]
    for k in range(kinds):
        x = s * kinds + k
        row = shape[KINDS] + KIND_ROW * k
        rule, window, size, copies = form[row], form[row + 1], form[row + 2], form[row + 3]
        gone = slot[field[SLID] + x]
        if slot[field[JOINED] + x]:
            slot[field[JOINED] + x] = 0
            rings[form[row + 5] + (window - 1 + lag - off) % size] -= 1
            gone = max(gone, blocks_outside(rule, window, size, computed - 1 - lag))
        blocks -= copies * gone
    slot[field[HELD] + s] = blocks
    st[DECODING] -= 1
    st[COMPUTED] -= computed


def slide(s: int, certain: int, shape: Shape, slots: Slots) -> int:
    """Blocks of slot ``s`` that come back before its next tokens are placed; ``certain`` ones are not in flight."""
    slot, field = slots
    form, kinds = shape[FORM], shape[KINDS_NUMBER]
    back = 0
    for k in range(kinds):
        x = s * kinds + k
        if slot[field[JOINED] + x] == 0:
            row = shape[KINDS] + KIND_ROW * k
            gone = blocks_outside(form[row], form[row + 1], form[row + 2], certain)
            back += form[row + 3] * (gone - slot[field[SLID] + x])
            slot[field[SLID] + x] = gone
    return back


def next_slide(s: int, batch: int, certain: int, shape: Shape, slots: Slots) -> int:
    """The next batch before which slot ``s`` must be looked at for blocks that slide out; 0 where rings know.

    In a steady decode a full window gives a block back every block's length: a ring counts those sequences by residue.
    """
    slot, field = slots
    form, rings, kinds = shape[FORM], shape[RINGS], shape[KINDS_NUMBER]
    soonest = 0
    for k in range(kinds):
        x = s * kinds + k
        if slot[field[JOINED] + x]:
            continue
        row = shape[KINDS] + KIND_ROW * k
        rule, window, size = form[row], form[row + 1], form[row + 2]
        if rule == 1:
            wait = window - 1 - certain
            if wait <= 0:
                if (certain - window + 1) % size:
                    slot[field[JOINED] + x] = 1
                    rings[form[row + 5] + (window - 1 + shape[LAG] - slot[field[OFF] + s]) % size] += 1
                    continue
                wait = 1
        else:
            wait = window - certain % window
        if soonest == 0 or batch + wait < soonest:
            soonest = batch + wait
    return soonest


def vacate(s: int, st: Ints, slots: Slots, rows: Rows) -> None:
    """Slot ``s`` is taken out of the running list and may be given to another request."""
    slot, field = slots
    after, prior = field[AFTER], field[PRIOR]
    ahead, behind = slot[prior + s], slot[after + s]
    if ahead >= 0:
        slot[after + ahead] = behind
    else:
        st[FIRST_SLOT] = behind
    if behind >= 0:
        slot[prior + behind] = ahead
    else:
        st[LAST_SLOT] = ahead
    slot[field[PHASE] + s] = 0
    slot[field[END_AT] + s] = -1
    slot[field[GIVE_AT] + s] = -1
    rows[0][rows[2][SLOT_OF] + slot[field[WHO] + s]] = -1
    slot[after + s] = st[SPARE_SLOT]
    st[SPARE_SLOT] = s


def release_slot(s: int, conf: Conf, st: Ints, batch: int, shape: Shape, slots: Slots, rows: Rows, pool: Pool) -> int:
    """Slot ``s`` leaves; the blocks that come back to the pool.

    With identities its full blocks keep their content. What the batch in flight computes is placed, but the token
    behind it is not known yet, unless that batch is the one that read the input, or none is: its end was seen.
    """
    slot, field = slots
    phase = slot[field[PHASE] + s]
    computed = slot[field[OFF] + s]
    unsure = 1 if shape[LAG] and slot[field[FIRST_BATCH] + s] < batch else 0
    if phase == READING:
        st[READING_NOW] -= 1
        unsure = 0
        if conf[CACHING] == 0:
            blocks = blocks_taken(computed, shape)
            kinds = shape[KINDS_NUMBER]
            for k in range(kinds):
                blocks -= shape[FORM][shape[KINDS] + KIND_ROW * k + 3] * slot[field[SLID] + s * kinds + k]
            slot[field[HELD] + s] = blocks
    elif phase == CERTAIN:
        if slot[field[END_AT] + s] < 0:
            unsure = 0
    else:
        computed += batch
        leave_batches(s, batch, st, shape, slots)
    if conf[CACHING]:
        remember(s, slot[field[WHO] + s], (computed - unsure) // pool[BLOCK], pool)
        back = return_blocks(s, pool)
    else:
        give = field[GIVE] + s
        back = slot[field[HELD] + s] + slot[give]
        st[SLIDING_BACK] -= slot[give]
        slot[give] = 0
    vacate(s, st, slots, rows)
    st[RUNNING] -= 1
    st[BLOCKED] = 0
    return back


def preempt(s: int, conf: Conf, st: Ints, batch: int, shape: Shape, slots: Slots, rows: Rows, pool: Pool) -> int:
    """Slot ``s`` loses its blocks and goes to the head of the queue; what a batch in flight computes still counts."""
    slot, field = slots
    row, column = rows[0], rows[2]
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
    back = release_slot(s, conf, st, batch, shape, slots, rows, pool)
    row[column[PREEMPTIONS] + i] += 1
    if phase in (READING, WRITING):
        row[column[SLOT_OF] + i] = known_after
        row[column[LINK] + i] = st[PREEMPTED]
        st[PREEMPTED] = i
        st[WAITING] += 1
    return back


def read_chunk(
    s: int, tokens: int, batch: int, st: Ints, heap: Ints, fresh: Ints, shape: Shape, slots: Slots, rows: Rows
) -> int:
    """Slot ``s`` computes ``tokens`` of its input in ``batch``; 1 if they count as a decode: the newest token alone."""
    slot, field = slots
    row, column = rows[0], rows[2]
    form, rings = shape[FORM], shape[RINGS]
    i = slot[field[WHO] + s]
    old = slot[field[OFF] + s]
    computed = old + tokens
    slot[field[CHUNK] + s] = tokens
    slot[field[SERVED] + s] = batch
    high = row[column[HIGH] + i]
    if high > old:
        row[column[RECOMPUTED] + i] += min(computed, high) - old
    generated = row[column[GENERATED] + i]
    prompt = row[column[PROMPT] + i]
    if computed < prompt + generated:
        slot[field[OFF] + s] = computed
        st[READING_SLOT] = s
    else:
        slot[field[PHASE] + s] = WRITING
        slot[field[OFF] + s] = computed - batch
        st[READING_NOW] -= 1
        for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
            rings[form[q + 3] + (batch - computed) % form[q]] += 1
        slot[field[FIRST_BATCH] + s] = batch
        slot[field[BEFORE] + s] = generated
        end_at = batch + row[column[ANSWER] + i] - generated
        slot[field[END_AT] + s] = end_at
        heappush(heap, (end_at << KEY_SHIFT) | s)
        if shape[KINDS_NUMBER]:
            slot[field[GIVE_AT] + s] = batch + 1
            heappush(heap, ((batch + 1) << KEY_SHIFT) | SLIDES | s)
        fresh.append(s)
    return 1 if tokens == 1 and old >= prompt else 0
