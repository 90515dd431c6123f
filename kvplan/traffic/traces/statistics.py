"""Running statistics of a trace whose memory does not grow with its rows: token counts and arrival times.

Of arrival times: span, gaps, dispersion over windows, and the arrival process that fits them.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvplan.traffic.arrival_processes import ArrivalProcess, Gamma, Poisson, Recorded

PERCENTS = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)
WINDOWS_S = (1, 10, 60, 300)
_WIDTHS_S = (1, 10, 60, 300, 3600, 86_400)
_MAX_BINS = 2**21
"""16 MB; at a second each, 24 days."""
_FEWEST_WINDOWS = 10
"""With fewer the variance says little."""
_POISSON_CV = (0.9, 1.15)
"""Coefficients of variation that are taken for Poisson's 1."""
_CV = (0.02, 50.0)
"""What a traffic file may state."""
_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_MAX_STEPS = 1800
"""The most counts that a traffic file is written with."""
_SIGNAL = 5.0
"""The dispersion from which counts are kept as a varying rate: chance alone gives 1, and counts drawn again around that
rate then vary by a fifth more than the recorded ones."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """The token counts of one column: ``counts`` maps a length to the number of rows that have it."""

    counts: Mapping[int, int] = field(repr=False)

    @property
    def rows(self) -> int:
        """Rows that have this column."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """The average length; 0 where there is none."""
        return sum(length * count for length, count in self.counts.items()) / self.rows if self.counts else 0.0

    def quantile(self, probability: float) -> int:
        """The length at rank ceil(probability × rows), in ascending order.

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
        """Several quantiles, named ``p50`` and so on."""
        ordered, below, place, found = sorted(self.counts), 0, -1, {}
        for percent in percents:
            wanted = max(1, math.ceil(percent / 100 * self.rows - 1e-9))
            while below < wanted:
                place += 1
                below += self.counts[ordered[place]]
            found[f"p{percent:g}"] = ordered[place]
        return found


class Stamps:
    """Running statistics of arrival times, counted in bins of a second. Too many bins are replaced by wider ones, and
    windows narrower than a bin are given up.

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
        """Counts one arrival, in the order of the file."""
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
        """Adds bins up to that of ``second``, widening them where they would be too many; returns its place."""
        low = min(self._origin, second)
        reach = max(self._origin + len(self._bins) * _WIDTHS_S[self._width], second + 1) - low
        while reach > _MAX_BINS * _WIDTHS_S[self._width] and self._width + 1 < len(_WIDTHS_S):
            self._widen()
        width = _WIDTHS_S[self._width]
        if second < self._origin:
            added = -(-(self._origin - second) // width)
            self._bins = array("L", bytes(added * self._bins.itemsize)) + self._bins
            self._origin -= added * width
        place = (second - self._origin) // width
        if place >= len(self._bins):
            grown = max(place + 1, min(2 * len(self._bins), _MAX_BINS))
            self._bins.frombytes(bytes((grown - len(self._bins)) * self._bins.itemsize))
        return place

    def _widen(self) -> None:
        factor = _WIDTHS_S[self._width + 1] // _WIDTHS_S[self._width]
        sums = (sum(self._bins[place : place + factor]) for place in range(0, len(self._bins), factor))
        self._bins = array("L", sums)
        self._width += 1

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return self.last_s - self.first_s

    @property
    def interarrival_cv(self) -> float:
        """The standard deviation of the gaps over their mean, in the order of the file."""
        if self._gaps < 2 or self._gap_sum <= 0:
            return 0.0
        mean = self._gap_sum / self._gaps
        return math.sqrt(max(self._gap_squares / self._gaps - mean * mean, 0.0)) / mean

    def counts(self, window_s: int, like: "Stamps | None" = None) -> list[int] | None:
        """Arrivals in each whole window of the span, or of the span of ``like``; None where there are fewer than ten
        windows, or where bins have become wider than a window."""
        whole = like or self
        width = _WIDTHS_S[self._width]
        windows = int(whole.span_s // window_s)
        if windows < _FEWEST_WINDOWS or window_s % width:
            return None
        step, start = window_s // width, (math.floor(whole.first_s) - self._origin) // width
        places = range(start, start + step * windows, step)
        return [sum(self._bins[max(place, 0) : max(place + step, 0)]) for place in places]

    def dispersion(self, window_s: int) -> float | None:
        """The variance over the mean of the arrivals in each window (1 for Poisson)."""
        inside = self.counts(window_s)
        return dispersion(inside) if inside else None

    def dispersion_within(self, window_s: int, like: "Stamps | None" = None) -> float:
        """The dispersion of arrivals per second around the rate of their window: the mean squared difference from that
        rate over the mean; 1 where seconds were not counted."""
        inside, seconds = self.counts(window_s, like), self.counts(1, like)
        if inside is None or seconds is None or window_s == 1:
            return 1.0
        rates = [count / window_s for count in inside for _ in range(window_s)]
        spread = sum((count - rate) ** 2 for count, rate in zip(seconds, rates, strict=False))
        return spread / max(sum(inside), 1)


def dispersion(counts: Sequence[int]) -> float:
    """The variance over the mean; 0 where all are 0."""
    mean = sum(counts) / len(counts)
    return sum((count - mean) ** 2 for count in counts) / len(counts) / mean if mean else 0.0


def fitted_arrivals(stamps: Stamps, *, like: Stamps | None = None) -> ArrivalProcess:
    """The arrival process that fits: the rate in the finest steps that stand out from chance, its gaps as uneven as the
    seconds within a step; else gamma gaps with the recorded coefficient of variation, or Poisson where that is near 1.

    ``like`` is the whole trace where ``stamps`` are a part of it out of order; steps and gaps are then the whole's.

    >>> stamps = Stamps()
    >>> for second in range(101):
    ...     stamps.add(float(second))
    >>> fitted_arrivals(stamps)
    Gamma(cv=0.02)
    """
    whole = like or stamps
    for step_s in _STEPS_S:
        if whole.span_s / step_s > _MAX_STEPS:
            continue
        counts = stamps.counts(step_s, whole)
        if counts and dispersion(counts) >= _SIGNAL:
            cv = _bounded(math.sqrt(stamps.dispersion_within(step_s, whole)))
            return Recorded(step_s=float(step_s), counts=tuple(map(float, counts)), cv=cv)
    cv = _bounded(whole.interarrival_cv)
    return Poisson() if cv == 1.0 else Gamma(cv=cv)


def _bounded(cv: float) -> float:
    """The coefficient of variation as a traffic file may state it; 1 where it is close to Poisson's."""
    return 1.0 if _POISSON_CV[0] <= cv <= _POISSON_CV[1] else float(f"{min(max(cv, _CV[0]), _CV[1]):.3g}")
