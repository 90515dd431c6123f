"""A traffic file found by its path or name, with keys overridden, and read into frozen values."""

from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kvplan.engines.options import rows
from kvplan.errors import InputError
from kvplan.profiles.loader import list_names, traffic_path
from kvplan.traffic.file.yaml_text import KeyPath, parse_mapping, read_text
from kvplan.traffic.spec import Traffic

_SECTIONS = ("admission", "deployment", "traffic", "")


def load_traffic(
    reference: str | Path, *, profiles_folder: str | Path | None = None, overrides: Mapping[str, object] | None = None
) -> Traffic:
    """The traffic file at a path, on standard input (``-``), or the bundled mix of that name.

    ``overrides`` replaces keys, named alone (``safety_fraction``) or by their section (``traffic.seed``); they are
    validated as if they stood in the file. Raises InputError with file, line, key and the nearest known key.
    """
    path = Path("-") if str(reference) == "-" else _find(str(reference), profiles_folder)
    text = read_text(Path("/dev/stdin") if path == Path("-") else path)
    return parse_traffic(text, file=str(path), profiles_folder=profiles_folder, overrides=overrides)


def parse_traffic(
    text: str,
    *,
    file: str,
    profiles_folder: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Traffic:
    """The traffic that ``text`` describes; traces are looked for beside ``file``."""
    # Imported only when a file is read: pydantic takes longer to import than most commands take to run.
    from kvplan.traffic.file.complaints import Places, known_keys
    from kvplan.traffic.file.schema import FileShape, read_values

    values, lines = parse_mapping(text, file)
    if overrides:
        keys = {section: known_keys(FileShape, (section,) if section else ()) for section in _SECTIONS}
        for name, value in overrides.items():
            _override(values, name, value, keys, lines)
    return read_values(values, Places(file=file, lines=lines), profiles_folder)


def _find(reference: str, profiles_folder: str | Path | None) -> Path:
    if not reference:
        raise InputError("TRAFFIC is empty", hint="give a traffic file, or a bundled mix (kvplan list traffic)")
    path = Path(reference)
    with suppress(FileNotFoundError, NotADirectoryError):  # any other error says more than "there is no such file"
        path.stat()
        return path
    bundled = traffic_path(reference, extra_folder=profiles_folder)
    if bundled is not None:
        return bundled
    names = list_names("traffic", extra_folder=profiles_folder)
    beside = (str(each) for each in path.parent.glob("*.y*ml"))
    near = get_close_matches(reference, [*names, *beside], 3, 0.5)
    raise InputError(
        f"there is no traffic file {reference!r}, and no bundled mix of that name",
        hint=f"did you mean {', '.join(near)}?"
        if near
        else f"bundled mixes: {', '.join(names)}; kvplan init writes one",
        file=reference,
    )


def _override(
    values: dict[str, Any], name: str, value: object, keys: Mapping[str, tuple[str, ...]], lines: dict[KeyPath, int]
) -> None:
    """Put a value in the place of a key named alone, or by its section (``traffic.classes.0.rate``); it stands on no
    line of the file."""
    if "" in name.split("."):
        raise InputError(f"{name!r} has an empty part", hint="one dot stands between two keys: traffic.seed", key=name)
    section, _, key = name.rpartition(".")
    if not section:
        sections = [section for section in _SECTIONS if name in keys[section]]
        if not sections:
            near = " or ".join(get_close_matches(name, [key for section in _SECTIONS for key in keys[section]], n=2))
            hint = f"did you mean {near}?" if near else "kvplan explain traffic shows the keys"
            raise InputError(f"{name!r} is not a key of a traffic file", hint=hint)
        section = sections[0]
    block: Any = values
    for part in section.split(".") if section else ():
        block = _inside(block, part, name)
    if not isinstance(block, dict):
        raise _not_a_block(block, key, name)
    if section == "deployment":  # other words for the same option would contradict this one
        for other in next((row.keys for row in rows() if key in row.keys), ()):
            block.pop(other, None)
            lines.pop(("deployment", other), None)
    block[key] = value


def _inside(block: Any, part: str, name: str) -> Any:
    """The block under a key, made where it is missing, or an entry of a list."""
    if isinstance(block, dict):
        return block.setdefault(part, {})
    if isinstance(block, list) and part.isdecimal() and int(part) < len(block):
        return block[int(part)]
    raise _not_a_block(block, part, name)


def _not_a_block(block: Any, part: str, name: str) -> InputError:
    if not isinstance(block, list):
        return InputError(
            f"{name}: there is no {part!r} inside a single value", hint="kvplan explain traffic", key=name
        )
    called = [entry.get("name", "") if isinstance(entry, dict) else "" for entry in block]
    entries = ", ".join(f"{index} {word}".strip() for index, word in enumerate(called))
    return InputError(
        f"{name}: {part!r} is not an entry of that list", hint=f"give an entry by its number: {entries}", key=name
    )
