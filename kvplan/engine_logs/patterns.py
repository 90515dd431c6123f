"""How a line becomes figures: a pattern's named groups are figures, and the end of a group's name is its unit."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from kvplan.engine_logs.figures import Observation
from kvplan.engine_logs.lines import LogLine
from kvplan.units import GIB, MIB

_LONGEST_FIGURE = 30
_TRUE, _FALSE = {"true", "yes", "1"}, {"false", "no", "0"}


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One wording. Group ``weight_gib`` gives ``weight_bytes``; ``weight_mib`` too; ``x_count`` gives the number ``x``.

    ``always`` are figures that the line's mere presence gives.
    """

    regex: re.Pattern[str]
    always: tuple[tuple[str, int | float | str | bool], ...] = ()


Observations = tuple[Observation, ...]


@dataclass(frozen=True, kw_only=True)
class Wording:
    """One engine's log lines.

    ``trigger`` finds lines worth a look; ``marker`` begins a start; ``argument_line`` lists the settings that
    ``arguments`` read; ``fold`` turns partial figures (a buffer a device, a pool a layer kind) into whole ones.
    """

    engine: str
    trigger: re.Pattern[str]
    marker: re.Pattern[str]
    patterns: tuple[Pattern, ...]
    refusals: tuple[tuple[str, Pattern], ...]
    argument_line: re.Pattern[str] | None = None
    arguments: tuple[Pattern, ...] = ()
    fold: Callable[[Observations], Observations] = tuple


def patterns(*texts: str) -> tuple[Pattern, ...]:
    """Patterns from their texts."""
    return tuple(pattern(text) for text in texts)


def pattern(text: str, **always: float | str | bool) -> Pattern:
    """A Pattern from its text."""
    return Pattern(regex=re.compile(text), always=tuple(always.items()))


def figure(name: str, text: str) -> tuple[str, int | float | str | bool] | None:
    """A figure's name and value from a group's name and text, or None where the text is no value (``None``).

    >>> figure("kv_gib", "1.50"), figure("kv_tokens", "65,008"), figure("eager_flag", "True"), figure("x_text", "None")
    (('kv_bytes', 1610612736), ('kv_tokens', 65008), ('eager', True), None)
    """
    if text in {"None", "null", ""}:
        return None
    stem, _, unit = name.rpartition("_")
    if unit == "text":
        return stem, text
    if unit == "flag":
        lowered = text.lower()
        return (stem, lowered in _TRUE) if lowered in _TRUE | _FALSE else None
    if len(text) > _LONGEST_FIGURE:
        return None
    try:
        return _number(name, stem, unit, text)
    except (ValueError, InvalidOperation):  # a damaged line: "1.2.3", ",,"
        return None


def _number(name: str, stem: str, unit: str, text: str) -> tuple[str, int | float]:
    if unit in {"gib", "mib"}:
        return f"{stem}_bytes", round(Decimal(text.replace(",", ".")) * (GIB if unit == "gib" else MIB))
    if unit in {"tokens", "bytes", "blocks"}:
        return name, int(text.replace(",", "").replace("_", ""))
    if unit == "count":
        return stem, int(text.replace(",", ""))
    assert unit == "number", f"the group {name} names no unit"
    return stem, float(text)


def observe(patterns: tuple[Pattern, ...], line: LogLine) -> Iterator[Observation]:
    """The figures of one line."""
    for known in patterns:
        match = known.regex.search(line.text)
        if match is None:
            continue
        found = [figure(name, text) for name, text in match.groupdict().items() if text is not None]
        for pair in (*found, *known.always):
            if pair is not None:
                yield Observation(name=pair[0], value=pair[1], line=line.number, text=line.text[:300], rank=line.rank)
