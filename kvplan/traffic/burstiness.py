"""Which arrival process clusters like a recorded trace: by its gaps, and by its counts over seconds to hours."""

import math
from decimal import Decimal

from kvplan.traffic.arrivals import ArrivalProcess, Gamma, Poisson, Recorded
from kvplan.traffic.stamps import Stamps, dispersion

_POISSON_CV = (0.9, 1.15)
_CV = (0.02, 50.0)
_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_MOST_STEPS = 1800
_SIGNAL = 5.0
"""Counts are kept as the rate's course where they vary by five times what chance alone makes of them (a dispersion of
5): drawn again around that course, they then vary by a fifth more than they did."""


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


def plain(value: float, digits: int) -> str:
    """So many digits of a number without an exponent, which times and rates of a traffic file do not know.

    >>> plain(1e-7, 6), plain(1487.2, 3)
    ('0.0000001', '1490')
    """
    return f"{Decimal(f'{value:.{digits}g}'):f}"
