"""What is wrong with a file, said as its writer would see it: the key, its line, and the nearest known word."""

from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from kvplan.errors import InputError
from kvplan.traffic.file.places import Places
from kvplan.traffic.file.shapes.whole import LIMIT_NAMES
from kvplan.traffic.file.yaml_text import KeyPath

Shape = TypeVar("Shape")


def validated(shape: type[Shape], values: dict[str, Any], places: Places) -> Shape:
    """``values`` as ``shape``; InputError with the first complaint, at its place."""
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
        last = complaint["loc"][-1]
        stands_for_a_block = last not in ("[key]", path[-1])  # arrivals: posson
        wrong = str(last if stands_for_a_block else path[-1])
        known = LIMIT_NAMES if last == "[key]" else known_keys(shape, path if stands_for_a_block else path[:-1])
        near = get_close_matches(wrong, known, 1, 0.5)
        hint = (
            f"did you mean {near[0]!r}?"
            if near
            else f"known{'' if stands_for_a_block else ' keys'}: {', '.join(known)}"
        )
        message = f"unknown key {wrong!r}" + (f" in {name.rpartition('.')[0]}" if len(path) > 1 else "")
        if stands_for_a_block:
            message = f"{name}: {wrong!r} is not known"
    elif kind == "missing":
        message = f"the key {name!r} is missing"
    elif kind == "value_error":
        message = f"{name}: {complaint['ctx']['error']}"
    else:
        said = _WANTED.get(kind) or complaint["msg"].replace("Input should be", "must be")
        if kind == "too_short":
            said = f"must have {complaint['ctx']['min_length']} or more entries"
        if said == _BLOCK:
            hint = _in_a_block(path, complaint["input"])
        unit = _UNITS.get(str(path[-1])) if path else None
        message = f"{name or 'the file'}: {said[:1].lower()}{said[1:]}, not {shown(complaint['input'])}"
        if kind == "string_type" and unit is not None and type(complaint["input"]) in (int, float):
            message = f"{name}: {complaint['input']} has no unit"
            hint = f"write it with its unit: {complaint['input']}{unit}"
    return places.error(path, message + more, hint)


_BLOCK = "must be a block of keys"
_WANTED = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), _BLOCK),
}
"""What the validator misses → what a file would say instead."""
_UNITS = {
    "rate": "/s",
    "memory": "GiB",
    "gpu_memory": "GiB",
    **dict.fromkeys(("duration", "timeout", "on", "off", "period", "peak_at", "step", "lifetime"), "s"),
}
"""Keys whose values have units, and the usual one."""


def _in_a_block(path: KeyPath, given: object) -> str | None:
    """How a value that stands alone is written where a block of keys is wanted.

    >>> _in_a_block(("limits", "refused_share"), 0.05)
    'refused_share: {max: 0.05}, or {min: 0.05}'
    """
    if path[:1] == ("limits",) and isinstance(given, (int, float)):
        return f"{path[-1]}: {{max: {given}}}, or {{min: {given}}}"
    if path[-1:] == ("max_tokens",):
        return "a whole number, or {unset: true} where clients send none"
    if path[-1:] in (("prompt_tokens",), ("output_tokens",)):
        return "a whole number, or a distribution such as {lognormal: {p50: 300, p95: 900}}"
    return None


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
