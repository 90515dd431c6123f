"""The traffic file as it is written: the one definition from which validation and the JSON Schema both come."""
