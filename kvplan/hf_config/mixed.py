"""A stack of two caches, attention and a recurrent state, from the names that a config gives to its layers."""

from collections.abc import Callable

from kvplan.hf_config.described import Described, LayerStack
from kvplan.hf_config.standard import full_attention
from kvplan.layers import Layer

FULL_NAMES = frozenset({"attention", "full_attention"})
_LINEAR_NAMES = frozenset({"mamba", "mamba2", "linear_attention", "linear", "recurrent", "conv"})

Cache = Callable[[Described], Layer]
Kinds = tuple[str, list[str]]
"""The key that says what each layer is, and a name for every layer."""


def mixed_stack(model: Described, kinds: Kinds, state: Cache, full: Cache = full_attention) -> LayerStack:
    """One cache for every layer: ``full`` or ``state`` by its name in ``kinds``; other names are refused."""
    key, names = kinds
    unknown = next((name for name in names if name not in FULL_NAMES | _LINEAR_NAMES), None)
    if unknown is not None:
        raise model.unknown_layer(key, unknown)
    caches = {name: (full if name in FULL_NAMES else state)(model) for name in dict.fromkeys(names)}
    return tuple((caches[name],) for name in names)


def layer_kinds(model: Described, *lists: str, is_full: Callable[[int], bool]) -> Kinds:
    """The first of ``lists`` that the file has; without any, ``is_full`` says which layers are attention."""
    return listed_kinds(model, *lists) or kinds_by_index(model, is_full)


def listed_kinds(model: Described, *names: str) -> Kinds | None:
    """The first of the lists ``names`` that the file has, cut to the layers."""
    for name in names:
        listed = model.text.texts(name)
        if listed is not None:
            return name, model.text.by_layer(name, listed, model.layers)
    return None


def kinds_by_index(model: Described, is_full: Callable[[int], bool]) -> Kinds:
    """A name for every layer, by a rule on its index."""
    return "layer_types", ["full_attention" if is_full(index) else "linear_attention" for index in range(model.layers)]
