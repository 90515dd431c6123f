"""One batch that is more than plain decoding: something is prefilled or admitted, or blocks may run out.

The rules are those of vLLM's scheduler: running requests first, in order of admission; where blocks run out, the one
admitted last is preempted; only if none was preempted, waiting requests are admitted.
"""

from kvplan.simulation.kernel.blocks import blocks_taken, clear_sliding, slid_now, slide, taken_now
from kvplan.simulation.kernel.clock import add_used_blocks, clock
from kvplan.simulation.kernel.leaving import preempt
from kvplan.simulation.kernel.prefix_cache import cache_blocks, evict, take_blocks
from kvplan.simulation.kernel.running import prefill_chunk, skip_batch
from kvplan.simulation.kernel.state import (
    BATCH_TOKENS,
    BATCHES,
    BLOCKED,
    BUDGET,
    CACHES,
    CELL,
    CHUNK,
    COMPUTED,
    CONTEXT_TOKENS,
    COUNTS_QUEUED,
    DECODES,
    DECODING,
    END_S,
    ENDING,
    FIRST_SLOT,
    FIRST_TOKEN,
    FORM,
    FREE,
    FRESH,
    GENERATED,
    IDENTITIES,
    IN_RING,
    KIND_ROW,
    KINDS,
    KINDS_NUMBER,
    LAG,
    LAST_SLOT,
    LATE,
    LONG_PREFILL,
    MAX_LEN,
    NEXT_FRESH,
    NEXT_SLOT,
    OFFSET,
    PEAK_USED,
    PHASE,
    PREFILL_SLOT,
    PREFILL_TOKENS,
    PREFILLED_HEAD,
    PREFILLED_LINK,
    PREFILLING,
    PREFILLS,
    PROMPT,
    REQUEST,
    SERVED,
    SHORTAGES,
    SIZE_ROW,
    SIZES,
    SLIDING,
    SLIDING_BLOCKS,
    START_S,
    STEPS,
    USABLE,
    Conf,
    Cost,
    Ints,
    Pool,
    Reals,
    Rows,
    Shape,
    Slots,
    join,
)
from kvplan.simulation.kernel.waiting import admit, longest_chunk


def decode_all(taken: int, st: Ints, conf: Conf, shape: Shape, slots: Slots, pool: Pool) -> None:
    """All decoding sequences take their token, and ``taken`` blocks: enough are free, so their order does not
    matter."""
    decoding = st[DECODING]
    st[BUDGET] -= decoding
    st[DECODES] += decoding
    st[CONTEXT_TOKENS] += st[COMPUTED] + decoding
    st[COMPUTED] += decoding
    st[FREE] -= taken
    if shape[KINDS_NUMBER]:
        st[FREE] += st[SLIDING_BLOCKS] + slid_now(st[BATCHES], shape)
        st[SLIDING_BLOCKS] = 0
        clear_sliding(st, slots)
    if conf[CACHES]:
        evict(taken, st, pool[CELL])


def next_chunk(s: int, cap: int, st: Ints, conf: Conf, shape: Shape, slots: Slots, rows: Rows) -> int:
    """Tokens that prefilling slot ``s`` computes in this batch, up to ``cap`` (0: no limit); what slid out comes back
    first."""
    slot, field = slots
    i, old = slot[field[REQUEST] + s], slot[field[OFFSET] + s]
    if shape[KINDS_NUMBER]:
        ahead = 0
        if shape[LAG] and st[LATE] == 0 and slot[field[SERVED] + s] == st[BATCHES]:
            ahead = slot[field[CHUNK] + s]
        st[FREE] += slide(s, old - ahead, shape, slots)
    known = rows[0][rows[2][PROMPT] + i] + rows[0][rows[2][GENERATED] + i]
    tokens = min(known - old, st[BUDGET], conf[MAX_LEN] - old - 1)
    return cap if cap and tokens > cap else tokens


def slide_decoding(s: int, old: int, st: Ints, shape: Shape, slots: Slots) -> int:
    """What slides out of decoding slot ``s`` comes back; how much of it its rings count."""
    slot, field = slots
    form, kinds = shape[FORM], shape[KINDS_NUMBER]
    give = slot[field[SLIDING] + s]
    slot[field[SLIDING] + s] = 0
    st[SLIDING_BLOCKS] -= give
    slid = 0
    for k in range(kinds):
        at = shape[KINDS] + KIND_ROW * k
        if slot[field[IN_RING] + s * kinds + k] and (old - shape[LAG] - form[at + 1] + 1) % form[at + 2] == 0:
            slid += form[at + 3]
    st[FREE] += give + slid
    return slid


def schedule_in_order(
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
    that one was preempted."""
    slot, field = slots
    form = shape[FORM]
    short = False
    while s >= 0 and st[BUDGET] > 0:
        phase = slot[field[PHASE] + s]
        if phase == ENDING:
            s = slot[field[NEXT_SLOT] + s]
            continue
        slid = 0
        need = 0
        old = slot[field[OFFSET] + s]
        if phase == PREFILLING:
            tokens = next_chunk(s, cap, st, conf, shape, slots, rows)
            need = blocks_taken(old + tokens, shape) - blocks_taken(old, shape)
        else:
            old += st[BATCHES]
            tokens = 1
            for q in range(0, SIZE_ROW * shape[SIZES], SIZE_ROW):
                if old % form[q] == 0:
                    need += form[q + 1]
            if shape[KINDS_NUMBER]:
                slid = slide_decoding(s, old, st, shape, slots)
        while need > st[FREE]:
            short = True
            victim = st[LAST_SLOT]
            preempt(victim, st, conf, shape, slots, rows, pool)
            if victim == s:
                st[FREE] -= slid  # counted again among the blocks that it gave back
                return True
        st[FREE] -= need
        if conf[IDENTITIES]:
            take_blocks(s, need, pool)
            known = old + tokens
            if phase != PREFILLING and shape[LAG]:
                known = old
            cache_blocks(s, slot[field[REQUEST] + s], known // form[0], pool)
        elif conf[CACHES]:
            evict(need, st, pool[CELL])
        st[BUDGET] -= tokens
        st[CONTEXT_TOKENS] += old + tokens
        if phase == PREFILLING:
            prefill_chunk(s, tokens, st, heap, shape, slots, rows)
        else:
            st[DECODES] += 1
            st[COMPUTED] += 1
        s = slot[field[NEXT_SLOT] + s]
    if s >= 0:
        skip_batch(s, st, heap, shape, slots)
    return short


def start_decoding(st: Ints, ck: Reals, conf: Conf, slots: Slots, rows: Rows) -> None:
    """Sequences whose input this batch completes take a token in every further one; this one brings their first."""
    slot, field = slots
    row, time, column, moment = rows
    s = st[FRESH]
    while s >= 0:
        i = slot[field[REQUEST] + s]
        st[DECODING] += 1
        st[COMPUTED] += slot[field[OFFSET] + s] + st[BATCHES]
        if time[moment[FIRST_TOKEN] + i] < 0.0:
            time[moment[FIRST_TOKEN] + i] = ck[END_S]
            if conf[COUNTS_QUEUED]:
                join(i, column[PREFILLED_LINK], PREFILLED_HEAD, st, row)
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
    decoding sequences take their token together, if blocks are enough for all, and at most one sequence prefills."""
    st[BUDGET] = conf[BATCH_TOKENS]
    prefill = st[PREFILL_TOKENS]
    cap = longest_chunk(now_s, st, conf, rows) if conf[LONG_PREFILL] else 0
    taken = taken_now(st[BATCHES], shape)
    if ordered or taken > st[FREE]:
        short = schedule_in_order(st[FIRST_SLOT], cap, st, heap, conf, shape, slots, rows, pool)
        if st[SLIDING_BLOCKS] == 0:
            clear_sliding(st, slots)
    else:
        decode_all(taken, st, conf, shape, slots, pool)
        reading = st[PREFILL_SLOT] if st[PREFILLS] else -1
        short = schedule_in_order(reading, cap, st, heap, conf, shape, slots, rows, pool)
    if short:
        st[SHORTAGES] += 1
    else:
        admit(now_s, cap, st, heap, conf, shape, slots, rows, pool)
    if st[BUDGET] == conf[BATCH_TOKENS]:
        if shape[LAG] and st[LATE] == 0:
            st[LATE] = 1
        else:
            st[BLOCKED] = 1
        return
    st[STEPS] += 1
    st[BATCHES] += 1
    st[LATE] = 0
    if conf[IDENTITIES] and st[PREFILL_TOKENS] > prefill:
        st[BLOCKED] = 0
    ck[START_S] = ck[END_S]
    ck[END_S] = clock(0, st, ck, cost)
    used = conf[USABLE] - st[FREE]
    add_used_blocks(1.0 * used, ck[START_S], ck[END_S], ck, cost)
    st[PEAK_USED] = max(st[PEAK_USED], used)
    start_decoding(st, ck, conf, slots, rows)
