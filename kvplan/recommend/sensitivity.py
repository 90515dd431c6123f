"""How far the answer depends on assumptions: the share without max_tokens, the rate, the length of long answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvplan.recommend.caps import cap_points, knee, mean_truncated
from kvplan.recommend.player import TRIAL_SEEDS, Player, Setting
from kvplan.recommend.results import Constraints, SensitivityRow
from kvplan.simulation.bounds import round_caps
from kvplan.traffic.distributions import Choice, Choices, Constant, Distribution, Exponential, Lognormal, Quantiles
from kvplan.traffic.sample import sample
from kvplan.traffic.spec import Traffic

FACTORS = (0.8, 1.2)
REACH = 2
"""How many round caps on either side of the answer are tried too."""
_USUAL_SENT_TOKENS = 4096
"""The cap of clients that turn out to send one, where the file names none; agents and IDE tools start at this one."""


@dataclass(frozen=True, kw_only=True)
class Variation:
    """One assumption, off by a factor."""

    what: str
    factor: float
    traffic: Traffic
    scale: float


def variations(traffic: Traffic, scale: float) -> Iterator[Variation]:
    """The traffic as it is, then with one assumption off at a time; assumptions it does not make are left out."""
    yield Variation(what="as assumed", factor=1.0, traffic=traffic, scale=scale)
    for factor in FACTORS:
        changed = _with_unset(traffic, factor)
        if changed.classes != traffic.classes:
            yield Variation(what="share without max_tokens", factor=factor, traffic=changed, scale=scale)
    for factor in FACTORS:
        yield Variation(what="rate", factor=factor, traffic=traffic, scale=scale * factor)
    for factor in FACTORS:
        changed = _with_long_answers(traffic, factor)
        if changed.classes != traffic.classes:
            yield Variation(what="p95 of answers", factor=factor, traffic=changed, scale=scale)


def _with_unset(traffic: Traffic, factor: float) -> Traffic:
    """Every class's share without max_tokens times ``factor``, at most all; the caps sent share the rest as before."""
    classes = tuple(
        replace(entry, max_tokens=_more_unset(entry.max_tokens, factor)) if _may_be_unset(entry.max_tokens) else entry
        for entry in traffic.classes
    )
    return replace(traffic, classes=classes)


def _may_be_unset(distribution: Distribution) -> bool:
    if isinstance(distribution, Choices):
        return any(one.value == 0 and one.share for one in distribution.choices)
    return isinstance(distribution, Constant) and distribution.value == 0


def _more_unset(distribution: Distribution, factor: float) -> Distribution:
    choices = distribution.choices if isinstance(distribution, Choices) else (Choice(value=0, share=1.0),)
    unset = sum(one.share for one in choices if one.value == 0)
    wanted = min(1.0, unset * factor)
    if wanted == unset:
        return distribution
    sent = [one for one in choices if one.value] or [Choice(value=_USUAL_SENT_TOKENS, share=1.0)]
    rest = sum(one.share for one in sent)
    filled = [Choice(value=one.value, share=(1.0 - wanted) * one.share / rest) for one in sent]
    return Choices(choices=(Choice(value=0, share=wanted), *filled))


def _with_long_answers(traffic: Traffic, factor: float) -> Traffic:
    classes = tuple(
        entry if entry.output_tokens is None else replace(entry, output_tokens=_longer(entry.output_tokens, factor))
        for entry in traffic.classes
    )
    return replace(traffic, classes=classes)


def _longer(distribution: Distribution, factor: float) -> Distribution:
    """The distribution with its p95 moved by ``factor`` and its median kept, where it has both; answers of one length
    stay."""
    if isinstance(distribution, Lognormal):
        return replace(distribution, p95=max(distribution.p95 * factor, distribution.p50))
    if isinstance(distribution, Exponential):
        return replace(distribution, average=distribution.average * factor)
    if isinstance(distribution, Quantiles):
        middle = distribution.quantile(0.5)
        points = [
            (at, tokens if at <= 0.5 else max(middle + (tokens - middle) * factor, middle))
            for at, tokens in distribution.points
        ]
        return Quantiles(points=tuple(points))
    return distribution


def sensitivity(
    answer: Setting, *, has_default: bool, limits: Constraints, player: Player, window_tokens: int
) -> tuple[SensitivityRow, ...]:
    """The answer's figures with each assumption off, and which of the caps around it would be chosen then."""
    varied, seeds = list(variations(answer.traffic, answer.scale)), min(TRIAL_SEEDS, answer.seeds)
    tried = nearby(answer.cap, window_tokens) if has_default else [answer.cap]
    settings, truncated = [], []
    for one in varied:
        drawings = [sample(one.traffic, answer.first_seed + turn, scale=one.scale) for turn in range(seeds)]
        truncated += [mean_truncated(drawings, cap) for cap in tried]
        settings += [replace(answer, traffic=one.traffic, scale=one.scale, cap=cap, seeds=seeds) for cap in tried]
    found = iter(cap_points(settings, truncated, limits, player))
    rows = []
    for one in varied:
        points = [next(found) for _ in tried]
        answered = points[tried.index(answer.cap)]
        best = knee(points, limits)
        rows.append(
            SensitivityRow(
                what=one.what,
                factor=one.factor,
                truncated_share=answered.truncated_share,
                refused_share=answered.played.refused_share,
                e2e_p99_s=answered.played.e2e_p99_s,
                holds=answered.feasible,
                default_max_tokens=best.default_max_tokens if best.feasible and has_default else None,
                seeds=seeds,
            )
        )
    return tuple(rows)


def nearby(cap: int, window_tokens: int) -> Sequence[int]:
    """The round caps around ``cap``, with itself among them.

    >>> nearby(512, 100_000)
    [256, 384, 512, 768, 1024]
    """
    caps = sorted({*round_caps(window_tokens), cap})
    place = caps.index(cap)
    return caps[max(0, place - REACH) : place + REACH + 1]
