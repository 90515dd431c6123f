"""Running statistics of a trace, in memory that its rows cannot grow: token counts, and how arrivals lie in time.

Arrivals: span, gaps, how unevenly they fill windows, and which arrival process clusters like them.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvplan.traffic.arrival_processes import ArrivalProcess, Gamma, Poisson, Recorded

PERCENTS = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)
WINDOWS_S = (1, 10, 60, 300)
_WIDTHS_S = (1, 10, 60, 300, 3600, 86_400)
_MOST_BINS = 2**21
_FEWEST_WINDOWS = 10
_POISSON_CV = (0.9, 1.15)
_CV = (0.02, 50.0)
_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_MOST_STEPS = 1800
_SIGNAL = 5.0
"""Counts are kept as the rate's course where they vary by five times what chance alone makes of them (a dispersion of
5): drawn again around that course, they then vary by a fifth more than they did."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Token counts of one column: ``counts`` maps a length to how many rows have it."""

    counts: Mapping[int, int] = field(repr=False)

    @property
    def rows(self) -> int:
        """Rows that have this column."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """The average length; 0 of none."""
        return sum(length * count for length, count in self.counts.items()) / self.rows if self.counts else 0.0

    def quantile(self, probability: float) -> int:
        """Value number ceil(probability × n) of the sorted lengths.

        >>> Lengths(counts={1: 1, 5: 1, 9: 2}).quantile(0.5)
        5
        """
        wanted, below = max(1, math.ceil(probability * self.rows - 1e-9)), 0
        for length in sorted(self.counts):
            below += self.counts[length]
            if below >= wanted:
                return length
        return 0

    def quantiles(self, percents: tuple[float, ...] = PERCENTS) -> dict[str, int]:
        """Several of them, named ``p50`` and so on."""
        ordered, below, place, found = sorted(self.counts), 0, -1, {}
        for percent in percents:
            wanted = max(1, math.ceil(percent / 100 * self.rows - 1e-9))
            while below < wanted:
                place += 1
                below += self.counts[ordered[place]]
            found[f"p{percent:g}"] = ordered[place]
        return found


class Stamps:
    """Running figures of a trace's stamps. Arrivals are counted in bins of a second; when there are too many bins,
    the next wider ones take their place, and the windows that are narrower are given up.

    >>> stamps = Stamps()
    >>> for second in range(101):
    ...     stamps.add(second + 0.5)
    >>> stamps.span_s, stamps.interarrival_cv, stamps.dispersion(10)
    (100.0, 0.0, 0.0)
    """

    def __init__(self) -> None:
        self.first_s = math.inf
        self.last_s = -math.inf
        self.peak_per_s = 0
        self._previous_s: float | None = None
        self._second, self._in_second = 0, 0
        self._gaps, self._gap_sum, self._gap_squares = 0, 0.0, 0.0
        self._width = 0
        self._origin = 0
        self._bins = array("L")

    def add(self, stamp_s: float) -> None:
        """Count one arrival, in the order of the file."""
        second = math.floor(stamp_s)
        if self._previous_s is None:
            self._origin = second
        else:
            gap = abs(stamp_s - self._previous_s)
            self._gaps += 1
            self._gap_sum += gap
            self._gap_squares += gap * gap
        self._in_second = self._in_second + 1 if second == self._second else 1
        self._second = second
        self.peak_per_s = max(self.peak_per_s, self._in_second)
        self.first_s, self.last_s = min(self.first_s, stamp_s), max(self.last_s, stamp_s)
        self._previous_s = stamp_s
        place = (second - self._origin) // _WIDTHS_S[self._width]
        if not 0 <= place < len(self._bins):
            place = self._make_room(second)
        self._bins[place] += 1

    def _make_room(self, second: int) -> int:
        """Bins up to that of ``second``, in wider steps where they would be too many; its place."""
        low = min(self._origin, second)
        reach = max(self._origin + len(self._bins) * _WIDTHS_S[self._width], second + 1) - low
        while reach > _MOST_BINS * _WIDTHS_S[self._width] and self._width + 1 < len(_WIDTHS_S):
            self._widen()
        width = _WIDTHS_S[self._width]
        if second < self._origin:
            added = -(-(self._origin - second) // width)
            self._bins = array("L", bytes(added * self._bins.itemsize)) + self._bins
            self._origin -= added * width
        place = (second - self._origin) // width
        if place >= len(self._bins):
            grown = max(place + 1, min(2 * len(self._bins), _MOST_BINS))
            self._bins.frombytes(bytes((grown - len(self._bins)) * self._bins.itemsize))
        return place

    def _widen(self) -> None:
        factor = _WIDTHS_S[self._width + 1] // _WIDTHS_S[self._width]
        sums = (sum(self._bins[place : place + factor]) for place in range(0, len(self._bins), factor))
        self._bins = array("L", sums)
        self._width += 1

    @property
    def span_s(self) -> float:
        """From the first stamp to the last."""
        return self.last_s - self.first_s

    @property
    def interarrival_cv(self) -> float:
        """Standard deviation of the gaps over their mean, in the order of the file."""
        if self._gaps < 2 or self._gap_sum <= 0:
            return 0.0
        mean = self._gap_sum / self._gaps
        return math.sqrt(max(self._gap_squares / self._gaps - mean * mean, 0.0)) / mean

    def counts(self, window_s: int, like: "Stamps | None" = None) -> list[int] | None:
        """Arrivals in each whole window of the span, or of the span of ``like``.

        None of fewer than ten windows, and where the bins are wider than the window by now.
        """
        whole = like or self
        width = _WIDTHS_S[self._width]
        windows = int(whole.span_s // window_s)
        if windows < _FEWEST_WINDOWS or window_s % width:
            return None
        step, start = window_s // width, (math.floor(whole.first_s) - self._origin) // width
        places = range(start, start + step * windows, step)
        return [sum(self._bins[max(place, 0) : max(place + step, 0)]) for place in places]

    def dispersion(self, window_s: int) -> float | None:
        """Variance over mean of the arrivals in the windows that ``counts`` counts (1 for Poisson)."""
        inside = self.counts(window_s)
        return dispersion(inside) if inside else None

    def dispersion_within(self, window_s: int, like: "Stamps | None" = None) -> float:
        """What is left of the dispersion of a second's arrivals once each window's own rate is taken away: the mean
        squared distance from that rate over the mean; 1 where seconds were not counted."""
        inside, seconds = self.counts(window_s, like), self.counts(1, like)
        if inside is None or seconds is None or window_s == 1:
            return 1.0
        rates = [count / window_s for count in inside for _ in range(window_s)]
        spread = sum((count - rate) ** 2 for count, rate in zip(seconds, rates, strict=False))
        return spread / max(sum(inside), 1)


def dispersion(counts: Sequence[int]) -> float:
    """Variance over mean; 0 where all are 0."""
    mean = sum(counts) / len(counts)
    return sum((count - mean) ** 2 for count in counts) / len(counts) / mean if mean else 0.0


def fitted_arrivals(stamps: Stamps, *, like: Stamps | None = None) -> ArrivalProcess:
    """The course of the rate, in the finest steps in which it stands out from chance, with gaps between as uneven as
    the seconds of a step are; else gamma gaps of the recorded coefficient of variation; Poisson where that is near 1.

    ``like``: the whole trace, of which these stamps are a part, not in its order; then steps and gaps are the whole's.

    >>> stamps = Stamps()
    >>> for second in range(101):
    ...     stamps.add(float(second))
    >>> fitted_arrivals(stamps)
    Gamma(cv=0.02)
    """
    whole = like or stamps
    for step_s in _STEPS_S:
        if whole.span_s / step_s > _MOST_STEPS:
            continue
        counts = stamps.counts(step_s, whole)
        if counts and dispersion(counts) >= _SIGNAL:
            cv = _bounded(math.sqrt(stamps.dispersion_within(step_s, whole)))
            return Recorded(step_s=float(step_s), counts=tuple(map(float, counts)), cv=cv)
    cv = _bounded(whole.interarrival_cv)
    return Poisson() if cv == 1.0 else Gamma(cv=cv)


def _bounded(cv: float) -> float:
    """The coefficient of variation that a file may say; 1 where it is as good as Poisson's."""
    return 1.0 if _POISSON_CV[0] <= cv <= _POISSON_CV[1] else float(f"{min(max(cv, _CV[0]), _CV[1]):.3g}")
