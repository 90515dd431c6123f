"""The search behind a recommendation: the cap against truncation and refusal, the fraction against risk."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

from kvplan.admission import STRATEGIES
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.recommend.quick import MAX_REFUSED_SHARE, MAX_TRUNCATED_SHARE, recommend, truncated_share
from kvplan.simulation.bounds import judged_strategy, round_caps, unset_share
from kvplan.simulation.plant import build_plant
from kvplan.simulation.results import Recommendation, Simulation, StrategyResult
from kvplan.simulation.run import DEFAULT_SEEDS, simulate
from kvplan.simulation.tasks import Progress
from kvplan.traffic.kinds import Arrivals, Traffic
from kvplan.traffic.sample import sample

CURVE_SEEDS = 4
_MOST_CAPS = 8
_STEP_SHARE = 0.05
_LEAST_FRACTION = 0.30
_DEFAULT_CAP = "worst_case_default_cap"


@dataclass(frozen=True, kw_only=True)
class CapPoint:
    """One default cap: what it cuts off, and what the front door then does. Intervals are 95 % over seeds."""

    default_max_tokens: int
    truncated_share: float
    refused_share: float
    refused_interval: tuple[float, float]
    gave_up_share: float
    e2e_p99_s: float | None
    output_tokens_per_s: float
    sustainable_per_s: float


@dataclass(frozen=True, kw_only=True)
class FractionPoint:
    """One safety fraction under the file's own policy: what it lets happen inside the engine, over all seeds."""

    safety_fraction: float
    preemptions: int
    over_capacity_events: int
    refused_share: float
    output_tokens_per_s: float


@dataclass(frozen=True, kw_only=True)
class Price:
    """What safety costs: requests that surely fit against those that fit as they usually are, the share of the pool
    that is promised and never filled, and output against admitting everything."""

    worst_case_sequences: int
    expected_sequences: int
    idle_share: float
    output_share_of_none: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """A recommendation with its evidence. ``simulation`` is the run with the recommended settings."""

    recommendation: Recommendation
    caps: tuple[CapPoint, ...]
    fractions: tuple[FractionPoint, ...]
    price: Price
    simulation: Simulation
    max_truncated_share: float
    max_refused_share: float
    is_met: bool


def search(
    traffic: Traffic,
    *,
    model: ModelSpec | None = None,
    max_truncated_share: float = MAX_TRUNCATED_SHARE,
    max_refused_share: float = MAX_REFUSED_SHARE,
    count_error_share: float = 0.0,
    seeds: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Search:
    """The cap and the fraction for this traffic.

    The cap: of round caps around what answers really take, the one that keeps both bounds with the fewest refusals;
    where none keeps both, the knee (the least sum of the two shares, each over its bound). The fraction: the pool less
    its band for worst-case policies, which never preempt; for the others the largest at which no seed preempts.
    """
    for name, share in (("max_truncated", max_truncated_share), ("max_refused", max_refused_share)):
        if not 0 <= share <= 1:
            raise InputError(f"{name} is a share between 0 and 1, not {share:g}", key=name)
    plant = build_plant(traffic, model=model, offline=offline, profiles_folder=profiles_folder)
    arrivals = sample(traffic, traffic.seed)
    window = plant.settings.max_model_len

    def run(asked: Traffic, names: Sequence[str], count: int | None) -> Simulation:
        return simulate(
            asked,
            model=plant.model,
            strategies=names,
            seeds=count,
            workers=workers,
            executor=executor,
            offline=offline,
            profiles_folder=profiles_folder,
            progress=progress,
            say=say,
        )

    few = None if seeds is None else min(seeds, CURVE_SEEDS)
    points = []
    for cap in _candidates(traffic, arrivals, window):
        result = run(_with_cap(traffic, cap), [_DEFAULT_CAP], few or CURVE_SEEDS).strategy(_DEFAULT_CAP)
        points.append(_cap_point(cap, truncated_share(arrivals, cap), result))
    chosen = _choose(points, max_truncated_share, max_refused_share)
    settled = _with_cap(traffic, chosen.default_max_tokens) if chosen is not None else traffic
    policy = STRATEGIES[judged_strategy(settled).name]
    names = tuple(dict.fromkeys([policy.name, "worst_case", _DEFAULT_CAP, "none"]))
    final = run(settled, names, seeds)
    advice = recommend(
        final,
        max_truncated_share=max_truncated_share,
        max_refused_share=max_refused_share,
        count_error_share=count_error_share,
    )
    fractions: tuple[FractionPoint, ...] = ()
    if policy.counts == "blocks" and policy.name not in ("worst_case", _DEFAULT_CAP):
        fractions, advice = _search_fraction(settled, policy.name, advice, run, seeds or DEFAULT_SEEDS)
    met = chosen is None or (
        chosen.truncated_share <= max_truncated_share and chosen.refused_share <= max_refused_share
    )
    return Search(
        recommendation=advice,
        caps=tuple(points),
        fractions=fractions,
        price=_price(final, policy.name),
        simulation=replace(final, recommendation=advice),
        max_truncated_share=max_truncated_share,
        max_refused_share=max_refused_share,
        is_met=met,
    )


def _with_cap(traffic: Traffic, cap: int) -> Traffic:
    return replace(traffic, admission=replace(traffic.admission, default_max_tokens=cap))


def _candidates(traffic: Traffic, arrivals: Arrivals, window: int) -> list[int]:
    """Round caps from the one that cuts off half of the answers without a cap to the first that cuts off none of them,
    thinned to a few; none where every request sends a cap; the file's own among them."""
    if not unset_share([arrivals]):
        return []
    outputs = arrivals.output_tokens[arrivals.max_tokens == 0]
    caps = round_caps(window)
    cut = [float((outputs > cap).mean()) for cap in caps]
    low = next((place for place, share in enumerate(cut) if share <= 0.5), len(caps) - 1)
    high = next((place for place, share in enumerate(cut) if share <= 0.0), len(caps) - 1)
    between = caps[low : max(high, low + 2) + 1]
    stride = max(1, -(-len(between) // _MOST_CAPS))
    chosen = between[::stride] + ([between[-1]] if (len(between) - 1) % stride else [])
    own = traffic.admission.default_max_tokens
    return sorted({*chosen, *([min(own, window)] if own is not None else [])})


def _cap_point(cap: int, truncated: float, result: StrategyResult) -> CapPoint:
    return CapPoint(
        default_max_tokens=cap,
        truncated_share=truncated,
        refused_share=result.shares["refused_share"],
        refused_interval=result.intervals["refused_share"],
        gave_up_share=result.shares["gave_up_share"],
        e2e_p99_s=result.e2e_s.p99,
        output_tokens_per_s=result.output_tokens_per_s,
        sustainable_per_s=result.sustainable_per_s,
    )


def _choose(points: Sequence[CapPoint], max_truncated_share: float, max_refused_share: float) -> CapPoint | None:
    """The cap that keeps both bounds with the fewest refusals, then truncations; else the knee; None of no points."""
    if not points:
        return None
    keeping = [
        point
        for point in points
        if point.truncated_share <= max_truncated_share and point.refused_share <= max_refused_share
    ]
    if keeping:
        return min(keeping, key=lambda point: (round(point.refused_share, 4), point.truncated_share))
    least = 1e-4  # a bound of zero still has to be weighed against the other

    def excess(point: CapPoint) -> float:
        truncated = max(0.0, point.truncated_share - max_truncated_share) / max(max_truncated_share, least)
        refused = max(0.0, point.refused_share - max_refused_share) / max(max_refused_share, least)
        return truncated + refused

    return min(points, key=lambda point: (excess(point), point.default_max_tokens))


def _search_fraction(
    traffic: Traffic,
    policy: str,
    advice: Recommendation,
    run: Callable[[Traffic, Sequence[str], int | None], Simulation],
    seeds: int,
) -> tuple[tuple[FractionPoint, ...], Recommendation]:
    """The largest fraction, in steps of 5 %, at which no seed preempts, times what the band and the count leave."""
    points: list[FractionPoint] = []
    found = None
    fraction = 1.0
    while fraction >= _LEAST_FRACTION - 1e-9:
        asked = replace(traffic, admission=replace(traffic.admission, safety_fraction=round(fraction, 2)))
        result = run(asked, [policy], seeds).strategy(policy)
        points.append(
            FractionPoint(
                safety_fraction=round(fraction, 2),
                preemptions=result.preemptions,
                over_capacity_events=result.over_capacity_events,
                refused_share=result.shares["refused_share"],
                output_tokens_per_s=result.output_tokens_per_s,
            )
        )
        if not result.preemptions and not result.over_capacity_events:
            found = round(fraction, 2)
            break
        fraction -= _STEP_SHARE
    if found is None:
        why = f"{policy} preempts even at {_LEAST_FRACTION:.2f} of the pool: it promises less than requests may take"
        return tuple(points), replace(advice, safety_fraction=points[-1].safety_fraction, binds=why)
    if found == 1.0:
        return tuple(points), advice
    why = f"preemptions under {policy}: none in {seeds} seeds at {found:.2f}, some at {points[-2].safety_fraction:.2f}"
    settled = int(found * advice.safety_fraction * 100 + 1e-9) / 100
    return tuple(points), replace(advice, safety_fraction=settled, binds=why)


def _price(final: Simulation, policy: str) -> Price:
    """What the judged policy gives away: see ``Price``."""
    judged = final.strategy(policy)
    rows = [row for row in final.reservations if row.share > 0]
    usable = final.plant.usable * final.plant.replicas
    arrivals = sample(final.traffic, final.inputs.seed, scale=final.inputs.scale)
    layout = final.plant.layout
    room = max(final.plant.settings.max_model_len - 1, 1)
    held = int((arrivals.prompt_tokens + arrivals.output_tokens).clip(max=room).mean())
    none = next((one for one in final.strategies if one.name == "none"), None)
    reserved = judged.kv.reserved_mean_share
    return Price(
        worst_case_sequences=min((row.sequences for row in rows), default=0),
        expected_sequences=usable // max(layout.request_blocks(max(held, 1)), 1),
        idle_share=max(0.0, reserved - judged.kv.used_mean_share) if reserved is not None else 0.0,
        output_share_of_none=None
        if none is None or none.output_tokens_per_s <= 0
        else judged.output_tokens_per_s / none.output_tokens_per_s,
    )
