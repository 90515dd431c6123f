"""``kvplan calibrate``: an engine's start-up log against the plan, and a file with which plans reproduce it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli import options
from kvplan.cli.output import check_free, show, write_data, write_file
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.engine_logs import EngineStart

NEEDS_ARGUMENTS = True
EXAMPLE = """Example:

\b
  kvplan calibrate server.log --gpu h100 --output calibration.yaml"""


def run(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The engine's start-up log; .gz or not.")],
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="The model, where the log's name for it is no id.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="NAME", help="Refuse a log of another engine.")
    ] = None,
    gpu: options.Gpu = None,
    weights_bytes: Annotated[
        str | None, typer.Option("--weights-bytes", metavar="BYTES", help="The weights, all ranks together.")
    ] = None,
    start: Annotated[
        int | None, typer.Option("--start", metavar="N", help="Which start in the log, from 1; the last by itself.")
    ] = None,
    output: options.Output = None,
    force: options.Force = False,
    format: options.Format = "text",
    offline: options.Offline = False,
    profiles: options.Profiles = None,
) -> int:
    """Compare an engine's start-up log with the plan: which term differs, which lines mislead.

    With --output, write the calibration that fit, simulate and check accept.
    """
    from kvplan.calibration import calibrate, calibration_text
    from kvplan.engine_logs import read_log
    from kvplan.profiles.loader import load_gpu
    from kvplan.sources import read_model

    folder = options.profiles_folder(profiles)
    if output is not None:
        check_free(output, force=force)
    starts = read_log(log)
    chosen = _choose(starts, start, engine, log)
    name = model or chosen.model
    if name is None:
        raise InputError("the log does not say its model", hint="name it: --model org/name", file=str(log), key="model")
    device = None if gpu is None else load_gpu(gpu, extra_folder=folder)
    weights = None if weights_bytes is None else options.parse_amount(weights_bytes, "--weights-bytes")
    spec = read_model(name, offline=offline, profiles_folder=folder)
    found = calibrate(chosen, spec, device, weights)
    written = calibration_text(found, log.name)
    if output is not None:
        write_file(output, written, force=force)
    if format == "json":
        from kvplan.report.calibrate_json import text as json_text

        write_data(json_text(found, written))
        return 0
    from kvplan.report.calibrate_text import text

    show(text(found, log.name, None if output is None else str(output), len(starts)))
    return 0


def _choose(starts: "list[EngineStart]", number: int | None, engine: str | None, log: Path) -> "EngineStart":
    """The start asked for; by itself the last one that says something of memory."""
    if number is not None:
        if not 1 <= number <= len(starts):
            raise InputError(f"--start {number}: the log holds {len(starts)}", file=str(log), key="start")
        chosen = starts[number - 1]
    else:
        telling = [each for each in starts if each.kv_bytes or each.weight_bytes or each.blocks or each.kv_tokens]
        chosen = (telling or starts)[-1]
    if engine is not None:
        from kvplan.engines import parse_engine

        asked = parse_engine(engine).name
        if asked != chosen.engine:
            raise InputError(
                f"the log was written by {chosen.engine}, not by {asked}",
                hint=f"--engine {chosen.engine}, or another log",
                file=str(log),
                line=chosen.first_line,
                key="engine",
            )
    return chosen
