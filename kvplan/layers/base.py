"""What every kind of layer answers, the types it is stored in, and its share of a tensor-parallel rank."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import ClassVar, Self

from kvplan.errors import InputError


@dataclass(frozen=True, kw_only=True)
class StoredType:
    """A type in memory: ``bytes_per_group`` bytes hold ``elements_per_group`` elements.

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
MXFP8 = StoredType(name="mxfp8", bytes_per_group=33, elements_per_group=32)
"""A scale byte for 32 values."""
NVFP4 = StoredType(name="nvfp4", bytes_per_group=9, elements_per_group=16)
"""Two values a byte, and a scale byte for 16 values."""


@dataclass(frozen=True, kw_only=True)
class KvTypes:
    """The types of keys and values. ``packed`` names the layout in which an engine packs a latent or a compressed entry
    with its scales (vLLM's ``fp8_ds_mla``), or is None."""

    key: StoredType
    value: StoredType
    packed: str | None = None

    @property
    def name(self) -> str:
        """The name of both, or ``key/value`` where they differ."""
        if self.packed is not None:
            return self.packed
        return self.key.name if self.key == self.value else f"{self.key.name}/{self.value.name}"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Base of all kinds: a layer that keeps nothing. Each kind overrides what it keeps.

    ``bytes_for(tokens)`` is the sum of three parts: one grows with every token, one grows until a window is full, and
    one does not depend on the length.
    """

    kind: ClassVar[str]

    @property
    def window_tokens(self) -> int | None:
        """Tokens after which the layer stops growing, or None."""
        return None

    def growing_bytes_per_token(self, kv: KvTypes) -> Fraction:
        """Bytes that every token adds, without end."""
        return Fraction(0)

    def windowed_bytes_per_token(self, kv: KvTypes) -> Fraction:
        """Bytes that a token adds while the window fills."""
        return Fraction(0)

    def fixed_bytes(self, kv: KvTypes) -> int:
        """Bytes that do not depend on the length of the sequence."""
        return 0

    def bytes_for(self, tokens: int, kv: KvTypes) -> int:
        """Bytes that a sequence of ``tokens`` tokens holds in this layer, before an engine rounds to pages."""
        grown = self.growing_bytes_per_token(kv) * tokens
        windowed = self.windowed_bytes_per_token(kv) * min(tokens, self.window_tokens or 0)
        return self.fixed_bytes(kv) + ceil(grown + windowed)  # a partial group of elements takes all its bytes

    def shard(self, ranks: int) -> Self:
        """The share of one of ``ranks`` tensor-parallel ranks; the whole where the kind is not split.

        Raises InputError where the heads do not divide among the ranks.
        """
        return self


def share(count: int, ranks: int, what: str) -> int:
    """``count / ranks``; InputError where ``ranks`` does not divide ``count``.

    >>> share(32, 8, "query heads")
    4
    """
    if count % ranks:
        raise InputError(
            f"tensor parallelism {ranks} does not divide {count} {what}",
            hint=f"choose a tensor parallelism that divides {count}, or split the layers instead: --pp {ranks}",
            key="tensor_parallel",
        )
    return count // ranks


def share_or_replicate(kv_heads: int, ranks: int) -> int:
    """KV heads of one rank: ``max(1, kv_heads // ranks)``; with more ranks than heads, heads are replicated.

    Source: vLLM 0.33, the assertion in its attention layers that one of the two divides the other.

    >>> share_or_replicate(8, 2), share_or_replicate(8, 16)
    (4, 1)
    """
    if kv_heads % ranks and ranks % kv_heads:
        raise InputError(
            f"{kv_heads} KV heads cannot be split by tensor parallelism {ranks}: neither divides the other",
            hint=f"choose a tensor parallelism that divides {kv_heads}, or a multiple of it",
            key="tensor_parallel",
        )
    return max(1, kv_heads // ranks)
