"""When requests arrive: a renewal process of rate one, mapped through the integral of the rate over time.

A process of rate r(t) is a unit-rate process read at R(t) = ∫ r, so the same draws serve every ``--scale``.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_GRID = 4096


class ArrivalProcess(Protocol):
    """How arrivals cluster: gaps of mean one, and a relative rate over time of mean one."""

    def gaps(self, rng: np.random.Generator, count: int) -> FloatArray:
        """The next ``count`` gaps of this stream."""
        ...

    def rate_curve(self, rng: np.random.Generator, duration_s: float) -> tuple[FloatArray, FloatArray] | None:
        """Times from 0 to the duration, and the integral of the relative rate up to each; None where it is constant."""
        ...


class _Steady:
    """A process of constant rate."""

    def rate_curve(self, rng: np.random.Generator, duration_s: float) -> tuple[FloatArray, FloatArray] | None:
        return None


@dataclass(frozen=True, kw_only=True)
class Poisson(_Steady):
    """Independent arrivals: exponential gaps."""

    def gaps(self, rng: np.random.Generator, count: int) -> FloatArray:
        return rng.standard_exponential(count)


@dataclass(frozen=True, kw_only=True)
class Evenly(_Steady):
    """One arrival every 1 / rate seconds."""

    def gaps(self, rng: np.random.Generator, count: int) -> FloatArray:
        return np.ones(count)


@dataclass(frozen=True, kw_only=True)
class Gamma(_Steady):
    """Gamma gaps with the given coefficient of variation: shape 1 / cv², scale cv²."""

    cv: float

    def gaps(self, rng: np.random.Generator, count: int) -> FloatArray:
        return rng.gamma(1.0 / self.cv**2, self.cv**2, count)


@dataclass(frozen=True, kw_only=True)
class Weibull(_Steady):
    """Weibull gaps with the given coefficient of variation; the shape k solves Γ(1 + 2/k) / Γ(1 + 1/k)² = 1 + cv²."""

    cv: float

    @property
    def shape(self) -> float:
        """The shape, found by halving: the coefficient of variation falls as the shape rises.

        >>> round(Weibull(cv=1.0).shape, 9)
        1.0
        """
        low, high = 0.05, 200.0
        target = math.log(1.0 + self.cv**2)
        for _ in range(200):
            middle = math.sqrt(low * high)
            spread = math.lgamma(1.0 + 2.0 / middle) - 2.0 * math.lgamma(1.0 + 1.0 / middle)
            low, high = (middle, high) if spread > target else (low, middle)
        return math.sqrt(low * high)

    def gaps(self, rng: np.random.Generator, count: int) -> FloatArray:
        return rng.weibull(self.shape, count) / math.gamma(1.0 + 1.0 / self.shape)


@dataclass(frozen=True, kw_only=True)
class OnOff:
    """Bursts: Poisson arrivals while on, none (or ``off_share`` of the mean rate) while off; both times are
    exponential.

    The rate while on is raised to keep the long-run mean: (mean × (on + off) − mean × off_share × off) / on.
    """

    on_s: float
    off_s: float
    off_share: float = 0.0

    def gaps(self, rng: np.random.Generator, count: int) -> FloatArray:
        return rng.standard_exponential(count)

    def rate_curve(self, rng: np.random.Generator, duration_s: float) -> tuple[FloatArray, FloatArray]:
        cycle_s = self.on_s + self.off_s
        high = (cycle_s - self.off_share * self.off_s) / self.on_s
        starts_on = bool(rng.random() < self.on_s / cycle_s)
        stays = np.array([self.on_s, self.off_s] if starts_on else [self.off_s, self.on_s])
        rates = np.array([high, self.off_share] if starts_on else [self.off_share, high])
        times, integral = [np.zeros(1)], [np.zeros(1)]
        while times[-1][-1] < duration_s:
            pairs = int((duration_s - times[-1][-1]) / cycle_s * 1.05) + 16
            lasts_s = rng.standard_exponential((pairs, 2)) * stays
            times.append(times[-1][-1] + np.cumsum(lasts_s))
            integral.append(integral[-1][-1] + np.cumsum(lasts_s * rates))
        return np.concatenate(times), np.concatenate(integral)


@dataclass(frozen=True, kw_only=True)
class Diurnal:
    """A daily cycle: rate × (1 + (peak − 1) × cos(2π (t − peak_at) / period)), with ``peak_to_mean`` from 1 to 2."""

    period_s: float = 86_400.0
    peak_to_mean: float = 1.5
    peak_at_s: float = 0.0

    def gaps(self, rng: np.random.Generator, count: int) -> FloatArray:
        return rng.standard_exponential(count)

    def rate_curve(self, rng: np.random.Generator, duration_s: float) -> tuple[FloatArray, FloatArray]:
        points = max(_GRID, int(duration_s / self.period_s * 64))
        times = np.linspace(0.0, duration_s, points + 1)
        turn = 2.0 * math.pi / self.period_s
        swing = (self.peak_to_mean - 1.0) / turn
        integral = times + swing * (np.sin(turn * (times - self.peak_at_s)) + math.sin(turn * self.peak_at_s))
        return times, integral


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A recorded rate: ``counts`` arrivals in successive steps of ``step_s`` seconds, repeated over and over.

    Only the proportions of the counts matter. Within a step gaps are gamma with the coefficient of variation ``cv``.
    """

    step_s: float
    counts: tuple[float, ...]
    cv: float = 1.0

    def gaps(self, rng: np.random.Generator, count: int) -> FloatArray:
        return Gamma(cv=self.cv).gaps(rng, count)

    def rate_curve(self, rng: np.random.Generator, duration_s: float) -> tuple[FloatArray, FloatArray]:
        steps = math.ceil(duration_s / self.step_s) + 1
        rates = np.resize(np.array(self.counts, np.float64), steps) * (len(self.counts) / math.fsum(self.counts))
        times = self.step_s * np.arange(steps + 1, dtype=np.float64)
        return times, np.concatenate([[0.0], np.cumsum(rates * self.step_s)])


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """A factor on the rate of every class, linear from ``start`` to ``end`` over the run."""

    start: float = 1.0
    end: float = 1.0

    def integral(self, times_s: FloatArray, duration_s: float) -> FloatArray:
        """∫ of the factor: start × t + (end − start) × t² / (2 × duration)."""
        return self.start * times_s + (self.end - self.start) * times_s**2 / (2.0 * duration_s)


def arrival_times(
    process: ArrivalProcess,
    *,
    rate_per_s: float,
    duration_s: float,
    gap_rng: np.random.Generator,
    curve_rng: np.random.Generator,
    ramp: Ramp | None = None,
) -> FloatArray:
    """Arrivals in [0, duration): unit-rate arrivals mapped back through the integral of the rate.

    >>> every = arrival_times(Evenly(), rate_per_s=2.0, duration_s=2.0, gap_rng=np.random.default_rng(0),
    ...                       curve_rng=np.random.default_rng(0))
    >>> every.tolist()
    [0.5, 1.0, 1.5]
    """
    curve = process.rate_curve(curve_rng, duration_s)
    if curve is None and ramp is None:
        arrivals = _unit_arrivals(process, gap_rng, rate_per_s * duration_s) / rate_per_s
        return arrivals[arrivals < duration_s]
    times, integral = curve if curve is not None else (np.array([0.0, duration_s]), np.array([0.0, duration_s]))
    if ramp is not None:
        grid = np.union1d(np.linspace(0.0, duration_s, _GRID + 1), times)
        slope = np.diff(np.interp(grid, times, integral))
        factor = np.diff(ramp.integral(grid, duration_s)) / np.diff(grid)
        times, integral = grid, np.concatenate([[0.0], np.cumsum(slope * factor)])
    total = float(np.interp(duration_s, times, integral))
    unit = _unit_arrivals(process, gap_rng, rate_per_s * total)
    arrivals = _times_at(unit / rate_per_s, times, integral)
    return arrivals[arrivals < duration_s]


def _times_at(levels: FloatArray, times: FloatArray, integral: FloatArray) -> FloatArray:
    """The inverse of an integral that may be flat in places: a level lies on the rising piece that reaches it."""
    piece = np.clip(np.searchsorted(integral, levels, side="left"), 1, len(integral) - 1)
    rise = integral[piece] - integral[piece - 1]
    part = (levels - integral[piece - 1]) / np.where(rise > 0, rise, 1.0)
    return times[piece - 1] + part * (times[piece] - times[piece - 1])


def _unit_arrivals(process: ArrivalProcess, rng: np.random.Generator, until: float) -> FloatArray:
    """Arrival times of the unit-rate process below ``until``; the draws do not depend on how many are made at once."""
    pieces, reached = [], 0.0
    while reached < until:
        count = int((until - reached) * 1.05 + 6.0 * math.sqrt(until - reached) + 16.0)
        piece = reached + np.cumsum(process.gaps(rng, count))
        pieces.append(piece)
        reached = float(piece[-1])
    arrivals = np.concatenate(pieces) if pieces else np.zeros(0)
    return arrivals[arrivals < until]
