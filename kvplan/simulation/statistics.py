"""From rows to figures: what one run shows after its warm-up, and what many seeds show together."""

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

from kvplan.simulation.recovery import recovery
from kvplan.simulation.results import Counts, Figures, Quantiles, SeedResult
from kvplan.simulation.types import Flags, Floats, Integers, Outcome, RequestRows, Requests, Run

_OUTCOMES = {
    "completed": Outcome.COMPLETED,
    "gave_up": Outcome.GAVE_UP,
    "rejected_permanently": Outcome.REJECTED_PERMANENTLY,
    "timed_out": Outcome.TIMED_OUT,
    "cancelled": Outcome.CANCELLED,
    "unfinished": Outcome.UNFINISHED,
}
SHARES = (
    "completed",
    "refused",
    "gave_up",
    "rejected_permanently",
    "timed_out",
    "cancelled",
    "unfinished",
    "truncated",
)


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

    ``pool_blocks`` and ``ledger_capacity`` are of all replicas together; shares of time are over the watched time.
    """
    measured = (requests.arrival_s >= from_s) & (requests.arrival_s < until_s)
    end_s = min(until_s, run.totals.end_s)
    watched_s = max(end_s - from_s, 1e-12)
    everyone = [measured, *(measured & (class_index == index) for index in range(classes))]
    figures = [_figures(run.rows, requests, chosen, from_s, end_s) for chosen in everyone]
    pool_s = pool_blocks * max(run.totals.watched_s, 1e-12)
    halves = _halves(requests, run.rows, from_s, end_s)
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
        offered_per_s=int(measured.sum()) / watched_s,
        end_s=run.totals.end_s,
        recovery=recovery(requests, run.rows, from_s, min(until_s, float(requests.arrival_s.max(initial=from_s)))),
        steps=run.totals.steps,
        kernel=run.kernel,
    )


def _figures(rows: RequestRows, requests: Requests, chosen: Flags, from_s: float, end_s: float) -> Figures:
    outcome = rows.outcome[chosen]
    counts = {name: int(np.count_nonzero(outcome == code)) for name, code in _OUTCOMES.items()}
    completed = chosen & (rows.outcome == Outcome.COMPLETED)
    arrival_s = requests.arrival_s[completed]
    return Figures(
        requests=Counts(
            offered=int(chosen.sum()),
            refused=int(np.count_nonzero(rows.refusals[chosen] > 0)),
            truncated=int(np.count_nonzero((requests.output_tokens > requests.cap_tokens)[completed])),
            **counts,
        ),
        attempts=int(rows.attempts[chosen].sum()),
        refusals=int(rows.refusals[chosen].sum()),
        preemptions=int(rows.preemptions[chosen].sum()),
        recomputed_tokens=int(rows.recomputed_tokens[chosen].sum()),
        output_tokens_per_s=_tokens_within(rows, chosen, from_s, end_s) / max(end_s - from_s, 1e-12),
        queue_s=quantiles((rows.scheduled_s - rows.admitted_s)[completed]),
        ttft_s=quantiles(rows.first_token_s[completed] - arrival_s),
        e2e_s=quantiles(rows.finish_s[completed] - arrival_s),
    )


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
    """Mean, median, p90 and p99; the quantile of n values at p is value number ceil(p × n), as a percentile rank says.

    >>> quantiles(np.array([1.0, 2.0, 3.0, 4.0]))
    Quantiles(mean=2.5, p50=2.0, p90=4.0, p99=4.0)
    """
    kept = values[~np.isnan(values)]
    if not len(kept):
        return Quantiles(mean=None, p50=None, p90=None, p99=None)
    p50, p90, p99 = np.quantile(kept, [0.5, 0.9, 0.99], method="inverted_cdf").tolist()
    return Quantiles(mean=float(kept.mean()), p50=p50, p90=p90, p99=p99)


def _halves(requests: Requests, rows: RequestRows, from_s: float, end_s: float) -> tuple[float, float]:
    """Mean number of requests in the system (waiting between tries included) in either half of the watched time."""
    middle_s = (from_s + end_s) / 2
    leaves = np.where(
        np.isnan(rows.finish_s), np.where(rows.outcome == Outcome.UNFINISHED, np.inf, requests.arrival_s), rows.finish_s
    )

    def mean_inside(low_s: float, high_s: float) -> float:
        stay = np.clip(np.minimum(leaves, high_s) - np.maximum(requests.arrival_s, low_s), 0.0, None)
        return float(stay.sum() / max(high_s - low_s, 1e-12))

    return mean_inside(from_s, middle_s), mean_inside(middle_s, end_s)


def mean_interval(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Mean and its 95 % interval by Student's t; with one value the interval is that value.

    >>> mean_interval([1.0, 3.0])
    (2.0, (-10.706204736432095, 14.706204736432095))
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, (mean, mean)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = student_t(len(values) - 1) * math.sqrt(variance / len(values))
    return mean, (mean - half, mean + half)


_T_TABLE = (
    12.706204736432095,
    4.302653,
    3.182446,
    2.776445,
    2.570582,
    2.446912,
    2.364624,
    2.306004,
    2.262157,
    2.228139,
)


def student_t(degrees: int) -> float:
    """The 0.975 quantile of Student's t: a table to 10 degrees, beyond it Cornish and Fisher's series.

    >>> round(student_t(9), 3), round(student_t(30), 3)
    (2.262, 2.042)
    """
    if degrees <= len(_T_TABLE):
        return _T_TABLE[degrees - 1]
    z = NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / (4 * degrees)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    return z + first + second


def pooled(results: Sequence[SeedResult], pick: Callable[[SeedResult], Quantiles]) -> Quantiles:
    """The mean over seeds of each of a time's figures; None where no seed has one."""

    def over_seeds(name: str) -> float | None:
        values = [getattr(pick(result), name) for result in results]
        known = [value for value in values if value is not None]
        return math.fsum(known) / len(known) if known else None

    return Quantiles(mean=over_seeds("mean"), p50=over_seeds("p50"), p90=over_seeds("p90"), p99=over_seeds("p99"))


def steadiness(results: Sequence[SeedResult], *, watched_s: float) -> tuple[bool, str]:
    """Whether the load had settled: the mean number of requests inside, second half against first.

    Not steady when it grew by more than 20 % and one request on average over seeds, beyond what the seeds' own spread
    explains (the whole 95 % interval of the growth above zero, where there are several).
    """
    growth = [result.load_second_half - result.load_first_half for result in results]
    mean, (low, _) = mean_interval(growth)
    before = math.fsum(result.load_first_half for result in results) / len(results)
    grew = mean > max(0.2 * before, 1.0) and (low > 0 or len(results) == 1)
    if grew:
        return False, (
            f"requests inside went from {before:.1f} to {before + mean:.1f} between the halves of {watched_s:.0f} s: "
            "the figures depend on how long the run is"
        )
    return True, f"requests inside: {before:.1f} in the first half, {before + mean:.1f} in the second"
