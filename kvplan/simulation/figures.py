"""The figures of one run after its warm-up, over all requests and over each class."""

import math
from dataclasses import replace

import numpy as np

from kvplan.simulation.recovery import recovery
from kvplan.simulation.results import Counts, Figures, Quantiles, SeedResult
from kvplan.simulation.types import Flags, Floats, Integers, Outcome, RequestRows, Requests, Run
from kvplan.traffic.on_disk import forget, is_long, pieces

_OUTCOMES = {
    "completed": Outcome.COMPLETED,
    "gave_up": Outcome.GAVE_UP,
    "rejected_permanently": Outcome.REJECTED_PERMANENTLY,
    "timed_out": Outcome.TIMED_OUT,
    "cancelled": Outcome.CANCELLED,
    "unfinished": Outcome.UNFINISHED,
}


def measure(
    run: Run,
    requests: Requests,
    *,
    seed: int,
    class_index: Integers,
    classes: int,
    from_s: float,
    until_s: float,
    pool_blocks: int,
    ledger_capacity: int | None,
) -> SeedResult:
    """The figures of one run over the requests that arrived in [from, until), and over each class of them.

    ``pool_blocks`` and ``ledger_capacity`` are of all replicas together; mean shares are over the watched time.
    """
    end_s = min(until_s, run.totals.end_s)
    watched_s = max(end_s - from_s, 1e-12)
    groups = [_Tally(from_s, end_s) for _ in range(1 + classes)]
    inside_s = [0.0, 0.0]
    alone = requests if requests.chain is None else replace(requests, chain=None, chain_start=None)
    for piece in pieces(len(requests.arrival_s)):
        asked, rows = alone.part(piece), run.rows.part(piece)
        measured = (asked.arrival_s >= from_s) & (asked.arrival_s < until_s)
        for index, group in enumerate(groups, start=-1):
            group.add(asked, rows, measured if index < 0 else measured & (class_index[piece] == index))
        inside_s = [before + more for before, more in zip(inside_s, _inside_s(asked, rows, from_s, end_s), strict=True)]
        forget(requests, run.rows, class_index)
    figures = [group.figures() for group in groups]
    middle_s = (from_s + end_s) / 2
    halves = inside_s[0] / max(middle_s - from_s, 1e-12), inside_s[1] / max(end_s - middle_s, 1e-12)
    last_s = max(from_s, float(requests.arrival_s[-1])) if len(requests.arrival_s) else from_s
    pool_s = pool_blocks * max(run.totals.watched_s, 1e-12)
    return SeedResult(
        seed=seed,
        figures=figures[0],
        classes=tuple(figures[1:]),
        over_capacity_events=run.totals.over_capacity_events,
        reserved_mean_share=None
        if ledger_capacity is None
        else run.totals.reserved_unit_s / (max(ledger_capacity, 1) * max(run.totals.watched_s, 1e-12)),
        used_mean_share=run.totals.used_block_s / pool_s,
        used_peak_share=run.totals.used_peak_blocks / pool_blocks,
        load_first_half=halves[0],
        load_second_half=halves[1],
        offered_per_s=figures[0].requests.offered / watched_s,
        end_s=run.totals.end_s,
        recovery=recovery(requests, run.rows, from_s, min(until_s, last_s)),
        steps=run.totals.steps,
        kernel=run.kernel,
    )


class _Tally:
    """The figures of one group of requests, summed piece by piece."""

    def __init__(self, from_s: float, end_s: float) -> None:
        self.from_s, self.end_s = from_s, end_s
        self.requests = Counts()
        self.attempts = self.refusals = self.preemptions = self.recomputed_tokens = 0
        self.tokens = 0.0
        self.queue_s, self.ttft_s, self.e2e_s = Times(), Times(), Times()

    def add(self, requests: Requests, rows: RequestRows, chosen: Flags) -> None:
        """Add the ``chosen`` of these requests."""
        outcome = rows.outcome[chosen]
        completed = chosen & (rows.outcome == Outcome.COMPLETED)
        arrival_s = requests.arrival_s[completed]
        self.requests += Counts(
            offered=int(chosen.sum()),
            refused=int(np.count_nonzero(rows.refusals[chosen] > 0)),
            truncated=int(np.count_nonzero((requests.output_tokens > requests.cap_tokens)[completed])),
            **{name: int(np.count_nonzero(outcome == code)) for name, code in _OUTCOMES.items()},
        )
        self.attempts += int(rows.attempts[chosen].sum())
        self.refusals += int(rows.refusals[chosen].sum())
        self.preemptions += int(rows.preemptions[chosen].sum())
        self.recomputed_tokens += int(rows.recomputed_tokens[chosen].sum())
        self.tokens += _tokens_within(rows, chosen, self.from_s, self.end_s)
        self.queue_s.add((rows.scheduled_s - rows.admitted_s)[completed])
        self.ttft_s.add(rows.first_token_s[completed] - arrival_s)
        self.e2e_s.add(rows.finish_s[completed] - arrival_s)

    def figures(self) -> Figures:
        """The figures of all that were added."""
        return Figures(
            requests=self.requests,
            attempts=self.attempts,
            refusals=self.refusals,
            preemptions=self.preemptions,
            recomputed_tokens=self.recomputed_tokens,
            output_tokens_per_s=self.tokens / max(self.end_s - self.from_s, 1e-12),
            queue_s=self.queue_s.quantiles(),
            ttft_s=self.ttft_s.quantiles(),
            e2e_s=self.e2e_s.quantiles(),
        )


class Times:
    """Times and their quantiles: up to one piece they are kept, beyond that they are counted in a histogram.

    Bin k holds the times from 1.001^k to 1.001^(k + 1) seconds, so a quantile is within 0.05% of its true value; times
    below a nanosecond count as 0. The mean stays exact.
    """

    _LOG = math.log(1.001)
    _SHORTEST = math.floor(math.log(1e-9) / _LOG)
    _BINS = -2 * _SHORTEST

    def __init__(self) -> None:
        self.kept: list[Floats] = []
        self.bins = np.zeros(0, np.int64)
        self.count, self.sum = 0, 0.0

    def add(self, values: Floats) -> None:
        """Add times; nan is left out."""
        values = values[~np.isnan(values)]
        self.count += len(values)
        self.sum += float(values.sum())
        self.kept.append(values)
        if is_long(self.count):
            for each in self.kept:
                size = np.floor(np.log(np.maximum(each, 1e-12)) / self._LOG) - self._SHORTEST
                index = np.clip(size, 0, self._BINS - 1).astype(np.int64)
                self.bins = np.bincount(index, minlength=self._BINS) + (self.bins if len(self.bins) else 0)
            self.kept = []

    def quantiles(self) -> Quantiles:
        """``quantiles`` of all times."""
        if not len(self.bins):
            return quantiles(np.concatenate(self.kept) if len(self.kept) != 1 else self.kept[0])
        reached = np.cumsum(self.bins)
        ranks = [math.ceil(share * self.count) for share in (0.5, 0.9, 0.99)]
        found = [int(np.searchsorted(reached, rank)) for rank in ranks]
        p50, p90, p99 = (math.exp((k + self._SHORTEST + 0.5) * self._LOG) if k else 0.0 for k in found)
        return Quantiles(mean=self.sum / self.count, p50=p50, p90=p90, p99=p99)


def _tokens_within(rows: RequestRows, chosen: Flags, from_s: float, end_s: float) -> float:
    """Tokens delivered between two times, each answer spread evenly from its first token to its end.

    Answers that lie wholly inside are counted as they are; only those that cross an end are shared out.
    """
    finish_s = np.where(np.isnan(rows.finish_s), end_s, rows.finish_s)
    spoke = chosen & (rows.output_tokens > 0) & (rows.first_token_s <= end_s) & (finish_s >= from_s)
    crossing = spoke & ((rows.first_token_s < from_s) | (finish_s > end_s))
    whole = int(rows.output_tokens[spoke & ~crossing].sum())
    start, finish = rows.first_token_s[crossing], finish_s[crossing]
    inside = np.minimum(finish, end_s) - np.maximum(start, from_s)
    return whole + float((rows.output_tokens[crossing] * inside / (finish - start)).sum())


def quantiles(values: Floats) -> Quantiles:
    """Mean, median, p90 and p99. The quantile of n values at p is value number ceil(p × n) (nearest rank).

    >>> quantiles(np.array([1.0, 2.0, 3.0, 4.0]))
    Quantiles(mean=2.5, p50=2.0, p90=4.0, p99=4.0)
    """
    kept = values[~np.isnan(values)]
    if not len(kept):
        return Quantiles(mean=None, p50=None, p90=None, p99=None)
    p50, p90, p99 = np.quantile(kept, [0.5, 0.9, 0.99], method="inverted_cdf").tolist()
    return Quantiles(mean=float(kept.mean()), p50=p50, p90=p90, p99=p99)


def _inside_s(requests: Requests, rows: RequestRows, from_s: float, end_s: float) -> tuple[float, float]:
    """Request-seconds in the system, waits between retries included, in either half of the watched time."""
    middle_s = (from_s + end_s) / 2
    leaves = np.where(
        np.isnan(rows.finish_s), np.where(rows.outcome == Outcome.UNFINISHED, np.inf, requests.arrival_s), rows.finish_s
    )

    def inside_s(low_s: float, high_s: float) -> float:
        return float(np.clip(np.minimum(leaves, high_s) - np.maximum(requests.arrival_s, low_s), 0.0, None).sum())

    return inside_s(from_s, middle_s), inside_s(middle_s, end_s)
