"""Keys of a traffic file that people try by hand: options that replace what the file says, for this run only."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli.grouped import grouped
from kvplan.cli.options import FILE
from kvplan.engines.options import rows
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.traffic.spec import Traffic

SafetyFraction = Annotated[
    float | None, typer.Option("--safety-fraction", metavar="SHARE", help="Share of the pool the ledger may promise.")
]
DefaultMaxTokens = Annotated[
    int | None, typer.Option("--default-max-tokens", metavar="N", help="Output cap where the client sends none.")
]
Concurrency = Annotated[int | None, grouped(FILE, "--concurrency", metavar="N", help="The cap of that strategy.")]
Policy = Annotated[str | None, typer.Option("--policy", metavar="NAME", help="The strategy that check judges.")]
Duration = Annotated[str | None, typer.Option("--duration", metavar="TIME", help="How long requests arrive: 30m.")]
Model = Annotated[str | None, grouped(FILE, "--model", metavar="MODEL", help="Another model.")]
Replicas = Annotated[int | None, grouped(FILE, "--replicas", metavar="N", help="Engines behind one router.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the file: traffic.seed=7.")
]


def load(reference: str, changed: dict[str, object], profiles_folder: Path | None) -> "Traffic":
    """The traffic file with ``changed`` keys; a wrong value among them is the option's fault, not the file's."""
    from kvplan.traffic.load import load_traffic

    try:
        return load_traffic(reference, profiles_folder=profiles_folder, overrides=changed)
    except InputError as error:
        path = error.key or ""
        given = next((key for key in changed if path == key or path.endswith(f".{key}")), None)
        if given is not None:
            error.file = error.line = None
            error.message = error.message.removeprefix(f"{path}: ")
            error.key = f"--set {given}" if "." in given else f"--{given.replace('_', '-')}"
        raise


def overrides(pairs: list[str] | None, **named: object) -> dict[str, object]:
    """What replaces the file's keys: the options that were given, then every ``--set``, its value read as YAML.

    A file is named as the command line sees it, from the working folder and not from the traffic file's. An option of
    the deployment is read as in the file: its text is YAML.
    """
    keys = {key for row in rows() for key in row.keys}
    found = {
        name: str(value.resolve())
        if isinstance(value, Path)
        else _value(name, value)
        if name in keys and isinstance(value, str)
        else value
        for name, value in named.items()
        if value is not None
    }
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
            f"--set {key}={text}: the value is not YAML", hint=f"--set '{key}=VALUE', one value", key="set"
        ) from error
    return value
