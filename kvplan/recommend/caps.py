"""The default cap: the constraints on it, what each round cap cuts off and refuses, and the knee between the two."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.recommend.player import SAFE_POLICY, TRIAL_SEEDS, Player, Setting
from kvplan.recommend.results import CapPoint, Constraints, FailedConstraint, Played
from kvplan.simulation.bounds import round_caps
from kvplan.simulation.front_door import judged_strategy
from kvplan.simulation.results import ClassRecommendation, Simulation
from kvplan.simulation.tasks import RunOptions
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.distributions import Choice, Choices, Constant
from kvplan.traffic.sample import sample
from kvplan.traffic.spec import Traffic, TrafficClass

_MAX_TRUNCATED_FACTOR = 25
"""A cap that cuts off more than this many times the limit says nothing about the best one, and is not played."""
_TINY_SHARE = 1e-4
"""Stands for a limit of 0 where shares are divided by their limits: one request in ten thousand."""
_MAX_REQUESTS = 2_000_000
"""Above this many requests over all points of a curve, each point is played on one seed."""


def constraints(traffic: Traffic, given: Mapping[str, float | None]) -> tuple[Constraints, dict[str, str]]:
    """Each bound and its source: the caller, the file's limits on the whole traffic, or the default."""
    filed = {one.name: one.maximum for one in traffic.limits if one.class_name is None}
    bounds, sources = {}, {}
    for name, asked in given.items():
        bound = filed.get(name) if asked is None else asked
        sources[name] = "asked for" if asked is not None else "the default" if bound is None else "the file's limits"
        if bound is not None:
            bounds[f"max_{name}"] = bound
    limits = Constraints(**bounds)
    for key, share in (("max_truncated", limits.max_truncated_share), ("max_refused", limits.max_refused_share)):
        if not 0 <= share <= 1:
            raise InputError(f"{key} must be a share between 0 and 1, not {share}", hint=f"{key}: 0.01 or 1%", key=key)
    late_s = limits.max_e2e_p99_s
    if late_s is not None and not (late_s > 0 and isfinite(late_s)):
        raise InputError(f"max_e2e_p99 of {late_s:g} s is not above zero", hint="--max-e2e-p99 30s", key="max_e2e_p99")
    return limits, sources


def mean_truncated(drawings: Sequence[Arrivals], cap_tokens: int) -> float:
    """Share of all requests, over several drawings, that send no cap and whose answer is longer than ``cap_tokens``."""
    return _share(drawings, lambda part: (part.max_tokens == 0) & (part.output_tokens > cap_tokens))


def own_cap_truncated(drawings: Sequence[Arrivals]) -> float:
    """Share of all requests whose answer is longer than the cap their client sent; no default changes it."""
    return _share(drawings, lambda part: (part.max_tokens > 0) & (part.output_tokens > part.max_tokens))


def _share(drawings: Sequence[Arrivals], is_cut: Callable[[Arrivals], np.ndarray[Any, Any]]) -> float:
    total = sum(map(len, drawings))
    cut = sum(int(is_cut(part).sum()) for one in drawings for part in one.parts())
    return cut / total if total else 0.0


def candidates(drawings: Sequence[Arrivals], window_tokens: int, limits: Constraints) -> list[int]:
    """The round caps worth playing, from the first that cuts off at most 25 × the limit to the smallest that cuts off
    no more than the longest one does. None where every client sends a cap."""
    if not any((part.max_tokens == 0).any() for one in drawings for part in one.parts()):
        return []
    caps = round_caps(window_tokens)
    shares = [mean_truncated(drawings, cap) for cap in caps]
    most = max(_MAX_TRUNCATED_FACTOR * limits.max_truncated_share, shares[-1])
    last = next(place for place, share in enumerate(shares) if share <= shares[-1])
    kept = [cap for place, cap in enumerate(caps) if shares[place] <= most and place <= last]
    return kept or [caps[last]]


def meets(played: Played, truncated: float, limits: Constraints) -> bool:
    """Whether a setting meets all constraints."""
    return not broken(played, truncated, limits)


def broken(played: Played, truncated: float, limits: Constraints) -> list[tuple[str, float, float | None]]:
    """The constraints that a setting breaks, as (name, limit, measured). A limit on time is broken where no request was
    completed."""
    found: list[tuple[str, float, float | None]] = []
    if truncated > limits.max_truncated_share:
        found.append(("truncated_share", limits.max_truncated_share, truncated))
    if played.turned_away_share > limits.max_refused_share:
        found.append(("refused_share", limits.max_refused_share, played.turned_away_share))
    if limits.max_e2e_p99_s is not None and (played.e2e_p99_s is None or played.e2e_p99_s > limits.max_e2e_p99_s):
        found.append(("e2e_p99_s", limits.max_e2e_p99_s, played.e2e_p99_s))
    return found


def knee(points: Sequence[CapPoint], limits: Constraints) -> CapPoint:
    """The best cap: of those that meet all constraints, the one with the smallest truncated / limit + refused / limit
    (of equals, the smaller cap); if none does, the one whose worst miss is smallest."""
    feasible = [point for point in points if point.feasible]
    if feasible:
        return min(feasible, key=lambda point: (sum(_ratios(point, limits)[:2]), point.default_max_tokens))
    return min(points, key=lambda point: (max(_ratios(point, limits)), point.default_max_tokens))


def knee_reason(points: Sequence[CapPoint], chosen: CapPoint, limits: Constraints, unset: float) -> str:
    """Why this cap, in a sentence. Of several that meet all limits it is the ``knee``."""
    if not unset:
        return "every request sends its own cap, so a default changes nothing"
    feasible = [point.default_max_tokens for point in points if point.feasible]
    if len(feasible) > 1:
        best = f"{chosen.default_max_tokens:,} cuts off and refuses least"
        return f"caps {feasible[0]:,}-{feasible[-1]:,} meet all limits; {best}"
    if feasible:
        return "the only round cap that meets all limits"
    names = " and ".join(name for name, _, _ in broken(chosen.played, chosen.truncated_share, limits))
    return f"no cap meets all limits; {chosen.default_max_tokens:,} misses {names} by the least"


def _ratios(point: CapPoint, limits: Constraints) -> tuple[float, float, float]:
    played, late = point.played, 0.0
    if limits.max_e2e_p99_s is not None:
        late = inf if played.e2e_p99_s is None else played.e2e_p99_s / limits.max_e2e_p99_s
    return (
        point.truncated_share / max(limits.max_truncated_share, _TINY_SHARE),
        played.turned_away_share / max(limits.max_refused_share, _TINY_SHARE),
        late,
    )


def failures(points: Sequence[CapPoint], nearest: CapPoint, limits: Constraints) -> tuple[FailedConstraint, ...]:
    """Why no cap will do: each constraint that the nearest one breaks, and which caps would meet it."""
    found = []
    for name, limit, measured in broken(nearest.played, nearest.truncated_share, limits):
        alone = [
            point.default_max_tokens
            for point in points
            if name not in [other for other, _, _ in broken(point.played, point.truncated_share, limits)]
        ]
        if not alone:
            needs = "no cap meets it"
        elif name == "truncated_share":
            needs = f"caps from {min(alone):,} on meet it"
        else:
            needs = f"caps up to {max(alone):,} meet it"
        found.append(FailedConstraint(name=name, limit=limit, measured=measured, needs=needs))
    return tuple(found)


def per_class(
    drawings: Sequence[Arrivals], window_tokens: int, limits: Constraints, overall: int
) -> tuple[tuple[ClassRecommendation, ...], tuple[str, ...]]:
    """For each class with requests that send no cap, the smallest round cap that cuts off at most the limit of this
    class. Where no cap does (answers that never end), the overall cap; the second result names these classes."""
    found, unbounded, caps = [], [], round_caps(window_tokens)
    for index, name in enumerate(drawings[0].classes):
        total, unset, cut = 0, 0, np.zeros(len(caps), np.int64)
        for part in (part for each in drawings for part in each.parts()):
            chosen = part.class_index == index
            outputs = part.output_tokens[chosen & (part.max_tokens == 0)]
            total, unset = total + int(chosen.sum()), unset + len(outputs)
            cut += np.array([np.count_nonzero(outputs > cap) for cap in caps])
        if not unset:
            continue
        shares = cut / total
        place = next((place for place, share in enumerate(shares) if share <= limits.max_truncated_share), None)
        if place is None:
            unbounded.append(name)
            place = max(place for place, known in enumerate(caps) if known <= max(overall, caps[0]))
        found.append(
            ClassRecommendation(name=name, default_max_tokens=caps[place], truncated_share=float(shares[place]))
        )
    return tuple(found), tuple(unbounded)


def with_class_caps(traffic: Traffic, caps: Sequence[ClassRecommendation]) -> Traffic:
    """The traffic as if each class's clients that send no cap had sent its own default."""

    def filled(entry: TrafficClass) -> TrafficClass:
        # A trace's own labels make classes of their own, entry/label, which share the entry's distribution.
        known = [one.default_max_tokens for one in caps if f"{one.name}/".startswith(f"{entry.name}/")]
        return replace(entry, max_tokens=_filled(entry.max_tokens, max(known))) if known else entry

    return replace(traffic, classes=tuple(filled(entry) for entry in traffic.classes))


def _filled(distribution: object, cap: int) -> Choices | Constant:
    if isinstance(distribution, Choices):
        return Choices(choices=tuple(Choice(value=one.value or cap, share=one.share) for one in distribution.choices))
    assert isinstance(distribution, Constant), "only these two can send no cap"
    return Constant(value=distribution.value or cap)


def cap_points(
    settings: Sequence[Setting], truncated: Sequence[float], limits: Constraints, player: Player
) -> list[CapPoint]:
    """The default cap of each setting as played, and whether it meets all constraints; ``truncated`` are the shares cut
    off."""
    return [
        CapPoint(default_max_tokens=one.cap, truncated_share=cut, played=figures, feasible=meets(figures, cut, limits))
        for one, cut, figures in zip(settings, truncated, player.figures(settings), strict=True)
    ]


def cap_curve(simulation: Simulation, options: RunOptions) -> tuple[CapPoint, ...]:
    """The judged strategy at each default cap worth a look, on the simulation's own first seeds.

    A strategy that fills in no cap is replaced by ``worst_case_default_cap``. Empty where every client sends a cap of
    its own, because a default changes nothing there.
    """
    limits = Constraints()
    inputs, traffic, backend = simulation.inputs, simulation.traffic, simulation.backend
    drawn = sample(traffic, inputs.seed, scale=inputs.scale)
    caps = candidates([drawn], backend.settings.max_model_len, limits)
    if not caps:
        return ()
    seeds = min(inputs.seeds, TRIAL_SEEDS) if len(drawn) * len(caps) * TRIAL_SEEDS <= _MAX_REQUESTS else 1
    drawings = [drawn, *(sample(traffic, inputs.seed + turn, scale=inputs.scale) for turn in range(1, seeds))]
    judged = judged_strategy(traffic)
    player = Player(options)
    settings = [
        Setting(
            traffic=traffic,
            backend=backend,
            strategy=judged.name if judged.fills_default_cap else SAFE_POLICY,
            cap=cap,
            fraction=inputs.safety_fraction,
            first_seed=inputs.seed,
            seeds=seeds,
            scale=inputs.scale,
        )
        for cap in caps
    ]
    return tuple(cap_points(settings, [mean_truncated(drawings, cap) for cap in caps], limits, player))
