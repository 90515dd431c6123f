"""The kernel: clients, front doors and engines in one event loop, as plain functions over lists or arrays.

The same source runs interpreted over lists and compiled by numba over arrays, with the same bits. Time is counted, not
added up: seconds since an engine last stood idle = base × steps + prefill × tokens + decode × sequences + kv × context
tokens, all exact integers; so many steps at once and one step at a time give the same clock.

An engine keeps its decoding sequences lazily: tokens computed = offset + batches scheduled. A further batch then costs
nothing per sequence; a table of residues says how many need a block; and only what admits, prefills, finishes or runs
out of blocks is looked at one by one. ``advance`` is the engine, ``play`` the clients and the doors.
"""

from heapq import heappop, heappush
from math import ceil, exp, inf, sqrt

# What an engine counts: the places of ``st``.
(
    BATCHES,  # scheduled since the start
    STEPS,  # since it last stood idle: steps, prefill tokens, decoding sequences, context tokens
    PREFILL,
    DECODE,
    CONTEXT,
    DECODING,  # sequences that every further batch takes one token of
    COMPUTED,  # their computed tokens, together
    FREE,  # blocks
    RUNNING,
    FIRST_SLOT,  # the running list, in order of admission
    LAST_SLOT,
    SPARE_SLOT,
    QUEUE_HEAD,  # new requests, first come first served
    QUEUE_TAIL,
    PREEMPTED,  # those that go before them, the latest preempted on top
    WAITING,
    DONE_HEAD,  # finished, not yet released at the door
    DONE_TAIL,
    LEFT_HEAD,  # clients that walked away, not yet seen by the engine
    LEFT_TAIL,
    READ_HEAD,  # prompts read, not yet counted at the door
    READ_TAIL,
    READING_NOW,  # sequences whose input is not computed whole, and the latest of them
    READING_SLOT,
    LATE,  # 1: the batch in flight returned before another could be scheduled
    BLOCKED,  # 1: the head of the queue did not fit, and nothing came back since
    SLIDING_BACK,  # blocks that come back with the next batch
    ALL_STEPS,
    ALL_PREFILL,
    ALL_DECODE,
    SHORTAGES,
    PEAK_USED,
    GAVE_IN,  # 1: something was preempted, where the caller wanted to know instead of going on
    STAMP,  # admissions so far
) = range(34)

# Its times: the places of ``ck``.
(
    ORIGIN_S,  # when it last stood idle
    END_S,  # end of the last batch
    START_S,  # start of the last batch
    USED_BLOCK_S,
    QUIET_S,  # until then nothing of it reaches the door
    BUSY_S,
) = range(6)

# What a slot of the running list is doing.
READING, WRITING, IN_VAIN, CERTAIN = range(1, 5)

UNFINISHED, COMPLETED, REJECTED, GAVE_UP, TIMED_OUT, CANCELLED = range(6)

SLOT_BITS = 20
KEY_SHIFT = SLOT_BITS + 1
SLIDES = 1 << SLOT_BITS
SLOT_MASK = SLIDES - 1
LAST_KEY = 1 << 62
GOLDEN = 0.6180339887498949


def ring_sum(ring, start, size, first, count):
    """Sum of ``count`` < ``size`` entries, from ``first`` on, of a ring of ``size`` entries that begins at ``start``."""
    low = start + first
    end = low + count
    edge = start + size
    if end <= edge:
        return sum(ring[low:end])
    return sum(ring[low:edge]) + sum(ring[start : end - size])


def blocks_taken(tokens, weights, shape):
    """Blocks that a request of ``tokens`` tokens has been given: ``weights`` groups of each block size, and the fixed."""
    sizes = shape[1]
    total = shape[5]
    for q in range(shape[0]):
        total += weights[q] * -(-tokens // sizes[q])
    return total


def blocks_at_admission(tokens, shape):
    """Blocks that must be free before ``tokens`` known tokens are admitted: windows and chunks only up to their cap."""
    total = blocks_taken(tokens, shape[3], shape)
    kinds = shape[7]
    for k in range(shape[6]):
        total += kinds[k][3] * min(-(-tokens // kinds[k][2]), kinds[k][4])
    return total


def blocks_outside(kind, certain):
    """Blocks of a window or chunk group that no later token attends to, once ``certain`` tokens are computed."""
    if kind[0] == 1:
        return max(0, certain - kind[1] + 1) // kind[2]
    return certain // kind[1] * kind[1] // kind[2]


def join_batches(s, computed, batch, shape, slot):
    """Slot ``s``, with ``computed`` tokens after ``batch``, takes one token of every batch after it."""
    off = slot[1]
    off[s] = computed - batch
    sizes, starts, table = shape[1], shape[4], shape[8]
    for q in range(shape[0]):
        table[starts[q] + (batch - computed) % sizes[q]] += 1


def leave_batches(s, batch, shape, slot):
    """Slot ``s`` is in no batch after ``batch``; its blocks are written down."""
    off, held, slid, joined = slot[1], slot[10], slot[11], slot[12]
    nq, sizes, weights, starts = shape[0], shape[1], shape[2], shape[4]
    nk, kinds, table, slides, lag = shape[6], shape[7], shape[8], shape[9], shape[10]
    computed = off[s] + batch
    for q in range(nq):
        table[starts[q] + -off[s] % sizes[q]] -= 1
    blocks = blocks_taken(computed, weights, shape)
    for k in range(nk):
        x = s * nk + k
        gone = slid[x]
        if joined[x]:
            joined[x] = 0
            slides[kinds[k][5] + (kinds[k][1] - 1 + lag - off[s]) % kinds[k][2]] -= 1
            gone = max(gone, blocks_outside(kinds[k], computed - 1 - lag))
        blocks -= kinds[k][3] * gone
    held[s] = blocks


def slide(s, computed, certain, shape, slot):
    """Blocks of slot ``s`` that come back before its next tokens are placed."""
    slid, joined = slot[11], slot[12]
    nk, kinds = shape[6], shape[7]
    back = 0
    for k in range(nk):
        x = s * nk + k
        if not joined[x]:
            gone = blocks_outside(kinds[k], certain)
            back += kinds[k][3] * (gone - slid[x])
            slid[x] = gone
    return back


def next_slide(s, batch, certain, settled, shape, slot):
    """The next batch before which slot ``s`` must be looked at for blocks that slide out; 0 where a table knows.

    In a steady decode a window gives a block back every block's length: once the window is full, a ring counts those
    sequences by residue. ``settled``: nothing but the newest token is still being computed.
    """
    off, joined = slot[1], slot[12]
    nk, kinds, slides, lag = shape[6], shape[7], shape[9], shape[10]
    if not settled:
        return batch + 1
    soonest = 0
    for k in range(nk):
        x = s * nk + k
        if joined[x]:
            continue
        kind = kinds[k]
        if kind[0] == 1:
            wait = kind[1] - 1 - certain
            if wait <= 0:
                if (certain - kind[1] + 1) % kind[2]:
                    joined[x] = 1
                    slides[kind[5] + (kind[1] - 1 + lag - off[s]) % kind[2]] += 1
                    continue
                wait = 1
        else:
            wait = kind[1] - certain % kind[1]
        if soonest == 0 or batch + wait < soonest:
            soonest = batch + wait
    return soonest


def vacate(s, st, slot, row):
    """Slot ``s`` leaves the running list."""
    who, after, prior = slot[0], slot[8], slot[9]
    before, behind = prior[s], after[s]
    if before >= 0:
        after[before] = behind
    else:
        st[FIRST_SLOT] = behind
    if behind >= 0:
        prior[behind] = before
    else:
        st[LAST_SLOT] = before
    slot[2][s] = 0
    slot[3][s] = -1
    slot[4][s] = -1
    row[6][who[s]] = -1
    after[s] = st[SPARE_SLOT]
    st[SPARE_SLOT] = s


# -- blocks with identities: a free queue in order of eviction, and a table from content to blocks -----------------------


def content_of(i, j, pool):
    """The number of what block ``j`` of request ``i`` holds: shared where the chain of ids up to it is."""
    shared, tail, node_start, nodes = pool[7], pool[8], pool[9], pool[10]
    chain_tokens, per_node, block = pool[13], pool[14], pool[15]
    if j >= shared[i]:
        return pool[18] + tail[i] + j - shared[i]
    link = ((j + 1) * block - 1) // chain_tokens
    return pool[18] + nodes[node_start[i] + link] * per_node + j - link * chain_tokens // block


def forget(b, pool):
    """Block ``b`` holds nothing known any more."""
    content, twin, places = pool[3], pool[4], pool[5]
    key = content[b]
    if key < 0:
        return
    first = places[key]
    if first == b:
        if twin[b] < 0:
            del places[key]
        else:
            places[key] = twin[b]
    else:
        while twin[first] != b:
            first = twin[first]
        twin[first] = twin[b]
    content[b] = -1
    twin[b] = -1


def remember(s, i, full, pool):
    """The first ``full`` blocks of slot ``s`` hold what request ``i`` says."""
    content, twin, places, placed, cached, width = pool[3], pool[4], pool[5], pool[6], pool[12], pool[16]
    for j in range(cached[s], full):
        b = placed[s * width + j]
        key = content_of(i, j, pool)
        content[b] = key
        first = places.get(key, -1)
        if first < 0:
            places[key] = b
        else:
            while twin[first] >= 0:
                first = twin[first]
            twin[first] = b
    if full > cached[s]:
        cached[s] = full


def take_blocks(s, count, pool):
    """``count`` blocks from the front of the free queue for slot ``s``."""
    behind, ahead, holders, placed, many, width, root = pool[0], pool[1], pool[2], pool[6], pool[11], pool[16], pool[17]
    for _ in range(count):
        b = behind[root]
        rest = behind[b]
        behind[root] = rest
        ahead[rest] = root
        forget(b, pool)
        holders[b] = 1
        placed[s * width + many[s]] = b
        many[s] += 1


def return_blocks(s, pool):
    """All blocks of slot ``s``, last first: those without content to the front of the queue, the others to its back."""
    behind, ahead, holders, content, placed = pool[0], pool[1], pool[2], pool[3], pool[6]
    many, cached, width, root = pool[11], pool[12], pool[16], pool[17]
    freed = 0
    front = root
    for j in range(many[s] - 1, -1, -1):
        b = placed[s * width + j]
        holders[b] -= 1
        if holders[b] == 0:
            freed += 1
            if content[b] < 0:
                left = front
                front = b
            else:
                left = ahead[root]
            right = behind[left]
            behind[left] = b
            ahead[b] = left
            behind[b] = right
            ahead[right] = b
    many[s] = 0
    cached[s] = 0
    return freed


def find_blocks(i, known, pool, found):
    """Cached blocks from the start of request ``i`` that leave one known token to compute: how many, how many unheld."""
    holders, places, block = pool[2], pool[5], pool[15]
    found.clear()
    unheld = 0
    for j in range((known - 1) // block):
        b = places.get(content_of(i, j, pool), -1)
        if b < 0:
            break
        found.append(b)
        if holders[b] == 0:
            unheld += 1
    return len(found), unheld


def hold_found(s, pool, found):
    """Slot ``s`` begins with the blocks that were found."""
    behind, ahead, holders, placed = pool[0], pool[1], pool[2], pool[6]
    many, cached, width = pool[11], pool[12], pool[16]
    for b in found:
        if holders[b] == 0:
            behind[ahead[b]] = behind[b]
            ahead[behind[b]] = ahead[b]
        holders[b] += 1
        placed[s * width + many[s]] = b
        many[s] += 1
    cached[s] = many[s]


# -- the engine ----------------------------------------------------------------------------------------------------------


def release_slot(s, st, batch, shape, slot, row, pool, caching, over):
    """Slot ``s`` leaves the running list; the blocks that come back to the pool. ``over``: it ended, with all returned.

    With identities its full blocks keep their content. What the batch in flight computes is placed, but the token behind
    it is not known yet, unless that batch is the one that read the input.
    """
    who, off, phase, give = slot[0], slot[1], slot[2], slot[13]
    i = who[s]
    unsure = 1 if shape[10] and slot[5][s] < batch else 0
    if phase[s] == READING:
        st[READING_NOW] -= 1
        computed = off[s]
        unsure = 0
        if not caching:
            blocks = blocks_taken(computed, shape[2], shape)
            for k in range(shape[6]):
                blocks -= shape[7][k][3] * slot[11][s * shape[6] + k]
            slot[10][s] = blocks
    elif phase[s] == CERTAIN:
        computed = off[s]
        if over:
            unsure = 0
    else:
        computed = off[s] + batch
        leave_batches(s, batch, shape, slot)
        st[DECODING] -= 1
        st[COMPUTED] -= computed
    if caching:
        remember(s, i, (computed - unsure) // pool[15], pool)
        back = return_blocks(s, pool)
    else:
        back = slot[10][s] + give[s]
        st[SLIDING_BACK] -= give[s]
        give[s] = 0
    vacate(s, st, slot, row)
    st[RUNNING] -= 1
    st[BLOCKED] = 0
    return back


def read_chunk(s, tokens, batch, st, heap, fresh, shape, slot, row):
    """Slot ``s`` computes ``tokens`` of its input in ``batch``; 1 if that is counted as a decode."""
    who, off, phase, end_at, give_at = slot[0], slot[1], slot[2], slot[3], slot[4]
    prompt, answer, generated, high, recomputed = row[0], row[1], row[3], row[4], row[12]
    i = who[s]
    old = off[s]
    computed = old + tokens
    off[s] = computed
    slot[7][s] = tokens
    slot[14][s] = batch
    if high[i] > old:
        recomputed[i] += min(computed, high[i]) - old
    if computed == prompt[i] + generated[i]:
        phase[s] = WRITING
        st[READING_NOW] -= 1
        join_batches(s, computed, batch, shape, slot)
        slot[5][s] = batch
        slot[6][s] = generated[i]
        end_at[s] = batch + answer[i] - generated[i]
        heappush(heap, (end_at[s] << KEY_SHIFT) | s)
        if shape[6]:
            give_at[s] = batch + 1
            heappush(heap, ((batch + 1) << KEY_SHIFT) | SLIDES | s)
        fresh.append(s)
    else:
        st[READING_SLOT] = s
    return 1 if tokens == 1 and old >= prompt[i] else 0


def preempt(s, st, batch, shape, slot, row, pool, caching):
    """Slot ``s`` loses its blocks and goes to the head of the queue; what a batch in flight computes still counts."""
    who, off, phase, first_batch, before = slot[0], slot[1], slot[2], slot[5], slot[6]
    generated, high, link, preemptions = row[3], row[4], row[5], row[11]
    i = who[s]
    state = phase[s]
    computed = off[s] if state in (READING, CERTAIN) else off[s] + batch
    high[i] = max(high[i], computed)
    if state == WRITING:
        generated[i] = before[s] + batch - first_batch[s] + 1
    back = release_slot(s, st, batch, shape, slot, row, pool, caching, 0)
    preemptions[i] += 1
    if state in (READING, WRITING):
        link[i] = st[PREEMPTED]
        st[PREEMPTED] = i
        st[WAITING] += 1
    return back


def clock(more, st, ck, cost):
    """End of the batch after ``more`` further batches of plain decoding."""
    n = st[DECODING]
    return ck[ORIGIN_S] + (
        cost[0] * (st[STEPS] + more)
        + cost[1] * st[PREFILL]
        + cost[2] * (st[DECODE] + n * more)
        + cost[3] * (st[CONTEXT] + st[COMPUTED] * more + n * more * (more + 1) // 2)
    )


def batches_until(time_s, most, st, ck, cost):
    """The fewest further batches of plain decoding, at most ``most``, after which it is ``time_s`` or later.

    Their time is quadratic in their number: k × (base + decode × n + kv × Σ context) + kv × n × k (k + 1) / 2.
    """
    n = st[DECODING]
    growth = 0.5 * cost[3] * n
    pace = cost[0] + cost[2] * n + cost[3] * st[COMPUTED] + growth
    left = time_s - ck[END_S]
    if left <= 0.0 or pace <= 0.0:
        guess = 0
    else:
        guess = min(most, int(2.0 * left / (pace + sqrt(pace * pace + 4.0 * growth * left))))
    while guess > 0 and clock(guess - 1, st, ck, cost) >= time_s:
        guess -= 1
    while guess < most and clock(guess, st, ck, cost) < time_s:
        guess += 1
    return guess


def taken_now(batch, weights, shape):
    """Blocks that the decoding sequences take in the batch after ``batch``."""
    sizes, starts, table = shape[1], shape[4], shape[8]
    total = 0
    for q in range(shape[0]):
        total += weights[q] * table[starts[q] + batch % sizes[q]]
    return total


def slid_now(batch, shape):
    """Blocks that their windows give back in it."""
    kinds, slides = shape[7], shape[9]
    total = 0
    for k in range(shape[6]):
        total += kinds[k][3] * slides[kinds[k][5] + batch % kinds[k][2]]
    return total


def slid_in(batch, count, shape):
    """Blocks that windows give back in ``count`` batches after ``batch``."""
    kinds, slides = shape[7], shape[9]
    total = 0
    for k in range(shape[6]):
        start, size = kinds[k][5], kinds[k][2]
        rounds = count // size
        many = ring_sum(slides, start, size, batch % size, count % size)
        if rounds:
            many += rounds * sum(slides[start : start + size])
        total += kinds[k][3] * many
    return total


def taken_in(batch, count, n, shape):
    """Blocks that ``n`` decoding sequences take in ``count`` batches after ``batch``."""
    sizes, weights, starts, table = shape[1], shape[2], shape[4], shape[8]
    total = 0
    for q in range(shape[0]):
        size = sizes[q]
        total += weights[q] * (n * (count // size) + ring_sum(table, starts[q], size, batch % size, count % size))
    return total


def safe_batches(batch, most, n, free, back, shape):
    """How many batches after ``batch`` find all their blocks free, whatever the order within each; at most ``most``."""
    weights = shape[2]
    count = 0
    if shape[0] == 1 and shape[6] == 0:
        size = shape[1][0]
        rounds = free // (weights[0] * n) - 1
        if rounds > 0:
            count = min(most, rounds * size)
            free -= taken_in(batch, count, n, shape)
    while count < most:
        taken = taken_now(batch + count, weights, shape)
        if taken > free:
            break
        free += slid_now(batch + count, shape) + back - taken
        back = 0
        count += 1
    return count


def stand_idle(time_s, st, ck):
    """Nothing runs until ``time_s``, from where time is counted anew."""
    ck[BUSY_S] += ck[END_S] - ck[ORIGIN_S]
    st[ALL_STEPS] += st[STEPS]
    st[ALL_PREFILL] += st[PREFILL]
    st[ALL_DECODE] += st[DECODE]
    st[STEPS] = st[PREFILL] = st[DECODE] = st[CONTEXT] = 0
    ck[ORIGIN_S] = ck[END_S] = ck[START_S] = time_s
    st[LATE] = 1


def use(blocks, start_s, end_s, ck, cost):
    """Add ``blocks`` from ``start_s`` to ``end_s`` to the integral, where it is watched."""
    low = max(start_s, cost[4])
    high = min(end_s, cost[5])
    if high > low:
        ck[USED_BLOCK_S] += blocks * (high - low)


def drop_givers(givers, slot):
    give = slot[13]
    for s in givers:
        give[s] = 0
    givers.clear()


def advance(until_s, exact, st, ck, heap, lists, conf, cost, shape, slot, row, pool):
    """Everything that an engine schedules before ``until_s``; a stretch of plain decoding that would reach beyond is
    left for later, unless ``exact``.

    A batch is formed when the one ``depth`` before it has returned; ``LATE`` says that nothing is in flight. Order of
    events: what returned, who walked away, then the batch, which sees whatever arrived until then.
    """
    depth, most_tokens, seats, window, longest, whole_input, watermark, total, caching, twins, ask_first, track = conf
    base_s, prefill_s, decode_s, kv_s, from_s, watch_s = cost
    fresh, found, leaving, givers = lists
    nq, sizes, weights, _fulls, starts, _fixed, nk, kinds, table, slides, lag = shape
    (
        who,
        off,
        phase,
        end_at,
        give_at,
        first_batch,
        before,
        chunk,
        after,
        _prior,
        _held,
        _slid,
        joined,
        give,
        served,
        stamp,
    ) = slot
    prompt, answer, cap, generated, high, link, slot_of, admitted_s, scheduled_s, first_s, finish_s = row[:11]
    preemptions, _recomputed, outcome, left_link, read_link = row[11:]
    size = sizes[0]

    while True:
        batch, end_s, start_s = st[BATCHES], ck[END_S], ck[START_S]

        # What returned, or is to be looked at before the next batch.
        limit = (batch + 2 + st[LATE]) << KEY_SHIFT
        while heap[0] < limit:
            key = heappop(heap)
            s = key & SLOT_MASK
            at = key >> KEY_SHIFT
            if key & SLIDES:
                if give_at[s] == at and (phase[s] == WRITING or phase[s] == IN_VAIN):
                    computed = off[s] + batch
                    ahead = 0
                    if longest:
                        if lag and served[s] == batch:
                            ahead = chunk[s]
                    elif lag:
                        ahead = chunk[s] if first_batch[s] == batch else 1
                    back = slide(s, computed, computed - ahead, shape, slot)
                    if back:
                        if give[s] == 0:
                            givers.append(s)
                        give[s] += back
                        st[SLIDING_BACK] += back
                    settled = longest == 0 and (lag == 0 or first_batch[s] < batch)
                    give_at[s] = next_slide(s, batch + 1, computed - ahead, settled, shape, slot)
                    if give_at[s]:
                        heappush(heap, (give_at[s] << KEY_SHIFT) | SLIDES | s)
            elif end_at[s] == at:
                i = who[s]
                if phase[s] == WRITING:
                    if outcome[i] == UNFINISHED:
                        outcome[i] = COMPLETED
                        finish_s[i] = end_s
                        generated[i] = answer[i]
                        link[i] = -1
                        if st[DONE_HEAD] >= 0:
                            link[st[DONE_TAIL]] = i
                        else:
                            st[DONE_HEAD] = i
                        st[DONE_TAIL] = i
                    if lag:
                        end_at[s] = at + 1
                        heappush(heap, ((at + 1) << KEY_SHIFT) | s)
                        if answer[i] < cap[i]:
                            phase[s] = IN_VAIN
                        else:
                            phase[s] = CERTAIN
                            leave_batches(s, batch, shape, slot)
                            st[DECODING] -= 1
                            st[COMPUTED] -= off[s] + batch
                            off[s] = off[s] + batch
                        continue
                    elif outcome[i] != COMPLETED:
                        generated[i] = answer[i] - 1
                end_at[s] = -1
                if caching:
                    leaving.append((stamp[s], s))
                else:
                    st[FREE] += release_slot(s, st, batch, shape, slot, row, pool, caching, 1)
                    slot_of[i] = -2
        if caching and len(leaving):
            leaving.sort()
            for entry in leaving:
                i = who[entry[1]]
                st[FREE] += release_slot(entry[1], st, batch, shape, slot, row, pool, caching, 1)
                slot_of[i] = -2
            leaving.clear()

        now_s = end_s if lag == 0 or st[LATE] else start_s
        while st[LEFT_HEAD] >= 0 and finish_s[st[LEFT_HEAD]] <= now_s:
            i = st[LEFT_HEAD]
            st[LEFT_HEAD] = left_link[i]
            s = slot_of[i]
            if s == -1:
                st[WAITING] -= 1
            elif s >= 0:
                if phase[s] != READING:
                    returned = batch if lag == 0 or st[LATE] else batch - 1
                    if finish_s[i] < now_s:
                        returned -= 1
                    generated[i] = min(answer[i], before[s] + max(0, returned - first_batch[s] + 1))
                st[FREE] += release_slot(s, st, batch, shape, slot, row, pool, caching, 0)
        if now_s >= until_s:
            ck[QUIET_S] = end_s
            return

        # Who is first in the queue, and whether the next batch is more than plain decoding.
        head = -1
        while True:
            head = st[PREEMPTED]
            fresh_one = head < 0
            if fresh_one:
                head = st[QUEUE_HEAD]
                if head >= 0 and admitted_s[head] > now_s:
                    head = -1
            if head < 0 or outcome[head] == UNFINISHED or finish_s[head] > now_s:
                break
            st[QUEUE_HEAD if fresh_one else PREEMPTED] = link[head]
            st[BLOCKED] = 0
        n, free, running = st[DECODING], st[FREE], st[RUNNING]
        special = st[READING_NOW] > 0 or (head >= 0 and running < seats and st[BLOCKED] == 0)
        ordered = caching > 0 or longest > 0 or st[READING_NOW] > 1

        if not special:
            if n == 0:
                if lag and st[LATE] == 0:
                    st[LATE] = 1
                    continue
                wake_s = inf
                if head < 0 and st[QUEUE_HEAD] >= 0:
                    wake_s = admitted_s[st[QUEUE_HEAD]]
                if st[LEFT_HEAD] >= 0:
                    wake_s = min(wake_s, finish_s[st[LEFT_HEAD]])
                if wake_s >= until_s:
                    ck[QUIET_S] = inf
                    return
                stand_idle(wake_s, st, ck)
                continue
            many = (heap[0] >> KEY_SHIFT) - 1 - batch
            cut_s = until_s if exact else inf
            if head < 0 and st[QUEUE_HEAD] >= 0 and running < seats:
                cut_s = min(cut_s, admitted_s[st[QUEUE_HEAD]])
            if st[LEFT_HEAD] >= 0:
                cut_s = min(cut_s, finish_s[st[LEFT_HEAD]])
            if many > 1:
                last_s = clock(many - depth, st, ck, cost)
                if last_s >= cut_s:
                    many = batches_until(cut_s, many, st, ck, cost) + lag
                elif last_s >= until_s:
                    ck[QUIET_S] = clock(many, st, ck, cost)
                    return
            taken = 0
            if caching:
                plain = 0
                while plain < many and table[(batch + plain) % size] == 0:
                    plain += 1
                many = plain
            else:
                taken = taken_in(batch, many, n, shape)
                if taken > free:
                    many = safe_batches(batch, many, n, free, st[SLIDING_BACK], shape)
                    taken = taken_in(batch, many, n, shape)
            if many > 0:
                back = 0
                if nk:
                    back = st[SLIDING_BACK] + slid_in(batch, many, shape)
                    st[SLIDING_BACK] = 0
                    drop_givers(givers, slot)
                now_free = free - taken + back
                if lag:
                    ck[START_S] = end_s if many == 1 else clock(many - 1, st, ck, cost)
                ck[END_S] = clock(many, st, ck, cost)
                level = total - now_free if many == 1 else total - 0.5 * (free + now_free)
                use(level, end_s, ck[END_S], ck, cost)
                st[STEPS] += many
                st[DECODE] += n * many
                st[CONTEXT] += st[COMPUTED] * many + n * many * (many + 1) // 2
                st[COMPUTED] += n * many
                st[FREE] = now_free
                st[PEAK_USED] = max(st[PEAK_USED], total - now_free)
                st[BATCHES] = batch + many
                st[LATE] = 0
                continue
            ordered = True

        # One batch, request by request where blocks may run out.
        this = batch + 1
        if not ordered:
            taken = taken_now(batch, weights, shape)
            if taken > free:
                ordered = True
        budget = most_tokens
        prefill = decode = context = 0
        short = False
        longest_now = 0
        if longest:
            others = running
            i = st[PREEMPTED]
            if i >= 0:
                others += 1 if link[i] < 0 else 2
            i = st[QUEUE_HEAD]
            while i >= 0 and others < 2 and admitted_s[i] <= now_s:
                others += 1
                i = link[i]
            if others > 1:
                longest_now = longest
        if not ordered:
            decode = n
            budget -= n
            context = st[COMPUTED] + n
            free -= taken
            if nk:
                free += st[SLIDING_BACK] + slid_now(batch, shape)
                st[SLIDING_BACK] = 0
                drop_givers(givers, slot)
            s = st[READING_SLOT] if st[READING_NOW] else -1
        else:
            s = st[FIRST_SLOT]
        served_ones = decode
        while s >= 0 and budget > 0:
            state = phase[s]
            if state == CERTAIN:
                s = after[s]
                continue
            i = who[s]
            if state == READING:
                old = off[s]
                tokens = min(prompt[i] + generated[i] - old, budget, window - old - 1)
                if longest_now and tokens > longest_now:
                    tokens = longest_now
                if nk:
                    ahead = chunk[s] if lag and st[LATE] == 0 and served[s] == batch else 0
                    free += slide(s, old, old - ahead, shape, slot)
                need = blocks_taken(old + tokens, weights, shape) - blocks_taken(old, weights, shape)
            else:
                old = off[s] + batch
                tokens = 1
                need = 0
                for q in range(nq):
                    if old % sizes[q] == 0:
                        need += weights[q]
                if nk:
                    free += give[s]
                    st[SLIDING_BACK] -= give[s]
                    give[s] = 0
                    for k in range(nk):
                        if joined[s * nk + k] and (old - lag - kinds[k][1] + 1) % kinds[k][2] == 0:
                            free += kinds[k][3]
            lost = False
            while need > free and not lost:
                short = True
                victim = st[LAST_SLOT]
                lost = victim == s
                free += preempt(victim, st, batch, shape, slot, row, pool, caching)
            if lost:
                s = -1
                break
            free -= need
            if caching:
                take_blocks(s, need, pool)
                known = prompt[i] + generated[i]
                if state == READING:
                    remember(s, i, min(old + tokens, known) // size, pool)
                elif twins:
                    remember(s, i, (old if lag else old + 1) // size, pool)
            budget -= tokens
            if state == READING:
                counted = read_chunk(s, tokens, this, st, heap, fresh, shape, slot, row)
                decode += counted
                prefill += 0 if counted else tokens
                context += old + tokens
            else:
                decode += 1
                served_ones += 1
                context += old + 1
                if longest:
                    served[s] = this
                    chunk[s] = 1
            s = after[s]
        # Only a cap on long prefills can leave decoding sequences without a token: they lag one batch behind.
        while ordered and s >= 0:
            if phase[s] == WRITING or phase[s] == IN_VAIN:
                if phase[s] == IN_VAIN:
                    leave_batches(s, batch, shape, slot)
                    st[DECODING] -= 1
                    st[COMPUTED] -= off[s] + batch
                    off[s] = off[s] + batch
                    phase[s] = CERTAIN
                else:
                    for q in range(nq):
                        table[starts[q] + -off[s] % sizes[q]] -= 1
                        table[starts[q] + (1 - off[s]) % sizes[q]] += 1
                    off[s] -= 1
                    first_batch[s] += 1
                    end_at[s] += 1
                    heappush(heap, (end_at[s] << KEY_SHIFT) | s)
                    if nk and give_at[s] == 0:
                        give_at[s] = this + 1
                        heappush(heap, (give_at[s] << KEY_SHIFT) | SLIDES | s)
            s = after[s]
        if ordered and st[SLIDING_BACK] == 0:
            givers.clear()
        st[COMPUTED] += served_ones
        st[FREE] = free

        while not short and budget > 0 and st[RUNNING] < seats:
            fresh_one = st[PREEMPTED] < 0
            i = st[QUEUE_HEAD] if fresh_one else st[PREEMPTED]
            if i < 0 or (fresh_one and admitted_s[i] > now_s):
                break
            place = QUEUE_HEAD if fresh_one else PREEMPTED
            if outcome[i] != UNFINISHED and finish_s[i] <= now_s:
                st[place] = link[i]
                continue
            known = prompt[i] + generated[i]
            hits = unheld = 0
            if caching:
                hits, unheld = find_blocks(i, known, pool, found)
            old = hits * size
            tokens = min(known - old, budget)
            if longest_now and tokens > longest_now:
                tokens = longest_now
            taken = blocks_taken(old + tokens, weights, shape) - hits
            need = taken
            if whole_input:
                need = blocks_at_admission(min(known, window), shape) - hits
            need += unheld
            if st[RUNNING]:
                need += watermark
            if need > st[FREE]:
                st[BLOCKED] = 1 if nk == 0 and longest == 0 else 0
                break
            st[place] = link[i]
            s = st[SPARE_SLOT]
            st[SPARE_SLOT] = after[s]
            tail = st[LAST_SLOT]
            if tail >= 0:
                after[tail] = s
            else:
                st[FIRST_SLOT] = s
            slot[9][s] = tail
            after[s] = -1
            st[LAST_SLOT] = s
            st[RUNNING] += 1
            st[READING_NOW] += 1
            st[WAITING] -= 1
            st[STAMP] += 1
            who[s] = i
            slot_of[i] = s
            stamp[s] = st[STAMP]
            phase[s] = READING
            off[s] = old
            for k in range(nk):
                slot[11][s * nk + k] = 0
                joined[s * nk + k] = 0
            if caching:
                hold_found(s, pool, found)
                take_blocks(s, taken, pool)
                remember(s, i, min(old + tokens, known) // size, pool)
            st[FREE] -= taken + unheld
            if scheduled_s[i] < 0.0:
                scheduled_s[i] = now_s
            budget -= tokens
            counted = read_chunk(s, tokens, this, st, heap, fresh, shape, slot, row)
            decode += counted
            prefill += 0 if counted else tokens
            context += old + tokens

        if short:
            st[SHORTAGES] += 1
            if ask_first:
                st[GAVE_IN] = 1
                return
        if decode + prefill == 0:
            if lag and st[LATE] == 0:
                st[LATE] = 1
            else:
                st[BLOCKED] = 1
            continue
        st[STEPS] += 1
        st[PREFILL] += prefill
        st[DECODE] += decode
        st[CONTEXT] += context
        st[BATCHES] = this
        st[LATE] = 0
        if twins and prefill:
            st[BLOCKED] = 0
        ck[START_S] = end_s
        ck[END_S] = clock(0, st, ck, cost)
        use(total - st[FREE], end_s, ck[END_S], ck, cost)
        st[PEAK_USED] = max(st[PEAK_USED], total - st[FREE])
        for s in fresh:
            i = who[s]
            st[DECODING] += 1
            st[COMPUTED] += off[s] + this
            if first_s[i] < 0.0:
                first_s[i] = ck[END_S]
                if track:
                    read_link[i] = -1
                    if st[READ_HEAD] >= 0:
                        read_link[st[READ_TAIL]] = i
                    else:
                        st[READ_HEAD] = i
                    st[READ_TAIL] = i
        fresh.clear()


# -- clients and front doors ---------------------------------------------------------------------------------------------


def engine_parts(r, states, times, heaps, fresh, found, leaving, givers, shape, slots, pools):
    """What belongs to replica ``r``."""
    nq, sizes, weights, fulls, starts, fixed, nk, kinds, tables, slides, lag = shape
    behind, ahead, holders, content, twin, places, placed = pools[:7]
    shared, tail, node_start, nodes, many, cached, chain_tokens, per_node, block, width, root, keys = pools[7:]
    return (
        states[r],
        times[r],
        heaps[r],
        (fresh, found, leaving, givers[r]),
        (nq, sizes, weights, fulls, starts, fixed, nk, kinds, tables[r], slides[r], lag),
        (
            slots[0][r],
            slots[1][r],
            slots[2][r],
            slots[3][r],
            slots[4][r],
            slots[5][r],
            slots[6][r],
            slots[7][r],
            slots[8][r],
            slots[9][r],
            slots[10][r],
            slots[11][r],
            slots[12][r],
            slots[13][r],
            slots[14][r],
            slots[15][r],
        ),
        (
            behind[r],
            ahead[r],
            holders[r],
            content[r],
            twin[r],
            places,
            placed[r],
            shared,
            tail,
            node_start,
            nodes,
            many[r],
            cached[r],
            chain_tokens,
            per_node,
            block,
            width,
            root,
            r * keys,
        ),
    )


def hold_reserved(r, now_s, reserved, since_s, held, from_s, watch_s):
    """Add what replica ``r`` had reserved until now to the integral, where it is watched."""
    low = max(since_s[r], from_s)
    high = min(now_s, watch_s)
    if high > low:
        held[r] += reserved[r] * (high - low)
    since_s[r] = now_s


def back_off_s(tries, rule, header_s, client_draw):
    """Seconds until a client's next try after ``tries`` refused ones; −1 where it gives up."""
    most, honours, whole, longest_s, gives_up, base_s, most_s, jitter, extra_s, on_header = rule
    if tries >= most:
        return -1.0
    draw = client_draw + (tries - 1) * GOLDEN
    draw -= int(draw)
    if honours > 0.0:
        wait_s = header_s
        if whole > 0.0:
            wait_s = max(1.0, ceil(header_s))
        if wait_s <= longest_s:
            if on_header > 0.0:
                wait_s = wait_s * (1.0 - draw * jitter) + draw * extra_s
            return wait_s
        if gives_up > 0.0:
            return -1.0
    wait_s = min(base_s * 2.0 ** min(tries - 1, 60), most_s)
    return wait_s * (1.0 - draw * jitter) + draw * extra_s


def play(
    requests,
    rules,
    door,
    retry_after,
    watch,
    row,
    tries,
    states,
    times,
    slots,
    tables,
    pools,
    conf,
    cost,
    shape,
    samples,
):
    """One run. Events in order of time; at one instant releases first (the engine's, then clients that walk away), then
    retries, then new arrivals, each by serial number, then samples."""
    arrival_s, charge, barred, client, time_out_s, cancel_s, client_draw, server_draw = requests
    capacity, most_inside, most_reading, replicas, router, round_trip_s = door
    fixed_s, jitter, longest_s, horizon_s, unknown_s, drains = retry_after
    from_s, watch_s, stop_s, every_s, last_sample_s = watch
    prompt, answer, generated, link = row[0], row[1], row[3], row[5]
    slot_of, admitted_s, first_s, finish_s, outcome, left_link, read_link = (
        row[6],
        row[7],
        row[9],
        row[10],
        row[13],
        row[14],
        row[15],
    )
    attempts, refusals, replica = tries
    reserved, inside, reading, since_s, held, rate, released_s, totals = states[1:]
    engine_states = states[0]
    total_blocks, track = conf[7], conf[11]
    n = len(arrival_s)

    heaps = [[LAST_KEY] for _ in range(replicas)]
    givers = [[0] for _ in range(replicas)]
    for r in range(replicas):
        givers[r].clear()
    fresh = [0]
    found = [0]
    leaving = [(0, 0)]
    fresh.clear()
    found.clear()
    leaving.clear()
    retries = [(inf, 0)]
    leaves = [(inf, 0)]
    parts = engine_parts(0, engine_states, times, heaps, fresh, found, leaving, givers, shape, slots, pools)
    st, ck = parts[0], parts[1]

    arrived = 0
    turn = 0
    refused_so_far = 0
    sampled = 0
    next_sample_s = every_s if every_s > 0.0 else inf
    if next_sample_s > last_sample_s:
        next_sample_s = inf
    now_s = 0.0
    while True:
        # The next event at the door.
        next_s = leaves[0][0]
        sort = 0
        if retries[0][0] < next_s:
            next_s = retries[0][0]
            sort = 1
        if arrived < n and arrival_s[arrived] < next_s:
            next_s = arrival_s[arrived]
            sort = 2
        if next_sample_s < next_s:
            next_s = next_sample_s
            sort = 3
        last = next_s > stop_s or next_s == inf
        if last:
            next_s = stop_s
        else:
            now_s = next_s

        # What the engines release until then.
        for r in range(replicas):
            if replicas > 1:
                parts = engine_parts(r, engine_states, times, heaps, fresh, found, leaving, givers, shape, slots, pools)
                st, ck = parts[0], parts[1]
            if next_s > ck[QUIET_S] or sort == 3 or last:
                advance(next_s, sort == 3, st, ck, parts[2], parts[3], conf, cost, parts[4], parts[5], row, parts[6])
                if st[GAVE_IN]:
                    return now_s
            i = st[DONE_HEAD]
            while i >= 0 and finish_s[i] <= next_s:
                st[DONE_HEAD] = link[i]
                if outcome[i] == COMPLETED:
                    hold_reserved(r, finish_s[i], reserved, since_s, held, from_s, watch_s)
                    reserved[r] -= charge[i]
                    inside[r] -= 1
                    if drains:
                        rate[r] = rate[r] * exp((released_s[r] - finish_s[i]) / horizon_s) + charge[i] / horizon_s
                        released_s[r] = finish_s[i]
                i = st[DONE_HEAD]
            while st[READ_HEAD] >= 0 and first_s[st[READ_HEAD]] <= next_s:
                i = st[READ_HEAD]
                st[READ_HEAD] = read_link[i]
                if outcome[i] <= COMPLETED or finish_s[i] > first_s[i]:
                    reading[r] -= prompt[i]
        if last:
            break

        if sort == 3:
            row_of_samples = sampled
            sampled += 1
            samples[0][row_of_samples] = next_s
            samples[5][row_of_samples] = refused_so_far
            for r in range(replicas):
                samples[1][row_of_samples] += reserved[r]
                samples[2][row_of_samples] += total_blocks - engine_states[r][FREE]
                samples[3][row_of_samples] += engine_states[r][RUNNING]
                samples[4][row_of_samples] += engine_states[r][WAITING]
            next_sample_s = every_s * (sampled + 1)
            if next_sample_s > last_sample_s:
                next_sample_s = inf
            continue

        if sort == 0:
            # A client walks away: its place is free at once, its blocks when the engine next looks.
            i = heappop(leaves)[1]
            if outcome[i] != UNFINISHED and (outcome[i] != COMPLETED or finish_s[i] <= next_s):
                continue
            r = replica[i]
            st = engine_states[r]
            outcome[i] = TIMED_OUT if admitted_s[i] + time_out_s[i] <= arrival_s[i] + cancel_s[i] else CANCELLED
            finish_s[i] = next_s
            hold_reserved(r, next_s, reserved, since_s, held, from_s, watch_s)
            reserved[r] -= charge[i]
            inside[r] -= 1
            if drains:
                rate[r] = rate[r] * exp((released_s[r] - next_s) / horizon_s) + charge[i] / horizon_s
                released_s[r] = next_s
            if track and (first_s[i] < 0.0 or first_s[i] >= next_s):
                reading[r] -= prompt[i]
            if slot_of[i] == -2:
                generated[i] = answer[i] - 1
            else:
                left_link[i] = -1
                if st[LEFT_HEAD] >= 0:
                    left_link[st[LEFT_TAIL]] = i
                else:
                    st[LEFT_HEAD] = i
                st[LEFT_TAIL] = i
                times[r][QUIET_S] = next_s
            continue

        if sort == 1:
            i = heappop(retries)[1]
        else:
            i = arrived
            arrived += 1
        attempts[i] += 1
        if barred[i] or charge[i] > capacity:
            outcome[i] = REJECTED
            continue
        r = 0
        if replicas > 1:
            if router:
                for other in range(1, replicas):
                    if reserved[other] < reserved[r] or (reserved[other] == reserved[r] and inside[other] < inside[r]):
                        r = other
            else:
                r = turn
                turn = turn + 1 if turn + 1 < replicas else 0
        if charge[i] <= capacity - reserved[r] and inside[r] < most_inside and reading[r] < most_reading:
            hold_reserved(r, next_s, reserved, since_s, held, from_s, watch_s)
            reserved[r] += charge[i]
            inside[r] += 1
            if track:
                reading[r] += prompt[i]
            held_now = reserved[0]
            for other in range(1, replicas):
                held_now += reserved[other]
            totals[0] = max(totals[0], held_now)
            replica[i] = r
            admitted_s[i] = next_s
            leave_s = min(next_s + time_out_s[i], arrival_s[i] + cancel_s[i])
            if leave_s < inf:
                heappush(leaves, (leave_s, i))
            st = engine_states[r]
            link[i] = -1
            if st[QUEUE_HEAD] >= 0:
                link[st[QUEUE_TAIL]] = i
            else:
                st[QUEUE_HEAD] = i
            st[QUEUE_TAIL] = i
            st[WAITING] += 1
            times[r][QUIET_S] = next_s
            continue
        refusals[i] += 1
        refused_so_far += 1
        wait_s = fixed_s
        if drains:
            lacking = max(0, charge[i] - (capacity - reserved[r]))
            if released_s[r] < 0.0:
                wait_s = unknown_s
            else:
                now_rate = rate[r] * exp((released_s[r] - next_s) / horizon_s)
                wait_s = longest_s if lacking >= now_rate * longest_s else lacking / now_rate
        draw = server_draw[i] + (attempts[i] - 1) * GOLDEN
        draw -= int(draw)
        header_s = min(max(wait_s, 1.0) * (1.0 + jitter * draw), longest_s)
        wait_s = back_off_s(attempts[i], rules[client[i]], header_s, client_draw[i])
        if wait_s < 0.0:
            outcome[i] = GAVE_UP
            continue
        again_s = next_s + max(wait_s, round_trip_s)
        if arrival_s[i] + cancel_s[i] <= again_s:
            outcome[i] = CANCELLED
            finish_s[i] = arrival_s[i] + cancel_s[i]
        else:
            heappush(retries, (again_s, i))

    end_s = stop_s if stop_s < inf else now_s
    for r in range(replicas):
        if stop_s == inf:
            end_s = max(end_s, times[r][END_S])
    for r in range(replicas):
        hold_reserved(r, end_s, reserved, since_s, held, from_s, watch_s)
    totals[1] = sampled
    return end_s
