"""An engine through time: it jumps from event to event, and forms one by one only the batches that are special.

A batch is formed when the last one has returned, or, where scheduling is asynchronous, when the last one starts. Order:
what returned, who walked away, then the batch, which sees whatever arrived until then.
"""

from heapq import heappop, heappush
from math import inf

from kvplan.simulation.kernel.batch import form_batch, nothing_slides
from kvplan.simulation.kernel.clock import batches_until, clock, stand_idle, use
from kvplan.simulation.kernel.paging import safe_batches, slid_in, taken_in
from kvplan.simulation.kernel.places import (
    ADMITTED,
    ANSWER,
    BATCHES,
    BEFORE,
    BLOCKED,
    CACHING,
    CAP,
    CERTAIN,
    CHUNK,
    COMPLETED,
    COMPUTED,
    CONTEXT,
    DECODE,
    DECODING,
    DONE_HEAD,
    DONE_TAIL,
    END_AT,
    END_S,
    FINISH,
    FIRST_BATCH,
    FORM,
    FREE,
    GAVE_IN,
    GENERATED,
    GIVE,
    GIVE_AT,
    IN_VAIN,
    KEY_SHIFT,
    KINDS_NUMBER,
    LAG,
    LATE,
    LEFT_HEAD,
    LEFT_LINK,
    LINK,
    LONGEST,
    OFF,
    ORDER,
    OUTCOME,
    PEAK_USED,
    PHASE,
    PREEMPTED,
    QUEUE_HEAD,
    QUIET_S,
    READING,
    READING_NOW,
    RINGS,
    RUNNING,
    SEATS,
    SERVED,
    SLIDES,
    SLIDING_BACK,
    SLOT_MASK,
    SLOT_OF,
    START_S,
    STEPS,
    TOTAL,
    UNFINISHED,
    WAITING,
    WHO,
    WRITING,
    Conf,
    Cost,
    Ints,
    Lists,
    Pool,
    Reals,
    Rows,
    Shape,
    Slots,
)
from kvplan.simulation.kernel.running import leave_batches, next_slide, release_slot, slide


def look_for_slides(s: int, st: Ints, heap: Ints, givers: Ints, conf: Conf, shape: Shape, slots: Slots) -> None:
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
        if slot[field[GIVE] + s] == 0:
            givers.append(s)
        slot[field[GIVE] + s] += back
        st[SLIDING_BACK] += back
    again = next_slide(s, batch + 1, certain, shape, slots) if settled else batch + 2
    slot[field[GIVE_AT] + s] = again
    if again:
        heappush(heap, (again << KEY_SHIFT) | SLIDES | s)


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
        row[column[LINK] + i] = -1
        if st[DONE_HEAD] >= 0:
            row[column[LINK] + st[DONE_TAIL]] = i
        else:
            st[DONE_HEAD] = i
        st[DONE_TAIL] = i
    else:
        row[column[GENERATED] + i] = answer - 1
    if shape[LAG] == 0:
        return True
    batch = st[BATCHES]
    slot[field[END_AT] + s] = batch + 2
    heappush(heap, ((batch + 2) << KEY_SHIFT) | s)
    if answer < row[column[CAP] + i]:
        slot[field[PHASE] + s] = IN_VAIN
    else:
        slot[field[PHASE] + s] = CERTAIN
        leave_batches(s, batch, st, shape, slots)
        slot[field[OFF] + s] += batch
    return False


def let_go(now_s: float, st: Ints, conf: Conf, shape: Shape, slots: Slots, rows: Rows, pool: Pool) -> None:
    """Clients that walked away until ``now_s`` leave the running list; those in the queue are passed over later."""
    slot, field = slots
    row, time, column, moment = rows
    while st[LEFT_HEAD] >= 0 and time[moment[FINISH] + st[LEFT_HEAD]] <= now_s:
        i = st[LEFT_HEAD]
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
            st[FREE] += release_slot(s, conf, st, batch, shape, slots, rows, pool)


def first_waiting(now_s: float, st: Ints, rows: Rows) -> int:
    """The head of the queue as a batch formed at ``now_s`` sees it; −1 for an empty one."""
    row, time, column, moment = rows
    while True:
        place = PREEMPTED
        head = st[PREEMPTED]
        if head < 0:
            place = QUEUE_HEAD
            head = st[QUEUE_HEAD]
            if head >= 0 and time[moment[ADMITTED] + head] > now_s:
                head = -1
        if head < 0 or row[column[OUTCOME] + head] == UNFINISHED or time[moment[FINISH] + head] > now_s:
            return head
        st[place] = row[column[LINK] + head]
        st[BLOCKED] = 0


def jump(many: int, taken: int, st: Ints, ck: Reals, conf: Conf, cost: Cost, shape: Shape) -> None:
    """``many`` batches of plain decoding at once, which take ``taken`` blocks."""
    decoding, free, end_s = st[DECODING], st[FREE], ck[END_S]
    back = 0
    if shape[KINDS_NUMBER]:
        back = st[SLIDING_BACK] + slid_in(st[BATCHES], many, shape)
        st[SLIDING_BACK] = 0
    if shape[LAG]:
        ck[START_S] = end_s if many == 1 else clock(many - 1, st, ck, cost)
    ck[END_S] = clock(many, st, ck, cost)
    used = conf[TOTAL] - (free - taken + back)
    level = 1.0 * used if many == 1 else 0.5 * (conf[TOTAL] - free + used)
    use(level, end_s, ck[END_S], ck, cost)
    st[STEPS] += many
    st[DECODE] += decoding * many
    st[CONTEXT] += st[COMPUTED] * many + decoding * many * (many + 1) // 2
    st[COMPUTED] += decoding * many
    st[FREE] = conf[TOTAL] - used
    st[PEAK_USED] = max(st[PEAK_USED], used)
    st[BATCHES] += many
    st[LATE] = 0


def advance(
    until_s: float,
    exact: int,
    st: Ints,
    ck: Reals,
    heap: Ints,
    lists: Lists,
    conf: Conf,
    cost: Cost,
    shape: Shape,
    slots: Slots,
    rows: Rows,
    pool: Pool,
) -> None:
    """Form every batch that is formed before ``until_s``. A stretch of plain decoding that would reach beyond is left
    for later, unless ``exact``: nobody sees the difference before ``QUIET_S``."""
    _fresh, _found, leaving, givers = lists
    slot, field = slots
    row, time, column, moment = rows
    form, rings, lag = shape[FORM], shape[RINGS], shape[LAG]
    caching = conf[CACHING]
    end_at, phase = field[END_AT], field[PHASE]
    while st[GAVE_IN] == 0:
        batch, end_s = st[BATCHES], ck[END_S]
        limit = (batch + 2 + st[LATE]) << KEY_SHIFT
        while heap[0] < limit:
            key = heappop(heap)
            s = key & SLOT_MASK
            at = key >> KEY_SHIFT
            if key & SLIDES:
                if slot[field[GIVE_AT] + s] == at and (slot[phase + s] == WRITING or slot[phase + s] == IN_VAIN):
                    look_for_slides(s, st, heap, givers, conf, shape, slots)
            elif slot[end_at + s] == at and (
                slot[phase + s] != WRITING or see_end(s, end_s, st, heap, shape, slots, rows)
            ):
                slot[end_at + s] = -1
                if caching:
                    leaving.append((slot[field[ORDER] + s], s))
                else:
                    i = slot[field[WHO] + s]
                    st[FREE] += release_slot(s, conf, st, batch, shape, slots, rows, pool)
                    row[column[SLOT_OF] + i] = -2
        if caching and len(leaving):
            leaving.sort()
            for entry in leaving:
                i = slot[field[WHO] + entry[1]]
                st[FREE] += release_slot(entry[1], conf, st, batch, shape, slots, rows, pool)
                row[column[SLOT_OF] + i] = -2
            leaving.clear()

        now_s = ck[START_S] if lag and st[LATE] == 0 else end_s
        if st[LEFT_HEAD] >= 0:
            let_go(now_s, st, conf, shape, slots, rows, pool)
        if now_s >= until_s:
            ck[QUIET_S] = end_s
            return

        head = first_waiting(now_s, st, rows)
        ordered = 1 if caching or conf[LONGEST] or st[READING_NOW] > 1 else 0
        seat = st[RUNNING] < conf[SEATS]
        if st[READING_NOW] > 0 or (head >= 0 and seat and st[BLOCKED] == 0):
            form_batch(now_s, ordered, st, ck, heap, lists, conf, cost, shape, slots, rows, pool)
            continue
        cut_s = inf
        if head < 0 and seat and st[QUEUE_HEAD] >= 0:
            cut_s = time[moment[ADMITTED] + st[QUEUE_HEAD]]
        if st[LEFT_HEAD] >= 0:
            cut_s = min(cut_s, time[moment[FINISH] + st[LEFT_HEAD]])
        if st[DECODING] == 0:
            if lag and st[LATE] == 0:
                st[LATE] = 1
            elif cut_s >= until_s:
                ck[QUIET_S] = inf
                return
            else:
                stand_idle(cut_s, st, ck)
            continue

        many = (heap[0] >> KEY_SHIFT) - 1 - batch
        if exact:
            cut_s = min(cut_s, until_s)
        if many > 1:
            last_s = clock(many - 1 - lag, st, ck, cost)
            if last_s >= cut_s:
                many = batches_until(cut_s, many, st, ck, cost) + lag
            elif last_s >= until_s:
                ck[QUIET_S] = clock(many, st, ck, cost)
                return
        taken = 0
        if caching:
            plain = 0
            while plain < many and rings[(batch + plain) % form[0]] == 0:
                plain += 1
            many = plain
        else:
            taken = taken_in(batch, many, st[DECODING], shape)
            if taken > st[FREE]:
                many = safe_batches(batch, many, st[DECODING], st[FREE], st[SLIDING_BACK], shape)
                taken = taken_in(batch, many, st[DECODING], shape)
        if many == 0:
            form_batch(now_s, ordered + 1, st, ck, heap, lists, conf, cost, shape, slots, rows, pool)
            continue
        jump(many, taken, st, ck, conf, cost, shape)
        if shape[KINDS_NUMBER]:
            nothing_slides(givers, slots)
