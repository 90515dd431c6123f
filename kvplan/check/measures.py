"""What each name in ``limits:`` measures: a figure of the plan, or one that every seed has, combined over the seeds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from kvplan.check.results import Bound, Measured, Reading
from kvplan.simulation.aggregate import mean_interval
from kvplan.simulation.results import SHARES, Figures, SeedResult, Simulation, StrategyResult
from kvplan.simulation.simulate import is_random


@dataclass(frozen=True, kw_only=True)
class SeedMeasure:
    """A figure that every seed has: ``of_requests``, of all or of one class, or ``of_run``, of the run as a whole.
    ``over_seeds``: its mean with an interval, or the worst of them (counts, peaks)."""

    of_requests: Callable[[Figures], float | None] | None = None
    of_run: Callable[[SeedResult], float | None] | None = None
    over_seeds: Literal["mean", "worst"] = "mean"

    @property
    def of_classes(self) -> bool:
        """Whether each class has its own."""
        return self.of_requests is not None

    def pick(self, result: SeedResult, place: int | None) -> float | None:
        """The figure of one seed, of all classes or the one at ``place``."""
        if self.of_requests is not None:
            return self.of_requests(result.figures if place is None else result.classes[place])
        assert self.of_run is not None
        return self.of_run(result)


@dataclass(frozen=True, kw_only=True)
class PlanMeasure:
    """A figure without randomness: of the memory plan, the deployment, or the closed form."""

    read: Callable[[Measured, str | None], Reading]
    of_classes: bool = False
    needs_simulation: bool = False


def _share(figures: Figures, *, name: str) -> float | None:
    return figures.requests.share(name) if figures.requests.offered else None


def _refused(figures: Figures) -> float | None:
    """Refused for now or for good; no other share shows those that can never fit."""
    requests = figures.requests
    return (requests.refused + requests.rejected_permanently) / requests.offered if requests.offered else None


def _time(figures: Figures, *, time: str, point: str) -> float | None:
    found: float | None = getattr(getattr(figures, time), point)
    return found


SEED_MEASURES: Mapping[str, SeedMeasure] = {
    **{f"{name}_share": SeedMeasure(of_requests=partial(_share, name=name)) for name in SHARES},
    "refused_share": SeedMeasure(of_requests=_refused),
    "preemptions": SeedMeasure(of_requests=lambda figures: figures.preemptions, over_seeds="worst"),
    "refusals": SeedMeasure(of_requests=lambda figures: figures.refusals, over_seeds="worst"),
    "over_capacity_events": SeedMeasure(of_run=lambda result: result.over_capacity_events, over_seeds="worst"),
    "amplification": SeedMeasure(
        of_requests=lambda figures: figures.attempts / figures.requests.offered if figures.requests.offered else None
    ),
    "output_tokens_per_s": SeedMeasure(of_requests=lambda figures: figures.output_tokens_per_s),
    **{
        f"{time}_{point}_s": SeedMeasure(of_requests=partial(_time, time=f"{time}_s", point=point))
        for time in ("queue", "ttft", "e2e")
        for point in ("mean", "p50", "p90", "p99")
    },
    "kv_reserved_mean_share": SeedMeasure(of_run=lambda result: result.reserved_mean_share),
    "kv_used_mean_share": SeedMeasure(of_run=lambda result: result.used_mean_share),
    "kv_used_peak_share": SeedMeasure(of_run=lambda result: result.used_peak_share, over_seeds="worst"),
}


def judged(simulation: Simulation) -> StrategyResult:
    """The strategy that the file's policy names."""
    return simulation.strategy(simulation.inputs.judged)


def read_seeds(
    measure: SeedMeasure, simulation: Simulation, class_name: str | None, bound: Bound, strategy: StrategyResult
) -> Reading:
    """The measure over the seeds of ``strategy``, of one class or of all requests."""
    place = None if class_name is None else [one.name for one in strategy.classes].index(class_name)
    values = [measure.pick(result, place) for result in strategy.seeds]
    known = [value for value in values if value is not None]
    if not known:
        return Reading(value=None, detail="nothing to measure: no such request was completed")
    reading = combine_seeds(known, measure.over_seeds, bound)
    if len(strategy.seeds) > 1 or measure.over_seeds == "worst" or not is_random(simulation.traffic):
        return reading
    return replace(reading, one_seed=True)


def combine_seeds(values: Sequence[float], how: Literal["mean", "worst"], bound: Bound) -> Reading:
    """The mean with its interval, or the worst value for this kind of bound.

    >>> combine_seeds([0, 3, 1], "worst", "max").value
    3
    """
    number = len(values)
    seeds = "1 seed" if number == 1 else f"{number} seeds"
    if how == "worst":
        return Reading(value=(max if bound == "max" else min)(values), how=f"worst of {seeds}")
    mean, (low, high) = mean_interval(values)
    if number == 1:
        return Reading(value=mean, how=f"of {seeds}")
    return Reading(value=mean, low=low, high=high, how=f"mean of {seeds}")


def _plan_figure(measured: Measured, _: str | None, *, name: str) -> Reading:
    """A size of the pool, as planned or as the file gives it."""
    if measured.fit is not None:
        plan = measured.fit.plan
        values: dict[str, float | None] = {
            "kv_pool_bytes": plan.kv_bytes,
            "kv_pool_tokens": measured.fit.pool_tokens,
            "longest_window_tokens": measured.fit.longest_window_tokens,
            "concurrency_at_max_model_len": float(measured.fit.concurrency),
        }
    elif measured.simulation is not None:
        backend = measured.simulation.backend
        concurrency = backend.blocks / backend.layout.request_blocks(backend.settings.max_model_len)
        values = {
            "kv_pool_bytes": backend.kv_bytes,
            "kv_pool_tokens": int(concurrency * backend.settings.max_model_len),
            "longest_window_tokens": backend.longest_window_tokens,
            "concurrency_at_max_model_len": concurrency,
        }
    else:
        values = {}
    value = values.get(name)
    detail = "" if value is not None else "the file gives the pool in blocks, and no model that says their bytes"
    return Reading(value=value, how=_band(measured) if name == "kv_pool_bytes" else "", detail=detail)


def _band(measured: Measured) -> str:
    """How far the planned pool may be off, for the reader; the limit is judged by the plan itself."""
    budget = None if measured.fit is None else measured.fit.plan.budget
    if budget is None or budget.kv_bytes_low == budget.kv_bytes:
        return ""
    share = (budget.kv_bytes - budget.kv_bytes_low) / max(abs(budget.kv_bytes), 1)
    return f"planned, ± {share:.1%}"


def _budget_terms(measured: Measured, _: str | None, *, kind: str) -> Reading:
    """The terms of one kind in one GPU's budget, inside the engine's share or outside it."""
    budget = None if measured.fit is None else measured.fit.plan.budget
    if budget is None:
        return Reading(value=None, detail="the file gives the KV pool, so there is no budget")
    return Reading(value=sum(term.bytes for term in budget.terms if term.kind == kind), how="of one GPU")


def _reservations(measured: Measured, class_name: str | None) -> Reading:
    """The fewest worst-case requests that fit, over the cap choices as the judged strategy charges them.

    A strategy with a default cap charges that cap where the client sends none.
    """
    assert measured.simulation is not None
    fills = judged(measured.simulation).default_max_tokens is not None
    rows = [
        row
        for row in measured.simulation.reservations
        if (class_name is None or row.class_name == class_name) and not (fills and row.max_output_tokens is None)
    ]
    if not rows:
        return Reading(value=None, detail="no request of this class arrives")
    least = min(rows, key=lambda row: row.sequences)
    return Reading(value=least.sequences, how=least.name)


def _sustainable(measured: Measured, _: str | None) -> Reading:
    assert measured.simulation is not None
    stability = measured.simulation.stability
    value = stability.sustainable_per_s
    if not math.isfinite(value):
        return Reading(value=None, detail="nothing limits it: a step takes no time")
    return Reading(value=value, how=f"binds: {stability.binds}")


def _cost(measured: Measured, _: str | None) -> Reading:
    price = measured.gpu_price_per_hour
    if price is None:
        gpu = measured.traffic.deployment.gpu_name
        why = "the file names no GPU" if gpu is None else f"the price of this GPU is not known: --price {gpu}=2.50"
        return Reading(value=None, detail=why)
    return Reading(value=price * measured.gpus, how=f"{measured.gpus} × {price:g}")


PLAN_MEASURES: Mapping[str, PlanMeasure] = {
    **{
        name: PlanMeasure(read=partial(_plan_figure, name=name))
        for name in ("kv_pool_bytes", "kv_pool_tokens", "longest_window_tokens", "concurrency_at_max_model_len")
    },
    **{
        f"{kind}_bytes": PlanMeasure(read=partial(_budget_terms, kind=kind))
        for kind in ("weight", "activation", "non_torch", "graph")
    },
    "worst_case_reservations": PlanMeasure(read=_reservations, of_classes=True, needs_simulation=True),
    "sustainable_per_s": PlanMeasure(read=_sustainable, needs_simulation=True),
    "cost_per_hour": PlanMeasure(read=_cost),
}
MEASURES: Mapping[str, SeedMeasure | PlanMeasure] = {**SEED_MEASURES, **PLAN_MEASURES}
