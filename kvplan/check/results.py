"""What a check answers: a verdict for every limit, and what a change does to every figure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvplan.capacity import Fit
from kvplan.simulation.results import Simulation
from kvplan.traffic.spec import Traffic

Bound = Literal["min", "max"]
Certainty = Literal["exact", "sure", "within_noise", "one_seed", "not_measured"]
"""``sure``: the whole 95% interval lies on one side. ``one_seed``: drawn, but without an interval."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A figure and what is known about it.

    ``value`` is what is compared, None where there was nothing to measure (``detail`` says why). ``low`` and ``high``
    are the 95% interval of a mean over seeds; None for figures that are exact or the worst of all seeds, and for the
    mean of a single seed (``one_seed``). ``how`` says what the value is of.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    one_seed: bool = False
    how: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class LimitResult:
    """One bound of one limit and its reading. ``line`` is where the limit stands in the file.

    ``at_slow_end`` and ``at_fast_end`` are the value where every step takes as long, or as short, as the band of an
    estimated step time allows; None where the step time was measured. They warn and do not decide.
    """

    name: str
    class_name: str | None
    bound: Bound
    limit: float
    reading: Reading
    certainty: Certainty
    passed: bool
    line: int | None = None
    at_slow_end: float | None = None
    at_fast_end: float | None = None

    @property
    def broken_within_band(self) -> tuple[float, Literal["slow", "fast"]] | None:
        """The value at the end of the step time's band at which a limit that passed would not, and which end."""
        ends: tuple[tuple[float | None, Literal["slow", "fast"]], ...]
        ends = (self.at_slow_end, "slow"), (self.at_fast_end, "fast")
        for value, end in ends:
            if self.passed and value is not None and not self.is_met_by(value):
                return value, end
        return None

    @property
    def is_met(self) -> bool:
        """Whether the measured value itself is on the right side of the limit."""
        return self.reading.value is not None and self.is_met_by(self.reading.value)

    def is_met_by(self, value: float) -> bool:
        """Whether ``value`` is on the right side of the limit."""
        return value >= self.limit if self.bound == "min" else value <= self.limit


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """A traffic file, planned and played. ``simulation`` is None where the engine would not start, and ``trouble`` says
    why; ``fit`` is None where the pool was given in blocks. ``gpu_price_per_hour`` is of one GPU."""

    traffic: Traffic
    fit: Fit | None
    simulation: Simulation | None
    gpus: int
    gpu_price_per_hour: float | None = None
    trouble: str | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """A figure before and after; None where there is none."""

    name: str
    before: float | None
    after: float | None


@dataclass(frozen=True, kw_only=True)
class ChangedKey:
    """A key of the file before and after, as text; None where the file does not give it."""

    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What changed against ``base`` (a file), and the limits as judged on the base, where that is known."""

    base: str
    settings: tuple[ChangedKey, ...]
    changes: tuple[Change, ...]
    base_limits: tuple[LimitResult, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Check:
    """The whole answer of ``kvplan check``."""

    traffic: Traffic
    measured: Measured
    limits: tuple[LimitResult, ...]
    strict: bool
    figures: Mapping[str, float | None] = field(default_factory=dict)
    comparison: Difference | None = None

    @property
    def passed(self) -> bool:
        """Whether there is a limit and every limit passed."""
        return bool(self.limits) and all(limit.passed for limit in self.limits)

    @property
    def broken(self) -> tuple[LimitResult, ...]:
        """The limits that failed."""
        return tuple(limit for limit in self.limits if not limit.passed)

    @property
    def newly_broken(self) -> tuple[LimitResult, ...]:
        """The limits that failed and that the base met, by name, class and bound."""
        before = () if self.comparison is None else self.comparison.base_limits
        met = {(one.name, one.class_name, one.bound) for one in before if one.passed}
        return tuple(one for one in self.broken if (one.name, one.class_name, one.bound) in met)
