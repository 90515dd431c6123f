"""Reads a catalogue file into a frozen dataclass of ``kinds``, strict about keys and types.

It uses the standard library, because importing a validator takes longer than the command that looks up one file.
"""

import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from datetime import date
from difflib import get_close_matches
from typing import Any, TypeVar

import yaml

from kvplan.errors import InputError
from kvplan.profiles.quantities import key_of, unit_of

Profile = TypeVar("Profile")

_HINT = "compare it with a bundled file, or with the schema that its first line names"


def read_profile(kind: type[Profile], text: str, file: str) -> Profile:
    """The ``kind`` that ``text`` describes. Raises InputError with ``file``, line and key."""
    found = read_mapping(text, file)
    by_key = {key_of(field.name): field for field in fields(kind)}  # type: ignore[arg-type]
    for key in found:
        if key not in by_key:
            near = get_close_matches(str(key), list(by_key), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(by_key)}"
            raise InputError(f"unknown key {key!r}", hint=hint, file=file, line=line_of(text, str(key)), key=str(key))
    values: dict[str, object] = {}
    for key, field in by_key.items():
        if key in found:
            try:
                values[field.name] = _read_value(field.type, found[key], field.name)
            except InputError as error:
                raise InputError(
                    f"{key}: {error.message}", hint=error.hint, file=file, line=line_of(text, key), key=key
                ) from error
        elif _is_required(field):
            raise InputError(f"the key {key!r} is missing", hint=_HINT, file=file, key=key)
    return kind(**values)


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _read_value(kind: object, value: object, name: str) -> object:
    """``value`` as the type ``kind`` of the field ``name``; a quantity is text with a unit."""
    arguments, origin = typing.get_args(kind), typing.get_origin(kind)
    if origin is types.UnionType:
        inner = [argument for argument in arguments if argument is not types.NoneType]
        return None if value is None else _read_value(inner[0], value, name)
    if origin is typing.Literal:
        if value not in arguments:
            raise InputError(f"{value!r} is not one of {', '.join(map(repr, arguments))}", hint=_HINT)
        return value
    if origin is tuple:
        return _read_tuple(arguments, value, name)
    if origin is Mapping:
        if not isinstance(value, dict):
            raise InputError(f"{value!r} is not a mapping", hint=_HINT)
        unit_value = unit_of(name) is not None
        return {
            str(key): _read_value(arguments[1], inner, name) if unit_value else inner for key, inner in value.items()
        }
    unit = unit_of(name)
    if unit is not None:
        if not isinstance(value, str):
            raise InputError(f"{value!r} has no unit", hint=f"write it like {unit.example}")
        return unit.parse(value)
    return _read_scalar(kind, value)


def _read_tuple(arguments: tuple[Any, ...], value: object, name: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise InputError(f"{value!r} is not a list", hint=_HINT)
    if arguments[-1] is not Ellipsis and len(arguments) != len(value):
        raise InputError(f"{value!r} does not have {len(arguments)} entries", hint=_HINT)
    return tuple(_read_value(arguments[0], inner, name) for inner in value)


def _read_scalar(kind: object, value: object) -> object:
    if kind is str and isinstance(value, date):  # YAML reads 2026-11-28 as a date
        return value.isoformat()
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    assert isinstance(kind, type)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        words = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}
        raise InputError(f"{value!r} is not {words[kind.__name__]}", hint=_HINT)
    return value


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader, in C where PyYAML has it; it refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                raise yaml.constructor.ConstructorError(None, None, "a key is not text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} appears twice", key.start_mark
                )
            seen.add(key.value)
        return dict(super().construct_mapping(node, deep))


def read_mapping(text: str, file: str) -> dict[str, Any]:
    """The mapping in ``text``. Raises InputError with file and line where it is not one."""
    try:
        found = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "not readable"
        raise InputError(
            f"not valid YAML: {problem}", hint=_HINT, file=file, line=None if mark is None else mark.line + 1
        ) from error
    except (ValueError, RecursionError) as error:  # an impossible date, thousands of digits or brackets
        raise InputError(f"not valid YAML: {str(error)[:100]}", hint=_HINT, file=file) from error
    if not isinstance(found, dict):
        raise InputError("the file has no keys and values", hint=_HINT, file=file)
    return found


def line_of(text: str, key: str) -> int | None:
    """The line of the top-level ``key``."""
    match = re.search(rf"^{re.escape(key)}\s*:", text, re.MULTILINE)
    return None if match is None else text.count("\n", 0, match.start()) + 1
