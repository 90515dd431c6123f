"""Blocks as counts: how many requests take, how many slide out of windows, and when the pool could run short.

Decoding sequences are counted in rings by residue: the ring of a block size says how many of them take a block in the
next batch, in the one after it, and so on; the ring of a window, how many give one back. A full sliding window gives
back a block every block's length. Until it is full, and for chunked windows, a key in the heap says when to look at the
sequence again.
"""

from kvplan.simulation.kernel.state import (
    BATCHES,
    CHUNK,
    FIRST_BATCH,
    FIXED,
    FORM,
    IN_RING,
    KEY_SHIFT,
    KIND_ROW,
    KINDS,
    KINDS_NUMBER,
    LAG,
    LONG_PREFILL,
    NEXT_SLIDING,
    OFFSET,
    RINGS,
    SERVED,
    SIZE_ROW,
    SIZES,
    SLID,
    SLIDE_AT,
    SLIDES,
    SLIDING,
    SLIDING_BLOCKS,
    SLIDING_HEAD,
    Conf,
    Ints,
    Shape,
    Slots,
    push_key,
)


def ring_sum(ring: Ints, start: int, size: int, first: int, count: int) -> int:
    """The sum of ``count`` < ``size`` entries, from ``first`` on, of a ring of ``size`` entries that begins at
    ``start``."""
    low = start + first
    end = low + count
    edge = start + size
    if end <= edge:
        return sum(ring[low:end])
    return sum(ring[low:edge]) + sum(ring[start : end - size])


def blocks_taken(tokens: int, shape: Shape) -> int:
    """Blocks that a request of ``tokens`` tokens has been given, before any slid out."""
    form = shape[FORM]
    total = shape[FIXED]
    for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
        total += form[q + 1] * -(-tokens // form[q])
    return total


def blocks_at_admission(tokens: int, shape: Shape) -> int:
    """Blocks that must be free before a request of ``tokens`` known tokens is admitted: windows count up to their
    cap."""
    form, at = shape[FORM], shape[KINDS]
    total = shape[FIXED]
    for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
        total += form[q + 2] * -(-tokens // form[q])
    for k in range(at, at + KIND_ROW * shape[KINDS_NUMBER], KIND_ROW):
        total += form[k + 3] * min(-(-tokens // form[k + 2]), form[k + 4])
    return total


def blocks_out_of_window(rule: int, window: int, size: int, certain: int) -> int:
    """Blocks of a sliding (rule 1) or chunked window that no token after the first ``certain`` ones attends to."""
    if rule == 1:
        return max(0, certain - window + 1) // size
    return certain // window * window // size


def taken_now(batch: int, shape: Shape) -> int:
    """Blocks that decoding sequences take in the batch after ``batch``."""
    form, rings = shape[FORM], shape[RINGS]
    total = 0
    for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
        total += form[q + 1] * rings[form[q + 3] + batch % form[q]]
    return total


def taken_in(batch: int, count: int, decoding: int, shape: Shape) -> int:
    """Blocks that ``decoding`` sequences take in the ``count`` batches after ``batch``."""
    form, rings = shape[FORM], shape[RINGS]
    total = 0
    for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
        size = form[q]
        total += form[q + 1] * (
            decoding * (count // size) + ring_sum(rings, form[q + 3], size, batch % size, count % size)
        )
    return total


def slid_now(batch: int, shape: Shape) -> int:
    """Blocks that slide out of windows in the batch after ``batch``."""
    form, rings, at = shape[FORM], shape[RINGS], shape[KINDS]
    total = 0
    for k in range(at, at + KIND_ROW * shape[KINDS_NUMBER], KIND_ROW):
        total += form[k + 3] * rings[form[k + 5] + batch % form[k + 2]]
    return total


def slid_in(batch: int, count: int, shape: Shape) -> int:
    """Blocks that slide out of windows in the ``count`` batches after ``batch``."""
    form, rings, at = shape[FORM], shape[RINGS], shape[KINDS]
    total = 0
    for k in range(at, at + KIND_ROW * shape[KINDS_NUMBER], KIND_ROW):
        start, size = form[k + 5], form[k + 2]
        many = ring_sum(rings, start, size, batch % size, count % size)
        if count >= size:
            many += count // size * sum(rings[start : start + size])
        total += form[k + 3] * many
    return total


def safe_batches(batch: int, most: int, decoding: int, free: int, back: int, shape: Shape) -> int:
    """How many batches after ``batch``, at most ``most``, find all their blocks free, whatever the order within each.

    ``back`` blocks come back with the first of them.
    """
    count = 0
    if shape[SIZES] == 1 and shape[KINDS_NUMBER] == 0:
        size, groups = shape[FORM][0], shape[FORM][1]
        rounds = free // (groups * decoding) - 1
        if rounds > 0:
            count = min(most, rounds * size)
            free -= taken_in(batch, count, decoding, shape)
    while count < most:
        taken = taken_now(batch + count, shape)
        if taken > free:
            break
        free += slid_now(batch + count, shape) + back - taken
        back = 0
        count += 1
    return count


def slide(s: int, certain: int, shape: Shape, slots: Slots) -> int:
    """Blocks of slot ``s`` that come back before its next tokens are placed, when ``certain`` of its tokens are not in
    flight."""
    slot, field = slots
    form, kinds = shape[FORM], shape[KINDS_NUMBER]
    back = 0
    for k in range(kinds):
        x = s * kinds + k
        if slot[field[IN_RING] + x] == 0:
            row = shape[KINDS] + KIND_ROW * k
            gone = blocks_out_of_window(form[row], form[row + 1], form[row + 2], certain)
            back += form[row + 3] * (gone - slot[field[SLID] + x])
            slot[field[SLID] + x] = gone
    return back


def next_slide(s: int, batch: int, certain: int, shape: Shape, slots: Slots) -> int:
    """The next batch before which slot ``s`` must be checked for blocks that slide out; 0 where rings count them."""
    slot, field = slots
    form, rings, kinds = shape[FORM], shape[RINGS], shape[KINDS_NUMBER]
    soonest = 0
    for k in range(kinds):
        x = s * kinds + k
        if slot[field[IN_RING] + x]:
            continue
        row = shape[KINDS] + KIND_ROW * k
        rule, window, size = form[row], form[row + 1], form[row + 2]
        if rule == 1:
            wait = window - 1 - certain
            if wait <= 0:
                if (certain - window + 1) % size:
                    slot[field[IN_RING] + x] = 1
                    rings[form[row + 5] + (window - 1 + shape[LAG] - slot[field[OFFSET] + s]) % size] += 1
                    continue
                wait = 1
        else:
            wait = window - certain % window
        if soonest == 0 or batch + wait < soonest:
            soonest = batch + wait
    return soonest


def check_sliding(s: int, st: Ints, heap: Ints, conf: Conf, shape: Shape, slots: Slots) -> None:
    """Note which blocks of slot ``s`` slide out before the next batch, and when to check again."""
    slot, field = slots
    batch, lag = st[BATCHES], shape[LAG]
    certain = slot[field[OFFSET] + s] + batch
    settled = lag == 0 or slot[field[FIRST_BATCH] + s] < batch
    if lag and slot[field[SERVED] + s] != -batch:
        certain -= 1 if settled else slot[field[CHUNK] + s]
    if conf[LONG_PREFILL]:
        settled = False
    back = slide(s, certain, shape, slots)
    if back:
        if slot[field[NEXT_SLIDING] + s] == -2:
            slot[field[NEXT_SLIDING] + s] = st[SLIDING_HEAD]
            st[SLIDING_HEAD] = s
        slot[field[SLIDING] + s] += back
        st[SLIDING_BLOCKS] += back
    again = next_slide(s, batch + 1, certain, shape, slots) if settled else batch + 2
    slot[field[SLIDE_AT] + s] = again
    if again:
        push_key((again << KEY_SHIFT) | SLIDES | s, heap)


def clear_sliding(st: Ints, slots: Slots) -> None:
    """All blocks that were to slide out have come back."""
    slot, field = slots
    s = st[SLIDING_HEAD]
    while s >= 0:
        slot[field[SLIDING] + s] = 0
        later = slot[field[NEXT_SLIDING] + s]
        slot[field[NEXT_SLIDING] + s] = -2
        s = later
    st[SLIDING_HEAD] = -1
