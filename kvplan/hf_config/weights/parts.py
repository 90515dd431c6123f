"""What all weight arithmetic uses: lenient access to a config's keys, and the parts that it counts.

Weights are extra knowledge, so a value of an unexpected form counts as absent: a config that states them in an unknown
way is still planned, from its published total.
"""

from collections.abc import Mapping, Sequence

from kvplan.layers import FLOAT32
from kvplan.model import WeightPart

Config = Mapping[str, object]


def whole(config: Config, *keys: str) -> int | None:
    """The first of ``keys`` that holds a whole number of zero or more, or None.

    A list of one number for every layer, all the same, counts as that number (Hunyuan's files).
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


def linear(
    name: str, inputs: int, outputs: int, split: str, layer: int | None = None, *, kv_heads: int | None = None
) -> WeightPart:
    """A matrix of ``inputs × outputs``."""
    return WeightPart(name=name, parameters=inputs * outputs, split=split, layer=layer, kv_heads=kv_heads)


def float32(name: str, parameters: int, layer: int | None, split: str = "none") -> WeightPart:
    """Values that stay float32 whatever the model's type."""
    return WeightPart(name=name, parameters=parameters, split=split, layer=layer, stored=FLOAT32)
