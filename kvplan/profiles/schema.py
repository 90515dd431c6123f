"""The JSON Schemas of the catalogues, generated from the dataclasses, so that editors complete and check the files.

``python -m kvplan.profiles.schema FOLDER`` writes what is generated in a folder of profiles: the schemas and the table
of aliases. A test regenerates both and compares.
"""

import json
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from kvplan.profiles.kinds import BundledModel, ClientProfile, GpuProfile
from kvplan.profiles.loader import ALIASES_FILE, alias_table
from kvplan.profiles.quantities import key_of, unit_of

KINDS: dict[str, type] = {"gpus": GpuProfile, "clients": ClientProfile, "models": BundledModel}


def profile_schema(sort: str) -> dict[str, object]:
    """The schema of one catalogue's files: the keys, which of them are required, and how quantities are written."""
    kind = KINDS[sort]
    known = fields(kind)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A kvplan profile in {sort}/",
        "description": " ".join((kind.__doc__ or "").replace("``", "`").split()),
        "type": "object",
        "properties": {key_of(field.name): _value_schema(field.type, field.name) for field in known},
        "required": [
            key_of(field.name) for field in known if field.default is MISSING and field.default_factory is MISSING
        ],
        "additionalProperties": False,
    }


def schema_text(sort: str) -> str:
    """The schema as its file holds it."""
    return json.dumps(profile_schema(sort), indent=2, ensure_ascii=False) + "\n"


def alias_text(folder: Path) -> str:
    """The table of GPU aliases as its file holds it."""
    return json.dumps(alias_table(folder, "gpus"), indent=0, sort_keys=True) + "\n"


def write_generated(folder: Path) -> None:
    """Writes the schemas and the table of aliases under ``folder``."""
    for sort in KINDS:
        path = folder / "schema" / f"{sort}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(schema_text(sort), encoding="utf-8")
    (folder / "gpus" / ALIASES_FILE).write_text(alias_text(folder), encoding="utf-8")


def _value_schema(kind: object, name: str) -> dict[str, Any]:
    arguments, origin = typing.get_args(kind), typing.get_origin(kind)
    unit = unit_of(name)
    if origin is types.UnionType:
        inner = _value_schema(arguments[0], name)
        return {**inner, "type": [inner["type"], "null"]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        items = {"type": "array", "items": _value_schema(arguments[0], name)}
        fixed = arguments[-1] is not Ellipsis
        return {**items, "minItems": len(arguments), "maxItems": len(arguments)} if fixed else items
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _value_schema(arguments[1], name) if unit else True}
    if unit is not None:
        return {"type": "string", "pattern": unit.pattern, "examples": [unit.example]}
    names: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return {"type": names[kind]}


if __name__ == "__main__":
    write_generated(Path(sys.argv[1]))
