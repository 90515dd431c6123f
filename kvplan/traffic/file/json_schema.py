"""The JSON Schema of a traffic file, for editors; made from the shape that validates it."""

import json


def schema_text() -> str:
    """The canonical text of ``profiles/schema/traffic.json``."""
    from kvplan.traffic.file.shapes.whole import FileShape

    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **FileShape.model_json_schema(by_alias=True, mode="validation"),
    }
    schema["title"] = "kvplan traffic file"
    return json.dumps(schema, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
