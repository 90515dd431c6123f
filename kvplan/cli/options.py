"""Options that several commands share, each written once."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kvplan.cli.grouped import grouped
from kvplan.errors import InputError
from kvplan.units import parse_seconds

TextOrJson = Literal["text", "json"]

Format = Annotated[TextOrJson, typer.Option("--format", show_default=False, help="Text for people, JSON for programs.")]
Offline = Annotated[bool, typer.Option("--offline", help="Local files, cache and bundled facts only.")]
Profiles = Annotated[
    Path | None, typer.Option("--profiles", metavar="DIR", help="Search this folder of profiles first.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output file.")]

RUNS = "runs"
FILE = "file"
"""Groups of rarer options."""

ModelReference = Annotated[
    str, typer.Argument(metavar="MODEL", help="Hub id[@revision], folder, config.json or .gguf.")
]
SafetyFraction = Annotated[
    float, typer.Option("--safety-fraction", metavar="SHARE", show_default=False, help="Share of the pool to promise.")
]
Tokens = Annotated[str | None, typer.Option("--tokens", metavar="N,N", help="Price these lengths.")]

Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        show_default=False,
        metavar="NAME[@VERSION]",
        help="vllm, sglang, ... (kvplan list engines).",
    ),
]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="The kind of GPU (kvplan list gpus).")]
WeightsBytes = Annotated[
    str | None, grouped("load", "--weights-bytes", metavar="BYTES", help="The weights, all ranks together.")
]
Calibration = Annotated[Path | None, typer.Option("--calibration", metavar="FILE", help="What kvplan calibrate wrote.")]

TrafficReference = Annotated[
    str, typer.Argument(metavar="TRAFFIC", help="A traffic file, or a bundled mix (kvplan list traffic).")
]
Seeds = Annotated[int | None, typer.Option("--seeds", metavar="N", help="Runs, each with its own seed.")]
Seed = Annotated[int | None, grouped(RUNS, "--seed", metavar="N", help="The first seed.")]
Scale = Annotated[float, typer.Option("--scale", metavar="X", show_default=False, help="Traffic times X.")]
Workers = Annotated[int | None, grouped(RUNS, "--workers", metavar="N", help="Processes; without it, one a core.")]
Cluster = Annotated[
    str | None, grouped(RUNS, "--cluster", metavar="tcp://HOST:PORT", help="Play the runs on this Dask scheduler.")
]
Price = Annotated[
    list[str] | None, typer.Option("--price", metavar="GPU=AMOUNT", help="Of one GPU an hour; repeatable.")
]


def profiles_folder(folder: Path | None) -> Path | None:
    """``folder``, if it is one."""
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder} is not a folder", hint="--profiles names a folder with gpus/, models/, …")
    return folder


def positive_or_none(value: int | None, option: str) -> int | None:
    """``value``, if it counts something or was not given."""
    from kvplan.engines.option_types import read_count  # not before: with it come the engines

    return None if value is None else read_count(value, option)


def counts_or_none(text: str | None, option: str) -> tuple[int, ...]:
    """Whole numbers separated by commas, none where the option was not given."""
    from kvplan.engines.option_types import read_counts

    return () if text is None else read_counts(text, option)


def parse_time(text: str, option: str) -> float:
    """Seconds above zero; a wrong value is reported with its option.

    >>> parse_time("90s", "--grace")
    90.0
    """
    try:
        seconds = parse_seconds(text)
    except InputError as error:
        error.key = option
        raise
    if not seconds > 0:
        raise InputError(f"{option} {text} is not above zero", hint=f"{option} 30s", key=option)
    return seconds
