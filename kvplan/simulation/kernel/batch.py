"""One batch that is more than plain decoding: something is read, admitted, or blocks may run out.

The rules are those of vLLM's scheduler: running requests first, in order of admission; where blocks run out, the latest
admitted is preempted; only if nothing was, waiting requests are admitted.
"""

from kvplan.simulation.kernel.admitting import admit, longest_chunk
from kvplan.simulation.kernel.clock import clock, use
from kvplan.simulation.kernel.identities import remember, take_blocks
from kvplan.simulation.kernel.kept import evict
from kvplan.simulation.kernel.keys import join
from kvplan.simulation.kernel.leaving import preempt
from kvplan.simulation.kernel.paging import blocks_taken, slid_now, taken_now
from kvplan.simulation.kernel.places import (
    AFTER,
    BATCHES,
    BLOCKED,
    BUDGET,
    CELL,
    CERTAIN,
    CHUNK,
    COMPUTED,
    CONTEXT,
    DECODE,
    DECODING,
    END_S,
    FIRST,
    FIRST_SLOT,
    FORM,
    FREE,
    FRESH,
    GENERATED,
    GIVE,
    JOINED,
    KEEPS,
    KIND_ROW,
    KINDS,
    KINDS_NUMBER,
    LAG,
    LAST_SLOT,
    LATE,
    LONGEST,
    MOST_TOKENS,
    NAMED,
    NEXT_FRESH,
    OFF,
    PEAK_USED,
    PHASE,
    PREFILL,
    PROMPT,
    READ_HEAD,
    READ_LINK,
    READING,
    READING_NOW,
    READING_SLOT,
    SERVED,
    SHORTAGES,
    SIZE_ROW,
    SIZES,
    SLIDING_BACK,
    START_S,
    STEPS,
    TOTAL,
    TRACKS,
    WHO,
    WINDOW,
    Conf,
    Cost,
    Ints,
    Pool,
    Reals,
    Rows,
    Shape,
    Slots,
)
from kvplan.simulation.kernel.running import lag_behind, read_chunk
from kvplan.simulation.kernel.windows import nothing_slides, slide


def serve_together(taken: int, st: Ints, conf: Conf, shape: Shape, slots: Slots, pool: Pool) -> None:
    """All writing sequences take their token, and ``taken`` blocks: enough are free, so their order does not matter."""
    decoding = st[DECODING]
    st[BUDGET] -= decoding
    st[DECODE] += decoding
    st[CONTEXT] += st[COMPUTED] + decoding
    st[COMPUTED] += decoding
    st[FREE] -= taken
    if shape[KINDS_NUMBER]:
        st[FREE] += st[SLIDING_BACK] + slid_now(st[BATCHES], shape)
        st[SLIDING_BACK] = 0
        nothing_slides(st, slots)
    if conf[KEEPS]:
        evict(taken, st, pool[CELL])


def next_chunk(s: int, cap: int, st: Ints, conf: Conf, shape: Shape, slots: Slots, rows: Rows) -> int:
    """Tokens that reading slot ``s`` gets in this batch, up to ``cap`` (0: no cap); what slid out comes back first."""
    slot, field = slots
    i, old = slot[field[WHO] + s], slot[field[OFF] + s]
    if shape[KINDS_NUMBER]:
        ahead = 0
        if shape[LAG] and st[LATE] == 0 and slot[field[SERVED] + s] == st[BATCHES]:
            ahead = slot[field[CHUNK] + s]
        st[FREE] += slide(s, old - ahead, shape, slots)
    known = rows[0][rows[2][PROMPT] + i] + rows[0][rows[2][GENERATED] + i]
    tokens = min(known - old, st[BUDGET], conf[WINDOW] - old - 1)
    return cap if cap and tokens > cap else tokens


def slide_one(s: int, old: int, st: Ints, shape: Shape, slots: Slots) -> int:
    """What slides out of writing slot ``s`` comes back; how much of it its rings count."""
    slot, field = slots
    form, kinds = shape[FORM], shape[KINDS_NUMBER]
    give = slot[field[GIVE] + s]
    slot[field[GIVE] + s] = 0
    st[SLIDING_BACK] -= give
    slid = 0
    for k in range(kinds):
        at = shape[KINDS] + KIND_ROW * k
        if slot[field[JOINED] + s * kinds + k] and (old - shape[LAG] - form[at + 1] + 1) % form[at + 2] == 0:
            slid += form[at + 3]
    st[FREE] += give + slid
    return slid


def serve_in_order(
    s: int,
    cap: int,
    st: Ints,
    heap: Ints,
    conf: Conf,
    shape: Shape,
    slots: Slots,
    rows: Rows,
    pool: Pool,
) -> bool:
    """From slot ``s`` on, each sequence takes its tokens in turn while tokens last; True where blocks ran short, so
    that somebody was preempted."""
    slot, field = slots
    form = shape[FORM]
    short = False
    while s >= 0 and st[BUDGET] > 0:
        phase = slot[field[PHASE] + s]
        if phase == CERTAIN:
            s = slot[field[AFTER] + s]
            continue
        slid = 0
        need = 0
        old = slot[field[OFF] + s]
        if phase == READING:
            tokens = next_chunk(s, cap, st, conf, shape, slots, rows)
            need = blocks_taken(old + tokens, shape) - blocks_taken(old, shape)
        else:
            old += st[BATCHES]
            tokens = 1
            for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
                if old % form[q] == 0:
                    need += form[q + 1]
            if shape[KINDS_NUMBER]:
                slid = slide_one(s, old, st, shape, slots)
        while need > st[FREE]:
            short = True
            victim = st[LAST_SLOT]
            preempt(victim, st, conf, shape, slots, rows, pool)
            if victim == s:
                st[FREE] -= slid  # counted again among the blocks that it gave back
                return True
        st[FREE] -= need
        if conf[NAMED]:
            take_blocks(s, need, pool)
            known = old + tokens
            if phase != READING and shape[LAG]:
                known = old
            remember(s, slot[field[WHO] + s], known // form[0], pool)
        elif conf[KEEPS]:
            evict(need, st, pool[CELL])
        st[BUDGET] -= tokens
        st[CONTEXT] += old + tokens
        if phase == READING:
            read_chunk(s, tokens, st, heap, shape, slots, rows)
        else:
            st[DECODE] += 1
            st[COMPUTED] += 1
        s = slot[field[AFTER] + s]
    if s >= 0:
        lag_behind(s, st, heap, shape, slots)
    return short


def begin_to_write(st: Ints, ck: Reals, conf: Conf, slots: Slots, rows: Rows) -> None:
    """Those whose whole input this batch computes get a token from every further one; this one brings their first."""
    slot, field = slots
    row, time, column, moment = rows
    s = st[FRESH]
    while s >= 0:
        i = slot[field[WHO] + s]
        st[DECODING] += 1
        st[COMPUTED] += slot[field[OFF] + s] + st[BATCHES]
        if time[moment[FIRST] + i] < 0.0:
            time[moment[FIRST] + i] = ck[END_S]
            if conf[TRACKS]:
                join(i, column[READ_LINK], READ_HEAD, st, row)
        s = slot[field[NEXT_FRESH] + s]
    st[FRESH] = -1


def form_batch(
    now_s: float,
    ordered: int,
    st: Ints,
    ck: Reals,
    heap: Ints,
    conf: Conf,
    cost: Cost,
    shape: Shape,
    slots: Slots,
    rows: Rows,
    pool: Pool,
) -> None:
    """Schedule one batch at ``now_s``. ``ordered``: request by request, since the order may matter; otherwise all
    writing sequences take their token together, if blocks are enough for all of them, and one at most reads."""
    st[BUDGET] = conf[MOST_TOKENS]
    prefill = st[PREFILL]
    cap = longest_chunk(now_s, st, conf, rows) if conf[LONGEST] else 0
    taken = taken_now(st[BATCHES], shape)
    if ordered or taken > st[FREE]:
        short = serve_in_order(st[FIRST_SLOT], cap, st, heap, conf, shape, slots, rows, pool)
        if st[SLIDING_BACK] == 0:
            nothing_slides(st, slots)
    else:
        serve_together(taken, st, conf, shape, slots, pool)
        reading = st[READING_SLOT] if st[READING_NOW] else -1
        short = serve_in_order(reading, cap, st, heap, conf, shape, slots, rows, pool)
    if short:
        st[SHORTAGES] += 1
    else:
        admit(now_s, cap, st, heap, conf, shape, slots, rows, pool)
    if st[BUDGET] == conf[MOST_TOKENS]:
        if shape[LAG] and st[LATE] == 0:
            st[LATE] = 1
        else:
            st[BLOCKED] = 1
        return
    st[STEPS] += 1
    st[BATCHES] += 1
    st[LATE] = 0
    if conf[NAMED] and st[PREFILL] > prefill:
        st[BLOCKED] = 0
    ck[START_S] = ck[END_S]
    ck[END_S] = clock(0, st, ck, cost)
    used = conf[TOTAL] - st[FREE]
    use(1.0 * used, ck[START_S], ck[END_S], ck, cost)
    st[PEAK_USED] = max(st[PEAK_USED], used)
    begin_to_write(st, ck, conf, slots, rows)
