"""YAML text to plain values: duplicate keys refused."""

import re
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


def line_of(text: str, key: str) -> int | None:
    """The line on which the top-level ``key`` stands."""
    match = re.search(rf"^{re.escape(key)}\s*:", text, re.MULTILINE)
    return None if match is None else text.count("\n", 0, match.start()) + 1
