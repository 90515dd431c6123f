"""Clients and front doors: who tries when, who is let in, who waits how long, who walks away.

Events in order of time; at one instant releases first (the engines', then clients that walk away), then retries, then
new arrivals, each by serial number, then samples.
"""

from heapq import heappop, heappush
from math import ceil, inf

from kvplan.simulation.kernel.advance import advance
from kvplan.simulation.kernel.places import (
    ADMITTED,
    ANSWER,
    ATTEMPTS,
    CANCELLED,
    COMPLETED,
    DONE_HEAD,
    END_S,
    FINISH,
    FIRST,
    FREE,
    GAVE_IN,
    GAVE_UP,
    GENERATED,
    GOLDEN,
    LAST_KEY,
    LEFT_HEAD,
    LEFT_LINK,
    LEFT_TAIL,
    LINK,
    OUTCOME,
    PROMPT,
    QUEUE_HEAD,
    QUEUE_TAIL,
    QUIET_S,
    READ_HEAD,
    READ_LINK,
    REFUSALS,
    REJECTED,
    REPLICA,
    RUNNING,
    SLOT_OF,
    TIMED_OUT,
    TOTAL,
    TRACKS,
    UNFINISHED,
    WAITING,
    Conf,
    Cost,
    Ints,
    Offsets,
    Reals,
    Rows,
)

# ``door``: settings, and per replica what it holds now.
CAPACITY, MOST_INSIDE, MOST_READING, REPLICAS, ROUTER = range(5)
RESERVED, INSIDE, IN_READING, DOOR_PLACES = range(4)
SINCE_S, HELD_UNIT_S, HOLD_S, PROMISED_S, DOOR_TIMES = range(5)
# ``waits``: how a refusal's Retry-After is made.
FIXED_S, JITTER, LONGEST_S, UNKNOWN_S, DRAINS, ROUND_TRIP_S = range(6)
# A client's rule.
(
    TRIES,
    HONOURS,
    WHOLE_SECONDS,
    HONOURED_S,
    GIVES_UP,
    BASE_S,
    MOST_S,
    CLIENT_JITTER,
    EXTRA_S,
    ON_HEADER,
    RULE_FIELDS,
) = range(11)
# ``watch``
FROM_S, UNTIL_S, STOP_S, EVERY_S, LAST_SAMPLE_S = range(5)
# Columns of ``samples``
SAMPLED_RESERVED, SAMPLED_USED, SAMPLED_RUNNING, SAMPLED_WAITING, SAMPLED_REFUSALS, SAMPLE_COLUMNS = range(6)

Watched = tuple[float, float, float, float, float]
Held = tuple[Ints, Ints, Ints]
Replicas = tuple[list[Ints], list[Reals], list[Ints], list[Ints], list[Ints]]


def note_reserved(now_s: float, doors: Ints, since: Reals, watch: Watched) -> None:
    """Add what was reserved until now to the integral, where it is watched."""
    low = max(since[SINCE_S], watch[FROM_S])
    high = min(now_s, watch[UNTIL_S])
    if high > low:
        since[HELD_UNIT_S] += doors[RESERVED] * (high - low)
    since[SINCE_S] = now_s


def release(i: int, now_s: float, held_s: float, doors: Ints, since: Reals, held: Held, watch: Watched) -> None:
    """One sequence ends, and with the last one of a request its reservation, held for ``held_s``: the mean hold moves
    by the released share of what was reserved (``admission.DrainEstimate``)."""
    charge, parent, left = held
    doors[INSIDE] -= 1
    asked_by = i
    if len(parent) > 0:
        asked_by = parent[i]
        left[asked_by] -= 1
        if left[asked_by] > 0:
            return
    weight = charge[asked_by]
    note_reserved(now_s, doors, since, watch)
    if weight > 0:
        hold_s = since[HOLD_S] if since[HOLD_S] >= 0.0 else held_s
        since[HOLD_S] = hold_s + (held_s - hold_s) * weight / doors[RESERVED]
    doors[RESERVED] -= weight


def settle_door(now_s: float, st: Ints, doors: Ints, since: Reals, rows: Rows, held: Held, watch: Watched) -> None:
    """What the engine finished, and which prompts it read, until ``now_s``."""
    row, time, column, moment = rows
    outcome, link, read_link = column[OUTCOME], column[LINK], column[READ_LINK]
    finish, first = moment[FINISH], moment[FIRST]
    i = st[DONE_HEAD]
    while i >= 0 and time[finish + i] <= now_s:
        st[DONE_HEAD] = row[link + i]
        if row[outcome + i] == COMPLETED:
            held_s = time[finish + i] - time[moment[ADMITTED] + i]
            release(i, time[finish + i], held_s, doors, since, held, watch)
        i = st[DONE_HEAD]
    i = st[READ_HEAD]
    while i >= 0 and time[first + i] <= now_s:
        st[READ_HEAD] = row[read_link + i]
        if row[outcome + i] <= COMPLETED or time[finish + i] > time[first + i]:
            doors[IN_READING] -= row[column[PROMPT] + i]
        i = st[READ_HEAD]


def choose(turn: int, door: Ints, doors: list[Ints]) -> int:
    """The replica of a try: the next in turn, or the least reserved."""
    if door[ROUTER] == 0:
        return turn % door[REPLICAS]
    best = 0
    for r in range(1, door[REPLICAS]):
        less = doors[r][RESERVED] - doors[best][RESERVED]
        if less < 0 or (less == 0 and doors[r][INSIDE] < doors[best][INSIDE]):
            best = r
    return best


def header_s(lacking: int, reserved: int, now_s: float, draw: float, since: Reals, waits: Reals) -> float:
    """A refusal's Retry-After: fixed, or when ``lacking`` more should have been released behind what others were told
    to wait for; ≥ 1 s, spread upwards. Telling it is a promise."""
    wait_s = waits[FIXED_S]
    if waits[DRAINS] > 0.0:
        if since[HOLD_S] < 0.0:
            wait_s = waits[UNKNOWN_S]
        else:
            ahead_s = max(since[PROMISED_S] - now_s, 0.0)
            needed = lacking * since[HOLD_S]
            wait_s = waits[LONGEST_S]
            if needed < reserved * (waits[LONGEST_S] - ahead_s):
                wait_s = ahead_s + needed / reserved
            since[PROMISED_S] = now_s + wait_s
    return min(max(wait_s, 1.0), waits[LONGEST_S] / (1.0 + waits[JITTER])) * (1.0 + waits[JITTER] * draw)


def back_off_s(tries: int, rule: Reals, told_s: float, draw: float) -> float:
    """Seconds until a client's next try after ``tries`` refused ones, the last with Retry-After ``told_s``; −1 where it
    gives up."""
    if tries >= rule[TRIES]:
        return -1.0
    if rule[HONOURS] > 0.0:
        if rule[WHOLE_SECONDS] > 0.0:
            told_s = max(1.0, 1.0 * ceil(told_s))
        if told_s <= rule[HONOURED_S]:
            if rule[ON_HEADER] > 0.0:
                return told_s * (1.0 - draw * rule[CLIENT_JITTER]) + draw * rule[EXTRA_S]
            return told_s
        if rule[GIVES_UP] > 0.0:
            return -1.0
    own_s = min(rule[BASE_S] * 2.0 ** min(tries - 1, 60), rule[MOST_S])
    return own_s * (1.0 - draw * rule[CLIENT_JITTER]) + draw * rule[EXTRA_S]


def fraction(value: float) -> float:
    """What is left of ``value`` ≥ 0 without its whole part."""
    return value - int(value)


def play(
    asked: tuple[Reals, Ints, Ints, Ints, Reals, Reals, Reals, Reals, Ints, Ints],
    rules: list[Reals],
    door: Ints,
    doors: list[Ints],
    since: list[Reals],
    waits: Reals,
    watch: Watched,
    rows: Rows,
    engines: Replicas,
    book: Ints,
    table: dict[int, int],
    pool_numbers: tuple[Offsets, Offsets, int, int, int, int, int, int],
    shape_numbers: tuple[int, int, int, int, int],
    form: Ints,
    field: Offsets,
    conf: Conf,
    cost: Cost,
    samples: Ints,
    totals: Reals,
) -> float:
    """One run; the time of its last event. ``totals`` gets the most that was reserved and the number of samples."""
    arrival_s, charge, barred, client, time_out_s, cancel_s, client_draw, server_draw, parent, left = asked
    held = (charge, parent, left)
    states, clocks, slot_rows, ring_rows, cell_rows = engines
    row, time, column, moment = rows
    outcome, attempts, link, generated = column[OUTCOME], column[ATTEMPTS], column[LINK], column[GENERATED]
    prompt, left_link = column[PROMPT], column[LEFT_LINK]
    admitted, first, finish = moment[ADMITTED], moment[FIRST], moment[FINISH]
    cell_at, book_at, chain_tokens, per_node, block, width, root, keys = pool_numbers
    sizes, fixed, kinds, lag, kinds_at = shape_numbers
    replicas, stop_s = door[REPLICAS], watch[STOP_S]
    count = len(arrival_s)

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
    arrived = 0
    turn = 0
    refused = 0
    sampled = 0
    sample_s = watch[EVERY_S] if 0.0 < watch[EVERY_S] <= watch[LAST_SAMPLE_S] else inf
    now_s = 0.0
    last = False
    while not last:
        # The next event at the door.
        next_s = leaves[0][0]
        sort = 0
        if retries[0][0] < next_s:
            next_s = retries[0][0]
            sort = 1
        if arrived < count and arrival_s[arrived] < next_s:
            next_s = arrival_s[arrived]
            sort = 2
        if sample_s < next_s:
            next_s = sample_s
            sort = 3
        last = next_s > stop_s or next_s == inf
        if last:
            next_s = stop_s

        # What the engines release until then.
        for r in range(replicas):
            ck = clocks[r]
            if next_s > ck[QUIET_S] or sort == 3 or last:
                st = states[r]
                shape = (sizes, fixed, kinds, lag, kinds_at, form, ring_rows[r])
                pool = (
                    cell_rows[r],
                    book,
                    table,
                    cell_at,
                    book_at,
                    chain_tokens,
                    per_node,
                    block,
                    width,
                    root,
                    r * keys,
                )
                advance(
                    next_s,
                    1 if sort == 3 and not last else 0,
                    st,
                    ck,
                    heaps[r],
                    (fresh, found, leaving, givers[r]),
                    conf,
                    cost,
                    shape,
                    (slot_rows[r], field),
                    rows,
                    pool,
                )
                if st[GAVE_IN]:
                    return now_s
            settle_door(next_s, states[r], doors[r], since[r], rows, held, watch)
        if last:
            continue

        if sort == 3:
            at = sampled * SAMPLE_COLUMNS
            samples[at + SAMPLED_REFUSALS] = refused
            for r in range(replicas):
                samples[at + SAMPLED_RESERVED] += doors[r][RESERVED]
                samples[at + SAMPLED_USED] += conf[TOTAL] - states[r][FREE]
                samples[at + SAMPLED_RUNNING] += states[r][RUNNING]
                samples[at + SAMPLED_WAITING] += states[r][WAITING]
            sampled += 1
            sample_s = watch[EVERY_S] * (sampled + 1)
            if sample_s > watch[LAST_SAMPLE_S]:
                sample_s = inf
            continue

        if sort == 0:
            # A client walks away: its reservation ends at once, its blocks when the engine next looks.
            i = heappop(leaves)[1]
            if row[outcome + i] != UNFINISHED and (row[outcome + i] != COMPLETED or time[finish + i] <= next_s):
                continue
            now_s = next_s
            r = row[column[REPLICA] + i]
            st = states[r]
            if row[outcome + i] == COMPLETED:
                row[generated + i] = row[column[ANSWER] + i] - 1
            timed_out = time[admitted + i] + time_out_s[i] <= arrival_s[i] + cancel_s[i]
            row[outcome + i] = TIMED_OUT if timed_out else CANCELLED
            time[finish + i] = next_s
            release(i, next_s, next_s - time[admitted + i], doors[r], since[r], held, watch)
            if conf[TRACKS] and (time[first + i] < 0.0 or time[first + i] >= next_s):
                doors[r][IN_READING] -= row[prompt + i]
            if row[column[SLOT_OF] + i] != -2:
                row[left_link + i] = -1
                if st[LEFT_HEAD] >= 0:
                    row[left_link + st[LEFT_TAIL]] = i
                else:
                    st[LEFT_HEAD] = i
                st[LEFT_TAIL] = i
                clocks[r][QUIET_S] = next_s
            continue

        if sort == 1:
            i = heappop(retries)[1]
        else:
            i = arrived
            arrived += 1
            if len(parent) > 0:
                arrived += left[i] - 1
        now_s = next_s
        row[attempts + i] += 1
        if barred[i] or charge[i] > door[CAPACITY]:
            row[outcome + i] = REJECTED
            continue
        r = 0
        if replicas > 1:
            r = choose(turn, door, doors)
            turn += 1
        lacking = doors[r][RESERVED] + charge[i] - door[CAPACITY]
        sequences = left[i] if len(parent) > 0 else 1
        if (
            lacking <= 0
            and doors[r][INSIDE] + sequences <= door[MOST_INSIDE]
            and doors[r][IN_READING] < door[MOST_READING]
        ):
            note_reserved(next_s, doors[r], since[r], watch)
            doors[r][RESERVED] += charge[i]
            doors[r][INSIDE] += sequences
            reserved = doors[r][RESERVED]
            if replicas > 1:
                reserved = 0
                for other in range(replicas):
                    reserved += doors[other][RESERVED]
            totals[0] = max(totals[0], 1.0 * reserved)
            leave_s = min(next_s + time_out_s[i], arrival_s[i] + cancel_s[i])
            st = states[r]
            for j in range(i, i + sequences):
                if conf[TRACKS]:
                    doors[r][IN_READING] += row[prompt + j]
                row[column[REPLICA] + j] = r
                time[admitted + j] = next_s
                if leave_s < inf:
                    heappush(leaves, (leave_s, j))
                row[link + j] = -1
                if st[QUEUE_HEAD] >= 0:
                    row[link + st[QUEUE_TAIL]] = j
                else:
                    st[QUEUE_HEAD] = j
                st[QUEUE_TAIL] = j
            st[WAITING] += sequences
            clocks[r][QUIET_S] = next_s
            continue
        row[column[REFUSALS] + i] += 1
        refused += 1
        tries = row[attempts + i]
        draw = fraction(server_draw[i] + (tries - 1) * GOLDEN)
        told_s = header_s(max(0, lacking), doors[r][RESERVED], next_s, draw, since[r], waits)
        wait_s = back_off_s(tries, rules[client[i]], told_s, fraction(client_draw[i] + (tries - 1) * GOLDEN))
        if wait_s < 0.0:
            row[outcome + i] = GAVE_UP
            time[finish + i] = next_s
            continue
        again_s = next_s + max(wait_s, waits[ROUND_TRIP_S])
        if arrival_s[i] + cancel_s[i] <= again_s:
            row[outcome + i] = CANCELLED
            time[finish + i] = arrival_s[i] + cancel_s[i]
        else:
            heappush(retries, (again_s, i))

    end_s = stop_s
    if stop_s == inf:
        end_s = now_s
        for r in range(replicas):
            end_s = max(end_s, clocks[r][END_S])
    for r in range(replicas):
        note_reserved(end_s, doors[r], since[r], watch)
    totals[1] = 1.0 * sampled
    return end_s
