"""Whether the limits of a traffic file hold, and what a change does to every figure."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from kvplan.check.against import changes, figures, read_baseline, settings
from kvplan.check.judge import judge_limits
from kvplan.check.plan_and_play import measure
from kvplan.check.results import Check, Difference
from kvplan.errors import InputError
from kvplan.simulation.tasks import RunOptions
from kvplan.simulation.workers import Progress
from kvplan.traffic.spec import Traffic

__all__ = ["check"]


def check(
    traffic: Traffic,
    *,
    against: Traffic | None = None,
    baseline: Path | None = None,
    strict: bool = False,
    prices_per_hour: Mapping[str, float] | None = None,
    seeds: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Check:
    """Compares every limit of the file with its plan and with a simulation of the policy that it names.

    With ``against`` (another traffic file) or ``baseline`` (the JSON of an earlier check, fit or simulation) every
    figure is compared too. ``strict``: a limit within noise fails. ``prices_per_hour`` are of one GPU, by the name of
    its profile. The other parameters are those of ``simulate``. Raises InputError for a file without limits: a check
    that checks nothing is not a pass.
    """
    options = RunOptions(
        seeds=seeds,
        seed=seed,
        workers=workers,
        executor=executor,
        offline=offline,
        profiles_folder=profiles_folder,
        progress=progress,
        say=say,
    )
    if not traffic.limits:
        raise InputError(
            "the file has no limits, so there is nothing to check",
            hint="add limits: {refused_share: {max: 0.01}} to the file (kvplan explain traffic lists them)",
            file=traffic.file,
            key="limits",
        )
    earlier = None if baseline is None else read_baseline(baseline)

    def play(one: Traffic) -> Check:
        measured = measure(one, options, prices_per_hour=prices_per_hour)
        limits = judge_limits(measured, strict=strict)
        return Check(traffic=one, measured=measured, limits=limits, strict=strict, figures=figures(measured))

    result = play(traffic)
    if against is not None:
        base = play(against)
        comparison = Difference(
            base=against.file,
            settings=settings(against, traffic),
            changes=changes(base.figures, result.figures),
            base_limits=base.limits,
        )
    elif earlier is not None:
        before, complete = earlier
        # An answer that is not complete says nothing of the other figures.
        after = {name: value for name, value in result.figures.items() if complete or name in before}
        comparison = Difference(base=str(baseline), settings=(), changes=changes(before, after))
    else:
        return result
    return replace(result, comparison=comparison)
