"""The options of a deployment as one table: read from user input, written as flags, checked against an engine."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from kvplan.engines.deployment import Deployment, Option
from kvplan.engines.devices import check_pool
from kvplan.engines.engine import Engine
from kvplan.engines.engine_plan import Unpriced
from kvplan.engines.option_types import GPU, SWITCH
from kvplan.errors import InputError
from kvplan.profiles.loader import load_gpu
from kvplan.profiles.quantities import key_of

_DEFAULTS = Deployment()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One option: the ``field`` of a deployment that it sets, the ``keys`` that name it, and the field's default."""

    field: str
    keys: tuple[str, ...]
    option: Option
    default: Any

    @property
    def key(self) -> str:
        """Its main name; the other keys are aliases."""
        return self.keys[0]


@cache
def rows() -> tuple[Row, ...]:
    """Every option, in the order of the deployment's fields; ``corrections``, which a calibration sets, is not one."""
    hints = get_type_hints(Deployment, include_extras=True)
    found = []
    for field in fields(Deployment):
        option = next((note for note in get_args(hints[field.name]) if isinstance(note, Option)), None)
        if option is not None:
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            keys = (option.key or key_of(field.name), *option.aliases)
            found.append(Row(field=field.name, keys=keys, option=option, default=default))
    return tuple(found)


def _row_of(key: str) -> Row:
    known = {each: row for row in rows() for each in row.keys}
    if key not in known:
        near = get_close_matches(key, list(known), 1)
        raise InputError(
            f"{key!r} is not a deployment option",
            hint=f"did you mean {near[0]!r}?" if near else f"one of {', '.join(known)}",
            key=key,
        )
    return known[key]


def read_options(asked: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Fields of a deployment from option keys and their values; the names of GPUs and models are not looked up yet.

    ``names`` maps a key to the name the user wrote, where that is not the key; errors use it. Raises InputError for an
    unknown key, a wrong value, or two keys of the same option.
    """
    values: dict[str, Any] = {}
    written_as: dict[str, str] = {}
    for key, written in asked.items():
        if written is None:  # the same as leaving it out
            continue
        row, name = _row_of(key), (names or {}).get(key, key)
        if row.field in written_as:
            raise InputError(
                f"{written_as[row.field]} and {name} set the same option", hint="give one of them", key=name
            )
        written_as[row.field] = name
        values[row.field] = row.option.type.read(written, name)
    stages = values.get("pipeline_layers")
    if stages is not None and values.get("pipeline_parallel", 1) == 1:
        values["pipeline_parallel"] = len(stages)
    return values


def flag_words(deployment: Deployment) -> Iterator[str]:
    """The command-line words that ask for ``deployment``; options at their default are left out.

    >>> list(flag_words(Deployment(tensor_parallel=2, prefix_caching=False, kv_memory_bytes=2**30)))
    ['--tensor-parallel', '2', '--kv-memory', '1GiB', '--no-prefix-caching']
    """
    for row in rows():
        value = getattr(deployment, row.field)
        if value == row.default:
            continue
        name = row.key.replace("_", "-")
        if row.option.type is SWITCH:
            yield f"--{name}" if value else f"--no-{name}"
        else:
            yield from (f"--{name}", row.option.type.write(value))


def deployment_of(
    values: Mapping[str, Any], *, offline: bool = False, profiles_folder: str | Path | None = None
) -> Deployment:
    """The deployment of what ``read_options`` returned: its GPU and draft model looked up, its pool checked."""
    found = dict(values)
    for row in rows():
        if row.option.type.is_reference and isinstance(found.get(row.field), str):
            name = found[row.field]
            if row.option.type is GPU:
                found[row.field] = load_gpu(name, extra_folder=profiles_folder)
            else:
                from kvplan.sources import read_model  # slow to import: it brings the readers of every family

                found[row.field] = read_model(name, offline=offline, profiles_folder=profiles_folder)
    deployment = Deployment(**found)
    check_pool(deployment)
    return deployment


def is_asked(deployment: Deployment, field: str) -> bool:
    """Whether ``field`` was given: differs from its default."""
    return bool(getattr(deployment, field) != getattr(_DEFAULTS, field))


def check_options(deployment: Deployment, engine: Engine, engines: Iterable[Engine]) -> None:
    """Raises InputError for a GPU that ``engine`` does not run on, and for an option that would have no effect there.

    ``engines`` are searched for one that has the option, to name it in the hint.
    """
    vendor = "" if deployment.gpu is None else deployment.gpu.vendor.lower()
    if vendor in engine.not_on:
        raise InputError(
            f"{engine.name} does not run on {vendor} GPUs: {deployment.gpu and deployment.gpu.name}",
            hint="--engine llama.cpp does",
            key="gpu",
        )
    for row in rows():
        if not row.option.rare or row.field in engine.has or not is_asked(deployment, row.field):
            continue
        owners = [each.name for each in engines if row.field in each.has]
        raise InputError(
            f"{row.key} is an option of {' and '.join(owners)}; {engine.name} has no equivalent",
            hint=f"leave it out, or plan for --engine {owners[0]}",
            key=row.key,
        )
    drafts = deployment.draft_model is not None or deployment.speculative_method is not None
    if drafts and not deployment.speculative_tokens:
        raise InputError(
            "speculative decoding was asked for, but not how many tokens to draft",
            hint="--speculative-tokens 3",
            key="speculative_tokens",
        )


def unpriced_options(deployment: Deployment, engine: Engine) -> Iterator[Unpriced]:
    """The options set in ``deployment`` that the engine's plan does not price."""
    return (each for each in engine.unpriced if is_asked(deployment, each.option))
