"""Typed access to a GGUF file's keys: ``<architecture>.<name>``, one number for all layers or a list with one each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvplan.errors import InputError
from kvplan.gguf.header import LongArray

CONFIG_HINT = "plan from the model's config.json, for an engine that kvplan models it on"
WHOLE_FILE_HINT = "take a complete GGUF file, or convert the model again"


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The keys of one file, its architecture's prefix filled in."""

    metadata: Mapping[str, object]
    architecture: str
    file: str

    def wrong(self, key: str, value: object, wanted: str) -> InputError:
        return InputError(
            f"{self.file}: {key} is {value!r}, not {wanted}", hint=WHOLE_FILE_HINT, file=self.file, key=key
        )

    def raw(self, name: str) -> object:
        """The value of ``<architecture>.<name>``, or of the bare ``<name>``; None where the file has neither."""
        return self.metadata.get(f"{self.architecture}.{name}", self.metadata.get(name))

    def number(self, name: str) -> int | None:
        """A whole number of zero or more, or None where the key is absent."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(f"{self.architecture}.{name}", value, "a whole number")
        return value

    def needed(self, name: str) -> int:
        """As ``number``, but the key must be there."""
        value = self.number(name)
        if value is None:
            key = f"{self.architecture}.{name}"
            raise InputError(f"{self.file} does not say {key}", hint=WHOLE_FILE_HINT, file=self.file, key=key)
        return value

    def per_layer(self, name: str, layers: int) -> tuple[int, ...] | None:
        """A number for each layer, from a list or from one number for all; None where the key is absent."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, LongArray):
            raise self.wrong(f"{self.architecture}.{name}", f"{value.elements} numbers", f"a list for {layers} layers")
        if isinstance(value, Sequence) and not isinstance(value, str):
            numbers = tuple(int(item) for item in value if isinstance(item, (int, bool)))
            if len(numbers) != len(value) or len(numbers) < layers or min(numbers, default=0) < 0:
                raise self.wrong(f"{self.architecture}.{name}", value, f"a list of whole numbers for {layers} layers")
            return numbers[:layers]
        number = self.number(name)
        return None if number is None else (number,) * layers
