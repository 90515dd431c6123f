"""Parses YAML into plain values and the line of every key, with YAML 1.2's rules for numbers and words.

PyYAML by itself reads ``on`` as true, ``1:30`` as ninety and ``4e-5`` as text.
"""

import math
import re
from pathlib import Path
from typing import Any

import yaml

from kvplan.errors import InputError
from kvplan.files import read_small_text

LARGEST_FILE_BYTES = 4 * 2**20
MAX_VALUES = 200_000
"""Nested aliases can expand a few lines to more than memory holds; a file written by people has hundreds of values."""
_HOW = "kvplan init writes a file to start from; kvplan explain traffic lists every key"
KeyPath = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """The safe loader, limited to the scalars of the core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - the base class's shape


_CORE_SCHEMA = (
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", r"^[-+]?[0-9]+$", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"^(?:[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
)
for _tag, _pattern, _first in _CORE_SCHEMA:
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), list(_first))


def read_text(path: Path) -> str:
    """The text of a traffic file. Raises InputError for a folder, a missing or unreadable file, or a large one."""
    return read_small_text(path, hint="kvplan init writes a traffic file that runs", max_bytes=LARGEST_FILE_BYTES)


def parse_mapping(text: str, file: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    r"""The mapping in ``text``, and the line (from 1) of every key and list entry by its path.

    >>> values, lines = parse_mapping("a:\n  - b: 4e-5\n    c: on\n", "x.yaml")
    >>> values, lines["a", 0, "c"]
    ({'a': [{'b': 4e-05, 'c': 'on'}]}, 3)
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            lines: dict[KeyPath, int] = {}
            values = None if node is None else _construct(loader, node, (), lines, file)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise _unreadable(error, text, file) from error
    except RecursionError as error:
        raise InputError("the file is nested too deeply", hint=_HOW, file=file) from error
    if values is None:
        raise InputError(
            "the file is empty", hint="kvplan init writes a traffic file that runs as it stands", file=file
        )
    if not isinstance(values, dict):
        raise InputError("the file has no keys and values", hint="kvplan init writes an example", file=file, line=1)
    return values, lines


_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "bool", "null", "int", "float"))


def _construct(loader: _Loader, node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], file: str) -> Any:
    if node.tag not in _TAGS:
        raise _wrong(f"the tag {node.tag} is not supported", node, file, hint="write the value without a tag")
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _wrong("a key must be a word", key_node, file)
            key = str(key_node.value)
            inner = (*path, key)
            if key in found:
                twice = f"the key {key!r} appears twice (first on line {lines[inner]})"
                raise _wrong(twice, key_node, file, inner, hint="remove one of them")
            _place(lines, inner, key_node, file)
            found[key] = _construct(loader, value_node, inner, lines, file)
        return found
    if isinstance(node, yaml.SequenceNode):
        entries = []
        for index, entry in enumerate(node.value):
            _place(lines, (*path, index), entry, file)
            entries.append(_construct(loader, entry, (*path, index), lines, file))
        return entries
    try:
        # Whole numbers as Python reads them: PyYAML takes 010 for eight and fails at 08.
        value = int(node.value) if node.tag.endswith(":int") else loader.construct_object(node)
    except ValueError as error:  # text that does not fit its tag, or thousands of digits
        raise _wrong(f"{_key(path)}: {node.value:.40} is not a number", node, file, path) from error
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(f"{_key(path)}: {node.value} is not a finite number", node, file, path)
    return value


def _place(lines: dict[KeyPath, int], path: KeyPath, node: yaml.Node, file: str) -> None:
    if len(lines) == MAX_VALUES:
        raise _wrong(f"more than {MAX_VALUES:,} values, too many for a traffic file", node, file)
    lines[path] = node.start_mark.line + 1


def _key(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _wrong(message: str, node: yaml.Node, file: str, path: KeyPath = (), hint: str = _HOW) -> InputError:
    return InputError(message, hint=hint, file=file, line=node.start_mark.line + 1, key=_key(path) or None)


def _unreadable(error: yaml.YAMLError, text: str, file: str) -> InputError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = None if mark is None else mark.line + 1
    if line is None and getattr(error, "position", None) is not None:
        line = text.count("\n", 0, error.position) + 1  # type: ignore[attr-defined]
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not readable"
    shown = "".join(text.splitlines()[line - 1 : line]) if line is not None else ""
    if "\t" in shown[: len(shown) - len(shown.lstrip())] or "'\\t'" in str(problem):
        return InputError("a tab is used for indentation", hint="YAML requires spaces", file=file, line=line)
    return InputError(f"not valid YAML: {problem}", hint=_HOW, file=file, line=line)
