"""What a client does: how long it waits after a refusal, when it gives up or walks away."""

from math import ceil

from kvplan.simulation.kernel.door import release
from kvplan.simulation.kernel.keys import join
from kvplan.simulation.kernel.places import (
    ADMITTED,
    ANSWER,
    BASE_S,
    CANCELLED,
    CLIENT_JITTER,
    COMPLETED,
    EXTRA_S,
    FINISH,
    FIRST,
    GAVE_UP,
    GENERATED,
    GIVES_UP,
    HONOURED_S,
    HONOURS,
    IN_READING,
    LEFT_HEAD,
    LEFT_LINK,
    MOST_S,
    ON_HEADER,
    OUTCOME,
    OUTER,
    PROMPT,
    QUIET_S,
    SLOT_OF,
    SPENT,
    TRACKS,
    TRIES,
    WHOLE_SECONDS,
    Conf,
    Held,
    Ints,
    Reals,
    Rows,
    Watched,
)


def back_off_s(tries: float, rule: Reals, told_s: float, draw: float) -> float:
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
    own_s: float = min(rule[BASE_S] * 2.0 ** min(tries - 1.0, 60.0), rule[MOST_S])
    return own_s * (1.0 - draw * rule[CLIENT_JITTER]) + draw * rule[EXTRA_S]


def wait_of_loops(spent: int, place: int, rules: list[Reals], told_s: float, draw: float) -> tuple[float, float]:
    """The wait after the last of ``spent`` tries, by the rule at ``place`` or, where that loop is over, by the one
    around it; −1 where all give up. And the tries that are spent: a loop that ends early has spent all of its own.

    One try of a loop is all tries of the loop within, so a level has failed ceil(spent / tries within) times, of which
    ((that − 1) mod its own tries) + 1 in its present turn.
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
    """What is left of ``value`` ≥ 0 without its whole part."""
    return value - int(value)


def walk_away(
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
    """The client of ``i`` leaves: its reservation ends at once, its blocks when the engine next looks."""
    row, time, column, moment = rows
    if row[column[OUTCOME] + i] == COMPLETED:  # at a time that is still to come
        row[column[GENERATED] + i] = row[column[ANSWER] + i] - 1
    row[column[OUTCOME] + i] = outcome
    time[moment[FINISH] + i] = now_s
    release(i, now_s, now_s - time[moment[ADMITTED] + i], doors, since, held, watch)
    if conf[TRACKS] and (time[moment[FIRST] + i] < 0.0 or time[moment[FIRST] + i] > now_s):
        doors[IN_READING] -= row[column[PROMPT] + i]
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
