"""A small chart as inline SVG: a few hundred bytes a curve, no script, colours by the page's style.

Drawn 460 units wide, so that its text is still read when a phone shows it 360 pixels wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 460, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 10, 38


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Points in the chart's own places, both 0 to 1 from its lower left corner. ``kind`` is the style: used, reserved,
    cut or refused; ``filled`` down to the axis; ``dotted`` marks every point."""

    kind: str
    points: Sequence[tuple[float, float]]
    filled: bool = False
    dotted: bool = False


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What stands at an axis: (place from 0 to 1, text) of each mark, and what is measured, with its unit."""

    marks: Sequence[tuple[float, str]]
    name: str


def chart(
    curves: Sequence[Curve], *, across: Axis, up: Axis, caption: str, upright: tuple[float, str] | None = None
) -> str:
    """The curves in a frame. ``upright`` is a labelled dotted line at one place across."""
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
    """The drawing's own coordinates; what lies outside is drawn at the border."""
    inside_x, inside_y = min(max(x, 0.0), 1.0), min(max(y, 0.0), 1.0)
    return (
        f"{_LEFT + (_WIDTH - _LEFT - _RIGHT) * inside_x:.1f},{_TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - inside_y):.1f}"
    )
