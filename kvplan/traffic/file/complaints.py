"""What is wrong with a traffic file, in the words of its writer: the key, its line and the nearest known word."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from kvplan.errors import InputError
from kvplan.traffic.file.fields import InvalidValueError
from kvplan.traffic.file.yaml_text import KeyPath


@dataclass(frozen=True, kw_only=True)
class Places:
    """A file and the ``lines`` on which its keys stand."""

    file: str
    lines: Mapping[KeyPath, int]

    def line(self, path: KeyPath) -> int | None:
        """The line of ``path``, or of the nearest key around it that stands in the file."""
        lengths = range(len(path), 0, -1)
        return next((self.lines[path[:length]] for length in lengths if path[:length] in self.lines), None)

    def error(self, path: KeyPath, message: str, hint: str | None = None) -> InputError:
        """An InputError at ``path``."""
        return InputError(message, hint=hint, file=self.file, line=self.line(path), key=_dotted(path))


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


@contextmanager
def complaining(shape: type[BaseModel], values: dict[str, Any], places: Places) -> Iterator[None]:
    """Turns what is found wrong with ``values`` as a ``shape`` into an InputError: the first complaint, at its place.

    An unknown key comes before a missing one, for a misspelt key is both; else the first line comes first.
    """
    try:
        yield
    except InvalidValueError as error:
        raise places.error(error.at, f"{_dotted(error.at)}: {error}", error.hint) from error
    except ValidationError as error:
        found: list[Any] = error.errors(include_url=False)
        first = min(found, key=lambda each: (each["type"] != "extra_forbidden", places.line(each["loc"]) or 0))
        path = _path(first, values)
        if isinstance(error_of := first.get("ctx", {}).get("error"), InvalidValueError):
            path = (*path, *error_of.at)
        message, hint = _unknown(first, path, shape) if _is_unknown(first) else _wrong(first, path)
        others = len({_path(each, values) for each in found}) - 1
        raise places.error(path, message + (f" (and {others} more)" if others else ""), hint) from error


def _path(complaint: Any, values: Any) -> KeyPath:
    """The location without the steps that name a member of a union instead of a key."""
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


def _is_unknown(complaint: Any) -> bool:
    return bool(complaint["type"] == "extra_forbidden") or complaint["loc"][-1:] == ("[key]",)


def _unknown(complaint: Any, path: KeyPath, shape: type[BaseModel]) -> tuple[str, str]:
    """A key, or a word that stands for a block (``arrivals: posson``), that is not known; the nearest that is."""
    last = complaint["loc"][-1]
    is_word = last not in ("[key]", path[-1])
    if last == "[key]":
        known: tuple[str, ...] = tuple(re.findall(r"'(\w+)'", complaint["ctx"]["expected"]))
    else:
        known = known_keys(shape, path if is_word else path[:-1])
    wrong = str(last if is_word else path[-1])
    near = get_close_matches(wrong, known, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known{'' if is_word else ' keys'}: {', '.join(known)}"
    if is_word:
        return f"{_dotted(path)}: {wrong!r} is not known", hint
    return f"unknown key {wrong!r}" + (f" in {_dotted(path[:-1])}" if len(path) > 1 else ""), hint


_BLOCK = "must be a block of keys"
_WANTED = {
    "string_type": "must be text",
    "string_too_short": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), _BLOCK),
}
"""The validator's kind of error → what a file would say instead."""


def _wrong(complaint: Any, path: KeyPath) -> tuple[str, str | None]:
    """A value that is not what its key takes."""
    kind, name = complaint["type"], _dotted(path)
    if kind == "missing":
        return f"the key {name!r} is missing", None
    if kind == "value_error":
        error = complaint["ctx"]["error"]
        return f"{name}: {error}", getattr(error, "hint", None)
    wanted = _WANTED.get(kind) or complaint["msg"].replace("Input should be", "must be")
    if kind == "too_short":
        wanted = f"must have {complaint['ctx']['min_length']} or more entries"
    hint = _as_block(path, complaint["input"]) if wanted == _BLOCK else None
    return f"{name or 'the file'}: {wanted[:1].lower()}{wanted[1:]}, not {shown(complaint['input'])}", hint


def _as_block(path: KeyPath, given: object) -> str | None:
    """How a single value is written where a block of keys is wanted.

    >>> _as_block(("limits", "refused_share"), 0.05)
    'refused_share: {max: 0.05}, or {min: 0.05}'
    """
    if path[:1] == ("limits",) and isinstance(given, int | float):
        return f"{path[-1]}: {{max: {given}}}, or {{min: {given}}}"
    return {
        "max_tokens": "a whole number, or {unset: true} where clients send none",
        "prompt_tokens": _A_LENGTH,
        "output_tokens": _A_LENGTH,
    }.get(str(path[-1]) if path else "")


_A_LENGTH = "a whole number, or a distribution such as {lognormal: {p50: 300, p95: 900}}"


def shown(value: object) -> str:
    """A value as a file writes it, cut where it is long.

    >>> shown(True), shown(None), shown("6 per hour"), shown({"cv": 2})
    ('true', 'null', "'6 per hour'", '{cv: 2}')
    """
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{key}: {shown(each)}" for key, each in value.items()) + "}"
    elif isinstance(value, list):
        text = "[" + ", ".join(map(shown, value)) + "]"
    elif value is None or isinstance(value, bool):
        text = "null" if value is None else str(value).lower()
    else:
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def known_keys(shape: Any, path: KeyPath) -> tuple[str, ...]:
    """The keys that may stand in the block at ``path``."""

    def models(annotation: Any) -> list[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return [annotation]
        return [found for argument in get_args(annotation) for found in models(argument)]

    here: list[type[BaseModel]] = [shape]
    for step in path:
        if isinstance(step, int):
            continue
        fields = [model.model_fields[step].annotation for model in here if step in model.model_fields]
        here = [found for annotation in fields for found in models(annotation)] or here
    return tuple((field.alias or name) for model in here for name, field in model.model_fields.items())
