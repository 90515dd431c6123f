"""How elements lie in memory: the types that keys, values and states are stored in."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, kw_only=True)
class StoredType:
    """How elements lie in memory: ``bytes_per_group`` bytes hold ``elements_per_group`` elements.

    Plain types have groups of one; llama.cpp's quantised cache types have groups of 32 with a scale
    (q8_0: 32 × 1 B + 2 B = 34 B; source: ggml block sizes).
    """

    name: str
    bytes_per_group: int
    elements_per_group: int = 1

    def bytes_for(self, elements: int) -> Fraction:
        """Exact bytes of ``elements`` elements (``elements × bytes_per_group / elements_per_group``)."""
        return Fraction(elements * self.bytes_per_group, self.elements_per_group)


BFLOAT16 = StoredType(name="bfloat16", bytes_per_group=2)
FLOAT16 = StoredType(name="float16", bytes_per_group=2)
FLOAT32 = StoredType(name="float32", bytes_per_group=4)
FP8 = StoredType(name="fp8", bytes_per_group=1)


@dataclass(frozen=True, kw_only=True)
class KvTypes:
    """The types in which keys and values are stored. ``packed`` names a layout in which an engine packs a latent
    or a compressed entry with its scales (vLLM's ``fp8_ds_mla``), or is None."""

    key: StoredType
    value: StoredType
    packed: str | None = None

    @property
    def name(self) -> str:
        """The one name, or ``key/value`` where they differ."""
        if self.packed is not None:
            return self.packed
        return self.key.name if self.key == self.value else f"{self.key.name}/{self.value.name}"
