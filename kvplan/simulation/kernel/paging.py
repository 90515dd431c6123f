"""Blocks as counts: what requests take, what slides out of windows, and when the pool could run short.

Decoding sequences are counted in rings by residue: the ring of a block size says how many of them take a block in the
next batch, in the one after it, and so on round; the ring of a window kind, how many give one back.
"""

from kvplan.simulation.kernel.places import (
    FIXED,
    FORM,
    KIND_ROW,
    KINDS,
    KINDS_NUMBER,
    RINGS,
    SIZE_ROW,
    SIZES,
    Ints,
    Shape,
)


def ring_sum(ring: Ints, start: int, size: int, first: int, count: int) -> int:
    """``count`` < ``size`` entries, from ``first`` on, of a ring of ``size`` entries that begins at ``start``."""
    low = start + first
    end = low + count
    edge = start + size
    if end <= edge:
        return sum(ring[low:end])
    return sum(ring[low:edge]) + sum(ring[start : end - size])


def blocks_taken(tokens: int, shape: Shape) -> int:
    """Blocks that a request of ``tokens`` tokens was given, before any slid out."""
    form = shape[FORM]
    total = shape[FIXED]
    for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
        total += form[q + 1] * -(-tokens // form[q])
    return total


def blocks_at_admission(tokens: int, shape: Shape) -> int:
    """Blocks that must be free before ``tokens`` known tokens are admitted: windows and chunks only up to their cap."""
    form, at = shape[FORM], shape[KINDS]
    total = shape[FIXED]
    for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
        total += form[q + 2] * -(-tokens // form[q])
    for k in range(at, at + KIND_ROW * shape[KINDS_NUMBER], KIND_ROW):
        total += form[k + 3] * min(-(-tokens // form[k + 2]), form[k + 4])
    return total


def blocks_outside(rule: int, window: int, size: int, certain: int) -> int:
    """Blocks of a window (rule 1) or chunk group that no token after the first ``certain`` ones attends to."""
    if rule == 1:
        return max(0, certain - window + 1) // size
    return certain // window * window // size


def taken_now(batch: int, shape: Shape) -> int:
    """Blocks that the decoding sequences take in the batch after ``batch``."""
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
    """Blocks that windows give back in the batch after ``batch``."""
    form, rings, at = shape[FORM], shape[RINGS], shape[KINDS]
    total = 0
    for k in range(at, at + KIND_ROW * shape[KINDS_NUMBER], KIND_ROW):
        total += form[k + 3] * rings[form[k + 5] + batch % form[k + 2]]
    return total


def slid_in(batch: int, count: int, shape: Shape) -> int:
    """Blocks that windows give back in the ``count`` batches after ``batch``."""
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
