"""From a traffic file to frozen values: found by path or name, validated, every complaint with its place."""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from kvplan.errors import InputError
from kvplan.profiles.loader import list_names, load_client, load_gpu, traffic_path
from kvplan.traffic.kinds import Traffic
from kvplan.traffic.yaml_text import KeyPath, parse_mapping, read_text

Value = TypeVar("Value")


def load_traffic(
    reference: str | Path, *, profiles_folder: str | Path | None = None, overrides: Mapping[str, object] | None = None
) -> Traffic:
    """The traffic file at a path, or the bundled mix of that name.

    ``overrides`` replaces keys, named alone (``safety_fraction``) or by their section (``traffic.seed``); they are
    validated as if they stood in the file. Raises InputError with file, line, key and the nearest known key.
    """
    path = _find(str(reference), profiles_folder)
    return parse_traffic(read_text(path), file=str(path), profiles_folder=profiles_folder, overrides=overrides)


def parse_traffic(
    text: str,
    *,
    file: str,
    profiles_folder: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Traffic:
    """The traffic that ``text`` describes; traces are looked for beside ``file``."""
    from kvplan.traffic.shapes.file import FileShape

    values, lines = parse_mapping(text, file)
    _override(values, overrides or {})
    places = Places(file=file, lines=lines)
    shape = _validate(FileShape, values, places)
    from kvplan.traffic.convert import convert

    traffic = convert(shape, places)
    _check_names(traffic, places, profiles_folder)
    return traffic


class Places:
    """Where each key of a file stands, and errors that say so."""

    def __init__(self, *, file: str, lines: Mapping[KeyPath, int]) -> None:
        self.file = file
        self.lines = lines

    def error(self, path: KeyPath, message: str, hint: str | None = None) -> InputError:
        """An InputError at ``path``, or at the nearest key around it that the file has."""
        return InputError(message, hint=hint, file=self.file, line=self.line(path), key=".".join(map(str, path)))

    def line(self, path: KeyPath) -> int | None:
        """The line of the longest beginning of ``path`` that stands in the file."""
        lengths = range(len(path), 0, -1)
        return next((self.lines[path[:length]] for length in lengths if path[:length] in self.lines), None)

    def at(self, path: KeyPath, read: Callable[[str], Value], text: str) -> Value:
        """``read(text)``, its complaint placed at ``path``."""
        try:
            return read(text)
        except InputError as error:
            raise self.error(path, f"{'.'.join(map(str, path))}: {error.message}", error.hint) from error


def _find(reference: str, profiles_folder: str | Path | None) -> Path:
    path = Path(reference)
    if path.exists():
        return path
    bundled = traffic_path(reference, extra_folder=profiles_folder)
    if bundled is not None:
        return bundled
    names = list_names("traffic", extra_folder=profiles_folder)
    near = get_close_matches(reference, names, 3, 0.5)
    raise InputError(
        f"there is no traffic file {reference!r}, and no bundled mix of that name",
        hint=f"did you mean {', '.join(near)}?"
        if near
        else f"bundled mixes: {', '.join(names)}; kvplan init writes one",
        file=reference,
    )


_SECTIONS = ("admission", "deployment", "traffic", "")


def _override(values: dict[str, Any], overrides: Mapping[str, object]) -> None:
    from kvplan.traffic.shapes.file import FileShape

    for name, value in overrides.items():
        section, _, key = name.rpartition(".")
        if not section:
            places = (place for place in _SECTIONS if name in known_keys(FileShape, (place,) if place else ()))
            section = next(places, "unknown")
            if section == "unknown":
                raise InputError(f"{name!r} is no key of a traffic file", key=name)
        block: Any = values
        for part in filter(None, section.split(".")):
            block = _inside(block, part, name)
        if not isinstance(block, dict):
            raise _no_block(block, key, name)
        block[key] = value


def _inside(block: Any, part: str, name: str) -> Any:
    """The block under a key, made where it is missing, or a list's entry."""
    if isinstance(block, dict):
        return block.setdefault(part, {})
    if isinstance(block, list) and part.isdecimal() and int(part) < len(block):
        return block[int(part)]
    raise _no_block(block, part, name)


def _no_block(block: Any, part: str, name: str) -> InputError:
    if not isinstance(block, list):
        return InputError(f"{name}: there is no {part!r} inside a single value", key=name)
    called = [entry.get("name", "") if isinstance(entry, dict) else "" for entry in block]
    entries = ", ".join(f"{index} {word}".strip() for index, word in enumerate(called))
    return InputError(
        f"{name}: {part!r} is no entry of that list", hint=f"give an entry by its number: {entries}", key=name
    )


def known_keys(shape: Any, path: KeyPath) -> tuple[str, ...]:
    """The keys that may stand in the block at ``path``."""
    import typing

    from pydantic import BaseModel

    def models(annotation: Any) -> list[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return [annotation]
        return [found for argument in typing.get_args(annotation) for found in models(argument)]

    here: list[type[BaseModel]] = [shape]
    for step in path:
        if isinstance(step, int):
            continue
        fields = [model.model_fields[step].annotation for model in here if step in model.model_fields]
        here = [found for annotation in fields for found in models(annotation)] or here
    return tuple((field.alias or name) for model in here for name, field in model.model_fields.items())


def _validate(shape: type[Value], values: dict[str, Any], places: Places) -> Value:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(shape).validate_python(values)
    except ValidationError as error:
        complaints = error.errors(include_url=False)
        first = min(complaints, key=lambda complaint: _order(complaint, places))
        raise _translate(first, shape, values, places, len({_path(found, values) for found in complaints})) from error


def _order(complaint: Any, places: Places) -> tuple[bool, int]:
    # An unknown key explains a missing one (a misspelt key is both), so it comes first.
    return (complaint["type"] != "extra_forbidden", places.line(tuple(complaint["loc"])) or 0)


def _path(complaint: Any, values: Any) -> KeyPath:
    """The location less the steps that name a member of a union instead of a key."""
    path: list[str | int] = []
    here = values
    for step in complaint["loc"]:
        is_key = isinstance(here, dict) and step in here
        if is_key or (isinstance(here, list) and isinstance(step, int) and step < len(here)):
            here = here[step]
        elif complaint["type"] != "missing" or step != complaint["loc"][-1]:
            continue
        path.append(step)
    return tuple(path)


def _translate(complaint: Any, shape: Any, values: Any, places: Places, others: int) -> InputError:
    path, kind = _path(complaint, values), complaint["type"]
    name = ".".join(map(str, path))
    more = f" (and {others - 1} more)" if others > 1 else ""
    hint = None
    if kind == "extra_forbidden" or complaint["loc"][-1:] == ("[key]",):
        known = known_keys(shape, path[:-1])
        if complaint["loc"][-1:] == ("[key]",):
            from kvplan.traffic.shapes.file import LIMIT_NAMES

            known = LIMIT_NAMES
        elif path[-1] != complaint["loc"][-1]:  # a name that stands for a block: arrivals: posson
            wrong, known = str(complaint["loc"][-1]), known_keys(shape, path)
            near = get_close_matches(wrong, known, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            return places.error(path, f"{name}: {wrong!r} is not known{more}", hint)
        near = get_close_matches(str(path[-1]), known, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        message = f"unknown key {path[-1]!r}" + (f" in {name.rpartition('.')[0]}" if len(path) > 1 else "")
    elif kind == "missing":
        message = f"the key {name!r} is missing"
    elif kind == "value_error":
        message = f"{name}: {complaint['ctx']['error']}"
    else:
        said = complaint["msg"].replace("Input should be", "must be").replace("valid dictionary", "block of keys")
        said = re.sub(r" or instance of \w+", "", said)
        if kind == "too_short":
            said = f"must have {complaint['ctx']['min_length']} or more entries"
        unit = _UNITS.get(str(path[-1])) if path else None
        if kind == "string_type" and unit is not None and isinstance(complaint["input"], int | float):
            hint = f"write it with its unit: {complaint['input']}{unit}"
        message = f"{name or 'the file'}: {said[:1].lower()}{said[1:]}, not {_shown(complaint['input'])}"
    return places.error(path, message + more, hint)


_UNITS = {
    "rate": "/s",
    "memory": "GiB",
    "gpu_memory": "GiB",
    **dict.fromkeys(("duration", "timeout", "on", "off", "period", "peak_at", "step", "lifetime"), "s"),
}
"""Keys whose values have units, and the usual one."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_names(traffic: Traffic, places: Places, profiles_folder: str | Path | None) -> None:
    """Names of catalogue entries are looked up at once, so that a misspelt one is reported with its line."""
    from kvplan.engines import parse_engine

    places.at(("deployment", "engine"), parse_engine, traffic.deployment.engine)
    gpu = traffic.deployment.gpu
    if gpu is not None:
        places.at(("deployment", "gpu"), lambda name: load_gpu(name, extra_folder=profiles_folder), gpu)
    for index, entry in enumerate(traffic.classes):
        path: KeyPath = ("traffic", "classes", index, "client")
        if entry.client is not None:
            places.at(path, lambda name: load_client(name, extra_folder=profiles_folder), entry.client)
