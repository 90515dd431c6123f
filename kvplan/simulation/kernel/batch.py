"""One batch that is more than plain decoding: something is read, admitted, or blocks may run out.

The rules are those of vLLM's scheduler: running requests first, in order of admission; where blocks run out, the latest
admitted is preempted; only if nothing was, waiting requests are admitted while tokens, seats and blocks last.
"""

from heapq import heappush

from kvplan.simulation.kernel.clock import clock, use
from kvplan.simulation.kernel.identities import find_blocks, hold_found, remember, take_blocks
from kvplan.simulation.kernel.paging import blocks_at_admission, blocks_taken, slid_now, taken_now
from kvplan.simulation.kernel.places import (
    ADMITTED,
    AFTER,
    ASKS,
    BATCHES,
    BLOCKED,
    CACHING,
    CERTAIN,
    CHUNK,
    COMPUTED,
    CONTEXT,
    DECODE,
    DECODING,
    END_AT,
    END_S,
    FINISH,
    FIRST,
    FIRST_BATCH,
    FIRST_SLOT,
    FORM,
    FREE,
    GAVE_IN,
    GENERATED,
    GIVE,
    GIVE_AT,
    IN_VAIN,
    JOINED,
    KEY_SHIFT,
    KIND_ROW,
    KINDS,
    KINDS_NUMBER,
    LAG,
    LAST_SLOT,
    LATE,
    LINK,
    LONGEST,
    MOST_TOKENS,
    OFF,
    ORDER,
    OUTCOME,
    PEAK_USED,
    PHASE,
    PREEMPTED,
    PREFILL,
    PRIOR,
    PROMPT,
    QUEUE_HEAD,
    READ_HEAD,
    READ_LINK,
    READ_TAIL,
    READING,
    READING_NOW,
    READING_SLOT,
    RINGS,
    RUNNING,
    SCHEDULED,
    SEATS,
    SERVED,
    SHORTAGES,
    SIZE_ROW,
    SIZES,
    SLID,
    SLIDES,
    SLIDING_BACK,
    SLOT_OF,
    SPARE_SLOT,
    STAMP,
    START_S,
    STEPS,
    TOTAL,
    TRACKS,
    TWINS,
    UNFINISHED,
    WAITING,
    WATERMARK,
    WHO,
    WHOLE_INPUT,
    WINDOW,
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
from kvplan.simulation.kernel.running import leave_batches, preempt, read_chunk, slide


def nothing_slides(givers: Ints, slots: Slots) -> None:
    """What slid out has come back."""
    slot, give = slots[0], slots[1][GIVE]
    for s in givers:
        slot[give + s] = 0
    givers.clear()


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


def lag_behind(s: int, batch: int, st: Ints, heap: Ints, shape: Shape, slots: Slots) -> None:
    """From slot ``s`` on, nobody is in the batch after ``batch``: its tokens were spent. (Only a cap on long prefills
    leaves writing sequences without a token.)"""
    slot, field = slots
    form, rings = shape[FORM], shape[RINGS]
    while s >= 0:
        phase = slot[field[PHASE] + s]
        off = slot[field[OFF] + s]
        if phase == IN_VAIN:
            leave_batches(s, batch, st, shape, slots)
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
            heappush(heap, (end_at << KEY_SHIFT) | s)
            if shape[KINDS_NUMBER] and slot[field[GIVE_AT] + s] == 0:
                slot[field[GIVE_AT] + s] = batch + 2
                heappush(heap, ((batch + 2) << KEY_SHIFT) | SLIDES | s)
        s = slot[field[AFTER] + s]


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


def form_batch(
    now_s: float,
    ordered: int,
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
    """Schedule one batch at ``now_s``. ``ordered``: request by request, since the order may matter; otherwise all
    writing sequences take their token together, for blocks are enough for all of them."""
    fresh, found, _leaving, givers = lists
    slot, field = slots
    row, time, column, moment = rows
    form, lag, kinds = shape[FORM], shape[LAG], shape[KINDS_NUMBER]
    caching, longest = conf[CACHING], conf[LONGEST]
    off, phase, after, who = field[OFF], field[PHASE], field[AFTER], field[WHO]
    prompt, generated = column[PROMPT], column[GENERATED]
    size = form[0]
    batch = st[BATCHES]
    this = batch + 1
    free = st[FREE]
    budget = conf[MOST_TOKENS]
    prefill = 0
    decode = 0
    context = 0
    short = False
    cap = 0
    if longest:
        cap = longest_chunk(now_s, st, conf, rows)
    s = st[FIRST_SLOT]
    if ordered == 0:
        taken = taken_now(batch, shape)
        if taken > free:
            ordered = 1
        else:
            decode = st[DECODING]
            budget -= decode
            context = st[COMPUTED] + decode
            free -= taken
            if kinds:
                free += st[SLIDING_BACK] + slid_now(batch, shape)
                st[SLIDING_BACK] = 0
                nothing_slides(givers, slots)
            s = st[READING_SLOT] if st[READING_NOW] else -1
    served = decode

    while s >= 0 and budget > 0:
        state = slot[phase + s]
        if state == CERTAIN:
            s = slot[after + s]
            continue
        i = slot[who + s]
        old = slot[off + s]
        slid = 0
        if state == READING:
            tokens = min(row[prompt + i] + row[generated + i] - old, budget, conf[WINDOW] - old - 1)
            if cap and tokens > cap:
                tokens = cap
            if kinds:
                ahead = slot[field[CHUNK] + s] if lag and st[LATE] == 0 and slot[field[SERVED] + s] == batch else 0
                free += slide(s, old - ahead, shape, slots)
            need = blocks_taken(old + tokens, shape) - blocks_taken(old, shape)
        else:
            old += batch
            tokens = 1
            need = 0
            for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
                if old % form[q] == 0:
                    need += form[q + 1]
            if kinds:
                free += slot[field[GIVE] + s]
                st[SLIDING_BACK] -= slot[field[GIVE] + s]
                slot[field[GIVE] + s] = 0
                for k in range(kinds):
                    at = shape[KINDS] + KIND_ROW * k
                    if slot[field[JOINED] + s * kinds + k] and (old - lag - form[at + 1] + 1) % form[at + 2] == 0:
                        slid += form[at + 3]
                free += slid
        lost = False
        while need > free and not lost:
            short = True
            victim = st[LAST_SLOT]
            lost = victim == s
            free += preempt(victim, conf, st, batch, shape, slots, rows, pool)
        if lost:
            free -= slid  # counted again among the blocks that it gave back
            s = -1
            break
        free -= need
        if caching:
            take_blocks(s, need, pool)
            if state == READING:
                remember(s, i, (old + tokens) // size, pool)
            elif conf[TWINS]:
                remember(s, i, (old if lag else old + 1) // size, pool)
        budget -= tokens
        context += old + tokens
        if state == READING:
            counted = read_chunk(s, tokens, this, st, heap, fresh, shape, slots, rows)
            decode += counted
            if counted == 0:
                prefill += tokens
        else:
            decode += 1
            served += 1
        s = slot[after + s]
    if ordered:
        lag_behind(s, batch, st, heap, shape, slots)
        if st[SLIDING_BACK] == 0:
            givers.clear()
    st[COMPUTED] += served

    while not short and budget > 0 and st[RUNNING] < conf[SEATS]:
        place = PREEMPTED
        i = st[PREEMPTED]
        if i < 0:
            place = QUEUE_HEAD
            i = st[QUEUE_HEAD]
            if i < 0 or time[moment[ADMITTED] + i] > now_s:
                break
        if row[column[OUTCOME] + i] != UNFINISHED and time[moment[FINISH] + i] <= now_s:
            st[place] = row[column[LINK] + i]
            continue
        known = row[prompt + i] + row[generated + i]
        unheld = 0
        hits = 0
        if caching:
            unheld = find_blocks(i, known, pool, found)
            hits = len(found)
        old = hits * size
        tokens = min(known - old, budget)
        if cap and tokens > cap:
            tokens = cap
        taken = blocks_taken(old + tokens, shape) - hits
        need = taken
        if conf[WHOLE_INPUT]:
            need = blocks_at_admission(known, shape) - hits
        need += unheld
        if st[RUNNING]:
            need += conf[WATERMARK]
        if need > free:
            st[BLOCKED] = 1 if kinds == 0 and longest == 0 else 0
            break
        st[place] = row[column[LINK] + i]
        s = sit_down(i, st, shape, slots, rows)
        slot[off + s] = old
        if caching:
            hold_found(s, pool, found)
            take_blocks(s, taken, pool)
            remember(s, i, (old + tokens) // size, pool)
        free -= taken + unheld
        if time[moment[SCHEDULED] + i] < 0.0:
            time[moment[SCHEDULED] + i] = now_s
        budget -= tokens
        context += old + tokens
        counted = read_chunk(s, tokens, this, st, heap, fresh, shape, slots, rows)
        decode += counted
        if counted == 0:
            prefill += tokens
    st[FREE] = free

    if short:
        st[SHORTAGES] += 1
        if conf[ASKS]:
            st[GAVE_IN] = 1
            return
    if decode + prefill == 0:
        if lag and st[LATE] == 0:
            st[LATE] = 1
        else:
            st[BLOCKED] = 1
        return
    st[STEPS] += 1
    st[PREFILL] += prefill
    st[DECODE] += decode
    st[CONTEXT] += context
    st[BATCHES] = this
    st[LATE] = 0
    if conf[TWINS] and prefill:
        st[BLOCKED] = 0
    start_s = ck[END_S]
    end_s = clock(0, st, ck, cost)
    ck[START_S] = start_s
    ck[END_S] = end_s
    used = conf[TOTAL] - free
    use(1.0 * used, start_s, end_s, ck, cost)
    st[PEAK_USED] = max(st[PEAK_USED], used)
    for s in fresh:
        i = slot[who + s]
        st[DECODING] += 1
        st[COMPUTED] += slot[off + s] + this
        if time[moment[FIRST] + i] < 0.0:
            time[moment[FIRST] + i] = end_s
            if conf[TRACKS]:
                row[column[READ_LINK] + i] = -1
                if st[READ_HEAD] >= 0:
                    row[column[READ_LINK] + st[READ_TAIL]] = i
                else:
                    st[READ_HEAD] = i
                st[READ_TAIL] = i
    fresh.clear()
