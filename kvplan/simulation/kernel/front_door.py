"""The front door and its clients: what is reserved, who is admitted, to which replica, what a refusal says, and how
long a client then waits before it retries, gives up or walks away.

The arithmetic is that of ``kvplan.admission``, to the bit.
"""

from heapq import heappush
from math import ceil, inf

from kvplan.simulation.kernel.state import (
    ADMITTED,
    ANSWER,
    BASE_S,
    CANCELLED,
    CAPACITY,
    CLIENT_JITTER,
    COMPLETED,
    COUNTS_QUEUED,
    DONE_HEAD,
    DRAINS,
    FINISH,
    FIRST_TOKEN,
    FIXED_S,
    FROM_S,
    GAVE_UP,
    GENERATED,
    GIVES_UP,
    HELD_UNIT_S,
    HOLD_S,
    HONOURED_S,
    HONOURS_HEADER,
    INSIDE,
    JITTER,
    JITTER_ADD_S,
    LEFT_HEAD,
    LEFT_LINK,
    LINK,
    LONGEST_S,
    MAX_INSIDE,
    MAX_QUEUED_TOKENS,
    MAX_S,
    ON_HEADER,
    OUTCOME,
    OUTER,
    PREFILLED_HEAD,
    PREFILLED_LINK,
    PROMISED_S,
    PROMPT,
    QUEUE_HEAD,
    QUEUED_TOKENS,
    QUIET_S,
    REPLICA,
    REPLICAS,
    RESERVED,
    ROUTER,
    SINCE_S,
    SLOT_OF,
    SPENT,
    TRIES,
    UNKNOWN_S,
    UNTIL_S,
    WAITING,
    WHOLE_SECONDS,
    Conf,
    Held,
    Ints,
    Reals,
    Rows,
    Watched,
    join,
)


def note_reserved(now_s: float, doors: Ints, since: Reals, watch: Watched) -> None:
    """Add what has been reserved until now to its integral over the watched time."""
    low = max(since[SINCE_S], watch[FROM_S])
    high = min(now_s, watch[UNTIL_S])
    if high > low:
        since[HELD_UNIT_S] += doors[RESERVED] * (high - low)
    since[SINCE_S] = now_s


def release(i: int, now_s: float, held_s: float, doors: Ints, since: Reals, held: Held, watch: Watched) -> None:
    """One sequence ends. With the last one of its request the reservation is released, after ``held_s``: the mean hold
    moves by the released share of what was reserved (``admission.DrainEstimate``)."""
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
    """Note what the engine finished, and which prompts it prefilled, until ``now_s``."""
    row, time, column, moment = rows
    outcome, link, read_link = column[OUTCOME], column[LINK], column[PREFILLED_LINK]
    finish, first = moment[FINISH], moment[FIRST_TOKEN]
    i = st[DONE_HEAD]
    while i >= 0 and time[finish + i] <= now_s:
        st[DONE_HEAD] = row[link + i]
        if row[outcome + i] == COMPLETED:
            held_s = time[finish + i] - time[moment[ADMITTED] + i]
            release(i, time[finish + i], held_s, doors, since, held, watch)
        i = st[DONE_HEAD]
    i = st[PREFILLED_HEAD]
    while i >= 0 and time[first + i] <= now_s:
        st[PREFILLED_HEAD] = row[read_link + i]
        if row[outcome + i] <= COMPLETED or time[finish + i] > time[first + i]:
            doors[QUEUED_TOKENS] -= row[column[PROMPT] + i]
        i = st[PREFILLED_HEAD]


def choose_replica(turn: int, door: Ints, doors: list[Ints]) -> int:
    """The replica of an attempt: the next in turn, or the least reserved."""
    if door[ROUTER] == 0:
        return turn % door[REPLICAS]
    best = 0
    for r in range(1, door[REPLICAS]):
        less = doors[r][RESERVED] - doors[best][RESERVED]
        if less < 0 or (less == 0 and doors[r][INSIDE] < doors[best][INSIDE]):
            best = r
    return best


def drained_s(ahead_s: float, held_unit_s: float, reserved: int, longest_s: float) -> float:
    """``ahead_s`` + ``held_unit_s`` / ``reserved``, at most ``longest_s``."""
    if held_unit_s < reserved * (longest_s - ahead_s):
        return ahead_s + held_unit_s / reserved
    return longest_s


def retry_after_s(
    lacking: int, charge: int, reserved: int, now_s: float, draw: float, since: Reals, waits: Reals
) -> float:
    """The Retry-After of a refusal: fixed, or when ``lacking`` more should have been released behind what others were
    told to wait for; at least 1 s, spread upwards. It promises ``charge`` to this client
    (``admission.DrainEstimate``)."""
    wait_s = waits[FIXED_S]
    if waits[DRAINS] > 0.0:
        if since[HOLD_S] < 0.0:
            wait_s = waits[UNKNOWN_S]
        else:
            ahead_s = max(since[PROMISED_S] - now_s, 0.0)
            wait_s = drained_s(ahead_s, lacking * since[HOLD_S], reserved, waits[LONGEST_S])
            capacity = reserved + charge - lacking
            since[PROMISED_S] = now_s + drained_s(ahead_s, charge * since[HOLD_S], capacity, waits[LONGEST_S])
    return min(max(wait_s, 1.0), waits[LONGEST_S] / (1.0 + waits[JITTER])) * (1.0 + waits[JITTER] * draw)


def has_room(i: int, sequences: int, door: Ints, doors: Ints, held: Held) -> bool:
    """Whether request ``i`` of ``sequences`` sequences may enter: the ledger, and the engine's own caps."""
    return (
        doors[RESERVED] + held[0][i] <= door[CAPACITY]
        and doors[INSIDE] + sequences <= door[MAX_INSIDE]
        and doors[QUEUED_TOKENS] < door[MAX_QUEUED_TOKENS]
    )


def admit_request(
    i: int,
    r: int,
    sequences: int,
    now_s: float,
    leave_s: float,
    st: Ints,
    doors: Ints,
    since: Reals,
    leaves: list[tuple[float, int]],
    conf: Conf,
    rows: Rows,
    held: Held,
    watch: Watched,
) -> None:
    """Charge request ``i`` and queue it at replica ``r``; its client leaves at ``leave_s`` at the latest."""
    row, time, column, moment = rows
    note_reserved(now_s, doors, since, watch)
    doors[RESERVED] += held[0][i]
    doors[INSIDE] += sequences
    for j in range(i, i + sequences):
        if conf[COUNTS_QUEUED]:
            doors[QUEUED_TOKENS] += row[column[PROMPT] + j]
        if r:
            row[column[REPLICA] + j] = r
        time[moment[ADMITTED] + j] = now_s
        if leave_s < inf:
            heappush(leaves, (leave_s, j))
        join(j, column[LINK], QUEUE_HEAD, st, row)
    st[WAITING] += sequences


def back_off_s(tries: float, rule: Reals, told_s: float, draw: float) -> float:
    """Seconds until the next attempt of a client after ``tries`` refused ones, the last with Retry-After ``told_s``; −1
    where it gives up."""
    if tries >= rule[TRIES]:
        return -1.0
    if rule[HONOURS_HEADER] > 0.0:
        if rule[WHOLE_SECONDS] > 0.0:
            told_s = max(1.0, 1.0 * ceil(told_s))
        if told_s <= rule[HONOURED_S]:
            if rule[ON_HEADER] > 0.0:
                return told_s * (1.0 - draw * rule[CLIENT_JITTER]) + draw * rule[JITTER_ADD_S]
            return told_s
        if rule[GIVES_UP] > 0.0:
            return -1.0
    own_s: float = min(rule[BASE_S] * 2.0 ** min(tries - 1.0, 60.0), rule[MAX_S])
    return own_s * (1.0 - draw * rule[CLIENT_JITTER]) + draw * rule[JITTER_ADD_S]


def wait_of_loops(spent: int, place: int, rules: list[Reals], told_s: float, draw: float) -> tuple[float, float]:
    """The wait after the last of ``spent`` attempts, by the rule at ``place`` or, where that retry loop has given up,
    by the one around it; −1 where all give up. Also the attempts used up: a loop that gives up early has used all of
    its own.

    One attempt of a loop is a whole run of the loop within. So a loop has failed ceil(spent / attempts within) times,
    of which ((that − 1) mod its own tries) + 1 in its current run.
    """
    within = 1.0
    used = 1.0 * spent
    while place >= 0:
        rule = rules[place]
        failed = (ceil(used / within) - 1) % rule[TRIES] + 1
        wait_s = back_off_s(failed, rule, told_s, draw)
        if wait_s >= 0.0:
            return wait_s, used
        within *= rule[TRIES]
        used = ceil(used / within) * within
        place = int(rule[OUTER])
    return -1.0, used


def fraction(value: float) -> float:
    """The fractional part of ``value`` ≥ 0."""
    return value - int(value)


def abandon(
    i: int,
    now_s: float,
    outcome: int,
    st: Ints,
    ck: Reals,
    doors: Ints,
    since: Reals,
    conf: Conf,
    rows: Rows,
    held: Held,
    watch: Watched,
) -> None:
    """The client of ``i`` leaves: its reservation ends at once, its blocks come back when the engine next looks."""
    row, time, column, moment = rows
    if row[column[OUTCOME] + i] == COMPLETED:  # at a time that is still to come
        row[column[GENERATED] + i] = row[column[ANSWER] + i] - 1
    row[column[OUTCOME] + i] = outcome
    time[moment[FINISH] + i] = now_s
    release(i, now_s, now_s - time[moment[ADMITTED] + i], doors, since, held, watch)
    if conf[COUNTS_QUEUED] and (time[moment[FIRST_TOKEN] + i] < 0.0 or time[moment[FIRST_TOKEN] + i] > now_s):
        doors[QUEUED_TOKENS] -= row[column[PROMPT] + i]
    if row[column[SLOT_OF] + i] != -2:
        join(i, column[LEFT_LINK], LEFT_HEAD, st, row)
        ck[QUIET_S] = now_s


def next_try_s(
    i: int,
    told_s: float,
    now_s: float,
    place: int,
    rules: list[Reals],
    draw: float,
    away_s: float,
    round_trip_s: float,
    rows: Rows,
) -> float:
    """When the refused client of ``i``, told to wait ``told_s``, tries again; −1 where it never does."""
    row, time, column, moment = rows
    wait_s, used = wait_of_loops(row[column[SPENT] + i] + 1, place, rules, told_s, draw)
    if wait_s < 0.0:
        row[column[OUTCOME] + i] = GAVE_UP
        time[moment[FINISH] + i] = now_s
        return -1.0
    row[column[SPENT] + i] = int(used)
    again_s = now_s + max(wait_s, round_trip_s)
    if away_s <= again_s:
        row[column[OUTCOME] + i] = CANCELLED
        time[moment[FINISH] + i] = away_s
        return -1.0
    return again_s
