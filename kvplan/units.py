"""Text with units to exact numbers and back. Inside kvplan bytes are integers; GiB is 2**30, GB is 10**9."""

import math
import re
from fractions import Fraction

from kvplan.errors import InputError

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9

_BYTES_PER_UNIT = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": GB,
    "TB": 10**12,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": 2**40,
}
_SECONDS_PER_UNIT = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_QUANTITY = re.compile(r"\s*([0-9]{1,25}(?:\.[0-9]{1,25})?|\.[0-9]{1,25})\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """Bytes in ``text``; a fraction of a byte is dropped. Raises InputError where the unit is missing or unknown.

    >>> parse_bytes("10GiB"), parse_bytes("79.18 GiB"), parse_bytes("80GB"), parse_bytes("1234B")
    (10737418240, 85018877624, 80000000000, 1234)
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _BYTES_PER_UNIT:
        raise InputError(
            f"{text!r} is not an amount of memory", hint="write it with its unit: 10GiB, 512MiB, 80GB or 1234B"
        )
    return int(Fraction(match[1]) * _BYTES_PER_UNIT[match[2]])


def parse_seconds(text: str) -> float:
    """Seconds in ``text``: a number with ms, s, m (or min), h or d.

    >>> parse_seconds("30m"), parse_seconds("250ms"), parse_seconds("600s")
    (1800.0, 0.25, 600.0)
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _SECONDS_PER_UNIT:
        raise InputError(f"{text!r} is not a duration", hint="write it with its unit: 250ms, 30s, 5m, 2h or 1d")
    return float(Fraction(match[1]) * _SECONDS_PER_UNIT[match[2]])


def parse_per_second(text: str) -> float:
    """Events per second in ``text``, such as ``6/s``, ``90/min`` or ``2/h``.

    >>> parse_per_second("6/s"), parse_per_second("90/min"), parse_per_second("90/m")
    (6.0, 1.5, 1.5)
    """
    number, slash, unit = text.partition("/")
    unit = unit.strip()
    match = _QUANTITY.fullmatch(number)
    if not slash or match is None or match[2] or unit not in _SECONDS_PER_UNIT:
        raise InputError(f"{text!r} is not a rate", hint="write it per unit of time: 6/s, 90/min or 2/h")
    return float(Fraction(match[1]) / _SECONDS_PER_UNIT[unit])


def format_bytes(amount: int) -> str:
    """``amount`` in binary units, with three significant digits or more.

    >>> [format_bytes(n) for n in (0, 1234, 131072, 55727620096, -1073741824)]
    ['0 B', '1,234 B', '128 KiB', '51.9 GiB', '-1 GiB']
    """
    sign, size = ("-" if amount < 0 else ""), abs(amount)
    for unit, name in ((2**40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit * (10 if unit == KIB else 1):
            digits = max(0, 2 - int(math.log10(size / unit)))
            text = f"{size / unit:,.{digits}f}"
            return f"{sign}{text.rstrip('0').rstrip('.') if '.' in text else text} {name}"
    return f"{sign}{size:,} B"
