"""An engine's log lines as data: a pattern's named groups are figures, and the end of a group's name is its unit."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property

from kvplan.engine_logs.figures import Observation
from kvplan.engine_logs.lines import LogLine
from kvplan.units import GIB, MIB

_LONGEST_FIGURE = 30  # characters: a longer one is of a damaged line
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
Observations = tuple[Observation, ...]


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One form of a line. Group ``weight_gib`` gives ``weight_bytes``, as ``weight_mib`` does; ``x_count`` gives the
    number ``x``. ``always`` are the figures that every such line gives.
    """

    regex: re.Pattern[str]
    always: tuple[tuple[str, int | float | str | bool], ...] = ()


def pattern(text: str, **always: float | str | bool) -> Pattern:
    """A Pattern from its text."""
    return Pattern(regex=re.compile(text), always=tuple(always.items()))


def patterns(*texts: str | Pattern) -> tuple[Pattern, ...]:
    """Patterns from their texts; one that has ``always`` is written with ``pattern``."""
    return tuple(pattern(text) if isinstance(text, str) else text for text in texts)


@dataclass(frozen=True, kw_only=True)
class Wording:
    """One engine's log lines.

    Every line of interest contains one of ``triggers``, words with ``|`` between them. A ``marker`` begins a start. An
    ``argument_line`` lists the settings that ``arguments`` read. ``early_settings`` are figures that an engine may
    print before its marker. ``combine`` turns partial figures (a device's buffer, K and V) into whole ones.
    """

    engine: str
    triggers: str
    marker: re.Pattern[str]
    patterns: tuple[Pattern, ...]
    refusals: tuple[tuple[str, Pattern], ...]
    argument_line: re.Pattern[str] | None = None
    arguments: tuple[Pattern, ...] = ()
    early_settings: frozenset[str] = frozenset()
    combine: Callable[[Observations], Observations] = tuple

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Each of ``triggers``."""
        return tuple(self.triggers.split("|"))

    @cached_property
    def trigger(self) -> re.Pattern[str]:
        """Any of ``triggers``."""
        return re.compile("|".join(map(re.escape, self.words)))


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
        flag = _FLAGS.get(text.lower())
        return None if flag is None else (stem, flag)
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
