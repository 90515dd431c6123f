"""The catalogues: one thing per YAML file, read into frozen dataclasses."""
