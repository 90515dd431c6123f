"""How long prompts and answers are: one frozen dataclass for each distribution, which draws and states quantiles.

Draws are whole tokens, never below one; 0 means "not sent" and comes only from ``Constant`` and ``Choices``.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
UNSET = 0
_Z95 = NormalDist().inv_cdf(0.95)


class Distribution(Protocol):
    """A distribution of token counts."""

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        """The first ``count`` draws of this stream."""
        ...

    def quantile(self, probability: float) -> int:
        """The value that a share ``probability`` of all draws does not exceed."""
        ...

    def mean(self) -> float:
        """The expected value; an unset one counts as 0."""
        ...


def _tokens(values: NDArray[np.float64], minimum: int = 1, maximum: int | None = None) -> IntArray:
    whole = np.rint(values)
    return np.clip(whole, max(minimum, 1), np.inf if maximum is None else maximum).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Always ``value``."""

    value: int

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        return np.full(count, self.value, np.int64)

    def quantile(self, probability: float) -> int:
        return self.value

    def mean(self) -> float:
        return float(self.value)


@dataclass(frozen=True, kw_only=True)
class Lognormal:
    """exp(μ + σ z) with μ = ln p50 and σ = ln(p95 / p50) / 1.645, clipped to [minimum, maximum].

    >>> distribution = Lognormal(p50=1020, p95=4083)
    >>> distribution.quantile(0.5), distribution.quantile(0.95)
    (1020, 4083)
    """

    p50: float
    p95: float
    minimum: int = 1
    maximum: int | None = None

    @property
    def sigma(self) -> float:
        """The standard deviation of the logarithm."""
        return math.log(self.p95 / self.p50) / _Z95

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        logs = math.log(self.p50) + self.sigma * rng.standard_normal(count)
        return _tokens(np.exp(np.minimum(logs, 40.0)), self.minimum, self.maximum)

    def quantile(self, probability: float) -> int:
        z = NormalDist().inv_cdf(min(max(probability, 1e-12), 1 - 1e-12))
        value = round(self.p50 * math.exp(self.sigma * z))
        return min(max(value, self.minimum), value if self.maximum is None else self.maximum)

    def mean(self) -> float:
        """The mean before clipping: p50 × exp(σ² / 2)."""
        return self.p50 * math.exp(self.sigma**2 / 2)


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """Exponential with the given average, clipped to [minimum, maximum]."""

    average: float
    minimum: int = 1
    maximum: int | None = None

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        return _tokens(rng.exponential(self.average, count), self.minimum, self.maximum)

    def quantile(self, probability: float) -> int:
        value = round(-self.average * math.log(max(1.0 - probability, 1e-12)))
        return min(max(value, self.minimum), value if self.maximum is None else self.maximum)

    def mean(self) -> float:
        return self.average


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Every whole number from ``minimum`` to ``maximum`` with the same probability."""

    minimum: int
    maximum: int

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        return rng.integers(self.minimum, self.maximum, count, endpoint=True, dtype=np.int64)

    def quantile(self, probability: float) -> int:
        spread = self.maximum - self.minimum + 1
        return self.minimum + min(max(math.ceil(probability * spread) - 1, 0), spread - 1)

    def mean(self) -> float:
        return (self.minimum + self.maximum) / 2


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One value and its share; ``value`` 0 means that the client sends none."""

    value: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A few values whose shares sum to one."""

    choices: tuple[Choice, ...]

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        edges = np.cumsum([choice.share for choice in self.choices])[:-1]
        values = np.array([choice.value for choice in self.choices], np.int64)
        return values[np.searchsorted(edges, rng.random(count), side="right")]

    def quantile(self, probability: float) -> int:
        below = 0.0
        ordered = sorted(self.choices, key=lambda choice: choice.value)
        for choice in ordered:
            below += choice.share
            if below >= probability - 1e-12:
                return choice.value
        return ordered[-1].value

    def mean(self) -> float:
        return sum(choice.value * choice.share for choice in self.choices)


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """The inverse distribution function, linear between the given points (probability, tokens).

    >>> Quantiles(points=((0.0, 1.0), (0.5, 101.0), (1.0, 501.0))).quantile(0.75)
    301
    """

    points: tuple[tuple[float, float], ...]

    def draw(self, rng: np.random.Generator, count: int) -> IntArray:
        probabilities, tokens = zip(*self.points, strict=True)
        return _tokens(np.interp(rng.random(count), probabilities, tokens))

    def quantile(self, probability: float) -> int:
        probabilities, tokens = zip(*self.points, strict=True)
        return max(1, round(float(np.interp(probability, probabilities, tokens))))

    def mean(self) -> float:
        pairs = zip(self.points, self.points[1:], strict=False)
        return sum((right[0] - left[0]) * (left[1] + right[1]) / 2 for left, right in pairs)


def histogram(edges: tuple[float, ...], shares: tuple[float, ...]) -> Quantiles:
    """Bins between ``edges`` with the given shares, uniform inside each bin.

    >>> histogram((0, 100, 200), (0.25, 0.75)).points
    ((0.0, 0), (0.25, 100), (1.0, 200))
    """
    points, below = [(0.0, edges[0])], 0.0
    for edge, share in zip(edges[1:], shares, strict=True):
        below += share
        points.append((min(below, 1.0), edge))
    points[-1] = (1.0, edges[-1])
    return Quantiles(points=tuple(points))


def ranks(values: IntArray, rng: np.random.Generator) -> IntArray:
    """The rank of each value, from 0; equal values are ranked in random order.

    >>> ranks(np.array([30, 10, 20]), np.random.default_rng(0)).tolist()
    [2, 0, 1]
    """
    found = np.empty(len(values), np.int64)
    found[np.lexsort((rng.random(len(values)), values))] = np.arange(len(values))
    return found


def coupled(values: IntArray, leading: IntArray, correlation: float, rng: np.random.Generator) -> IntArray:
    """``values`` reordered to correlate with ``leading`` (a Gaussian copula): sorted as correlation × z +
    √(1 − correlation²) × noise, where z is normal in the order of ``leading``. 1 pairs the longest with the longest, −1
    with the shortest, 0 leaves it to chance.

    >>> coupled(np.array([1, 2, 3]), np.array([30, 10, 20]), -1.0, np.random.default_rng(0)).tolist()
    [1, 3, 2]
    """
    count = len(values)
    lead = np.sort(rng.standard_normal(count))[ranks(leading, rng)]
    scores = correlation * lead + (1.0 - correlation**2) ** 0.5 * rng.standard_normal(count)
    found = np.empty_like(values)
    found[np.argsort(scores, kind="stable")] = np.sort(values)
    return found
