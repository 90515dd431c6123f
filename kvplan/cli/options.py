"""Options that several commands share, each written once, and how their values are read."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvplan.cli.help import grouped
from kvplan.errors import InputError
from kvplan.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from kvplan.traffic.spec import Traffic


def tokens(option: str) -> Callable[[str], int]:
    """What reads a number of tokens given as ``option``: 8192, 8K or 8k (8,000)."""

    def read(text: str) -> int:
        from kvplan.engines.option_types import read_tokens

        return read_tokens(text, option)

    return read


MAX_TOKENS = typer.Option(
    "--max-tokens", metavar="M", parser=tokens("--max-tokens"), help="Output cap; by default to the window's end."
)

TextOrJson = Literal["text", "json"]

Format = Annotated[TextOrJson, typer.Option("--format", show_default=False, help="For people or for programs.")]
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
    float | None, typer.Option("--safety-fraction", metavar="SHARE", help="Share of the pool the ledger may promise.")
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
Scale = Annotated[float, typer.Option("--scale", metavar="X", show_default=False, help="Multiply the traffic by X.")]
Workers = Annotated[int | None, grouped(RUNS, "--workers", metavar="N", help="Processes; by default one per core.")]
Cluster = Annotated[
    str | None, grouped(RUNS, "--cluster", metavar="tcp://HOST:PORT", help="Play the runs on this Dask scheduler.")
]
Price = Annotated[
    list[str] | None, typer.Option("--price", metavar="GPU=AMOUNT", help="Price of one GPU per hour; repeatable.")
]
DefaultMaxTokens = Annotated[
    int | None,
    typer.Option(
        "--default-max-tokens",
        metavar="N",
        parser=tokens("--default-max-tokens"),
        help="Output cap where the client sends none.",
    ),
]
Concurrency = Annotated[
    int | None, grouped(FILE, "--concurrency", metavar="N", help="The limit of the strategy concurrency.")
]
Policy = Annotated[str | None, typer.Option("--policy", metavar="NAME", help="The strategy that check judges.")]
Duration = Annotated[str | None, typer.Option("--duration", metavar="TIME", help="How long requests arrive, e.g. 30m.")]
Model = Annotated[str | None, grouped(FILE, "--model", metavar="MODEL", help="Another model.")]
Replicas = Annotated[int | None, grouped(FILE, "--replicas", metavar="N", help="Engines behind one router.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the file, e.g. traffic.seed=7.")
]


def profiles_folder(folder: Path | None) -> Path | None:
    """``folder``; InputError if it is not a folder."""
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder} is not a folder", hint="--profiles names a folder with gpus/, models/, …")
    return folder


def positive_or_none(value: int | None, option: str) -> int | None:
    """``value`` if it is above zero or was not given."""
    from kvplan.engines.option_types import read_count  # not before: with it come the engines

    return None if value is None else read_count(value, option)


def lengths(text: str | None, option: str) -> tuple[int, ...]:
    """Numbers of tokens separated by commas, none where the option was not given."""
    return () if text is None else tuple(map(tokens(option), text.split(",")))


def counts_or_none(text: str | None, option: str) -> tuple[int, ...]:
    """Whole numbers separated by commas; none if the option was not given."""
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


def parse_prices(texts: list[str], *, profiles_folder: str | Path | None = None) -> dict[str, float]:
    """``h100=2.5`` as {the profile's name: price of one GPU per hour}."""
    from kvplan.profiles.loader import load_gpu

    found = {}
    for text in texts:
        name, equals, number = text.partition("=")
        try:
            price = float(number)
        except ValueError:
            price = -1.0
        if not equals or not 0 <= price < 1e9:
            raise InputError(
                f"--price {text!r} is not NAME=AMOUNT", hint="--price h100=2.50, for one GPU per hour", key="price"
            )
        found[load_gpu(name, extra_folder=profiles_folder).name] = price
    return found


def parse_size(text: str, option: str) -> int:
    """Bytes; a wrong value is reported with its option.

    >>> parse_size("32MiB", "--body-limit")
    33554432
    """
    try:
        return parse_bytes(text)
    except InputError as error:
        error.key = option
        raise


def load_changed(reference: str, changed: dict[str, object], profiles_folder: Path | None) -> "Traffic":
    """The traffic file with ``changed`` keys."""
    from kvplan.traffic.load import load_traffic

    with reported_as_options(changed):
        return load_traffic(reference, profiles_folder=profiles_folder, overrides=changed)


@contextmanager
def reported_as_options(changed: Mapping[str, object]) -> Iterator[None]:
    """A wrong value among the ``changed`` keys of a file is reported as the option's, not the file's."""
    try:
        yield
    except InputError as error:
        path = error.key or ""
        given = next((key for key in changed if path == key or path.endswith(f".{key}")), None)
        if given is not None:
            error.file = error.line = None
            error.message = error.message.removeprefix(f"{path}: ")
            error.key = f"--set {given}" if "." in given else f"--{given.replace('_', '-')}"
        raise


def changes(pairs: list[str] | None, **named: object) -> dict[str, object]:
    """What replaces keys of the file: the options that were given, then every ``--set``, its value read as YAML.

    A file name is relative to the working folder, not to the traffic file's folder. The text of a deployment option is
    YAML, as in the file.
    """
    from kvplan.engines.options import rows

    keys = {key for row in rows() for key in row.keys}

    def as_in_the_file(name: str, value: object) -> object:
        if isinstance(value, Path):
            return str(value.resolve())
        return _value(name, value) if name in keys and isinstance(value, str) else value

    found = {name: as_in_the_file(name, value) for name, value in named.items() if value is not None}
    for pair in pairs or ():
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise InputError(f"--set {pair!r} is not KEY=VALUE", hint="--set admission.safety_fraction=0.8", key="set")
        found[key] = _value(key, text)
    return found


def _value(key: str, text: str) -> object:
    import yaml

    try:
        value: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(
            f"--set {key}={text}: the value is not YAML", hint=f"--set '{key}=VALUE', with a single value", key="set"
        ) from error
    return value
