"""The event loop: clients try, are admitted or refused, retry and walk away; engines advance in between.

Events are ordered by time. At one instant releases come first (engines, then clients that walk away), then retries,
then new arrivals, each by serial number, then samples. A long run is played in pieces: one ends where the first request
of the next arrives, and hands on what is pending.
"""

from heapq import heappop, heappush
from math import inf

from kvplan.simulation.kernel.advance import advance
from kvplan.simulation.kernel.front_door import (
    abandon,
    admit_request,
    choose_replica,
    fraction,
    has_room,
    next_try_s,
    note_reserved,
    retry_after_s,
    settle_door,
)
from kvplan.simulation.kernel.state import (
    ADMITTED,
    CANCELLED,
    CAPACITY,
    COMPLETED,
    END_S,
    EVERY_S,
    FINISH,
    FREE,
    GOLDEN,
    LAST_EVENT_S,
    LAST_KEY,
    LAST_SAMPLE_S,
    OUTCOME,
    QUIET_S,
    REFUSALS,
    REFUSED,
    REJECTED,
    REPLICA,
    REPLICAS,
    RESERVED,
    RESERVED_PEAK,
    ROUND_TRIP_S,
    RUNNING,
    SAMPLE_COLUMNS,
    SAMPLED,
    SAMPLED_REFUSALS,
    SAMPLED_RESERVED,
    SAMPLED_RUNNING,
    SAMPLED_USED,
    SAMPLED_WAITING,
    STOP_S,
    TIMED_OUT,
    TURN,
    UNFINISHED,
    USABLE,
    WAITING,
    Asked,
    Clients,
    Conf,
    Contents,
    Engines,
    FrontDoor,
    Ints,
    Output,
    Pending,
    Reals,
    Rows,
    Setup,
    Watched,
)

LEAVES, RETRIES, ARRIVES, SAMPLES, ENDS = range(5)


def next_event(leave_s: float, retry_s: float, arrive_s: float, sample_s: float, stop_s: float) -> tuple[float, int]:
    """The earliest event and its kind: the first of those at one instant."""
    next_s = leave_s
    event = LEAVES
    if retry_s < next_s:
        next_s = retry_s
        event = RETRIES
    if arrive_s < next_s:
        next_s = arrive_s
        event = ARRIVES
    if sample_s < next_s:
        next_s = sample_s
        event = SAMPLES
    if next_s > stop_s or next_s == inf:
        return stop_s, ENDS
    return next_s, event


def next_sample_s(sampled: int, watch: Watched) -> float:
    """When the next sample is due after ``sampled`` of them; never after the last."""
    sample_s = watch[EVERY_S] * (sampled + 1)
    return sample_s if 0.0 < sample_s <= watch[LAST_SAMPLE_S] else inf


# Numba 0.68 drops writes to an array as dead code where the array was unpacked from a tuple and the function holds a
# list comprehension. Comprehensions therefore stand in functions of their own, which write to no array.


def empty_heaps(replicas: int) -> list[list[int]]:
    """The due ends of each replica's sequences: none but the last key."""
    return [[LAST_KEY] for _ in range(replicas)]


def split_events(events: list[tuple[float, int]]) -> tuple[Reals, Ints]:
    """Times and rows of the events that are pending."""
    times = [0.0 for _ in range(0)]
    rows = [0 for _ in range(0)]
    for event_s, i in events:
        if event_s < inf:
            times.append(event_s)
            rows.append(i)
    return times, rows


def pending_keys(heaps: list[list[int]]) -> Ints:
    """The keys of all replicas, each after its replica."""
    keys = [0 for _ in range(0)]
    for r in range(len(heaps)):
        for key in heaps[r]:
            if key != LAST_KEY:
                keys.append(r)
                keys.append(key)
    return keys


def take_sample(at: int, refused: int, doors: list[Ints], states: list[Ints], conf: Conf, samples: Ints) -> None:
    """Write what all replicas hold now to ``samples``, from place ``at`` on."""
    samples[at + SAMPLED_REFUSALS] = refused
    for r in range(len(states)):
        samples[at + SAMPLED_RESERVED] += doors[r][RESERVED]
        samples[at + SAMPLED_USED] += conf[USABLE] - states[r][FREE]
        samples[at + SAMPLED_RUNNING] += states[r][RUNNING]
        samples[at + SAMPLED_WAITING] += states[r][WAITING]


def event_loop(
    asked: Asked,
    rows: Rows,
    fresh: int,
    clients: Clients,
    front_door: FrontDoor,
    engines: Engines,
    setup: Setup,
    contents: Contents,
    watch: Watched,
    output: Output,
    pending: Pending,
    more_s: float,
) -> tuple[float, Pending]:
    """Run one piece, up to ``more_s``, when a request beyond it arrives (inf: the last piece).

    Rows from ``fresh`` on have yet to arrive. Returns the time of the last event, and what is pending after it.
    """
    arrival_s, charge, barred, client, time_out_s, cancel_s, client_draw, server_draw, parent, left = asked
    held = (charge, parent, left)
    door, doors, since, waits = front_door
    conf, cost, layout, form, field = setup
    book, table, pool_numbers = contents
    samples, totals = output
    states, clocks, slot_rows, ring_rows, cell_rows = engines
    row, time, column, moment = rows
    outcome, admitted, finish = column[OUTCOME], moment[ADMITTED], moment[FINISH]
    replicas, stop_s = door[REPLICAS], watch[STOP_S]
    count = len(arrival_s)
    # A column with the same value for all requests has one entry.
    of_client = 1 if len(client) == count else 0
    of_time_out = 1 if len(time_out_s) == count else 0
    of_cancel = 1 if len(cancel_s) == count else 0

    heaps = empty_heaps(replicas)
    retries = [(inf, 0)]
    leaves = [(inf, 0)]
    keys_then, retry_s_then, retry_then, leave_s_then, leave_then = pending
    for k in range(0, len(keys_then), 2):
        heappush(heaps[keys_then[k]], keys_then[k + 1] + 0)
    for k in range(len(retry_then)):
        heappush(retries, (retry_s_then[k] + 0.0, retry_then[k] + 0))
    for k in range(len(leave_then)):
        heappush(leaves, (leave_s_then[k] + 0.0, leave_then[k] + 0))
    arrived = fresh
    turn = int(totals[TURN])
    refused = int(totals[REFUSED])
    sampled = int(totals[SAMPLED])
    now_s = totals[LAST_EVENT_S] + 0.0
    sample_s = next_sample_s(sampled, watch)
    while True:
        arrive_s = arrival_s[arrived] if arrived < count else more_s
        next_s, event = next_event(leaves[0][0], retries[0][0], arrive_s, sample_s, stop_s)
        if event == ARRIVES and arrived == count:
            break

        # Let the engines catch up, and release what they finish.
        for r in range(replicas):
            if next_s >= clocks[r][QUIET_S] or event >= SAMPLES:
                shape = (*layout, form, ring_rows[r])
                pool = (cell_rows[r], book, table, *pool_numbers[:7], r * pool_numbers[7])
                advance(
                    next_s,
                    1 if event == SAMPLES else 0,
                    states[r],
                    clocks[r],
                    heaps[r],
                    conf,
                    cost,
                    shape,
                    (slot_rows[r], field),
                    rows,
                    pool,
                )
            settle_door(next_s, states[r], doors[r], since[r], rows, held, watch)
        if event == ENDS:
            break

        if event == SAMPLES:
            take_sample(sampled * SAMPLE_COLUMNS, refused, doors, states, conf, samples)
            sampled += 1
            sample_s = next_sample_s(sampled, watch)
            continue

        if event == LEAVES:
            i = heappop(leaves)[1]
            if row[outcome + i] == UNFINISHED or (row[outcome + i] == COMPLETED and time[finish + i] > next_s):
                now_s = next_s
                r = row[column[REPLICA] + i]
                out_s = time[admitted + i] + time_out_s[i * of_time_out]
                how = TIMED_OUT if out_s <= arrival_s[i] + cancel_s[i * of_cancel] else CANCELLED
                abandon(i, now_s, how, states[r], clocks[r], doors[r], since[r], conf, rows, held, watch)
            continue

        if event == RETRIES:
            i = heappop(retries)[1]
        else:
            i = arrived
            arrived += 1
            if len(parent) > 0:
                arrived += left[i] - 1
        now_s = next_s
        if barred[i] or charge[i] > door[CAPACITY]:
            row[outcome + i] = REJECTED
            continue
        r = 0
        if replicas > 1:
            r = choose_replica(turn, door, doors)
            turn += 1
        sequences = left[i] if len(parent) > 0 else 1
        away_s = arrival_s[i] + cancel_s[i * of_cancel]
        if has_room(i, sequences, door, doors[r], held):
            leave_s = min(now_s + time_out_s[i * of_time_out], away_s)
            admit_request(
                i, r, sequences, now_s, leave_s, states[r], doors[r], since[r], leaves, conf, rows, held, watch
            )
            clocks[r][QUIET_S] = now_s
            reserved = 0
            for other in range(replicas):
                reserved += doors[other][RESERVED]
            totals[RESERVED_PEAK] = max(totals[RESERVED_PEAK], 1.0 * reserved)
            continue
        refused += 1
        row[column[REFUSALS] + i] += 1
        spread = (row[column[REFUSALS] + i] - 1) * GOLDEN
        lacking = max(0, doors[r][RESERVED] + charge[i] - door[CAPACITY])
        draw = fraction(server_draw[i] + spread)
        told_s = retry_after_s(lacking, charge[i], doors[r][RESERVED], now_s, draw, since[r], waits)
        draw = fraction(client_draw[i] + spread)
        place = int(client[i * of_client])
        again_s = next_try_s(i, told_s, now_s, place, clients, draw, away_s, waits[ROUND_TRIP_S], rows)
        if again_s >= 0.0:
            heappush(retries, (again_s, i))

    totals[TURN] = 1.0 * turn
    totals[REFUSED] = 1.0 * refused
    totals[SAMPLED] = 1.0 * sampled
    totals[LAST_EVENT_S] = now_s
    keys_now = pending_keys(heaps)
    retry_s_now, retry_now = split_events(retries)
    leave_s_now, leave_now = split_events(leaves)
    end_s = stop_s
    if stop_s == inf:
        end_s = now_s
    if event == ENDS:
        for r in range(replicas):
            if stop_s == inf:
                end_s = max(end_s, clocks[r][END_S])
            note_reserved(end_s, doors[r], since[r], watch)
    return end_s, (keys_now, retry_s_now, retry_now, leave_s_now, leave_now)
