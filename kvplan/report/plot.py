"""``--plot``: the pool and the refusals over time, a row per strategy, and what each default cap cuts off and refuses.

PNG, SVG (text stays text) or PDF, with Matplotlib (extra ``plot``). The colours (Okabe and Ito's) are distinct for the
colour-blind, and each curve has its own line style as well.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvplan.errors import InputError
from kvplan.recommend.results import CapPoint
from kvplan.report.numbers import count
from kvplan.report.over_time import OverTime, over_time, scales, ticks, time_unit
from kvplan.report.simulation_text import pool_line, setting_line
from kvplan.simulation.results import Simulation

KINDS = (".png", ".svg", ".pdf")
_USED, _RESERVED, _REFUSED, _CUT, _GRID = "#0072B2", "#D55E00", "#882255", "#0072B2", "#d9d9d9"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "kvplan",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
}


def check_drawable(path: Path) -> None:
    """InputError for an unknown kind of picture or without Matplotlib; asked before the work begins."""
    if path.suffix.lower() not in KINDS:
        raise InputError(
            f"{path} is not a kind of picture",
            hint=f"name it {', '.join(f'*{kind}' for kind in KINDS)}",
            file=str(path),
        )
    try:
        import matplotlib as mpl  # noqa: F401 - only whether it is there
    except ModuleNotFoundError as error:
        raise InputError("--plot needs Matplotlib, which is not installed", hint="pip install matplotlib") from error


def draw(result: Simulation, caps: Sequence[CapPoint], path: Path, *, kind: str) -> None:
    """Write the figure to ``path`` as ``kind`` (a suffix of ``KINDS``)."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = list(over_time(result))
    heights = [1.0] * len(rows) + ([1.9] if caps else [])
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 1.1 + 1.45 * sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(f"{setting_line(result)}\n{pool_line(result)}", fontsize=10, x=0.01, ha="left")
        grid = figure.add_gridspec(max(1, len(heights)), 2, height_ratios=heights or [1.0], width_ratios=(3, 2))
        _draw_rows(figure, grid, rows, result.inputs.seed)
        if caps:
            _draw_caps(figure.add_subplot(grid[len(rows), :]), caps, result)
        figure.savefig(path, dpi=130, format=kind.lstrip("."), metadata=_METADATA[kind])


_METADATA: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""No date: the same run draws the same file."""


def _draw_rows(figure: Any, grid: Any, rows: Sequence[OverTime], seed: int) -> None:
    """The pool on the left, refusals on the right; all rows share their scales."""
    top, most = scales(rows)
    for place, row in enumerate(rows):
        unit_s, unit = time_unit(row.span_s)
        pool, refused = figure.add_subplot(grid[place, 0]), figure.add_subplot(grid[place, 1])
        times = [time / unit_s for time in row.time_s]
        pool.fill_between(times, [share * 100 for share in row.used_share], color=_USED, alpha=0.18, linewidth=0)
        pool.plot(times, [share * 100 for share in row.used_share], color=_USED, linewidth=1.3, label="KV in use")
        if row.reserved_share is not None:
            shares = [share * 100 for share in row.reserved_share]
            pool.plot(times, shares, "--", color=_RESERVED, linewidth=1.2, label="KV reserved")
        pool.set(ylim=(0, top * 103), xlim=(0, times[-1]), yticks=[0, 50, 100], ylabel="% of pool")
        pool.set_title(row.name, fontsize=9, loc="left", fontweight="bold")
        starts = [number * row.bar_s / unit_s for number in range(len(row.refused_per_min))]
        refused.bar(starts, row.refused_per_min, width=row.bar_s / unit_s, align="edge", color=_REFUSED, linewidth=0)
        refused.set(xlim=(0, times[-1]), ylim=(0, most * 1.05), yticks=ticks(most, most=3), ylabel="refusals/min")
        refused.set_title(f"{count(row.refusals)} refusals" if row.refusals else "no refusals", fontsize=9, loc="left")
        if place == 0:
            pool.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, frameon=False)
        last = place == len(rows) - 1
        for panel in (pool, refused):
            panel.tick_params(labelbottom=last)
            panel.set_xlabel(f"{unit} since the start (seed {seed})" if last else "")


def _draw_caps(panel: Any, caps: Sequence[CapPoint], result: Simulation) -> None:
    """Truncated and refused share over the default cap, on a scale that shows tenths of a percent."""
    values = [point.default_max_tokens for point in caps]
    refused = [point.played.refused_share * 100 for point in caps]
    ends = [point.played.refused_interval for point in caps]
    reach = [
        [max(0.0, at - low * 100) for at, (low, _) in zip(refused, ends, strict=True)],
        [max(0.0, high * 100 - at) for at, (_, high) in zip(refused, ends, strict=True)],
    ]
    panel.plot(values, [point.truncated_share * 100 for point in caps], "o-", color=_CUT, label="answers cut off")
    panel.errorbar(
        values, refused, yerr=reach, fmt="s--", color=_REFUSED, elinewidth=0.8, capsize=3,
        label=f"requests refused at least once, 95% interval of {caps[0].played.seeds} seeds",
    )  # fmt: skip
    panel.set_xscale("log", base=2)
    panel.set_yscale("symlog", linthresh=0.1)
    most = max([*(high * 100 for _, high in ends), *refused, *(point.truncated_share * 100 for point in caps), 1.0])
    marks = [mark for mark in (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0) if mark <= most * 1.001]
    panel.set(ylim=(0, most * 1.2), yticks=marks, yticklabels=[f"{mark:g}" for mark in marks], xticks=values)
    panel.set_xticklabels([f"{value:,}" for value in values])
    panel.minorticks_off()
    chosen = result.best_default_tokens
    panel.axvline(chosen, color="0.35", linewidth=1.0, linestyle=":")
    panel.annotate(
        f"as played: {chosen:,}", (chosen, _clear_of_curves(panel, chosen)), xycoords=("data", "axes fraction"),
        xytext=(4, 0), textcoords="offset points", fontsize=8, va="center",
    )  # fmt: skip
    panel.set_xlabel("max_tokens default, tokens (what the front door fills in where a client sends none)")
    panel.set_ylabel("% of all requests")
    panel.set_title("cap against truncation and refusal", fontsize=9, loc="left", fontweight="bold")
    panel.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, frameon=False)


def _clear_of_curves(panel: Any, value: int) -> float:
    """The height, as a share of the panel's, that is farthest from all curves near ``value``."""
    from_data = panel.transData - panel.transAxes
    points = [from_data.transform(point) for line in panel.lines[:2] for point in line.get_xydata()]
    near = sorted(points, key=lambda point: abs(point[0] - from_data.transform((value, 1.0))[0]))[:_NEAR_POINTS]
    return max((0.9, 0.7, 0.5, 0.3, 0.1), key=lambda height: min(abs(height - y) for _, y in near))


_NEAR_POINTS = 6
