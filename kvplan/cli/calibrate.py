"""``kvplan calibrate``: compares an engine's start-up log or a measured run with the plan, and writes a calibration."""

import shlex
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kvplan.cli import options
from kvplan.cli.deployment_options import flag_of, takes_deployment
from kvplan.cli.files import check_free, readable
from kvplan.cli.output import show_report, talk, write_file
from kvplan.engines.option_types import read_amount
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.engine_logs import EngineStart
    from kvplan.profiles.kinds import GpuProfile

NEEDS_ARGUMENTS = True
EXAMPLE = """\
kvplan calibrate server.log --gpu h100 --output calibration.yaml
kvplan calibrate --run requests.csv --traffic chat.yaml --output run.yaml"""

_DEPLOYMENT = """\
deployment: {engine: vllm}
traffic: {duration: 1s, classes: [{name: run, rate: 1/s, prompt_tokens: 1, output_tokens: 1}]}
"""
"""A traffic file's least, for a deployment that the options say; of its traffic nothing is used."""


@takes_deployment(
    "tensor_parallel",
    "data_parallel",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_dtype",
    "prefix_caching",
)
def run(
    context: typer.Context,
    asked: dict[str, Any],
    log: Annotated[
        Path | None,
        typer.Argument(metavar="LOG", help="The engine's start-up log, .gz or not; - for stdin.", show_default=False),
    ] = None,
    measured_run: Annotated[
        Path | None,
        typer.Option("--run", metavar="REQUESTS", help="A measured run instead: CSV or JSONL; - for stdin."),
    ] = None,
    traffic: Annotated[
        str | None, typer.Option("--traffic", metavar="TRAFFIC", help="With --run: the traffic file of its deployment.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="The model, if the log names no Hub id.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine", metavar="NAME[@VERSION]", help="Refuse a log of another engine; its release, if not in the log."
        ),
    ] = None,
    gpu: options.Gpu = None,
    weights_bytes: options.WeightsBytes = None,
    start: Annotated[
        int | None, typer.Option("--start", metavar="N", help="Which start in the log, from 1; by default the last.")
    ] = None,
    set_keys: options.Set = None,
    output: options.Output = None,
    force: options.Force = False,
    format: options.Format = "text",
    offline: options.Offline = False,
    profiles: options.Profiles = None,
) -> int:
    """Compare an engine's start-up log with the plan: which term differs, which lines mislead.

    Or, with --run, fit the time of a step on the first third of a measured run and predict the rest. With --output,
    write the calibration that fit, simulate, check, recommend and traffic files accept.
    """
    if output is not None:
        check_free(output, force=force)
    folder = options.profiles_folder(profiles)
    if measured_run is not None:
        if log is not None or start is not None:
            raise InputError(
                "a log and --run cannot be combined",
                hint=f"kvplan calibrate --run {measured_run} --set deployment.calibration=FILE adds to a log's file",
                key="run",
            )
        named = {"weight_bytes": weights_bytes, "model": model, "gpu": gpu, "engine": engine}
        keys = options.changes(set_keys, **named, **asked)
        learnt = _from_run(readable(measured_run), traffic, keys, offline=offline, folder=folder)
    elif log is not None:
        told = {"traffic": traffic, "set": set_keys}
        misplaced = next((name for name, value in told.items() if value), None)
        if misplaced is not None:
            option = f"--{misplaced.replace('_', '-')}"
            raise InputError(
                f"{option} is only for --run; a log has its own settings", hint=f"leave {option} out", key=misplaced
            )
        learnt = _from_log(
            readable(log),
            start,
            asked,
            model=model,
            engine=engine,
            gpu=gpu,
            weights_bytes=weights_bytes,
            offline=offline,
            folder=folder,
        )
    else:
        raise InputError("no log or run is named", hint="kvplan calibrate LOG, or --run FILE", key="log")
    if output is not None:
        write_file(output, learnt.calibration, force=force)
    if format == "json":
        show_report(learnt.report, "json", learnt.found, learnt.calibration)
    else:
        written, command = None if output is None else str(output), shlex.join(["kvplan", *context.obj])
        show_report(learnt.report, "text", learnt.found, *learnt.source, written, command)
    return 0


class _Learnt(NamedTuple):
    """What was found, the text of the calibration file, and the report that shows it with what it says of its
    source."""

    report: str
    found: object
    calibration: str
    source: tuple[object, ...]


def _from_log(
    log: Path,
    start: int | None,
    asked: dict[str, Any],
    *,
    model: str | None,
    engine: str | None,
    gpu: str | None,
    weights_bytes: str | None,
    offline: bool,
    folder: Path | None,
) -> _Learnt:
    """The log compared with the plan of the same deployment."""
    from kvplan.calibration import calibrate, calibration_text
    from kvplan.engine_logs import read_log
    from kvplan.profiles.loader import load_gpu
    from kvplan.sources import read_model

    starts = read_log(log)
    chosen = _choose(starts, start, engine, log)
    which = f"start {starts.index(chosen) + 1} of {len(starts)}" if len(starts) > 1 else ""
    chosen = _completed(_with_release(chosen, engine), asked)
    reference = _model_of(chosen, log) if model is None else model
    device = load_gpu(gpu, extra_folder=folder) if gpu is not None else _gpu_in(chosen, folder)
    weights = None if weights_bytes is None else read_amount(weights_bytes, "--weights-bytes")
    found = calibrate(chosen, read_model(reference, offline=offline, profiles_folder=folder), device, weights)
    return _Learnt("calibrate", found, calibration_text(found, log.name), (log.name, which))


def _from_run(
    measured: Path, traffic: str | None, keys: dict[str, object], *, offline: bool, folder: Path | None
) -> _Learnt:
    """The efficiency that fits a measured run."""
    from kvplan.calibration.run import calibrate_run, run_calibration_text, settings_beside
    from kvplan.simulation.measured_run import read_measured_run
    from kvplan.traffic.load import load_traffic, parse_traffic

    if traffic is not None:
        mix = load_traffic(traffic, profiles_folder=folder, overrides=keys)
    else:
        beside = settings_beside(measured)
        if beside is not None:
            talk(f"settings from {beside[0].name}")
            keys = beside[1] | keys
        mix = parse_traffic(_DEPLOYMENT, file="the command line", profiles_folder=folder, overrides=keys)
    found = calibrate_run(read_measured_run(measured), mix, offline=offline, profiles_folder=folder)
    return _Learnt("measured", found, run_calibration_text(found, mix, measured.name), (measured.name, traffic))


def _completed(start: "EngineStart", asked: dict[str, Any]) -> "EngineStart":
    """``start`` with the settings asked for, which its log must leave out."""
    from kvplan.engines.options import read_options

    given = read_options(asked, {key: flag_of(key) for key in asked})
    for name, value in given.items():
        if getattr(start, name) not in (None, value):
            raise InputError(
                f"the log says {name} {getattr(start, name)}, not {value}",
                hint=f"leave {flag_of(name)} out",
                line=start.first_line,
                key=name,
            )
    return replace(start, **given)


def _with_release(start: "EngineStart", engine: str | None) -> "EngineStart":
    """``start`` with the release of ``--engine``, where its log prints none."""
    from kvplan.calibration.deployment import release_in
    from kvplan.engines import parse_engine

    asked = None if engine is None else parse_engine(engine).release
    if asked is None:
        return start
    if start.version is None or start.is_version_inferred:
        return replace(start, version=".".join(map(str, asked)))
    logged = release_in(start.version) or ()
    if logged[: len(asked)] != asked:
        raise InputError(
            f"the log says {start.engine} {start.version}, not {engine}",
            hint="leave the version of --engine out",
            line=start.first_line,
            key="engine",
        )
    return start


def _model_of(start: "EngineStart", log: Path) -> str:
    """The model that the log names, if it is a Hub id, a folder on this machine, or one named like a bundled model."""
    from kvplan.calibration import model_id_in
    from kvplan.profiles.loader import load_model_facts

    name = None if start.model is None else model_id_in(start.model)
    if name is None:
        raise InputError("the log does not say its model", hint="name it: --model org/name", file=str(log), key="model")
    written = PureWindowsPath(name)  # splits at either slash
    is_folder = bool(written.root or written.drive) or name.startswith(("~", "."))
    if is_folder and not Path(name).exists():
        inside = "/".join(written.parts[-2:])
        if load_model_facts(inside) is not None:
            return inside
        raise InputError(
            f"the log's model is a folder of the engine's machine: {name}",
            hint="name it: --model org/name, or the folder on this machine",
            file=str(log),
            key="model",
        )
    return name


def _gpu_in(start: "EngineStart", folder: Path | None) -> "GpuProfile | None":
    """The GPU that the log names, if the catalogue has it."""
    from kvplan.profiles.loader import load_gpu

    try:
        return None if start.gpu is None else load_gpu(start.gpu, extra_folder=folder)
    except InputError:
        return None


def _choose(starts: "list[EngineStart]", number: int | None, engine: str | None, log: Path) -> "EngineStart":
    """The start asked for; without a number, the last one that says something about memory."""
    if number is not None:
        if not 1 <= number <= len(starts):
            raise InputError(
                f"--start {number}: the log has {len(starts)} start{'s' * (len(starts) != 1)}",
                hint="without --start, the last one that says something about memory is used",
                file=str(log),
                key="start",
            )
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
