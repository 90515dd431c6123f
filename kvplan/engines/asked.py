"""The options of a deployment as a table, and how what was asked for by their names becomes one."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from kvplan.engines.deployment import Deployment
from kvplan.engines.devices import check_pool
from kvplan.engines.forms import GPU, SWITCH, Option
from kvplan.errors import InputError
from kvplan.profiles.loader import load_gpu
from kvplan.profiles.quantities import key_of


@dataclass(frozen=True, kw_only=True)
class Row:
    """One option: the ``field`` of a deployment that it sets, the ``keys`` that ask for it, and what it is unasked."""

    field: str
    keys: tuple[str, ...]
    option: Option
    default: Any

    @property
    def key(self) -> str:
        """Its first name."""
        return self.keys[0]


@cache
def rows() -> tuple[Row, ...]:
    """Every option, in the order of the deployment's fields. ``corrections`` is none: a calibration says them."""
    hints = get_type_hints(Deployment, include_extras=True)
    found = []
    for field in fields(Deployment):
        option = next((note for note in get_args(hints[field.name]) if isinstance(note, Option)), None)
        if option is not None:
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            keys = (option.key or key_of(field.name), *option.words)
            found.append(Row(field=field.name, keys=keys, option=option, default=default))
    return tuple(found)


def row_of(key: str) -> Row:
    """The option that ``key`` asks for. Raises InputError for a key that none has."""
    known = {each: row for row in rows() for each in row.keys}
    if key not in known:
        near = get_close_matches(key, list(known), 1)
        raise InputError(
            f"{key!r} is no option of a deployment",
            hint=f"did you mean {near[0]!r}?" if near else f"one of {', '.join(known)}",
            key=key,
        )
    return known[key]


def read_options(asked: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Fields of a deployment from keys and what was written for them; what names a GPU or a model stays a name.

    ``names`` are those under which the user wrote, where they are not the keys. Raises InputError for a wrong value,
    and for two words for one option.
    """
    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    for key, written in asked.items():
        if written is None:  # as where it is left out
            continue
        row, name = row_of(key), (names or {}).get(key, key)
        if row.field in said:
            raise InputError(
                f"{said[row.field]} and {name} are two words for one option", hint="give one of them", key=name
            )
        said[row.field] = name
        values[row.field] = row.option.form.read(written, name)
    stages = values.get("pipeline_layers")
    if stages is not None and values.get("pipeline_parallel", 1) == 1:
        values["pipeline_parallel"] = len(stages)
    return values


def flag_words(deployment: Deployment) -> Iterator[str]:
    """What asks for ``deployment`` on a command line, option by option, without what is as unasked.

    >>> list(flag_words(Deployment(tensor_parallel=2, prefix_caching=False, kv_memory_bytes=2**30)))
    ['--tensor-parallel', '2', '--kv-memory', '1GiB', '--no-prefix-caching']
    """
    for row in rows():
        value = getattr(deployment, row.field)
        if value == row.default:
            continue
        name = row.key.replace("_", "-")
        if row.option.form is SWITCH:
            yield f"--{name}" if value else f"--no-{name}"
        else:
            yield from (f"--{name}", row.option.form.write(value))


def deployment_of(
    values: Mapping[str, Any], *, offline: bool = False, profiles_folder: str | Path | None = None
) -> Deployment:
    """The deployment of what ``read_options`` returned: its GPU and draft model looked up, its pool checked."""
    found = dict(values)
    for row in rows():
        if row.option.form.names and isinstance(found.get(row.field), str):
            name = found[row.field]
            if row.option.form is GPU:
                found[row.field] = load_gpu(name, extra_folder=profiles_folder)
            else:
                from kvplan.sources import read_model  # it brings the readers of every family

                found[row.field] = read_model(name, offline=offline, profiles_folder=profiles_folder)
    deployment = Deployment(**found)
    check_pool(deployment)
    return deployment
