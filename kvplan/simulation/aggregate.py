"""Many seeds as one row per strategy: sums of counts, means of shares and times with their intervals."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from statistics import NormalDist

from kvplan.simulation.front_door import AppliedStrategy
from kvplan.simulation.results import (
    SHARES,
    Burst,
    ClassResult,
    Counts,
    Figures,
    KvShares,
    Quantiles,
    SeedResult,
    StrategyResult,
)
from kvplan.simulation.tasks import TaskResult
from kvplan.simulation.types import UNLIMITED

_WORST_COUNTS = ("preemptions", "refusals")


def over_seeds(
    applied: AppliedStrategy, runs: Sequence[TaskResult], class_names: Sequence[str], *, watched_s: float
) -> StrategyResult:
    """One strategy over its seeds: sums of counts, means and 95% intervals of shares and times."""
    results = [run.result for run in runs]
    totals = _totals([result.figures for result in results])
    steady, reason = steadiness(results, watched_s=watched_s)
    shares, intervals = _shares(results)
    bounds = [run.sustainable_per_s for run in runs]
    if all(map(math.isfinite, bounds)):
        intervals["sustainable_per_s"] = mean_interval(bounds)[1]
    burst = _burst(results)
    if burst is not None and burst.recovery_s is None:
        intervals.pop("recovery_s", None)  # it is of the seeds that did recover, and says too little
    reserved = [result.reserved_mean_share for result in results if result.reserved_mean_share is not None]
    return StrategyResult(
        name=applied.strategy.name,
        summary=applied.strategy.summary,
        default_max_tokens=applied.default_max_tokens,
        ledger_capacity=applied.capacity if applied.capacity < UNLIMITED else None,
        requests=totals,
        attempts=sum(result.figures.attempts for result in results),
        refusals=sum(result.figures.refusals for result in results),
        amplification=shares["amplification"],
        preemptions=sum(result.figures.preemptions for result in results),
        recomputed_tokens=sum(result.figures.recomputed_tokens for result in results),
        over_capacity_events=sum(result.over_capacity_events for result in results),
        kv=KvShares(
            reserved_mean_share=_mean(reserved) if reserved else None,
            used_mean_share=_mean([result.used_mean_share for result in results]),
            used_peak_share=max(result.used_peak_share for result in results),
        ),
        queue_s=pooled(results, lambda result: result.figures.queue_s),
        ttft_s=pooled(results, lambda result: result.figures.ttft_s),
        e2e_s=pooled(results, lambda result: result.figures.e2e_s),
        output_tokens_per_s=_mean([result.figures.output_tokens_per_s for result in results]),
        shares={name: value for name, value in shares.items() if name.endswith("_share")},
        intervals=intervals,
        worst_seed=_worst(results),
        classes=tuple(_class_result(name, index, results) for index, name in enumerate(class_names)),
        sustainable_per_s=_mean(bounds),
        steady=steady,
        steady_reason=reason,
        seeds=tuple(results),
        samples=runs[0].samples,
        burst=burst,
    )


def _burst(results: Sequence[SeedResult]) -> Burst | None:
    """The bursts of the seeds together; None where no seed has one."""
    found = [result.recovery for result in results if result.recovery is not None]
    if not found:
        return None
    times = [one.recovery_s for one in found if one.recovery_s is not None]
    ratios = [one.peak_per_s / one.usual_per_s for one in found if one.usual_per_s > 0]
    return Burst(
        seeds=len(found),
        seeds_recovered=len(times),
        peak_to_usual=_mean(ratios) if ratios else None,
        recovery_s=_mean(times) if len(times) == len(found) else None,
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _totals(figures: Sequence[Figures]) -> Counts:
    return reduce(add, (one.requests for one in figures), Counts())


def _shares(results: Sequence[SeedResult]) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Means over seeds and their 95% intervals: shares of those offered, times, throughput, KV use."""
    columns: dict[str, list[float]] = {}
    for result in results:
        for name, value in _seed_values(result):
            if value is not None:
                columns.setdefault(name, []).append(value)
    pairs = {name: mean_interval(values) for name, values in columns.items()}
    means = {name: mean for name, (mean, _) in pairs.items()}
    return means, {name: _possible(name, interval) for name, (_, interval) in pairs.items()}


def _possible(name: str, interval: tuple[float, float]) -> tuple[float, float]:
    """The part of an interval that is possible: no figure is negative, and no share above one."""
    high = min(interval[1], 1.0) if name.endswith("_share") else interval[1]
    return max(interval[0], 0.0), high


def _seed_values(result: SeedResult) -> Iterator[tuple[str, float | None]]:
    """Every figure of one seed that gets an interval, by name."""
    figures = result.figures
    for name in SHARES:
        yield f"{name}_share", figures.requests.share(name)
    yield "amplification", figures.attempts / max(figures.requests.offered, 1)
    yield "preemptions", float(figures.preemptions)
    yield "output_tokens_per_s", figures.output_tokens_per_s
    yield "kv_used_mean_share", result.used_mean_share
    yield "kv_reserved_mean_share", result.reserved_mean_share
    yield "recovery_s", None if result.recovery is None else result.recovery.recovery_s
    for time, found in (("queue", figures.queue_s), ("ttft", figures.ttft_s), ("e2e", figures.e2e_s)):
        for name in ("mean", "p50", "p90", "p99"):
            yield f"{time}_{name}_s", getattr(found, name)


def _worst(results: Sequence[SeedResult]) -> Mapping[str, float]:
    """The highest count of a single seed, by which limits on counts are judged."""
    worst = {name: float(max(getattr(result.figures, name) for result in results)) for name in _WORST_COUNTS}
    worst["over_capacity_events"] = float(max(result.over_capacity_events for result in results))
    return worst


def _class_result(name: str, index: int, results: Sequence[SeedResult]) -> ClassResult:
    figures = [result.classes[index] for result in results]
    return ClassResult(
        name=name,
        requests=_totals(figures),
        attempts=sum(one.attempts for one in figures),
        refusals=sum(one.refusals for one in figures),
        preemptions=sum(one.preemptions for one in figures),
        queue_s=pooled(results, lambda result: result.classes[index].queue_s),
        ttft_s=pooled(results, lambda result: result.classes[index].ttft_s),
        e2e_s=pooled(results, lambda result: result.classes[index].e2e_s),
        shares={f"{share}_share": _mean([one.requests.share(share) for one in figures]) for share in SHARES},
    )


def mean_interval(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The mean and its 95% interval by Student's t; of a single value the interval is that value.

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
    """The 0.975 quantile of Student's t: a table up to 10 degrees of freedom, then the Cornish-Fisher expansion.

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
    """The mean over seeds of each quantile of a time; None where no seed has one."""

    def of_seeds(name: str) -> float | None:
        values = [getattr(pick(result), name) for result in results]
        known = [value for value in values if value is not None]
        return math.fsum(known) / len(known) if known else None

    return Quantiles(mean=of_seeds("mean"), p50=of_seeds("p50"), p90=of_seeds("p90"), p99=of_seeds("p99"))


def steadiness(results: Sequence[SeedResult], *, watched_s: float) -> tuple[bool, str]:
    """Whether the load was steady: the mean number of requests inside in the second half against the first.

    It was not where that grew by more than 20% and one request on average over seeds and, with several seeds, the
    whole 95% interval of the growth is above zero.
    """
    growth = [result.load_second_half - result.load_first_half for result in results]
    mean, (low, _) = mean_interval(growth)
    before = math.fsum(result.load_first_half for result in results) / len(results)
    grew = mean > max(0.2 * before, 1.0) and (low > 0 or len(results) == 1)
    if grew:
        return False, (
            f"{before:.1f} requests were in the system on average in the first half of the {watched_s:.0f} s and "
            f"{before + mean:.1f} in the second, so a longer run would give other figures"
        )
    return True, f"requests inside: {before:.1f} in the first half, {before + mean:.1f} in the second"
