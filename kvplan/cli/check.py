"""``kvplan check``: do the file's limits hold? For CI: exit 0 or 1."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvplan.cli import options, overrides
from kvplan.cli.output import check_free, show, talk, write_data, write_file
from kvplan.cli.progress import progress_bar
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.check.results import Check

NEEDS_ARGUMENTS = True
EXAMPLE = "kvplan check traffic.yaml --against base.yaml --format markdown"


def run(
    traffic: Annotated[str, typer.Argument(metavar="TRAFFIC", help="A traffic file with limits:, or a bundled mix.")],
    against: Annotated[
        str | None, typer.Option("--against", metavar="BASE.yaml", help="Compare every figure with this file's.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="PLAN.json", help="Compare with the JSON of an earlier plan."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="A limit within noise fails, too.")] = False,
    seeds: options.Seeds = None,
    seed: options.Seed = None,
    price: options.Price = None,
    policy: overrides.Policy = None,
    duration: overrides.Duration = None,
    calibration: options.Calibration = None,
    set_keys: overrides.Set = None,
    workers: options.Workers = None,
    cluster: options.Cluster = None,
    output: options.Output = None,
    force: options.Force = False,
    format: Annotated[
        Literal["text", "json", "markdown", "junit", "github"],
        typer.Option("--format", show_default=False, help="For people, programs, pull requests, CI."),
    ] = "text",
    offline: options.Offline = False,
    profiles: options.Profiles = None,
) -> int:
    """Do the limits of this traffic file hold? Exit 0: yes; 1: one is broken.

    With --output the report goes to the file, and the text to stdout.
    """
    from kvplan.check import check
    from kvplan.check.measure import parse_prices

    folder = options.profiles_folder(profiles)
    if against is not None and baseline is not None:
        raise InputError("--against and --baseline are two bases", hint="give one of them", key="against")
    if output is not None:
        check_free(output, force=force)
    learnt = None if calibration is None else str(calibration.resolve())
    changed = overrides.overrides(set_keys, duration=duration, calibration=learnt)
    if policy is not None:
        changed["admission.policy"] = policy
    mix = overrides.load(traffic, changed, folder)
    # The base is taken as it stands: what is tried by hand is part of the change.
    base = None if against is None else overrides.load(against, {}, folder)
    from kvplan.sweep import cluster_executor

    with (
        progress_bar("checking") as step,
        nullcontext() if cluster is None else cluster_executor(cluster) as executor,
    ):
        result = check(
            mix,
            against=base,
            baseline=baseline,
            strict=strict,
            seeds=options.positive_or_none(seeds, "--seeds"),
            seed=seed,
            workers=options.positive_or_none(workers, "--workers"),
            executor=executor,
            prices_per_hour=parse_prices(price or [], profiles_folder=folder),
            offline=offline,
            profiles_folder=folder,
            progress=step,
            say=talk,
        )
    _print(result, format, output, force=force)
    return 0 if result.passed else 1


def _print(result: "Check", format: str, output: Path | None, *, force: bool) -> None:
    if output is not None:
        write_file(output, _written(result, format), force=force)
    if output is not None or format == "text":
        from kvplan.report.check_text import text

        show(text(result))
    else:
        write_data(_written(result, format))


def _written(result: "Check", format: str) -> str:
    from importlib import import_module

    if format == "text":
        from kvplan.report.check_text import text as parts
        from kvplan.report.page import render

        return render(parts(result))
    modules = {"json": "check_json", "markdown": "check_markdown", "junit": "junit", "github": "github"}
    written: str = import_module(f"kvplan.report.{modules[format]}").text(result)
    return written
