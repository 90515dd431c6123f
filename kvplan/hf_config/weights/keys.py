"""Lenient access to a config's keys: a value of an unexpected form counts as absent.

Weights are extra knowledge: a config that says them in a way not understood is still planned, from its published total.
"""

from collections.abc import Mapping, Sequence

Config = Mapping[str, object]


def whole(config: Config, *keys: str) -> int | None:
    """The first of ``keys`` that holds a whole number of zero or more, or None.

    A list that says the same number for every layer is that number (Hunyuan's files).
    """
    for key in keys:
        value = config.get(key)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        if isinstance(value, float) and value.is_integer() and value >= 0:
            return int(value)
    return None


def switch(config: Config, key: str, *, default: bool) -> bool:
    """The truth of ``key``, or ``default`` where it is absent or null."""
    value = config.get(key)
    return default if value is None else bool(value)


def words(config: Config, key: str) -> tuple[str, ...] | None:
    """A list of words, or None where ``key`` holds something else."""
    value = config.get(key)
    if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(word, str) for word in value):
        return tuple(value)
    return None


def numbers(config: Config, key: str) -> tuple[int, ...] | None:
    """A list of whole numbers, or None where ``key`` holds something else."""
    value = config.get(key)
    if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(item, int) for item in value):
        return tuple(value)
    return None


def nested(config: Config, key: str) -> Config | None:
    """The mapping under ``key``, or None."""
    value = config.get(key)
    return value if isinstance(value, Mapping) else None
