"""Fits the one efficiency with which the simulation takes as long as a measured run.

It is fitted on the first third of the run; how well it predicts the rest says how far to trust it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kvplan.errors import InputError
from kvplan.simulation.backend import Backend, engine_setup
from kvplan.simulation.kernel.run import run_kernel
from kvplan.simulation.measured_run import MeasuredRun
from kvplan.simulation.step_time import BAND_SHARE, EFFICIENCY, at_efficiency
from kvplan.simulation.types import ClientRule, Floats, FrontDoor, RequestRows, Requests, Router

FITTED_SHARE = 1 / 3
FEWEST_REQUESTS = 30
"""With fewer, the first third has less than ten requests, and their mean says little."""
OTHER_PEAK_SHARE = 0.1
"""From this difference in requests that run at once the engine was set up otherwise than the simulation."""
GOOD_SHARE = 0.05
"""Up to this error of a mean the fit is called good."""
_SLOWEST, _FASTEST = 0.02, 1.5
"""Efficiencies beyond these mean another model, GPU or unit of time."""
_TOLERANCE_SHARE = 1e-5
"""Far below the four digits to which the efficiency is rounded."""
_MAX_TRIALS = 40
"""Each is a simulation; the search needs about ten."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """Mean and quantiles of a time over one part of a run."""

    mean_s: float
    p50_s: float
    p99_s: float


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A time as measured and as simulated."""

    measured: Times
    predicted: Times

    @property
    def error_share(self) -> float:
        """Predicted mean / measured mean - 1."""
        return self.predicted.mean_s / self.measured.mean_s - 1.0

    def quantile_error_share(self, name: str) -> float:
        """The same for the quantile ``name``: p50 or p99."""
        predicted, measured = (getattr(times, f"{name}_s") for times in (self.predicted, self.measured))
        return float(predicted / measured - 1.0)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the run: the time from arrival to the first token, and to the last."""

    requests: int
    ttft: Compared
    e2e: Compared


@dataclass(frozen=True, kw_only=True)
class EfficiencyFit:
    """The fitted efficiency, and the run simulated with it: the first third, on which it was fitted, and the rest.

    ``unfitted`` is the rest with the default efficiency, and at the slow and the fast end of its band.
    """

    efficiency: float
    backend: Backend
    requests: int
    skipped: int
    fitted: Part
    rest: Part
    unfitted: Part
    unfitted_slow: Part
    unfitted_fast: Part
    preemptions: int
    running_peak: int
    running_peak_measured: int

    @property
    def is_good(self) -> bool:
        """Whether both means of the rest are predicted to within ``GOOD_SHARE``."""
        return max(abs(self.rest.ttft.error_share), abs(self.rest.e2e.error_share)) <= GOOD_SHARE

    @property
    def is_in_default_band(self) -> bool:
        """Whether the default efficiency with its band holds the mean end-to-end time of the rest."""
        fast, slow = self.unfitted_fast.e2e.predicted, self.unfitted_slow.e2e.predicted
        return fast.mean_s <= self.rest.e2e.measured.mean_s <= slow.mean_s

    @property
    def ran_otherwise(self) -> bool:
        """Whether clearly more or fewer requests ran at once than simulated: another cap, pool or parallelism."""
        high, low = sorted((self.running_peak, self.running_peak_measured), reverse=True)
        return high > (1.0 + OTHER_PEAK_SHARE) * low


def fit_efficiency(run: MeasuredRun, backend: Backend) -> EfficiencyFit:
    """The efficiency at which the mean time from arrival to last token of the first third is the measured one.

    Each trial simulates the whole run, because later requests slow down the first ones too. The end-to-end time is
    fitted because it contains hundreds of steps, and the time to first token only one or two and a queue. ``backend``
    must have a roofline's service. InputError where no efficiency from 2% to 150% explains the run.
    """
    if len(run) < FEWEST_REQUESTS:
        raise InputError(
            f"requests in the run: {len(run)}, too few to fit on a third of them",
            hint=f"record {FEWEST_REQUESTS} or more",
        )
    part = round(len(run) * FITTED_SHARE)
    first, rest = slice(0, part), slice(part, len(run))

    def replayed(efficiency: float) -> RequestRows:
        return replay(run, replace(backend, service=at_efficiency(backend.service, efficiency)))

    def too_slow(efficiency: float) -> float:
        return compare(run, replayed(efficiency), first).e2e.error_share

    efficiency = round(_root(too_slow), 4)
    rows = replayed(efficiency)
    return EfficiencyFit(
        efficiency=efficiency,
        backend=replace(backend, service=at_efficiency(backend.service, efficiency)),
        requests=len(run),
        skipped=run.skipped,
        fitted=compare(run, rows, first),
        rest=compare(run, rows, rest),
        unfitted=compare(run, replayed(EFFICIENCY), rest),
        unfitted_slow=compare(run, replayed(EFFICIENCY / (1.0 + BAND_SHARE)), rest),
        unfitted_fast=compare(run, replayed(EFFICIENCY / (1.0 - BAND_SHARE)), rest),
        preemptions=int(rows.preemptions.sum()),
        running_peak=_peak(rows.first_token_s, rows.finish_s),
        running_peak_measured=_peak(run.first_token_s, run.finish_s),
    )


def _root(too_slow: Callable[[float], float]) -> float:
    """Where ``too_slow`` changes sign: regula falsi over 1 / efficiency, in which times are nearly linear, with the
    Illinois rule (an end that stays twice counts half), so that it also converges where they are not."""
    low, high = 1.0 / _FASTEST, 1.0 / _SLOWEST
    at_low, at_high = too_slow(1.0 / low), too_slow(1.0 / high)
    if at_low > 0 or at_high < 0:
        word = "faster" if at_low > 0 else "slower"
        bound = f"{_FASTEST:.0%}" if at_low > 0 else f"{_SLOWEST:.0%}"
        raise InputError(
            f"the run is {word} than {bound} of the roofline",
            hint="is it this model on this GPU, with this parallelism? Are the times in seconds?",
            key="run",
        )
    stayed = 0
    for _ in range(_MAX_TRIALS):
        middle = low - at_low * (high - low) / (at_high - at_low)
        value = too_slow(1.0 / middle)
        if abs(value) < _TOLERANCE_SHARE or high - low < _TOLERANCE_SHARE * middle:
            return 1.0 / middle
        if value > 0:
            high, at_high = middle, value
            at_low = at_low / 2 if stayed > 0 else at_low
            stayed = 1
        else:
            low, at_low = middle, value
            at_high = at_high / 2 if stayed < 0 else at_high
            stayed = -1
    return 2.0 / (low + high)


def replay(run: MeasuredRun, backend: Backend) -> RequestRows:
    """The requests of the run in the simulated engine, all admitted; each asks for the answer that it got.

    Of several replicas the one with the fewest requests takes the next, as vLLM's own load balancer does.
    """
    too_long = int((run.prompt_tokens >= backend.settings.max_model_len).sum())
    if too_long:
        raise InputError(
            f"{too_long:,} prompts of the run do not fit the window of {backend.settings.max_model_len:,} tokens",
            hint="give the engine's --max-model-len",
            key="max_model_len",
        )
    asked = Requests.uncharged(run.arrival_s, run.prompt_tokens, run.output_tokens, run.output_tokens)
    door = FrontDoor(replicas=backend.replicas, router=Router.MIN_RESERVED)
    return run_kernel(asked, engine_setup(backend), door, (ClientRule(),)).rows


def compare(run: MeasuredRun, rows: RequestRows, part: slice) -> Part:
    """The times of one part of the run, measured and simulated."""

    def both(measured_s: Floats, simulated_s: Floats) -> Compared:
        start_s = run.arrival_s[part]
        return Compared(measured=_times(measured_s[part] - start_s), predicted=_times(simulated_s[part] - start_s))

    return Part(
        requests=len(run.arrival_s[part]),
        ttft=both(run.first_token_s, rows.first_token_s),
        e2e=both(run.finish_s, rows.finish_s),
    )


def _peak(first_token_s: Floats, finish_s: Floats) -> int:
    """The most requests that were between first and last token at once."""
    moments_s = np.concatenate((first_token_s, finish_s))
    change = np.concatenate((np.ones(len(first_token_s)), -np.ones(len(finish_s))))
    return int(change[np.lexsort((change, moments_s))].cumsum().max())


def _times(values_s: Floats) -> Times:
    p50_s, p99_s = np.percentile(values_s, (50, 99))
    return Times(mean_s=float(values_s.mean()), p50_s=float(p50_s), p99_s=float(p99_s))
