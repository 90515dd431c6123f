"""What sparse and compressed attention keep besides or instead of keys and values: index keys, packed entries."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from kvplan.layers.base import Layer, whole
from kvplan.layers.stored import BFLOAT16, FLOAT32, KvTypes


@dataclass(frozen=True, kw_only=True)
class IndexKeys(Layer):
    """Keys by which a sparse-attention indexer picks tokens: one entry per ``tokens_per_entry`` tokens, on every rank.

    An entry of DeepSeek's takes 128 fp8 values + one float32 scale = 132 B, whatever the KV type.
    """

    kind: ClassVar[str] = "index keys"
    bytes_per_entry: int
    tokens_per_entry: int = 1

    def growing_bytes_per_token(self, kv: KvTypes) -> Fraction:
        return Fraction(self.bytes_per_entry, self.tokens_per_entry)


@dataclass(frozen=True, kw_only=True)
class IndexTail(Layer):
    """Raw keys and gate scores of the last ``tokens`` tokens, from which the next pooled index entry is made.

    A ring in bfloat16, on every rank (GLM-5.3-Flash).
    """

    kind: ClassVar[str] = "index tail"
    tokens: int
    values_per_token: int

    def fixed_bytes(self, kv: KvTypes) -> int:
        return whole(BFLOAT16.bytes_for(self.tokens * self.values_per_token))


@dataclass(frozen=True, kw_only=True)
class CompressedKv(Layer):
    """One packed entry (K and V share a vector) per ``tokens_per_entry`` tokens (DeepSeek-V4; 584 B an entry)."""

    kind: ClassVar[str] = "compressed KV"
    bytes_per_entry: int
    tokens_per_entry: int

    def growing_bytes_per_token(self, kv: KvTypes) -> Fraction:
        return Fraction(self.bytes_per_entry, self.tokens_per_entry)


@dataclass(frozen=True, kw_only=True)
class CompressedWindow(Layer):
    """Packed entries of the last ``window`` tokens, beside a layer's compressed KV (DeepSeek-V4)."""

    kind: ClassVar[str] = "compressed window"
    bytes_per_entry: int
    window: int

    @property
    def window_tokens(self) -> int:
        return self.window

    def windowed_bytes_per_token(self, kv: KvTypes) -> Fraction:
        return Fraction(self.bytes_per_entry)


@dataclass(frozen=True, kw_only=True)
class CompressorState(Layer):
    """What the next compressed entry is made from: float32 values of the last ``window`` tokens (DeepSeek-V4)."""

    kind: ClassVar[str] = "compressor state"
    values_per_token: int
    window: int

    @property
    def window_tokens(self) -> int:
        return self.window

    def windowed_bytes_per_token(self, kv: KvTypes) -> Fraction:
        return FLOAT32.bytes_for(self.values_per_token)
