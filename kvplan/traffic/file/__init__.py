"""The traffic file: one module for each section, which defines its keys, validates them and converts the values."""
