"""The running list: how a sequence takes a slot, prefills its input, decodes, and drops out of the batches.

A decoding sequence is updated lazily: tokens computed = offset + batches scheduled. It costs nothing while nothing
happens to it; its end, and when blocks slide out of its windows, are keys in the heap.
"""

from kvplan.simulation.kernel.blocks import blocks_out_of_window, blocks_taken
from kvplan.simulation.kernel.state import (
    ADMISSIONS,
    ANSWER,
    BATCHES,
    CHUNK,
    COMPUTED,
    COMPUTED_ONCE,
    DECODES,
    DECODING,
    END_AT,
    ENDING,
    FIRST_BATCH,
    FIRST_SLOT,
    FORM,
    FREE_SLOT,
    FRESH,
    GENERATED,
    GENERATED_BEFORE,
    GENERATING,
    HELD,
    IN_RING,
    KEY_SHIFT,
    KIND_ROW,
    KINDS,
    KINDS_NUMBER,
    LAG,
    LAST_SLOT,
    NEXT_FRESH,
    NEXT_SLOT,
    OFFSET,
    ORDER,
    PHASE,
    PREFILL_SLOT,
    PREFILL_TOKENS,
    PREFILLING,
    PREFILLS,
    PREVIOUS_SLOT,
    PROMPT,
    RECOMPUTED,
    REQUEST,
    RINGS,
    RUNNING,
    SERVED,
    SIZE_ROW,
    SIZES,
    SLID,
    SLIDE_AT,
    SLIDES,
    SLOT_OF,
    WAITING,
    WASTED,
    Ints,
    Rows,
    Shape,
    Slots,
    push_key,
)


def take_slot(i: int, st: Ints, shape: Shape, slots: Slots, rows: Rows) -> int:
    """Request ``i`` takes a slot at the end of the running list."""
    slot, field = slots
    s = st[FREE_SLOT]
    st[FREE_SLOT] = slot[field[NEXT_SLOT] + s]
    tail = st[LAST_SLOT]
    if tail >= 0:
        slot[field[NEXT_SLOT] + tail] = s
    else:
        st[FIRST_SLOT] = s
    slot[field[PREVIOUS_SLOT] + s] = tail
    slot[field[NEXT_SLOT] + s] = -1
    st[LAST_SLOT] = s
    st[RUNNING] += 1
    st[PREFILLS] += 1
    st[WAITING] -= 1
    st[ADMISSIONS] += 1
    slot[field[REQUEST] + s] = i
    slot[field[ORDER] + s] = st[ADMISSIONS]
    slot[field[PHASE] + s] = PREFILLING
    rows[0][rows[2][SLOT_OF] + i] = s
    kinds = shape[KINDS_NUMBER]
    for x in range(s * kinds, s * kinds + kinds):
        slot[field[SLID] + x] = 0
        slot[field[IN_RING] + x] = 0
    return s


def prefill_chunk(s: int, tokens: int, st: Ints, heap: Ints, shape: Shape, slots: Slots, rows: Rows) -> None:
    """Slot ``s`` computes ``tokens`` of its input in the batch being formed. They count as prefill, unless they are the
    newest token alone."""
    slot, field = slots
    row, column = rows[0], rows[2]
    form, rings = shape[FORM], shape[RINGS]
    i = slot[field[REQUEST] + s]
    old = slot[field[OFFSET] + s]
    computed = old + tokens
    batch = st[BATCHES] + 1
    slot[field[CHUNK] + s] = tokens
    slot[field[SERVED] + s] = batch
    high = row[column[COMPUTED_ONCE] + i]
    if high > old:
        row[column[RECOMPUTED] + i] += min(computed, high) - old
    generated = row[column[GENERATED] + i]
    prompt = row[column[PROMPT] + i]
    if computed < prompt + generated:
        slot[field[OFFSET] + s] = computed
        st[PREFILL_SLOT] = s
    else:
        slot[field[PHASE] + s] = GENERATING
        slot[field[OFFSET] + s] = computed - batch
        st[PREFILLS] -= 1
        for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
            rings[form[q + 3] + (batch - computed) % form[q]] += 1
        slot[field[FIRST_BATCH] + s] = batch
        slot[field[GENERATED_BEFORE] + s] = generated
        end_at = batch + row[column[ANSWER] + i] - generated
        slot[field[END_AT] + s] = end_at
        push_key((end_at << KEY_SHIFT) | s, heap)
        if shape[KINDS_NUMBER]:
            slot[field[SLIDE_AT] + s] = batch + 1
            push_key(((batch + 1) << KEY_SHIFT) | SLIDES | s, heap)
        slot[field[NEXT_FRESH] + s] = st[FRESH]
        st[FRESH] = s
    if tokens == 1 and old >= prompt:
        st[DECODES] += 1
    else:
        st[PREFILL_TOKENS] += tokens


def skip_batch(s: int, st: Ints, heap: Ints, shape: Shape, slots: Slots) -> None:
    """From slot ``s`` on, the tokens of the next batch are used up. (Only a limit on long prefills leaves decoding
    sequences without a token.)"""
    slot, field = slots
    form, rings, batch = shape[FORM], shape[RINGS], st[BATCHES]
    while s >= 0:
        phase = slot[field[PHASE] + s]
        off = slot[field[OFFSET] + s]
        if phase == WASTED:
            stop_decoding(s, st, shape, slots)
            slot[field[OFFSET] + s] = off + batch
            slot[field[PHASE] + s] = ENDING
        elif phase == GENERATING:
            for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
                rings[form[q + 3] + -off % form[q]] -= 1
                rings[form[q + 3] + (1 - off) % form[q]] += 1
            slot[field[OFFSET] + s] = off - 1
            slot[field[FIRST_BATCH] + s] += 1
            slot[field[SERVED] + s] = -(batch + 1)
            end_at = slot[field[END_AT] + s] + 1
            slot[field[END_AT] + s] = end_at
            push_key((end_at << KEY_SHIFT) | s, heap)
            if shape[KINDS_NUMBER] and slot[field[SLIDE_AT] + s] == 0:
                slot[field[SLIDE_AT] + s] = batch + 2
                push_key(((batch + 2) << KEY_SHIFT) | SLIDES | s, heap)
        s = slot[field[NEXT_SLOT] + s]


def stop_decoding(s: int, st: Ints, shape: Shape, slots: Slots) -> None:
    """Decoding slot ``s`` is in no further batch: it leaves the rings, and its blocks are noted."""
    batch = st[BATCHES]
    slot, field = slots
    form, rings, lag = shape[FORM], shape[RINGS], shape[LAG]
    off = slot[field[OFFSET] + s]
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
        if slot[field[IN_RING] + x]:
            slot[field[IN_RING] + x] = 0
            rings[form[row + 5] + (window - 1 + lag - off) % size] -= 1
            gone = max(gone, blocks_out_of_window(rule, window, size, computed - 1 - lag))
        blocks -= copies * gone
    slot[field[HELD] + s] = blocks
    st[DECODING] -= 1
    st[COMPUTED] -= computed


def free_slot(s: int, st: Ints, slots: Slots, rows: Rows) -> None:
    """Slot ``s`` leaves the running list and may be given to another request."""
    slot, field = slots
    after, prior = field[NEXT_SLOT], field[PREVIOUS_SLOT]
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
    slot[field[SLIDE_AT] + s] = -1
    rows[0][rows[2][SLOT_OF] + slot[field[REQUEST] + s]] = -1
    slot[after + s] = st[FREE_SLOT]
    st[FREE_SLOT] = s
