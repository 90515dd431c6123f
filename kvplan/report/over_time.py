"""What pictures show of one strategy over time: the pool's shares and refusals per minute; on a terminal as bars."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10

from kvplan.admission import STRATEGIES
from kvplan.report.page import BLANK, QUIET, Part, Verbatim, paragraph
from kvplan.simulation.results import Simulation, StrategyResult
from kvplan.simulation.types import Integers, Samples

_BARS = 60
"""Intervals in which refusals are counted: fewer than the samples of the pool, so that each shows a rate."""


@dataclass(frozen=True, kw_only=True)
class OverTime:
    """One strategy on its first seed. Shares are of the usable pool of all replicas; ``reserved_share`` is None where
    the strategy promises no blocks. ``refused_per_min`` are refusals (retries refused again count) over each stretch
    of ``bar_s`` seconds."""

    name: str
    time_s: tuple[float, ...]
    used_share: tuple[float, ...]
    reserved_share: tuple[float, ...] | None
    bar_s: float
    refused_per_min: tuple[float, ...]
    refusals: int

    @property
    def span_s(self) -> float:
        """The length of the picture."""
        return self.time_s[-1]


def over_time(result: Simulation) -> Iterator[OverTime]:
    """Every strategy that was sampled."""
    for strategy in result.strategies:
        if strategy.samples is not None and len(strategy.samples.time_s) >= 2:
            yield _one(strategy, strategy.samples, result.backend.usable * result.backend.replicas)


def scales(rows: Sequence[OverTime]) -> tuple[float, float]:
    """The tops of the scales that all rows share: a share of the pool, and refusals per minute (1 if none)."""
    top_share = max([1.0, *(max(row.reserved_share or (0.0,)) for row in rows)])
    return top_share, max((max(row.refused_per_min) for row in rows), default=0.0) or 1.0


def _one(strategy: StrategyResult, samples: Samples, pool_blocks: int) -> OverTime:
    times = [float(value) for value in samples.time_s]
    counts = [int(value) for value in samples.refusals]
    width = max(1, -(-len(times) // _BARS))
    bar_s = width * (times[1] - times[0])
    ends = [counts[min(place + width, len(counts)) - 1] for place in range(0, len(counts), width)]
    starts = [0, *ends[:-1]]
    promises = STRATEGIES[strategy.name].counts == "blocks" and strategy.ledger_capacity is not None
    return OverTime(
        name=strategy.name,
        time_s=tuple(times),
        used_share=_shares(samples.used_blocks, pool_blocks),
        reserved_share=_shares(samples.reserved, pool_blocks) if promises else None,
        bar_s=bar_s,
        refused_per_min=tuple((end - start) * 60.0 / bar_s for start, end in zip(starts, ends, strict=True)),
        refusals=counts[-1],
    )


def _shares(blocks: Integers, pool_blocks: int) -> tuple[float, ...]:
    return tuple(float(value) / pool_blocks for value in blocks)


def time_unit(span_s: float) -> tuple[float, str]:
    """Seconds of a unit, and its name, with which the axis ends at a number of one to three digits.

    >>> time_unit(90), time_unit(1800), time_unit(90000)
    ((1.0, 's'), (60.0, 'min'), (3600.0, 'h'))
    """
    if span_s < 300:
        return 1.0, "s"
    return (60.0, "min") if span_s < 3 * 3600 else (3600.0, "h")


def ticks(top: float, *, most: int = 5) -> list[float]:
    """Round numbers from 0 up to ``top``, at most ``most`` steps of 1, 2 or 5 times a power of ten.

    >>> ticks(12.0), ticks(0.3, most=3)
    ([0.0, 5.0, 10.0], [0.0, 0.1, 0.2, 0.3])
    """
    if not (isfinite(top) and top > 0):
        return [0.0]
    power = floor(log10(top / most))
    steps = (float(f"{factor}e{power}") for factor in (1, 2, 5, 10))
    step = next(step for step in steps if step * most >= top * (1 - 1e-9))
    return [round(step * place, 12) for place in range(int(top / step + 1e-9) + 1)]


BARS = "▁▂▃▄▅▆▇█"
_NAME, _MOST = 26, 60


def parts(result: Simulation, *, width: int) -> Iterator[Part]:
    """Two lines per strategy: KV in use (the highest bar is the whole pool), and under it where attempts were
    refused."""
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
    """The values that each column stands for; fewer values than columns are repeated."""
    for column in range(columns):
        start = column * len(values) // columns
        yield values[start : max(start + 1, (column + 1) * len(values) // columns)]


def _bar(share: float) -> str:
    return BARS[min(len(BARS) - 1, int(share * len(BARS)))]
