"""``kvplan simulate``: what happens when this traffic meets that pool."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kvplan.cli import options
from kvplan.cli.deployment_options import takes_deployment
from kvplan.cli.files import atomic, check_free
from kvplan.cli.output import encodable, progress_bar, show, show_report, talk, terminal_width, write_lines
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.capacity import Fit
    from kvplan.report.page import Part
    from kvplan.simulation.results import Simulation

NEEDS_ARGUMENTS = True
EXAMPLE = "kvplan simulate chat --default-max-tokens 1024 --scale 1.5"

_REPORTS = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"}


@takes_deployment()
def run(
    traffic: options.TrafficReference,
    asked: dict[str, Any],
    strategy: Annotated[
        list[str] | None, typer.Option("--strategy", metavar="NAME", help="Only this strategy; repeatable.")
    ] = None,
    seeds: options.Seeds = None,
    seed: options.Seed = None,
    scale: options.Scale = 1.0,
    duration: options.Duration = None,
    workers: options.Workers = None,
    safety_fraction: options.SafetyFraction = None,
    default_max_tokens: options.DefaultMaxTokens = None,
    concurrency: options.Concurrency = None,
    model: options.Model = None,
    replicas: options.Replicas = None,
    calibration: options.Calibration = None,
    set_keys: options.Set = None,
    requests: Annotated[
        Path | None, typer.Option("--requests", metavar="FILE.csv", help="Write every request to this file.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the pool and the refusals (.png, .svg, .pdf).")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="One self-contained page (or .md).")
    ] = None,
    force: options.Force = False,
    format: Annotated[
        Literal["text", "json", "markdown"],
        typer.Option("--format", show_default=False, help="For people, programs, or a ticket."),
    ] = "text",
    offline: options.Offline = False,
    profiles: options.Profiles = None,
) -> int:
    """Play this traffic against the KV pool: admission strategies side by side, and what to set."""
    from kvplan.admission import DEFAULT_STRATEGIES
    from kvplan.recommend import with_recommendation
    from kvplan.simulation.simulate import simulate

    folder = options.profiles_folder(profiles)
    _check_files(requests, plot, report, force=force)
    changed = options.changes(
        set_keys,
        duration=duration,
        safety_fraction=safety_fraction,
        default_max_tokens=default_max_tokens,
        concurrency=concurrency,
        model=model,
        replicas=replicas,
        calibration=calibration,
        **asked,
    )
    mix = options.load_changed(traffic, changed, folder)
    with progress_bar("simulating") as step:
        result = simulate(
            mix,
            strategies=tuple(strategy) if strategy else DEFAULT_STRATEGIES,
            seeds=seeds,
            seed=seed,
            scale=scale,
            workers=workers,
            keep_rows=requests is not None,
            offline=offline,
            profiles_folder=folder,
            progress=step,
            say=talk,
        )
    result = with_recommendation(result)
    if requests is not None:
        from kvplan.report.requests_csv import lines

        write_lines(requests, lines(result.rows))
    if plot is not None or report is not None:
        _draw(result, plot, report, workers=workers, offline=offline, folder=folder, force=force)
    if format == "text":
        show(_sparklines(result))
    show_report("simulation", format, result)
    return 0


def _draw(
    result: "Simulation",
    plot: Path | None,
    report: Path | None,
    *,
    workers: int | None,
    offline: bool,
    folder: Path | None,
    force: bool,
) -> None:
    """Play the curves over the default cap, and write the picture and the page."""
    from kvplan.recommend.caps import cap_curve
    from kvplan.simulation.tasks import RunOptions

    with progress_bar("curves") as step:
        caps = cap_curve(result, RunOptions(workers=workers, profiles_folder=folder, progress=step, say=talk))
    if plot is not None:
        from kvplan.report.plot import draw

        with atomic(plot) as part:
            draw(result, caps, part, kind=plot.suffix.lower())
        talk(f"wrote {plot}")
    if report is not None:
        planned = _budgeted(result, offline=offline, profiles_folder=folder)
        kind = _REPORTS[report.suffix.lower()]
        show_report("simulation", kind, result, planned, caps, output=report, force=force)


def _sparklines(result: "Simulation") -> "Iterator[Part]":
    """The pool over time, for a terminal that has the characters; nothing through a pipe."""
    from kvplan.report.over_time import BARS, parts

    if sys.stdout.isatty() and encodable(BARS, sys.stdout.encoding or "utf-8") == BARS:
        yield from parts(result, width=terminal_width())


def _check_files(requests: Path | None, plot: Path | None, report: Path | None, *, force: bool) -> None:
    """Check what can be known about the files before the work begins."""
    for path in filter(None, (requests, plot, report)):
        check_free(path, force=force)
    if plot is not None:
        from kvplan.report.plot import check_drawable

        check_drawable(plot)
    if report is not None and report.suffix.lower() not in _REPORTS:
        raise InputError(f"{report} is not a kind of report", hint="name it *.html or *.md", file=str(report))


def _budgeted(result: "Simulation", *, offline: bool, profiles_folder: Path | None) -> "Fit | None":
    """The memory plan behind the pool, where the pool was planned and not given."""
    from kvplan.capacity import fit
    from kvplan.simulation.deployment import plan_deployment

    wanted, model = result.traffic.deployment, result.backend.model
    if model is None or wanted.kv_pool is not None:
        return None
    return fit(model, plan_deployment(wanted, offline=offline, profiles_folder=profiles_folder, model_id=model.id))
