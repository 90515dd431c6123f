"""The tables of ``kvplan recommend``: caps, fractions, assumptions, and the price."""

from kvplan.recommend.results import Advice, CapPoint, Constraints, FractionPoint, Played, SensitivityRow
from kvplan.report.numbers import count, percent, plain_seconds
from kvplan.report.page import Columns, columns

_BAR = 9
_CAPS_AROUND = 3
"""Caps shown on either side of the best one: where both curves cross their limits."""


def seeds(number: int) -> str:
    """On how many seeds something was played."""
    return "1 seed" if number == 1 else f"{number} seeds"


def caps(advice: Advice) -> Columns:
    """What each default cap cuts off and what is refused under it, with both curves drawn."""
    best = next(place for place, one in enumerate(advice.caps) if one.default_max_tokens == advice.default_max_tokens)
    first = max(0, best - _CAPS_AROUND)
    return columns(
        ("cap", "cuts off", "refused", "95%", "gave up", "p99 s", "cut|limit  ref|limit "),
        [_cap_row(point, advice.constraints) for point in advice.caps[first : best + _CAPS_AROUND + 1]],
        marked=[best - first],
        last_is_drawn=True,
    )


def _cap_row(point: CapPoint, limits: Constraints) -> tuple[str, ...]:
    played = point.played
    low, high = played.refused_interval
    curve = f"{_bar(point.truncated_share, limits.max_truncated_share)} "
    curve += _bar(played.refused_share, limits.max_refused_share)
    return (
        count(point.default_max_tokens),
        percent(point.truncated_share),
        percent(played.refused_share),
        f"{percent(max(0.0, low))}-{percent(high)}",
        percent(played.gave_up_share),
        plain_seconds(played.e2e_p99_s),
        curve,
    )


def _bar(share: float, limit: float) -> str:
    """A curve drawn sideways: nine characters are three times the limit, with a line at the limit."""
    scale = 3.0 * max(limit, 1e-4)
    length = min(_BAR, round(share / scale * _BAR + 0.4999) if share > 0 else 0)
    cells = ["#" if place < length else "." for place in range(_BAR)]
    cells.insert(_BAR // 3, "|")
    return "".join(cells)


def fractions(advice: Advice) -> Columns:
    """What each safety fraction refuses and preempts."""
    return columns(
        (
            f"fraction, {seeds(advice.fractions[0].played.seeds)}",
            "refused",
            "gave up",
            "preempts",
            "peak KV",
            "p99 s",
            "",
        ),
        [_fraction_row(point) for point in advice.fractions],
        marked=[place for place, one in enumerate(advice.fractions) if one.safety_fraction == advice.safety_fraction],
    )


def _fraction_row(point: FractionPoint) -> tuple[str, ...]:
    played = point.played
    return (
        f"{point.safety_fraction:.2f}",
        percent(played.refused_share),
        percent(played.gave_up_share),
        count(played.preemptions),
        percent(played.kv_used_peak_share),
        plain_seconds(played.e2e_p99_s),
        "" if point.safety_fraction <= 1 else "overbooked",
    )


def sensitivity(advice: Advice) -> Columns:
    """The answer's figures with one assumption off at a time."""
    return columns(
        (
            f"if this is off, {seeds(advice.sensitivity[0].seeds)}",
            "by",
            "cuts off",
            "refused",
            "p99 s",
            "holds",
            "best cap",
        ),
        [_sensitivity_row(one, advice) for one in advice.sensitivity],
    )


def _sensitivity_row(row: SensitivityRow, advice: Advice) -> tuple[str, ...]:
    return (
        row.what,
        "" if row.factor == 1 else f"{row.factor - 1:+.0%}",
        percent(row.truncated_share),
        percent(row.refused_share),
        plain_seconds(row.e2e_p99_s),
        "yes" if row.holds else "no",
        "" if advice.default_max_tokens is None else count(row.default_max_tokens),
    )


def price(advice: Advice) -> Columns:
    """The answer beside worst-case admission without a default, and beside no admission at all."""
    paid = advice.price
    beside = (("this answer", paid.answer), ("worst_case, no default", paid.worst_case), ("none", paid.none))
    return columns(
        ("strategy", "seeds", "tokens/s", "refused", "preempts", "KV", "p50 s", "p99 s"),
        [_price_row(name, played) for name, played in beside],
        marked=[0],
    )


def _price_row(name: str, played: Played) -> tuple[str, ...]:
    return (
        name,
        count(played.seeds),
        f"{played.output_tokens_per_s:,.0f}",
        percent(played.refused_share),
        count(played.preemptions),
        percent(played.kv_used_mean_share),
        plain_seconds(played.e2e_p50_s),
        plain_seconds(played.e2e_p99_s),
    )
