"""What the files of ``profiles/`` must hold: the canonical text of a profile, and the schemas that are generated."""

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from datetime import date
from decimal import Decimal
from typing import Any

import yaml

from kvplan.profiles.kinds import BundledModel, ClientProfile, GpuProfile
from kvplan.profiles.quantities import key_of, unit_of
from kvplan.traffic.file.schema import FileShape
from kvplan.units import GIB, MIB

KINDS: dict[str, type] = {"gpus": GpuProfile, "clients": ClientProfile, "models": BundledModel}


class _Dumper(yaml.SafeDumper):
    """Block style, but for lists of short words and numbers."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


def _represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.SequenceNode:
    short = not any(isinstance(item, dict | list) or _is_long(item) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=short)


def _is_long(item: object) -> bool:
    return isinstance(item, str) and (len(item) > 40 or " " in item or ":" in item)


_Dumper.add_representer(list, _represent_list)


def write_profile(profile: object, sort: str) -> str:
    """The canonical text of a profile: fields in their order, defaults left out, quantities with their unit."""
    values: dict[str, object] = {}
    for field in fields(profile):  # type: ignore[arg-type]
        value = getattr(profile, field.name)
        if (field.default is MISSING and field.default_factory is MISSING) or value != _default(field):
            values[key_of(field.name)] = _plain(value, field.name)
    return f"# yaml-language-server: $schema=../schema/{sort}.json\n{_mapping(values)}"


def _default(field: Field[Any]) -> object:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _plain(value: object, name: str) -> object:
    unit = unit_of(name)
    if name == "checked" and isinstance(value, str):
        return date.fromisoformat(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner, name) if unit else inner for key, inner in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return _FORMATS[unit.suffix](value) if unit and isinstance(value, int | float) else value


def _mapping(values: Mapping[str, object]) -> str:
    """The canonical text: keys in the order given, two spaces, 120 columns."""
    return yaml.dump(
        dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=118, default_flow_style=False
    )


def exact_bytes(amount: float) -> str:
    """The shortest text that ``parse_bytes`` reads back as ``amount``: GiB or MiB with two decimals, else bytes.

    >>> [exact_bytes(n) for n in (85899345920, int(Decimal("79.18") * GIB), 81559 * MIB, 16060522496)]
    ['80 GiB', '79.18 GiB', '81559 MiB', '16060522496 B']
    """
    size = int(amount)
    for name, unit in (("GiB", GIB), ("MiB", MIB)):
        for text in (f"{size / unit:.{digits}f}" for digits in range(3)):
            if size >= unit and int(Decimal(text) * unit) == size:
                return f"{text} {name}"
    return f"{size} B"


def _format_scaled(scale: int, name: str) -> Callable[[float], str]:
    """The writer that belongs to ``_parse_scaled``: ``amount / scale`` as the shortest exact decimal."""

    def write(amount: float) -> str:
        text = f"{Decimal(amount) / scale:f}"
        return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {name}"

    return write


def _format_seconds(amount: float) -> str:
    return f"{amount:g} s"


_FORMATS: dict[str, Callable[[float], str]] = {
    "_bytes_per_s": _format_scaled(10**9, "GB/s"),
    "flops_per_s": _format_scaled(10**12, "TFLOP/s"),
    "_bytes": exact_bytes,
    "_s": _format_seconds,
}
"""Ending of a field's name → how its values are written."""

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def profile_schema(sort: str) -> dict[str, object]:
    """The JSON Schema of a catalogue's files: their keys, the required ones, and how quantities are written."""
    kind = KINDS[sort]
    known = fields(kind)
    return {
        "$schema": _DRAFT,
        "title": f"A kvplan profile in {sort}/",
        "description": " ".join((kind.__doc__ or "").replace("``", "`").split()),
        "type": "object",
        "properties": {key_of(field.name): _value_schema(field.type, field.name) for field in known},
        "required": [
            key_of(field.name) for field in known if field.default is MISSING and field.default_factory is MISSING
        ],
        "additionalProperties": False,
    }


def traffic_schema() -> dict[str, object]:
    """The JSON Schema of a traffic file."""
    schema = FileShape.model_json_schema(by_alias=True, mode="validation")
    return schema | {"$schema": _DRAFT, "title": "kvplan traffic file"}


def schema_text(schema: Mapping[str, object], *, sort_keys: bool = False) -> str:
    """A schema as its file holds it."""
    return json.dumps(schema, indent=2, ensure_ascii=False, sort_keys=sort_keys) + "\n"


def _value_schema(kind: object, name: str) -> dict[str, Any]:
    arguments, origin = typing.get_args(kind), typing.get_origin(kind)
    unit = unit_of(name)
    if origin is types.UnionType:
        inner = _value_schema(arguments[0], name)
        return {**inner, "type": [inner["type"], "null"]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        items = {"type": "array", "items": _value_schema(arguments[0], name)}
        fixed = arguments[-1] is not Ellipsis
        return {**items, "minItems": len(arguments), "maxItems": len(arguments)} if fixed else items
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _value_schema(arguments[1], name) if unit else True}
    if unit is not None:
        return {"type": "string", "pattern": unit.pattern, "examples": [unit.example]}
    names: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return {"type": names[kind]}
