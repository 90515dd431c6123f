"""The one canonical form of a catalogue's file: what its text must be, given what was read from it."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from datetime import date
from decimal import Decimal
from typing import Any

import yaml

from kvplan.profiles.quantities import key_of, unit_of
from kvplan.units import GIB, MIB


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
