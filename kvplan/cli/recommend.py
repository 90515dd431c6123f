"""``kvplan recommend``: which settings to use, found by playing the traffic, with the evidence and the price."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli import options
from kvplan.cli.deployment_options import takes_deployment
from kvplan.cli.files import check_free
from kvplan.cli.output import progress_bar, show_above, show_report, talk, write_file
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.recommend import Advice

NEEDS_ARGUMENTS = True
EXAMPLE = "kvplan recommend chat --max-refused 2% --write --output traffic.yaml"


@takes_deployment()
def run(
    traffic: options.TrafficReference,
    asked: dict[str, Any],
    max_truncated: Annotated[
        str | None,
        typer.Option("--max-truncated", metavar="SHARE", help="Limit on answers that the default cuts off, e.g. 1%."),
    ] = None,
    max_refused: Annotated[
        str | None,
        typer.Option("--max-refused", metavar="SHARE", help="Limit on requests refused at least once, e.g. 1%."),
    ] = None,
    max_e2e_p99: Annotated[
        str | None,
        typer.Option("--max-e2e-p99", metavar="TIME", help="Limit on p99, first attempt to last token, e.g. 30s."),
    ] = None,
    count_error: Annotated[
        str | None,
        typer.Option("--count-error", metavar="SHARE", help="How far the front door may undercount tokens, e.g. 5%."),
    ] = None,
    observed: Annotated[
        Path | None,
        typer.Option("--observed", metavar="METRICS.txt", help="Saved /metrics of an engine or gateway."),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the answer into the traffic file's text.")] = False,
    output: options.Output = None,
    force: options.Force = False,
    seeds: options.Seeds = None,
    seed: options.Seed = None,
    scale: options.Scale = 1.0,
    duration: options.Duration = None,
    workers: options.Workers = None,
    cluster: options.Cluster = None,
    model: options.Model = None,
    replicas: options.Replicas = None,
    calibration: options.Calibration = None,
    set_keys: options.Set = None,
    format: options.Format = "text",
    offline: options.Offline = False,
    profiles: options.Profiles = None,
) -> int:
    """Search for the safety fraction and max_tokens default, and show their price. Exit 1: the constraints cannot hold.

    Constraints that are not given are the file's limits, else 1%.
    """
    from kvplan.recommend import recommend
    from kvplan.sweep import cluster_executor

    if output is not None and not write:
        raise InputError("--output is only for --write", hint="add --write", key="output")
    if write and traffic == "-":
        raise InputError("--write needs a traffic file, not standard input", hint="give its path", key="write")
    if output is not None:
        check_free(output, force=force)
    folder = options.profiles_folder(profiles)
    tried = {"duration": duration, "model": model, "replicas": replicas, "calibration": calibration}
    changed = options.changes(set_keys, **tried, **asked)
    mix = options.load_changed(traffic, changed, folder)
    with progress_bar("searching") as step, cluster_executor(cluster) as executor:
        advice = recommend(
            mix,
            max_truncated_share=_share(max_truncated, "--max-truncated"),
            max_refused_share=_share(max_refused, "--max-refused"),
            max_e2e_p99_s=_seconds(max_e2e_p99, "--max-e2e-p99"),
            count_error_share=_share(count_error, "--count-error") or 0.0,
            observed=observed,
            seeds=seeds,
            seed=seed,
            scale=scale,
            workers=workers,
            executor=executor,
            offline=offline,
            profiles_folder=folder,
            progress=step,
            say=talk,
        )
    written = _written(advice) if write and advice.feasible else None
    if write and written is None:
        talk("nothing was written: no setting meets the constraints")
    elif write and changed:
        talk(f"only the answer is written, without the overrides of this run: {', '.join(changed)}")
    if written is not None and output is not None:
        write_file(output, written, force=force)
        _warn_of_traces(advice, output)
    if format == "json":
        show_report("recommend", "json", advice, written if output is None else None)
    elif written is not None and output is None:
        from kvplan.report.recommend_text import text

        show_above(text(advice), written)
    else:
        show_report("recommend", "text", advice, None if written is None else str(output))
    return 0 if advice.feasible else 1


def _written(advice: "Advice") -> str:
    """The traffic file's own text with the answer in it."""
    from kvplan.recommend import recommended_text
    from kvplan.traffic.file.yaml_text import read_text

    file = advice.traffic.file
    return recommended_text(
        read_text(Path(file)),
        file,
        safety_fraction=advice.safety_fraction,
        default_max_tokens=advice.default_max_tokens,
    )


def _warn_of_traces(advice: "Advice", output: Path) -> None:
    """Warn that a trace is looked for beside the file that names it."""
    replays = any(entry.trace is not None for entry in advice.traffic.classes)
    if replays and output.resolve().parent != Path(advice.traffic.file).resolve().parent:
        talk(f"traces named in {output} are looked for in its folder")


def _share(text: str | None, option: str) -> float | None:
    """A share as ``1%`` or ``0.01``."""
    if text is None:
        return None
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / 100 if percent else float(number)
    except ValueError:
        value = -1.0
    if rest or not 0 <= value <= 1:
        raise InputError(f"{option} {text} is not a share", hint=f"{option} 1% or {option} 0.01", key=option)
    return value


def _seconds(text: str | None, option: str) -> float | None:
    """A time with its unit; a plain number is seconds."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return options.parse_time(text, option)
