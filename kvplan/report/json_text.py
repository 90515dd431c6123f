"""The common frame of every JSON document: ``schema``, ``schema_version``, then the result."""

import json
from collections.abc import Mapping
from dataclasses import is_dataclass

VERSIONS = {
    "model": 1,
    "fit": 1,
    "simulation": 2,
    "recommendation": 2,
    "check": 1,
    "compare": 1,
    "calibration": 1,
    "calibration_run": 1,
    "trace": 1,
    "init": 1,
    "list": 1,
    "explain": 1,
    "error": 1,
}
"""Every document and its version: raised when a key is renamed or dropped (``explain/json.md`` says which)."""


def picked(value: object, names: str) -> dict[str, object]:
    """The fields and properties of ``value`` that ``names`` lists, under the same names."""
    return {name: getattr(value, name) for name in names.split()}


def plain(value: object) -> object:
    """Frozen values as dictionaries and lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(inner) for name, inner in vars(value).items()}
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(one) for one in value] if isinstance(value, tuple | list) else value


def document(schema: str, content: Mapping[str, object]) -> str:
    """``content`` framed and printed, numbers unrounded. A float that JSON cannot express is a bug and raises."""
    framed = {"schema": f"kvplan.{schema}", "schema_version": VERSIONS[schema], **content}
    return json.dumps(framed, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
