"""The charts of a page: the pool and the refusals of each strategy over time, and both curves over the default cap."""

from collections.abc import Iterator, Sequence
from math import log2, log10

from kvplan.recommend.results import CapPoint
from kvplan.report.numbers import count
from kvplan.report.over_time import OverTime, ticks, time_unit
from kvplan.report.svg import Axis, Curve, chart

_LEAST_SHARE = 1e-4
"""Where the scale of shares begins: 0.01 %; what is smaller, nothing included, stands there."""


def pool_and_refusals(row: OverTime, *, top_share: float, most_per_min: float) -> Iterator[str]:
    """Two charts of one strategy; the tops are those of all strategies, so that the charts compare."""
    unit_s, unit = time_unit(row.span_s)
    across = Axis(
        marks=[(mark * unit_s / row.span_s, f"{mark:g}") for mark in ticks(row.span_s / unit_s)],
        name=f"{unit} since the start",
    )
    curves = [Curve(kind="used", points=_over(row, row.used_share, top_share), filled=True)]
    if row.reserved_share is not None:
        curves.append(Curve(kind="reserved", points=_over(row, row.reserved_share, top_share)))
    shares = [(mark / top_share, f"{mark:.0%}") for mark in (0.0, 0.5, 1.0)]
    yield chart(
        curves, across=across, up=Axis(marks=shares, name="of the pool"), caption=f"{row.name}: KV in use and reserved"
    )
    said = f"{count(row.refusals)} refusals" if row.refusals else "no refusals"
    yield chart(
        [Curve(kind="refused", points=_steps(row, most_per_min), filled=True)],
        across=across,
        up=Axis(marks=[(mark / most_per_min, f"{mark:g}") for mark in ticks(most_per_min, most=3)], name="a minute"),
        caption=f"{row.name}: {said}",
    )


def _over(row: OverTime, shares: Sequence[float], top: float) -> list[tuple[float, float]]:
    return [(time / row.span_s, share / top) for time, share in zip(row.time_s, shares, strict=True)]


def _steps(row: OverTime, most: float) -> list[tuple[float, float]]:
    """Each stretch as level ground between two walls."""
    wide = row.bar_s / row.span_s
    return [
        point
        for number, rate in enumerate(row.refused_per_min)
        for point in ((number * wide, rate / most), ((number + 1) * wide, rate / most))
    ]


def cap_chart(points: Sequence[CapPoint], chosen: int) -> str:
    """What each default cuts off and what is refused under it, both scales logarithmic."""
    caps = [point.default_max_tokens for point in points]
    low, span = log2(caps[0]), (log2(caps[-1]) - log2(caps[0])) or 1.0
    cut, refused = [point.truncated_share for point in points], [point.played.refused_share for point in points]
    most = max(0.01, *cut, *refused)
    decades = log10(most / _LEAST_SHARE)

    def across(cap: int) -> float:
        return (log2(cap) - low) / span if len(caps) > 1 else 0.5

    def up(share: float) -> float:
        return log10(max(share, _LEAST_SHARE) / _LEAST_SHARE) / decades

    marks = [(up(share), text) for share, text in _SHARES if share <= most * 1.001]
    labels = [(across(cap), _short(cap)) for cap in caps]
    return chart(
        [
            Curve(
                kind=kind,
                points=[(across(cap), up(share)) for cap, share in zip(caps, shares, strict=True)],
                dotted=True,
            )
            for kind, shares in (("cut", cut), ("refused", refused))
        ],
        across=Axis(marks=labels if len(labels) <= 8 else labels[::2], name="max_tokens default, tokens"),
        up=Axis(marks=marks, name="of all requests"),
        caption="Cap against truncation and refusal",
        upright=(across(chosen), f"recommended {chosen:,}") if caps[0] <= chosen <= caps[-1] else None,
    )


_SHARES = ((1e-4, "0.01%"), (1e-3, "0.1%"), (1e-2, "1%"), (1e-1, "10%"), (1.0, "100%"))


def _short(cap: int) -> str:
    """``1,024`` tokens, or thousands of 1,024 from 4,096 on."""
    return f"{cap:,}" if cap < 4096 or cap % 1024 else f"{cap // 1024}K"
