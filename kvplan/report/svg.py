"""A line chart as inline SVG: a few hundred bytes a curve, no script, colours by the page's style."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 720, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 24


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Values over the chart's common x; ``kind`` is the style: used or reserved."""

    kind: str
    values: Sequence[float]


def line_chart(
    xs: Sequence[float], curves: Sequence[Curve], *, top: float, caption: str, x_labels: tuple[str, str], y_label: str
) -> str:
    """The curves in a frame from 0 to ``top``, its ends labelled; what lies above ``top`` is drawn at the border."""
    first, last = xs[0], xs[-1]
    across, up = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    span = (last - first) or 1.0

    def place(x: float, y: float) -> str:
        share = min(max(y / top, 0.0), 1.0) if top else 0.0
        return f"{_LEFT + across * (x - first) / span:.1f},{_TOP + up * (1 - share):.1f}"

    lines = "".join(
        f'<polyline class="{curve.kind}" points="'
        + " ".join(place(x, y) for x, y in zip(xs, curve.values, strict=True))
        + '"/>'
        for curve in curves
    )
    bottom = _HEIGHT - _BOTTOM
    frame = f'<path class="axis" d="M{_LEFT},{_TOP} V{bottom} H{_WIDTH - _RIGHT}"/>'
    texts = (
        f'<text x="{_LEFT - 6}" y="{_TOP + 10}" text-anchor="end">{escape(y_label)}</text>'
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{escape(x_labels[0])}</text>'
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{escape(x_labels[1])}</text>'
    )
    return (
        f'<figure><figcaption>{escape(caption)}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(caption, quote=True)}">{frame}{lines}{texts}</svg></figure>'
    )
