"""``kvplan check``: do the file's limits hold? For CI: exit 0 or 1."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kvplan.cli import options
from kvplan.cli.files import check_free
from kvplan.cli.output import progress_bar, show_report, talk
from kvplan.errors import InputError

NEEDS_ARGUMENTS = True
EXAMPLE = "kvplan check traffic.yaml --against base.yaml --format markdown"


def run(
    traffic: Annotated[str, typer.Argument(metavar="TRAFFIC", help="A traffic file with limits:, or a bundled mix.")],
    against: Annotated[
        str | None, typer.Option("--against", metavar="BASE.yaml", help="Compare every figure with this file's.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="PLAN.json", help="Compare with the JSON of an earlier answer."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on unsure limits, too.")] = False,
    seeds: options.Seeds = None,
    seed: options.Seed = None,
    price: options.Price = None,
    policy: options.Policy = None,
    duration: options.Duration = None,
    calibration: options.Calibration = None,
    set_keys: options.Set = None,
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
    """Check the limits of this traffic file. Exit 0: all hold; 1: one is broken.

    With --output the report goes to the file, and the text to stdout.
    """
    from kvplan.check import check
    from kvplan.sweep import cluster_executor

    folder = options.profiles_folder(profiles)
    if against is not None and baseline is not None:
        raise InputError("--against and --baseline cannot be combined", hint="give one of them", key="against")
    if output is not None:
        check_free(output, force=force)
    changed = options.changes(set_keys, policy=policy, duration=duration, calibration=calibration)
    mix = options.load_changed(traffic, changed, folder)
    # The base is taken as it stands: what is tried by hand is part of the change.
    base = None if against is None else options.load_changed(against, {}, folder)
    with progress_bar("checking") as step, cluster_executor(cluster) as executor:
        result = check(
            mix,
            against=base,
            baseline=baseline,
            strict=strict,
            seeds=seeds,
            seed=seed,
            workers=workers,
            executor=executor,
            prices_per_hour=options.parse_prices(price or [], profiles_folder=folder),
            offline=offline,
            profiles_folder=folder,
            progress=step,
            say=talk,
        )
    show_report("check", format, result, output=output, force=force)
    if output is not None:
        show_report("check", "text", result)
    return 0 if result.passed else 1
