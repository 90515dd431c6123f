"""Quantities of the catalogues: a number with its unit in a file, an integer (or seconds) in the program.

A file writes the unit in the value (``memory: 79.18 GiB``), the program in the name (``memory_bytes``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from kvplan.errors import InputError
from kvplan.units import parse_bytes, parse_seconds


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A unit that ends field names: how its values are parsed, and the pattern by which editors check them."""

    suffix: str
    parse: Callable[[str], int | float]
    pattern: str
    example: str


def _parse_scaled(scales: dict[str, int], example: str) -> Callable[[str], int]:
    """A parser of numbers in decimal multiples of one unit."""

    def parse(text: str) -> int:
        number, _, unit = text.partition(" ")
        if unit not in scales or not number.replace(".", "", 1).isdecimal():
            raise InputError(f"{text!r} has no unit that is accepted here", hint=f"write it like {example}")
        return int(Decimal(number) * scales[unit])

    return parse


_DECIMAL = r"[0-9]+(\.[0-9]+)?"
# Longest suffix first: ``bandwidth_bytes_per_s`` ends in ``_s`` too.
UNITS = (
    Unit(
        suffix="_bytes_per_s",
        parse=_parse_scaled({"GB/s": 10**9, "TB/s": 10**12}, "3350 GB/s"),
        pattern=rf"^{_DECIMAL} (GB|TB)/s$",
        example="3350 GB/s",
    ),
    Unit(
        suffix="flops_per_s",
        parse=_parse_scaled({"TFLOP/s": 10**12, "PFLOP/s": 10**15}, "989.5 TFLOP/s"),
        pattern=rf"^{_DECIMAL} (TFLOP|PFLOP)/s$",
        example="989.5 TFLOP/s",
    ),
    Unit(
        suffix="_bytes",
        parse=parse_bytes,
        pattern=rf"^{_DECIMAL} ?(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)$",
        example="79.18 GiB",
    ),
    Unit(
        suffix="_s",
        parse=parse_seconds,
        pattern=rf"^{_DECIMAL} ?(ms|s|m|h|d)$",
        example="0.5 s",
    ),
)


def unit_of(field_name: str) -> Unit | None:
    """The unit that ends ``field_name``, if one does."""
    return next((unit for unit in UNITS if field_name.endswith(unit.suffix)), None)


def key_of(field_name: str) -> str:
    """The key of a field in a file: its name without the unit.

    >>> [key_of(name) for name in ("memory_bytes", "bandwidth_bytes_per_s", "flops_per_s", "timeout_s", "aliases")]
    ['memory', 'bandwidth', 'flops', 'timeout', 'aliases']
    """
    unit = unit_of(field_name)
    if unit is None:
        return field_name
    return field_name.removesuffix("_per_s") if unit.suffix == "flops_per_s" else field_name.removesuffix(unit.suffix)
