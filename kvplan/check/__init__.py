"""Do the limits of a traffic file hold? And what does a change do to every figure?"""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from kvplan.check.against import changes, changes_since, figures, settings
from kvplan.check.baseline import read_baseline
from kvplan.check.judge import judge_limits
from kvplan.check.measure import measure
from kvplan.check.results import Check, Difference
from kvplan.errors import InputError
from kvplan.simulation.workers import Progress
from kvplan.traffic.kinds import Traffic

__all__ = ["check"]


def check(
    traffic: Traffic,
    *,
    against: Traffic | None = None,
    baseline: Path | None = None,
    strict: bool = False,
    seeds: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    prices_per_hour: Mapping[str, float] | None = None,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Check:
    """Every limit of the file against what it plans and plays, the policy that the file names being judged.

    With ``against`` (another traffic file) or ``baseline`` (the JSON of an earlier check, fit or simulation) every
    figure is compared too. Raises InputError for a file without limits: a check that checks nothing is not a pass.
    """
    if not traffic.limits:
        raise InputError(
            "the file has no limits, so there is nothing to check",
            hint="add limits: {refused_share: {max: 0.01}} to the file (kvplan explain traffic lists them)",
            file=traffic.file,
            key="limits",
        )
    kept = None if baseline is None else read_baseline(baseline)

    def play(one: Traffic) -> Check:
        measured = measure(
            one,
            seeds=seeds,
            seed=seed,
            workers=workers,
            executor=executor,
            prices_per_hour=prices_per_hour,
            offline=offline,
            profiles_folder=profiles_folder,
            progress=progress,
            say=say,
        )
        limits = judge_limits(measured, strict=strict)
        return Check(traffic=one, measured=measured, limits=limits, strict=strict, figures=figures(measured))

    result = play(traffic)
    comparison = None
    if against is not None:
        base = play(against)
        comparison = Difference(
            base=against.file,
            settings=settings(against, traffic),
            changes=changes(base.figures, result.figures),
            base_limits=base.limits,
        )
    elif kept is not None:
        figures_then, complete = kept
        found = changes_since(figures_then, result.figures, complete=complete)
        comparison = Difference(base=str(baseline), settings=(), changes=found)
    if comparison is None:
        return result
    return replace(result, comparison=comparison)
