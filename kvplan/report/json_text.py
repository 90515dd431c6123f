"""The common frame of every JSON document: ``schema``, ``schema_version``, then the result."""

import json
from collections.abc import Mapping


def document(schema: str, content: Mapping[str, object], *, version: int = 1) -> str:
    """``content`` framed and printed, numbers unrounded; a float that JSON cannot say is a bug and raises."""
    framed = {"schema": f"kvplan.{schema}", "schema_version": version, **content}
    return json.dumps(framed, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
