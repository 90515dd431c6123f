"""Clients and front doors one event at a time, around the step-by-step engine: what ``run_kernel`` must equal."""

import math
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from math import inf, nan

from kvplan.admission import DrainEstimate, Ledger, retry_after_s, whole_seconds
from kvplan.simulation.types import ClientRule, EngineSetup, FrontDoor, Outcome, Requests, Router, Watch
from tests.reference_engine import ReferenceEngine, Sequence

GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(eq=False)
class Row:
    """What became of one request."""

    sequence: Sequence
    attempts: int = 0
    refusals: int = 0
    outcome: Outcome = Outcome.UNFINISHED
    admitted_s: float = nan
    left_s: float = nan
    replica: int = -1
    failed: list[int] = field(default_factory=list)
    """Tries of each loop of its client, from the inside out."""


@dataclass(eq=False)
class Side:
    """One replica: its engine, its ledger, and the prompts that are still being read."""

    engine: ReferenceEngine
    ledger: Ledger
    drain: DrainEstimate
    seen: int = 0
    reading: dict[int, Sequence] = field(default_factory=dict)
    inside: int = 0


class ReferenceDoor:
    """Plays a run; ``rows`` are its answer."""

    def __init__(
        self, requests: Requests, setup: EngineSetup, door: FrontDoor, clients: Listed[ClientRule], watch: Watch
    ) -> None:
        self.requests, self.door, self.clients, self.watch = requests, door, clients, watch
        wait = door.retry_after
        self.sides = [
            Side(
                engine=ReferenceEngine(setup, requests.chain_tokens),
                ledger=Ledger(door.capacity),
                drain=DrainEstimate(unknown_s=wait.unknown_s, longest_s=wait.longest_s),
            )
            for _ in range(door.replicas)
        ]
        self.turn = 0
        self.rows: list[Row] = []
        starts = requests.chain_start
        own = range(len(requests.arrival_s))
        self.parent: Listed[int] = own if requests.parent is None else requests.parent.tolist()
        self.family = {i: [j for j in own if self.parent[j] == i] for i in own}
        for i in range(len(requests.arrival_s)):
            prompt = int(requests.prompt_tokens[i])
            shared = () if requests.chain is None or starts is None else requests.chain[starts[i] : starts[i + 1]]
            self.rows.append(
                Row(
                    Sequence(
                        serial=i,
                        prompt=prompt,
                        answer=int(requests.output_tokens[i]),
                        cap=min(int(requests.cap_tokens[i]), setup.max_model_len - prompt),
                        content=tuple(int(link) for link in shared[: -(-prompt // requests.chain_tokens)]),
                        parent=-1 if requests.parent is None else self.parent[i],
                    )
                )
            )

    def run(self) -> list[Row]:
        events: list[tuple[float, int, int]] = [
            (float(time_s), 2, i) for i, time_s in enumerate(self.requests.arrival_s) if self.parent[i] == i
        ]
        while events:
            now_s, rank, i = event = min(events)
            if now_s > self.watch.stop_s:
                break
            events.remove(event)
            self.catch_up(now_s)
            if rank == 0:
                self.walk_away(i, now_s)
            else:
                events += self.attempt(i, now_s)
        self.catch_up(self.watch.stop_s)
        for row in self.rows:
            if row.left_s > self.watch.stop_s:  # decided when it was refused, but not yet done
                row.outcome, row.left_s = Outcome.UNFINISHED, nan
        return self.rows

    def catch_up(self, now_s: float) -> None:
        """Release what finished until now, in order."""
        for side in self.sides:
            side.engine.run(now_s)
            for time_s, sequence in side.engine.releases[side.seen :]:
                row = self.rows[sequence.serial]
                if row.outcome is Outcome.UNFINISHED:
                    row.outcome, row.left_s = Outcome.COMPLETED, time_s
                    self.give_back(side, sequence.serial, time_s)
            side.seen = len(side.engine.releases)
            for serial, sequence in list(side.reading.items()):
                if not math.isnan(sequence.first_token_s):
                    del side.reading[serial]

    def give_back(self, side: Side, i: int, now_s: float) -> None:
        side.inside -= 1
        side.reading.pop(i, None)
        asked_by = self.parent[i]
        if all(self.rows[j].outcome is not Outcome.UNFINISHED for j in self.family[asked_by]):
            held_s = now_s - self.rows[asked_by].admitted_s
            charge = int(self.requests.charge[asked_by])
            side.drain.released(charge, held_s=held_s, reserved=side.ledger.reserved)
            assert side.ledger.release(asked_by)

    def walk_away(self, i: int, now_s: float) -> None:
        row = self.rows[i]
        if row.outcome is not Outcome.UNFINISHED:
            return
        timed_out = (
            row.admitted_s + self.requests.time_out_s[i] <= self.requests.arrival_s[i] + self.requests.cancel_s[i]
        )
        row.outcome, row.left_s = (Outcome.TIMED_OUT if timed_out else Outcome.CANCELLED), now_s
        side = self.sides[row.replica]
        self.give_back(side, i, now_s)
        side.engine.leave(row.sequence)

    def choose(self) -> int:
        if self.door.router is Router.MIN_RESERVED:
            return min(range(len(self.sides)), key=lambda r: (self.sides[r].ledger.reserved, self.sides[r].inside, r))
        self.turn += 1
        return (self.turn - 1) % len(self.sides)

    def attempt(self, i: int, now_s: float) -> list[tuple[float, int, int]]:
        """One try; the events that follow from it."""
        requests, row, charge = self.requests, self.rows[i], int(self.requests.charge[i])
        row.attempts += 1
        if requests.refused_for_good[i] or charge > self.door.capacity:
            row.outcome = Outcome.REJECTED_PERMANENTLY
            return []
        replica = self.choose()
        side = self.sides[replica]
        reading = sum(sequence.prompt for sequence in side.reading.values())
        family = self.family[i]
        room = side.inside + len(family) <= self.door.max_inside and reading < self.door.max_queued_tokens
        if room and side.ledger.try_reserve(i, charge):
            side.inside += len(family)
            for j in family:
                one = self.rows[j]
                one.replica, one.admitted_s = replica, now_s
                side.engine.add(now_s, one.sequence)
                side.reading[j] = one.sequence
            away_s = min(now_s + requests.time_out_s[i], requests.arrival_s[i] + requests.cancel_s[i])
            return [(float(away_s), 0, j) for j in family] if away_s < inf else []
        row.refusals += 1
        wait = self.door.retry_after
        told_s = wait.seconds
        if told_s is None:
            missing = charge - side.ledger.free
            told_s = side.drain.wait_s(missing=missing, weight=charge, reserved=side.ledger.reserved, now_s=now_s)
        draw = float((requests.server_draw[i] + (row.attempts - 1) * GOLDEN) % 1.0)
        told_s = retry_after_s(told_s, jitter_share=wait.jitter_share, draw=draw, longest_s=wait.longest_s)
        again_s = self.next_wait(i, told_s)
        if again_s is None:
            row.outcome = Outcome.GAVE_UP
            return []
        next_s = now_s + max(again_s, self.door.round_trip_s)
        until_s = requests.arrival_s[i] + requests.cancel_s[i]
        if until_s <= next_s:
            row.outcome, row.left_s = Outcome.CANCELLED, float(until_s)
            return []
        return [(next_s, 1, i)]

    def next_wait(self, i: int, told_s: float) -> float | None:
        """Loop in loop: the innermost tries again, or is over, and so was one try of the loop around it."""
        row = self.rows[i]
        draw = float((self.requests.client_draw[i] + (row.attempts - 1) * GOLDEN) % 1.0)
        rule: ClientRule | None = self.clients[int(self.requests.client[i])]
        level = 0
        while rule is not None:
            row.failed += [0] * (level + 1 - len(row.failed))
            row.failed[level] += 1
            wait_s = back_off(rule, row.failed[level], told_s, draw)
            if wait_s is not None:
                return wait_s
            row.failed[level] = 0
            rule, level = rule.outer, level + 1
        return None


def back_off(rule: ClientRule, failed: int, told_s: float, draw: float) -> float | None:
    """The wait of one loop after so many failed tries; None where it gives up."""
    if failed >= rule.tries:
        return None
    if rule.honours_retry_after:
        header_s = float(whole_seconds(told_s)) if rule.whole_seconds else told_s
        if header_s <= rule.longest_honoured_s:
            if not rule.jitter_on_header:
                return header_s
            return header_s * (1.0 - draw * rule.jitter_share) + draw * rule.jitter_add_s
        if rule.gives_up_when_longer:
            return None
    own_s = min(rule.backoff_base_s * 2.0 ** (failed - 1), rule.backoff_max_s)
    return own_s * (1.0 - draw * rule.jitter_share) + draw * rule.jitter_add_s
