"""A config.json on its way to layers: typed access to its keys, and the language model that it describes.

Errors name the key and its value. Keys that published files spell differently are read under all their names.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import Layer, StoredType
from kvplan.model import MAX_LAYERS

CHECK_HINT = "check config.json against the one that the model's publisher ships"
MEASURE_HINT = (
    "plan from the engine's own figures: put the blocks that its start-up log prints into a traffic file, as"
    " deployment: kv_pool: {blocks: N, block_tokens: 16}"
)
_LARGEST_COUNT = 2**53  # larger whole numbers do not survive a round trip through JSON's doubles

Item = TypeVar("Item", int, str, object)


@dataclass(frozen=True)
class Fields:
    """A block of config.json.

    ``defaults`` holds what the config class fills in for an absent key; a key that is present and null stays null.
    ``path`` is the block's place in the file, such as ``text_config.``.
    """

    values: Mapping[str, object]
    path: str = ""
    defaults: Mapping[str, object] = field(default_factory=dict)

    def says(self, *names: str) -> bool:
        """Whether the file itself has one of ``names`` with a value other than null."""
        return any(self.values.get(name) is not None for name in names)

    def value(self, *names: str) -> object:
        """The first of ``names`` that the file has, else its class default, else None.

        >>> Fields({"n_layer": 12}).value("num_hidden_layers", "n_layer")
        12
        >>> Fields({"head_dim": None}, defaults={"head_dim": 256}).value("head_dim") is None
        True
        """
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        if any(name in self.values for name in names):
            return None
        return next((self.defaults[name] for name in names if self.defaults.get(name) is not None), None)

    def with_defaults(self, defaults: Mapping[str, object]) -> "Fields":
        """The same block with further class defaults."""
        return replace(self, defaults={**self.defaults, **defaults})

    def optional_count(self, *names: str) -> int | None:
        """A whole number above zero, or None where neither the file nor the class has one."""
        found = self.value(*names)
        return None if found is None else self._whole(found, self._named(names), minimum=1)

    def count(self, *names: str) -> int:
        """A whole number above zero; UnsupportedModelError where it is missing."""
        found = self.optional_count(*names)
        if found is None:
            raise self.missing(*names)
        return found

    def layers(self, *names: str) -> int:
        """A number of layers: a whole number above zero, at most ``MAX_LAYERS``."""
        found = self.count(*names)
        if found > MAX_LAYERS:
            raise self.broken(self._named(names), found, f"a number of layers ({MAX_LAYERS:,} at most)")
        return found

    def size(self, *names: str, default: int | None = None) -> int:
        """A whole number, zero allowed."""
        found = self.value(*names)
        if found is None:
            if default is None:
                raise self.missing(*names)
            return default
        return self._whole(found, self._named(names), minimum=0)

    def number(self, *names: str) -> float | None:
        """A finite number, or None."""
        found = self.value(*names)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float) or found - found != 0:
            raise self.broken(self._named(names), found, "a number")
        return float(found)

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false; ``default`` where the key is null or absent and the class has no default."""
        found = self.value(*names)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self.broken(self._named(names), found, "true or false")
        return found

    def text(self, *names: str) -> str | None:
        """A string, or None."""
        found = self.value(*names)
        if found is not None and not isinstance(found, str):
            raise self.broken(self._named(names), found, "a string")
        return found

    def items(self, *names: str) -> list[object] | None:
        """A list, or None."""
        found = self.value(*names)
        if found is not None and not isinstance(found, list | tuple):
            raise self.broken(self._named(names), found, "a list")
        return None if found is None else list(found)

    def counts(self, *names: str, minimum: int = 1) -> list[int] | None:
        """A list of whole numbers, or None."""
        found = self.items(*names)
        name = self._named(names)
        return None if found is None else [self._whole(item, name, minimum=minimum) for item in found]

    def needed_counts(self, name: str, *, minimum: int = 0) -> list[int]:
        """A list of whole numbers; UnsupportedModelError where it is missing."""
        found = self.counts(name, minimum=minimum)
        if found is None:
            raise self.missing(name)
        return found

    def texts(self, *names: str) -> list[str] | None:
        """A list of strings, or None."""
        found = self.items(*names)
        if found is None:
            return None
        words = [item for item in found if isinstance(item, str)]
        if len(words) != len(found):
            raise self.broken(self._named(names), found, "a list of strings")
        return words

    def by_layer(self, name: str, listed: list[Item], layers: int, known: Collection[Item] = ()) -> list[Item]:
        """The first ``layers`` entries of ``listed``, the value of ``name``: some files append entries for MTP layers.

        A list that is too short, or has an entry that is not ``known``, is refused.
        """
        if known and set(listed) - set(known):
            words = " or ".join(str(item) for item in known)
            raise self.contradicts(name, f"{words} is expected for each of {layers} layers")
        if len(listed) < layers:
            raise self.contradicts(name, f"it has {len(listed)} entries for {layers} layers")
        return listed[:layers]

    def section(self, *names: str) -> "Fields | None":
        """A nested block, without class defaults, or None."""
        found = self.value(*names)
        if found is None:
            return None
        name = self._named(names)
        if not isinstance(found, Mapping):
            raise self.broken(name, found, "an object")
        return Fields(found, path=f"{self.path}{name}.")

    def missing(self, *names: str) -> UnsupportedModelError:
        """The error for a needed key that neither the file nor its class gives."""
        key = self.path + names[0]
        present = next((name for name in names if name in self.values), None)
        problem = f"{self.path}{present} is null" if present is not None else f"the config does not state {key}"
        return UnsupportedModelError(
            f"{problem}, and its architecture has no default for it",
            hint=f"add {key} to a local copy of config.json and give its path as MODEL",
            key=self.path + (present or names[0]),
        )

    def refused(self, name: str, why: str, *, hint: str = MEASURE_HINT) -> UnsupportedModelError:
        """The error for a key whose value kvplan does not model."""
        return UnsupportedModelError(
            f"{self.path}{name} is {_shown(self.values.get(name, self.defaults.get(name)))}: {why}",
            hint=hint,
            key=self.path + name,
        )

    def contradicts(self, name: str, why: str) -> UnsupportedModelError:
        """The error for a key whose value contradicts the file's other keys."""
        return self.refused(name, why, hint=CHECK_HINT)

    def broken(self, name: str, found: object, wanted: str) -> InputError:
        """The error for a value of the wrong type or out of range; ``wanted`` completes "… is 7.5, not …"."""
        return InputError(f"{self.path}{name} is {_shown(found)}, not {wanted}", hint=CHECK_HINT, key=self.path + name)

    def _named(self, names: tuple[str, ...]) -> str:
        return next((name for name in names if name in self.values), names[0])

    def _whole(self, found: object, name: str, *, minimum: int) -> int:
        wanted = "a whole number above zero" if minimum else "a whole number, zero or more"
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int) or not minimum <= found <= _LARGEST_COUNT:
            raise self.broken(name, found, wanted)
        return found


def _shown(found: object) -> str:
    text = "null" if found is None else repr(found)
    return text if len(text) <= 80 else text[:77] + "..."


LayerStack = tuple[tuple[Layer, ...], ...]
"""What each decoder layer keeps, in order."""

LAYER_NAMES = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
HEAD_NAMES = ("num_attention_heads", "n_head", "n_heads", "num_heads")
HIDDEN_NAMES = ("hidden_size", "n_embd", "n_embed", "d_model", "model_dim")
KV_HEAD_NAMES = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The language model in a config: its own block (``text``) and the whole file (``outer``); the same where flat.

    ``family`` names its config class, the key of the tables; ``dtype`` is the type it runs in, and keeps its state in.
    """

    text: Fields
    outer: Fields
    family: str
    dtype: StoredType

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return self.text.layers(*LAYER_NAMES)

    @property
    def query_heads(self) -> int:
        """Query heads of a layer; as many as KV heads where a file only has those and the head width."""
        if self.text.value(*HEAD_NAMES) is None and self.text.says(*KV_HEAD_NAMES) and self.text.says("head_dim"):
            return self.text.count(*KV_HEAD_NAMES)
        return self.text.count(*HEAD_NAMES)

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.text.count(*HIDDEN_NAMES)

    def unknown_layer(self, key: str, name: str) -> UnsupportedModelError:
        """The error for a layer type ``name`` under ``key``."""
        where = self.text.path + key
        message = f"layer type {name!r} in {where} is not known for {self.family}"
        return UnsupportedModelError(message, hint=MEASURE_HINT, key=where)
