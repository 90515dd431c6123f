"""The front door: what it holds, whom it lets in, which replica gets a try, what a refusal tells."""

from heapq import heappush
from math import inf

from kvplan.simulation.kernel.keys import join
from kvplan.simulation.kernel.places import (
    ADMITTED,
    CAPACITY,
    COMPLETED,
    DONE_HEAD,
    DRAINS,
    FINISH,
    FIRST,
    FIXED_S,
    FROM_S,
    HELD_UNIT_S,
    HOLD_S,
    IN_READING,
    INSIDE,
    JITTER,
    LINK,
    LONGEST_S,
    MOST_INSIDE,
    MOST_READING,
    OUTCOME,
    PROMISED_S,
    PROMPT,
    QUEUE_HEAD,
    READ_HEAD,
    READ_LINK,
    REPLICA,
    REPLICAS,
    RESERVED,
    ROUTER,
    SINCE_S,
    TRACKS,
    UNKNOWN_S,
    UNTIL_S,
    WAITING,
    Conf,
    Held,
    Ints,
    Reals,
    Rows,
    Watched,
)


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


def drained_s(ahead_s: float, held_unit_s: float, reserved: int, longest_s: float) -> float:
    """``ahead_s`` + ``held_unit_s`` / ``reserved``, at most ``longest_s``."""
    if held_unit_s < reserved * (longest_s - ahead_s):
        return ahead_s + held_unit_s / reserved
    return longest_s


def header_s(lacking: int, charge: int, reserved: int, now_s: float, draw: float, since: Reals, waits: Reals) -> float:
    """A refusal's Retry-After: fixed, or when ``lacking`` more should have been released behind what others were told
    to wait for; ≥ 1 s, spread upwards. Telling it promises ``charge`` (``admission.DrainEstimate``)."""
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
    """Whether request ``i`` of so many ``sequences`` may enter: the ledger, and the engine's own caps."""
    return (
        doors[RESERVED] + held[0][i] <= door[CAPACITY]
        and doors[INSIDE] + sequences <= door[MOST_INSIDE]
        and doors[IN_READING] < door[MOST_READING]
    )


def let_in(
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
    """Request ``i`` is charged and joins the queue of replica ``r``, which it leaves at ``leave_s`` at the latest."""
    row, time, column, moment = rows
    note_reserved(now_s, doors, since, watch)
    doors[RESERVED] += held[0][i]
    doors[INSIDE] += sequences
    for j in range(i, i + sequences):
        if conf[TRACKS]:
            doors[IN_READING] += row[column[PROMPT] + j]
        if r:
            row[column[REPLICA] + j] = r
        time[moment[ADMITTED] + j] = now_s
        if leave_s < inf:
            heappush(leaves, (leave_s, j))
        join(j, column[LINK], QUEUE_HEAD, st, row)
    st[WAITING] += sequences
