"""Keys of a traffic file that people try by hand: options that replace what the file says, for this run only."""

from typing import Annotated

import typer

from kvplan.errors import InputError

SafetyFraction = Annotated[
    float | None, typer.Option("--safety-fraction", metavar="SHARE", help="Share of the pool the ledger may promise.")
]
DefaultMaxTokens = Annotated[
    int | None, typer.Option("--default-max-tokens", metavar="N", help="Output cap where the client sends none.")
]
Concurrency = Annotated[int | None, typer.Option("--concurrency", metavar="N", help="The cap of that strategy.")]
Policy = Annotated[str | None, typer.Option("--policy", metavar="NAME", help="The strategy that check judges.")]
Duration = Annotated[str | None, typer.Option("--duration", metavar="TIME", help="How long requests arrive: 30m.")]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="Another GPU.")]
Model = Annotated[str | None, typer.Option("--model", metavar="MODEL", help="Another model.")]
Replicas = Annotated[int | None, typer.Option("--replicas", metavar="N", help="Engines behind one router.")]
TensorParallel = Annotated[
    int | None, typer.Option("--tensor-parallel", "--tp", metavar="N", help="GPUs of an engine.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the file: admission.concurrency=64.")
]


def overrides(pairs: list[str] | None, **named: object) -> dict[str, object]:
    """What replaces the file's keys: the options that were given, then every ``--set``, its value read as YAML."""
    found = {name: value for name, value in named.items() if value is not None}
    for pair in pairs or ():
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise InputError(f"--set {pair!r} is not KEY=VALUE", hint="--set admission.safety_fraction=0.8", key="set")
        found[key] = _value(pair, text)
    return found


def _value(pair: str, text: str) -> object:
    import yaml

    try:
        value: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"--set {pair!r}: the value is not YAML", key="set") from error
    return value
