"""The running list: how a sequence takes a seat, reads its input, writes, and is out of the batches.

A writing sequence is kept lazily: tokens computed = offset + batches scheduled. It costs nothing while nothing happens
to it; its end and what slides out of its windows are keys (batch, sort, slot) in a heap.
"""

from kvplan.simulation.kernel.keys import push_key
from kvplan.simulation.kernel.paging import blocks_outside, blocks_taken
from kvplan.simulation.kernel.places import (
    AFTER,
    ANSWER,
    BATCHES,
    BEFORE,
    CERTAIN,
    CHUNK,
    COMPUTED,
    DECODE,
    DECODING,
    END_AT,
    FIRST_BATCH,
    FIRST_SLOT,
    FORM,
    FRESH,
    GENERATED,
    GIVE_AT,
    HELD,
    HIGH,
    IN_VAIN,
    JOINED,
    KEY_SHIFT,
    KIND_ROW,
    KINDS,
    KINDS_NUMBER,
    LAG,
    LAST_SLOT,
    NEXT_FRESH,
    OFF,
    ORDER,
    PHASE,
    PREFILL,
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
    SLOT_OF,
    SPARE_SLOT,
    STAMP,
    WAITING,
    WHO,
    WRITING,
    Ints,
    Rows,
    Shape,
    Slots,
)


def sit_down(i: int, st: Ints, shape: Shape, slots: Slots, rows: Rows) -> int:
    """Request ``i`` gets a seat at the end of the running list."""
    slot, field = slots
    s = st[SPARE_SLOT]
    st[SPARE_SLOT] = slot[field[AFTER] + s]
    tail = st[LAST_SLOT]
    if tail >= 0:
        slot[field[AFTER] + tail] = s
    else:
        st[FIRST_SLOT] = s
    slot[field[PRIOR] + s] = tail
    slot[field[AFTER] + s] = -1
    st[LAST_SLOT] = s
    st[RUNNING] += 1
    st[READING_NOW] += 1
    st[WAITING] -= 1
    st[STAMP] += 1
    slot[field[WHO] + s] = i
    slot[field[ORDER] + s] = st[STAMP]
    slot[field[PHASE] + s] = READING
    rows[0][rows[2][SLOT_OF] + i] = s
    kinds = shape[KINDS_NUMBER]
    for x in range(s * kinds, s * kinds + kinds):
        slot[field[SLID] + x] = 0
        slot[field[JOINED] + x] = 0
    return s


def read_chunk(s: int, tokens: int, st: Ints, heap: Ints, shape: Shape, slots: Slots, rows: Rows) -> None:
    """Slot ``s`` computes ``tokens`` of its input in the batch that is being formed. They count as prefill, unless they
    are the newest token alone."""
    slot, field = slots
    row, column = rows[0], rows[2]
    form, rings = shape[FORM], shape[RINGS]
    i = slot[field[WHO] + s]
    old = slot[field[OFF] + s]
    computed = old + tokens
    batch = st[BATCHES] + 1
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
        push_key((end_at << KEY_SHIFT) | s, heap)
        if shape[KINDS_NUMBER]:
            slot[field[GIVE_AT] + s] = batch + 1
            push_key(((batch + 1) << KEY_SHIFT) | SLIDES | s, heap)
        slot[field[NEXT_FRESH] + s] = st[FRESH]
        st[FRESH] = s
    if tokens == 1 and old >= prompt:
        st[DECODE] += 1
    else:
        st[PREFILL] += tokens


def lag_behind(s: int, st: Ints, heap: Ints, shape: Shape, slots: Slots) -> None:
    """From slot ``s`` on, nobody is in the next batch: its tokens were spent. (Only a cap on long prefills
    leaves writing sequences without a token.)"""
    slot, field = slots
    form, rings, batch = shape[FORM], shape[RINGS], st[BATCHES]
    while s >= 0:
        phase = slot[field[PHASE] + s]
        off = slot[field[OFF] + s]
        if phase == IN_VAIN:
            leave_batches(s, st, shape, slots)
            slot[field[OFF] + s] = off + batch
            slot[field[PHASE] + s] = CERTAIN
        elif phase == WRITING:
            for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
                rings[form[q + 3] + -off % form[q]] -= 1
                rings[form[q + 3] + (1 - off) % form[q]] += 1
            slot[field[OFF] + s] = off - 1
            slot[field[FIRST_BATCH] + s] += 1
            slot[field[SERVED] + s] = -(batch + 1)
            end_at = slot[field[END_AT] + s] + 1
            slot[field[END_AT] + s] = end_at
            push_key((end_at << KEY_SHIFT) | s, heap)
            if shape[KINDS_NUMBER] and slot[field[GIVE_AT] + s] == 0:
                slot[field[GIVE_AT] + s] = batch + 2
                push_key(((batch + 2) << KEY_SHIFT) | SLIDES | s, heap)
        s = slot[field[AFTER] + s]


def leave_batches(s: int, st: Ints, shape: Shape, slots: Slots) -> None:
    """Writing slot ``s`` is in no further batch: out of the rings; its blocks are written down."""
    batch = st[BATCHES]
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
