"""How arrivals lie in time: span, gaps, and how unevenly they fill windows; in memory that a long trace cannot grow."""

import math
from array import array

WINDOWS_S = (1, 10, 60, 300)
_WIDTHS_S = (1, 10, 60, 300, 3600, 86_400)
_MOST_BINS = 2**21
_FEWEST_WINDOWS = 10


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

    def dispersion(self, window_s: int) -> float | None:
        """Variance over mean of the arrivals in the whole windows of the span (1 for Poisson).

        None of fewer than ten windows, and where the bins are wider than the window by now.
        """
        width = _WIDTHS_S[self._width]
        windows = int(self.span_s // window_s)
        if windows < _FEWEST_WINDOWS or window_s % width:
            return None
        step, start = window_s // width, (math.floor(self.first_s) - self._origin) // width
        inside = [sum(self._bins[start + step * index : start + step * (index + 1)]) for index in range(windows)]
        mean = sum(inside) / windows
        return sum((count - mean) ** 2 for count in inside) / windows / mean if mean else None
