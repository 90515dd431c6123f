"""Keys that replace what the file says, written into its values before these are judged."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from kvplan.engines.options import rows
from kvplan.errors import InputError
from kvplan.traffic.file.complaints import known_keys
from kvplan.traffic.file.shapes.whole import FileShape

_SECTIONS = ("admission", "deployment", "traffic", "")


def override(values: dict[str, Any], overrides: Mapping[str, object]) -> None:
    """Put each override in its place: a key named alone, or by its section (``traffic.classes.0.rate``)."""
    for name, value in overrides.items():
        if "" in name.split("."):
            raise InputError(
                f"{name!r} has an empty part", hint="one dot stands between two keys: traffic.seed", key=name
            )
        section, _, key = name.rpartition(".")
        if not section:
            places = (place for place in _SECTIONS if name in known_keys(FileShape, (place,) if place else ()))
            section = next(places, "unknown")
            if section == "unknown":
                raise _no_key(name)
        block: Any = values
        for part in section.split(".") if section else ():
            block = _inside(block, part, name)
        if not isinstance(block, dict):
            raise _no_block(block, key, name)
        if section == "deployment":
            for other in _words_for(key):
                block.pop(other, None)
        block[key] = value


def _words_for(key: str) -> tuple[str, ...]:
    """All keys of the option that ``key`` asks for; none where it is no option of an engine."""
    return next((row.keys for row in rows() if key in row.keys), ())


def _no_key(name: str) -> InputError:
    keys = [key for place in _SECTIONS for key in known_keys(FileShape, (place,) if place else ())]
    near = " or ".join(get_close_matches(name, keys, n=2))
    hint = f"did you mean {near}?" if near else "kvplan explain traffic shows the keys"
    return InputError(f"{name!r} is no key of a traffic file", hint=hint)


def _inside(block: Any, part: str, name: str) -> Any:
    """The block under a key, made where it is missing, or a list's entry."""
    if isinstance(block, dict):
        return block.setdefault(part, {})
    if isinstance(block, list) and part.isdecimal() and int(part) < len(block):
        return block[int(part)]
    raise _no_block(block, part, name)


def _no_block(block: Any, part: str, name: str) -> InputError:
    if not isinstance(block, list):
        return InputError(
            f"{name}: there is no {part!r} inside a single value", hint="kvplan explain traffic", key=name
        )
    called = [entry.get("name", "") if isinstance(entry, dict) else "" for entry in block]
    entries = ", ".join(f"{index} {word}".strip() for index, word in enumerate(called))
    return InputError(
        f"{name}: {part!r} is no entry of that list", hint=f"give an entry by its number: {entries}", key=name
    )
