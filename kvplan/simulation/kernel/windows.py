"""What slides out of windows, sequence by sequence: blocks that come back before the next tokens are placed.

In a steady decode a full window gives a block back every block's length: a ring counts those sequences by residue.
Until then, and where a chunk ends, a key in the heap says when to look again.
"""

from kvplan.simulation.kernel.keys import push_key
from kvplan.simulation.kernel.paging import blocks_outside
from kvplan.simulation.kernel.places import (
    BATCHES,
    CHUNK,
    FIRST_BATCH,
    FORM,
    GIVE,
    GIVE_AT,
    GIVERS,
    JOINED,
    KEY_SHIFT,
    KIND_ROW,
    KINDS,
    KINDS_NUMBER,
    LAG,
    LONGEST,
    NEXT_GIVER,
    OFF,
    RINGS,
    SERVED,
    SLID,
    SLIDES,
    SLIDING_BACK,
    Conf,
    Ints,
    Shape,
    Slots,
)


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


def look_for_slides(s: int, st: Ints, heap: Ints, conf: Conf, shape: Shape, slots: Slots) -> None:
    """Before the next batch, note the blocks of slot ``s`` that its windows leave behind, and when to look again."""
    slot, field = slots
    batch, lag = st[BATCHES], shape[LAG]
    certain = slot[field[OFF] + s] + batch
    settled = lag == 0 or slot[field[FIRST_BATCH] + s] < batch
    if lag and slot[field[SERVED] + s] != -batch:
        certain -= 1 if settled else slot[field[CHUNK] + s]
    if conf[LONGEST]:
        settled = False
    back = slide(s, certain, shape, slots)
    if back:
        if slot[field[NEXT_GIVER] + s] == -2:
            slot[field[NEXT_GIVER] + s] = st[GIVERS]
            st[GIVERS] = s
        slot[field[GIVE] + s] += back
        st[SLIDING_BACK] += back
    again = next_slide(s, batch + 1, certain, shape, slots) if settled else batch + 2
    slot[field[GIVE_AT] + s] = again
    if again:
        push_key((again << KEY_SHIFT) | SLIDES | s, heap)


def nothing_slides(st: Ints, slots: Slots) -> None:
    """What slid out has come back."""
    slot, field = slots
    s = st[GIVERS]
    while s >= 0:
        slot[field[GIVE] + s] = 0
        later = slot[field[NEXT_GIVER] + s]
        slot[field[NEXT_GIVER] + s] = -2
        s = later
    st[GIVERS] = -1
