"""The pool over time on a terminal: a line of bars per strategy, as wide as the window allows."""

from collections.abc import Iterator

from kvplan.report.over_time import over_time, time_unit
from kvplan.report.page import BLANK, QUIET, Part, Verbatim, paragraph
from kvplan.simulation.results import Simulation

BARS = "▁▂▃▄▅▆▇█"
_NAME, _MOST = 26, 60


def parts(result: Simulation, *, width: int) -> Iterator[Part]:
    """Two lines a strategy: KV in use (the highest bar is the whole pool), and under it where tries were refused."""
    rows = list(over_time(result))
    if not rows:
        return
    columns = max(10, min(_MOST, width - _NAME - 2))
    unit_s, unit = time_unit(rows[0].span_s)
    yield paragraph(
        f"KV in use over {rows[0].span_s / unit_s:g} {unit}, full height = the whole pool; x = refusals (seed "
        f"{result.inputs.seed})",
        style=QUIET,
    )
    for row in rows:
        used = [max(part) for part in _parts(row.used_share, columns)]
        refused = [sum(part) for part in _parts(row.refused_per_min, columns)]
        lines = f"  {row.name:<{_NAME - 2}}{''.join(_bar(share) for share in used)}"
        if row.refusals:
            lines += f"\n{' ' * _NAME}{''.join('x' if rate else ' ' for rate in refused)}".rstrip()
        yield Verbatim(text=lines)
    yield BLANK


def _parts(values: tuple[float, ...], columns: int) -> Iterator[tuple[float, ...]]:
    """The stretch of ``values`` that each column stands for; fewer values than columns are repeated."""
    for column in range(columns):
        start = column * len(values) // columns
        yield values[start : max(start + 1, (column + 1) * len(values) // columns)]


def _bar(share: float) -> str:
    return BARS[min(len(BARS) - 1, int(share * len(BARS)))]
