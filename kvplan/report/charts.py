"""Charts of a page as inline SVG: the pool and the refusals over time, and both curves over the default cap."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import log2, log10

from kvplan.recommend.results import CapPoint
from kvplan.report.numbers import count
from kvplan.report.over_time import OverTime, ticks, time_unit

_MIN_SHARE = 1e-4
"""Where the scale of shares begins: 0.01%; what is smaller, nothing included, stands there."""


def pool_and_refusals(row: OverTime, *, top_share: float, most_per_min: float) -> Iterator[str]:
    """Two charts of one strategy; all strategies share their scales."""
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
    """Each interval as a flat step."""
    wide = row.bar_s / row.span_s
    return [
        point
        for number, rate in enumerate(row.refused_per_min)
        for point in ((number * wide, rate / most), ((number + 1) * wide, rate / most))
    ]


def cap_chart(points: Sequence[CapPoint], chosen: int) -> str:
    """What each default cap cuts off and what is refused under it, on logarithmic scales."""
    caps = [point.default_max_tokens for point in points]
    low, span = log2(caps[0]), (log2(caps[-1]) - log2(caps[0])) or 1.0
    cut, refused = [point.truncated_share for point in points], [point.played.refused_share for point in points]
    most = max(0.01, *cut, *refused)
    decades = log10(most / _MIN_SHARE)

    def across(cap: int) -> float:
        return (log2(cap) - low) / span if len(caps) > 1 else 0.5

    def up(share: float) -> float:
        return log10(max(share, _MIN_SHARE) / _MIN_SHARE) / decades

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
        upright=(across(chosen), f"as played: {chosen:,}") if caps[0] <= chosen <= caps[-1] else None,
    )


_SHARES = ((1e-4, "0.01%"), (1e-3, "0.1%"), (1e-2, "1%"), (1e-1, "10%"), (1.0, "100%"))


def _short(cap: int) -> str:
    """``1,024`` tokens; from 4,096 on in thousands of 1,024."""
    return f"{cap:,}" if cap < 4096 or cap % 1024 else f"{cap // 1024}K"


_WIDTH, _HEIGHT = 460, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 10, 38


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points, both coordinates from 0 to 1 from the lower left corner. ``kind`` is the style: used, reserved, cut or
    refused; ``filled`` down to the axis; ``dotted`` marks every point."""

    kind: str
    points: Sequence[tuple[float, float]]
    filled: bool = False
    dotted: bool = False


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The marks of an axis as (place from 0 to 1, text), and what it measures, with the unit."""

    marks: Sequence[tuple[float, str]]
    name: str


def chart(
    curves: Sequence[Curve], *, across: Axis, up: Axis, caption: str, upright: tuple[float, str] | None = None
) -> str:
    """The curves in a frame. ``upright`` is a labelled dotted vertical line."""
    parts = [_grid(across, up)]
    for curve in curves:
        path = " ".join(_place(x, y) for x, y in curve.points)
        if curve.filled and curve.points:
            first, last = curve.points[0][0], curve.points[-1][0]
            parts.append(f'<polygon class="under {curve.kind}" points="{_place(first, 0)} {path} {_place(last, 0)}"/>')
        parts.append(f'<polyline class="{curve.kind}" points="{path}"/>')
        if curve.dotted:
            corners = (_place(x, y).split(",") for x, y in curve.points)
            parts.append("".join(f'<circle class="{curve.kind}" cx="{x}" cy="{y}" r="3"/>' for x, y in corners))
    if upright is not None:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * upright[0]
        anchor, shift = ("end", -4) if upright[0] > 0.6 else ("start", 4)
        parts.append(f'<path class="upright" d="M{x:.1f},{_TOP} V{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x + shift:.1f}" y="{_TOP + 10}" text-anchor="{anchor}">{escape(upright[1])}</text>')
    return (
        f'<figure><figcaption>{escape(caption)}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(caption, quote=True)}">{"".join(parts)}</svg></figure>'
    )


def _grid(across: Axis, up: Axis) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    lines, texts = [], []
    for place, text in up.marks:
        y = _TOP + (bottom - _TOP) * (1 - place)
        lines.append(f"M{_LEFT},{y:.1f} H{right}")
        texts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for place, text in across.marks:
        x = _LEFT + (right - _LEFT) * place
        lines.append(f"M{x:.1f},{_TOP} V{bottom}")
        texts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{escape(text)}</text>')
    texts.append(f'<text x="{right}" y="{_HEIGHT - 6}" text-anchor="end">{escape(across.name)}</text>')
    middle = (_TOP + bottom) // 2
    texts.append(
        f'<text x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">{escape(up.name)}</text>'
    )
    return (
        f'<path class="grid" d="{" ".join(lines)}"/><path class="axis" d="M{_LEFT},{_TOP} V{bottom} H{right}"/>'
        + "".join(texts)
    )


def _place(x: float, y: float) -> str:
    """Coordinates of the drawing; points outside are drawn at the border."""
    inside_x, inside_y = min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0)
    return (
        f"{_LEFT + (_WIDTH - _LEFT - _RIGHT) * inside_x:.1f},{_TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - inside_y):.1f}"
    )
