"""From many seeds to one row per strategy, and the list of everything that was assumed."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Protocol

from kvplan.simulation.bounds import judged_strategy, unset_share
from kvplan.simulation.doors import ENGINE_QUEUE_FACTOR, Door
from kvplan.simulation.plant import Plant
from kvplan.simulation.results import (
    Burst,
    ClassResult,
    Counts,
    Figures,
    Inputs,
    KvShares,
    SeedResult,
    StrategyResult,
)
from kvplan.simulation.statistics import SHARES, mean_interval, pooled, steadiness
from kvplan.simulation.types import UNLIMITED, Samples
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.on_disk import is_long
from kvplan.traffic.spec import Traffic

_WORST_COUNTS = ("preemptions", "refusals")


class OneRun(Protocol):
    """What a worker sends back about one seed."""

    @property
    def result(self) -> SeedResult: ...
    @property
    def samples(self) -> Samples | None: ...
    @property
    def sustainable_per_s(self) -> float: ...


def gather(opened: Door, runs: Sequence[OneRun], class_names: Sequence[str], *, watched_s: float) -> StrategyResult:
    """One strategy over its seeds: sums of counts, means and intervals of shares and times."""
    results = [run.result for run in runs]
    totals = _totals([result.figures for result in results])
    steady, reason = steadiness(results, watched_s=watched_s)
    shares, intervals = _shares(results)
    bounds = [run.sustainable_per_s for run in runs]
    if all(map(math.isfinite, bounds)):
        intervals["sustainable_per_s"] = mean_interval(bounds)[1]
    burst = _burst(results)
    if burst is not None and burst.recovery_s is None:
        intervals.pop("recovery_s", None)  # of the seeds that did recover: it says too little
    reserved = [result.reserved_mean_share for result in results if result.reserved_mean_share is not None]
    return StrategyResult(
        name=opened.strategy.name,
        summary=opened.strategy.summary,
        default_max_tokens=opened.default_max_tokens,
        ledger_capacity=opened.capacity if opened.capacity < UNLIMITED else None,
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
    """What the seeds' bursts have in common; None where no seed has one."""
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
    """Means over seeds with their 95 % intervals: shares of those offered, times, throughput, KV use."""
    columns: dict[str, list[float]] = {}
    for result in results:
        for name, value in _seed_values(result):
            if value is not None:
                columns.setdefault(name, []).append(value)
    pairs = {name: mean_interval(values) for name, values in columns.items()}
    means = {name: mean for name, (mean, _) in pairs.items()}
    return means, {name: _possible(name, interval) for name, (_, interval) in pairs.items()}


def _possible(name: str, interval: tuple[float, float]) -> tuple[float, float]:
    """The part of an interval that the figure can take: none of them is negative, and a share ends at one."""
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
    """The highest count of a single seed: what limits on counts are judged by."""
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


def describe_inputs(
    traffic: Traffic,
    plant: Plant,
    arrivals: Arrivals,
    *,
    names: tuple[str, ...],
    seed: int,
    seeds: int,
    scale: float,
    warmup_s: float,
    default_cap: int,
    default_cap_source: str,
) -> Inputs:
    """The inputs of a run, every assumption as a sentence."""
    answer, step = traffic.admission.retry_after, plant.service.step
    jitter = f", spread by up to {answer.jitter_share:.0%}" if answer.jitter_share else ""
    told = "the ledger's expected drain" if answer.seconds is None else f"{answer.seconds:g} s"
    return Inputs(
        traffic_file=traffic.file,
        seed=seed,
        seeds=seeds,
        scale=scale,
        duration_s=traffic.duration_s,
        warmup_s=warmup_s,
        strategies=names,
        policy=traffic.admission.policy,
        judged=judged_strategy(traffic).name,
        safety_fraction=traffic.admission.safety_fraction,
        default_max_tokens=default_cap,
        default_max_tokens_source=default_cap_source,
        concurrency=traffic.admission.concurrency or plant.settings.max_num_seqs,
        retry_after=f"{told}{jitter}",
        service_source=plant.service.source,
        service_band_share=plant.service.band_share,
        service=vars(step).copy(),
        reservation_quantile=traffic.reservation_quantile,
        clients=tuple(client for client in arrivals.clients if client),
        unset_share=unset_share([arrivals]),
        skipped_rows=dict(arrivals.skipped),
        odd_rows=arrivals.odd_rows,
        assumptions=tuple(_assumptions(traffic, plant, arrivals, names, warmup_s)),
    )


def _assumptions(
    traffic: Traffic, plant: Plant, arrivals: Arrivals, names: Sequence[str], warmup_s: float
) -> list[str]:
    unset = unset_share([arrivals])
    found = []
    if unset:
        found.append(f"{unset:.0%} of requests send no max_tokens: an assumption, no public trace records it")
    if plant.service.band_share:
        found.append(f"service time from {plant.service.source}, ± {plant.service.band_share:.0%}")
    found += plant.notes
    if warmup_s:
        found.append(f"the first {warmup_s:.0f} s are warm-up and not counted; after the last arrival the run drains")
    if any(entry.cancel_share for entry in traffic.classes):
        found.append("users who cancel do so within the time that an idle engine would take for their answer")
    for entry in traffic.classes:
        if (most := entry.answers.quantile(1.0)) > 1:
            found.append(
                f"{entry.name} asks for up to {most} answers a request: one reservation for all of them, given back "
                "with the last; each answer has a length of its own"
            )
    if any(entry.client is None for entry in traffic.classes):
        found.append("requests without a client try once and never again")
    if "engine_queue" in names and not (traffic.deployment.max_queued_requests or traffic.deployment.max_queued_tokens):
        found.append(f"engine_queue takes {ENGINE_QUEUE_FACTOR} × max_num_seqs requests in: the file names no cap")
    if is_long(len(arrivals)):
        found.append("times of so many requests are counted by size: their quantiles are right to 0.05%")
    if arrivals.prefixes is not None and len(plant.layout.groups) > 1:
        found.append("shared prompt prefixes of the trace are not used")
    return found
