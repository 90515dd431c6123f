"""A traffic file with the recommended settings in place and everything else, comments included, left as it was."""

import re

from kvplan.errors import InputError
from kvplan.traffic.file.yaml_text import parse_mapping

_INDENT = "  "


def recommended_text(text: str, file: str, *, safety_fraction: float, default_max_tokens: int | None) -> str:
    r"""``text`` with ``admission.safety_fraction`` and ``admission.default_max_tokens`` set; None leaves the latter
    alone.

    >>> old = "admission:  # the door\n  safety_fraction: 0.9  # was\ntraffic: {}\n"
    >>> print(recommended_text(old, "x", safety_fraction=0.98, default_max_tokens=1024))
    admission:  # the door
      default_max_tokens: 1024
      safety_fraction: 0.98  # was
    traffic: {}
    <BLANKLINE>
    """
    settings = {"safety_fraction": f"{safety_fraction:g}"}
    if default_max_tokens is not None:
        settings["default_max_tokens"] = str(default_max_tokens)
    parse_mapping(text, file)
    try:
        for key, value in settings.items():
            text = _set(text, file, key, value)
        admission = parse_mapping(text, file)[0].get("admission")
    except InputError:
        admission = None
    if not isinstance(admission, dict) or any(str(admission.get(key)) != value for key, value in settings.items()):
        raise InputError(
            "the file's admission block is in a form that cannot be edited automatically",
            hint=f"set {', '.join(f'admission.{key}: {value}' for key, value in settings.items())} by hand",
            file=file,
            key="admission",
        )
    return text


def _set(text: str, file: str, key: str, value: str) -> str:
    values, lines = parse_mapping(text, file)
    rows = text.splitlines(keepends=True)
    place = lines.get(("admission", key))
    if place is not None:
        pattern = re.compile(rf"\b({key}\s*:\s*)([^\s,}}#]+)")
        rows[place - 1] = pattern.sub(lambda found: f"{found[1]}{value}", rows[place - 1], count=1)
        return "".join(rows)
    block = lines.get(("admission",))
    if block is None:
        before = lines.get(("traffic",), len(rows) + 1) - 1
        return "".join([*rows[:before], f"admission:\n{_INDENT}{key}: {value}\n", *rows[before:]])
    head = rows[block - 1]
    if "{" in head.partition("#")[0]:
        rows[block - 1] = head.replace("{", f"{{{key}: {value}" + (", " if values["admission"] else ""), 1)
    else:
        rows.insert(block, f"{_indent(rows, block)}{key}: {value}\n")
    return "".join(rows)


def _indent(rows: list[str], block: int) -> str:
    """The indentation of the block that begins on the line after row ``block``."""
    for row in rows[block:]:
        stripped = row.lstrip(" ")
        if stripped.strip() and not stripped.startswith("#"):
            return row[: len(row) - len(stripped)] or _INDENT
    return _INDENT
