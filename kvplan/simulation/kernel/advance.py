"""An engine over time: it jumps from event to event and forms only special batches one by one.

A batch is formed when the last one has returned or, with asynchronous scheduling, when the last one starts. The order
is: requests abandoned while a batch was in flight, what that batch ended, requests abandoned at that instant, then the
next batch, which sees all arrivals until then. Source: vLLM 0.33's engine core, which aborts before it reads what
returned.
"""

from math import inf

from kvplan.simulation.kernel.batch import form_batch
from kvplan.simulation.kernel.blocks import clear_sliding, safe_batches, slid_in, taken_in
from kvplan.simulation.kernel.clock import add_used_blocks, batches_until, clock, go_idle
from kvplan.simulation.kernel.leaving import drop_abandoned, process_ends
from kvplan.simulation.kernel.prefix_cache import evict
from kvplan.simulation.kernel.state import (
    ADMITTED,
    BATCHES,
    BLOCKED,
    BLOCKS_TAKEN,
    CACHES,
    CELL,
    COMPUTED,
    CONTEXT_TOKENS,
    DECODES,
    DECODING,
    END_S,
    FINISH,
    FORM,
    FREE,
    IDENTITIES,
    KEY_SHIFT,
    KINDS_NUMBER,
    LAG,
    LATE,
    LEFT_HEAD,
    LONG_PREFILL,
    MAX_SEQS,
    PEAK_USED,
    PREFILLS,
    QUEUE_HEAD,
    QUIET_S,
    RINGS,
    RUNNING,
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
    next_key,
)
from kvplan.simulation.kernel.waiting import first_waiting


def next_change_s(head: int, free_slots: int, st: Ints, rows: Rows) -> float:
    """When the next request finds a free slot, or is abandoned: batches formed from then on differ."""
    time, moment = rows[1], rows[3]
    change_s = inf
    if head < 0 and free_slots > 0 and st[QUEUE_HEAD] >= 0:
        change_s = time[moment[ADMITTED] + st[QUEUE_HEAD]]
    if st[LEFT_HEAD] >= 0:
        change_s = min(change_s, time[moment[FINISH] + st[LEFT_HEAD]])
    return change_s


def batches_in_time(most: int, change_s: float, until_s: float, st: Ints, ck: Reals, cost: Cost, shape: Shape) -> int:
    """How many of the next ``most`` batches of plain decoding are formed before ``change_s``; none where they reach
    beyond ``until_s``, so that they are left for later."""
    if most < 2:
        return most
    lag = shape[LAG]
    last_s = clock(most - 1 - lag, st, ck, cost)
    if last_s >= change_s:
        return batches_until(change_s, most, st, ck, cost) + lag
    if last_s >= until_s:
        ck[QUIET_S] = clock(most, st, ck, cost)
        return 0
    return most


def batches_with_room(many: int, st: Ints, conf: Conf, shape: Shape) -> int:
    """How many of ``many`` batches of plain decoding find all their blocks free; those blocks go to ``BLOCKS_TAKEN``.
    With identities: how many of them take none, since it matters who takes which."""
    batch = st[BATCHES]
    if conf[IDENTITIES]:
        form, rings = shape[FORM], shape[RINGS]
        plain = 0
        while plain < many and rings[(batch + plain) % form[0]] == 0:
            plain += 1
        st[BLOCKS_TAKEN] = 0
        return plain
    st[BLOCKS_TAKEN] = taken_in(batch, many, st[DECODING], shape)
    if st[BLOCKS_TAKEN] > st[FREE]:
        many = safe_batches(batch, many, st[DECODING], st[FREE], st[SLIDING_BLOCKS], shape)
        st[BLOCKS_TAKEN] = taken_in(batch, many, st[DECODING], shape)
    return many


def jump(many: int, st: Ints, ck: Reals, conf: Conf, cost: Cost, shape: Shape, pool: Pool) -> None:
    """Form ``many`` batches of plain decoding at once, which find all their blocks."""
    decoding, free, taken, end_s = st[DECODING], st[FREE], st[BLOCKS_TAKEN], ck[END_S]
    back = 0
    if shape[KINDS_NUMBER]:
        back = st[SLIDING_BLOCKS] + slid_in(st[BATCHES], many, shape)
        st[SLIDING_BLOCKS] = 0
    if shape[LAG]:
        ck[START_S] = end_s if many == 1 else clock(many - 1, st, ck, cost)
    ck[END_S] = clock(many, st, ck, cost)
    used = conf[USABLE] - (free - taken + back)
    level = 1.0 * used if many == 1 else 0.5 * (conf[USABLE] - free + used)
    add_used_blocks(level, end_s, ck[END_S], ck, cost)
    st[STEPS] += many
    st[DECODES] += decoding * many
    st[CONTEXT_TOKENS] += st[COMPUTED] * many + decoding * many * (many + 1) // 2
    st[COMPUTED] += decoding * many
    st[FREE] = conf[USABLE] - used
    st[PEAK_USED] = max(st[PEAK_USED], used)
    st[BATCHES] += many
    st[LATE] = 0
    if conf[CACHES]:
        evict(taken, st, pool[CELL])


def advance(
    until_s: float,
    exact: int,
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
    """Form every batch that is formed before ``until_s``. A stretch of plain decoding that would reach beyond is left
    for later, unless ``exact``: nobody sees the difference before ``QUIET_S``."""
    lag = shape[LAG]
    while True:
        now_s = ck[START_S] if lag and st[LATE] == 0 else ck[END_S]
        if st[LEFT_HEAD] >= 0:
            drop_abandoned(now_s, 1, st, conf, shape, slots, rows, pool)
        if now_s > until_s:
            ck[QUIET_S] = ck[END_S]
            return
        process_ends(st, ck, heap, conf, shape, slots, rows, pool)
        if st[LEFT_HEAD] >= 0:
            drop_abandoned(now_s, 0, st, conf, shape, slots, rows, pool)
        if now_s >= until_s:
            ck[QUIET_S] = ck[END_S]
            return

        head = first_waiting(now_s, st, conf, rows, pool)
        free_slots = conf[MAX_SEQS] - st[RUNNING]
        ordered = 1 if conf[IDENTITIES] or conf[LONG_PREFILL] or st[PREFILLS] > 1 else 0
        if st[PREFILLS] > 0 or (head >= 0 and free_slots > 0 and st[BLOCKED] == 0):
            form_batch(now_s, ordered, st, ck, heap, conf, cost, shape, slots, rows, pool)
            continue

        change_s = next_change_s(head, free_slots, st, rows)
        if st[DECODING] == 0:
            if lag and st[LATE] == 0:
                st[LATE] = 1
            elif change_s >= until_s:
                ck[QUIET_S] = change_s
                return
            else:
                go_idle(change_s, st, ck)
            continue

        if exact:
            change_s = min(change_s, until_s)
        most = (next_key(heap) >> KEY_SHIFT) - 1 - st[BATCHES]
        many = batches_in_time(most, change_s, until_s, st, ck, cost, shape)
        room = batches_with_room(many if many else most, st, conf, shape)
        if many == 0 and 0 < room < most:  # whoever is preempted after these makes later ones shorter
            many = batches_in_time(room, change_s, until_s, st, ck, cost, shape)
            if many:
                room = batches_with_room(many, st, conf, shape)
        if room == 0:
            form_batch(now_s, 1, st, ck, heap, conf, cost, shape, slots, rows, pool)
            continue
        if many == 0:
            return
        jump(room, st, ck, conf, cost, shape, pool)
        if shape[KINDS_NUMBER]:
            clear_sliding(st, slots)
