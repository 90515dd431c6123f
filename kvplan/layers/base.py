"""What every kind of layer answers, and how heads are shared out among tensor-parallel ranks."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

from kvplan.errors import InputError
from kvplan.layers.stored import KvTypes


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Base of all kinds: a layer that keeps nothing. Kinds override what they keep.

    ``bytes_for(tokens)`` is the answer. It has three parts: one grows with every token, one grows until a window is
    full, and one does not depend on the length.
    """

    kind: ClassVar[str]

    @property
    def window_tokens(self) -> int | None:
        """Tokens after which the layer stops growing, or None."""
        return None

    def growing_bytes_per_token(self, kv: KvTypes) -> Fraction:
        """Bytes that every further token adds, however many there are."""
        return Fraction(0)

    def windowed_bytes_per_token(self, kv: KvTypes) -> Fraction:
        """Bytes that a token adds while the window fills."""
        return Fraction(0)

    def fixed_bytes(self, kv: KvTypes) -> int:
        """Bytes that do not depend on the length of the sequence."""
        return 0

    def bytes_for(self, tokens: int, kv: KvTypes) -> int:
        """Bytes that a sequence of ``tokens`` tokens holds in this layer, before an engine's pages."""
        grown = self.growing_bytes_per_token(kv) * tokens
        windowed = self.windowed_bytes_per_token(kv) * min(tokens, self.window_tokens or 0)
        return self.fixed_bytes(kv) + whole(grown + windowed)

    def shard(self, ranks: int) -> Self:
        """The share of one of ``ranks`` tensor-parallel ranks; a copy of the whole where the kind is not split.

        Raises InputError when the heads cannot be shared out.
        """
        return self


def whole(amount: Fraction) -> int:
    """``amount`` rounded up, because a group of elements that has begun occupies all its bytes."""
    return -(-amount.numerator // amount.denominator)


def share(count: int, ranks: int, what: str) -> int:
    """``count / ranks``; InputError where ``ranks`` does not divide ``count``.

    >>> share(32, 8, "query heads")
    4
    """
    if count % ranks:
        raise InputError(
            f"tensor parallelism {ranks} does not divide {count} {what}",
            hint=f"choose a tensor parallelism that divides {count}, or share out the layers instead: --pp {ranks}",
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
            f"{kv_heads} KV heads cannot be shared by tensor parallelism {ranks}: neither divides the other",
            hint=f"choose a tensor parallelism that divides {kv_heads}, or a multiple of it",
            key="tensor_parallel",
        )
    return max(1, kv_heads // ranks)
