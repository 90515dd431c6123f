"""YAML text to plain values and back: duplicate keys refused, one canonical form written."""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from kvplan.errors import InputError

_HINT = "compare it with a bundled file of the same kind"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader, in C where PyYAML has it, that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                raise yaml.constructor.ConstructorError(None, None, "a key is no text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(key.value)
        return dict(super().construct_mapping(node, deep))


class _Dumper(yaml.SafeDumper):
    """Block style, but for lists of short words and numbers."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: FBT001, FBT002
        super().increase_indent(flow, indentless=False)


def _represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.SequenceNode:
    short = not any(isinstance(item, dict | list) or _is_long(item) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=short)


def _is_long(item: object) -> bool:
    return isinstance(item, str) and (len(item) > 40 or " " in item or ":" in item)


_Dumper.add_representer(list, _represent_list)


def read_mapping(text: str, file: str) -> dict[str, Any]:
    """The mapping that ``text`` holds; InputError with file and line where it is not one."""
    try:
        found = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "not readable"
        raise InputError(
            f"not valid YAML: {problem}", hint=_HINT, file=file, line=None if mark is None else mark.line + 1
        ) from error
    except (ValueError, RecursionError) as error:  # a date that is none, thousands of digits or of brackets
        raise InputError(f"not valid YAML: {str(error)[:100]}", hint=_HINT, file=file) from error
    if not isinstance(found, dict):
        raise InputError("the file does not hold keys and values", hint=_HINT, file=file)
    return found


def write_mapping(values: Mapping[str, object]) -> str:
    """The canonical text: keys in the order given, two spaces, 120 columns."""
    return yaml.dump(
        dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=118, default_flow_style=False
    )


def line_of(text: str, key: str) -> int | None:
    """The line on which the top-level ``key`` stands."""
    match = re.search(rf"^{re.escape(key)}\s*:", text, re.MULTILINE)
    return None if match is None else text.count("\n", 0, match.start()) + 1
