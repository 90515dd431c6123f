"""Which arrival process clusters like a recorded trace: by its gaps, and by its counts over seconds to a minute."""

import math
from collections.abc import Mapping
from decimal import Decimal

import numpy as np

from kvplan.traffic.arrivals import ArrivalProcess, Gamma, OnOff, Poisson

_POISSON_CV = (0.9, 1.15)
_CV = (0.02, 50.0)
_WINDOWS_S = (1, 10, 60)
"""Longer windows tell a trend (a morning), not bursts."""
_CLOSE = math.log(1.35)
"""Gamma gaps are kept while they meet the counts this well: one number says less that may be wrong than two."""
_DRAWN = 200_000


def fitted_arrivals(*, rate_per_s: float, cv: float, dispersion: Mapping[str, float]) -> ArrivalProcess:
    """Poisson where the gaps vary as Poisson's do; else gamma gaps of the same coefficient of variation, unless bursts
    that switch on and off meet the index of dispersion (variance over mean of the counts a window) better.

    >>> fitted_arrivals(rate_per_s=2.0, cv=1.0, dispersion={})
    Poisson()
    """
    if _POISSON_CV[0] <= cv <= _POISSON_CV[1]:
        return Poisson()
    gamma = Gamma(cv=min(max(cv, _CV[0]), _CV[1]))
    measured = {window: dispersion[f"{window}s"] for window in _WINDOWS_S if dispersion.get(f"{window}s", 0.0) > 1.05}
    if cv < 1 or len(measured) < 2:
        return gamma
    drawn = gamma_dispersion(gamma, rate_per_s, measured)
    gamma_error = _error(drawn, measured)
    bursts, error = _on_off(rate_per_s, measured)
    return gamma if gamma_error <= max(_CLOSE, error) else bursts


def _error(expected: Mapping[int, float], measured: Mapping[int, float]) -> float:
    """Root mean square of the logarithms of expected over measured."""
    return math.sqrt(sum(math.log(expected[window] / measured[window]) ** 2 for window in measured) / len(measured))


def gamma_dispersion(gamma: Gamma, rate_per_s: float, windows: Mapping[int, float]) -> dict[int, float]:
    """The index of dispersion of gamma gaps, by drawing them (it has no closed form below many gaps a window)."""
    arrival_s = np.cumsum(gamma.gaps(np.random.default_rng(0), _DRAWN)) / rate_per_s
    found = {}
    for window in windows:
        # Only windows that hold an arrival are listed: at a low rate the empty ones would fill the memory.
        places, counts = np.unique(arrival_s // window, return_counts=True)
        windows_whole, counts = float(places[-1]), counts[:-1].astype(np.float64)
        mean = counts.sum() / windows_whole if windows_whole > 1 else 0.0
        spread = (counts * counts).sum() / windows_whole - mean * mean if mean else 0.0
        found[window] = max(float(spread / mean), 1e-9) if mean else 1.0
    return found


def plain(value: float, digits: int) -> str:
    """So many digits of a number without an exponent, which times and rates of a traffic file do not know.

    >>> plain(1e-7, 6), plain(1487.2, 3)
    ('0.0000001', '1490')
    """
    return f"{Decimal(f'{value:.{digits}g}'):f}"


def on_off_dispersion(bursts: OnOff, rate_per_s: float, window_s: float) -> float:
    """1 + A × (1 − (τ / t) × (1 − exp(−t / τ))): counts over t of a Poisson process that is on for exp(on) and off for
    exp(off) seconds. τ = on × off / (on + off) is how long the state is remembered, A = 2 × rate × τ × off / on (the
    variance of an interrupted Poisson process; Fischer and Meier-Hellstern, The MMPP cookbook, 1993).
    """
    memory_s = bursts.on_s * bursts.off_s / (bursts.on_s + bursts.off_s)
    height = 2.0 * rate_per_s * memory_s * bursts.off_s / bursts.on_s
    return 1.0 + height * _share(memory_s, window_s)


def _share(memory_s: float, window_s: float) -> float:
    return 1.0 - memory_s / window_s * -math.expm1(-window_s / memory_s)


def _on_off(rate_per_s: float, measured: Mapping[int, float]) -> tuple[OnOff, float]:
    """The bursts whose dispersion is nearest: for each memory τ the height A that fits best, the best of them all."""
    best: tuple[float, OnOff] | None = None
    for memory_s in np.geomspace(0.05, 120.0, 120).tolist():
        logs = [math.log((value - 1.0) / _share(memory_s, window)) for window, value in measured.items()]
        height = math.exp(sum(logs) / len(logs))
        off_over_on = height / (2.0 * rate_per_s * memory_s)
        bursts = OnOff(on_s=memory_s * (1.0 + 1.0 / off_over_on), off_s=memory_s * (1.0 + off_over_on))
        error = _error({window: on_off_dispersion(bursts, rate_per_s, window) for window in measured}, measured)
        if best is None or error < best[0]:
            best = error, bursts
    assert best is not None
    return best[1], best[0]


def arrivals_text(process: ArrivalProcess) -> str:
    """The process as a traffic file says it.

    >>> arrivals_text(OnOff(on_s=9.7, off_s=45.0)), arrivals_text(Gamma(cv=2.5))
    ('{on_off: {on: 9.7s, off: 45s}}', '{gamma: {cv: 2.5}}')
    """
    match process:
        case OnOff():
            return f"{{on_off: {{on: {plain(process.on_s, 3)}s, off: {plain(process.off_s, 3)}s}}}}"
        case Gamma():
            return f"{{gamma: {{cv: {process.cv:.3g}}}}}"
    return "poisson"
