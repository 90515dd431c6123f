"""Attention layers: keys and values of all tokens, a window or a chunk; latents; index keys and compressed entries."""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import ClassVar, Self

from kvplan.layers.base import BFLOAT16, FLOAT32, KvTypes, Layer, share_or_replicate


@dataclass(frozen=True, kw_only=True)
class HeadLayer(Layer):
    """Keys and values of ``kv_heads`` heads; the two widths may differ."""

    kv_heads: int
    head_dim: int
    value_head_dim: int

    def _bytes_per_token(self, kv: KvTypes) -> Fraction:
        """kv_heads × (head_dim × key type + value_head_dim × value type)."""
        return kv.key.bytes_for(self.kv_heads * self.head_dim) + kv.value.bytes_for(self.kv_heads * self.value_head_dim)

    def shard(self, ranks: int) -> Self:
        return replace(self, kv_heads=share_or_replicate(self.kv_heads, ranks))


@dataclass(frozen=True, kw_only=True)
class FullAttention(HeadLayer):
    """Every token's K and V stay (MHA, GQA and MQA differ only in ``kv_heads``)."""

    kind: ClassVar[str] = "full attention"

    def growing_bytes_per_token(self, kv: KvTypes) -> Fraction:
        return self._bytes_per_token(kv)


@dataclass(frozen=True, kw_only=True)
class SlidingAttention(HeadLayer):
    """K and V of the last ``window`` tokens."""

    kind: ClassVar[str] = "sliding window"
    window: int

    @property
    def window_tokens(self) -> int:
        return self.window

    def windowed_bytes_per_token(self, kv: KvTypes) -> Fraction:
        return self._bytes_per_token(kv)


@dataclass(frozen=True, kw_only=True)
class ChunkedAttention(HeadLayer):
    """K and V of the current chunk of ``chunk`` tokens; attention never crosses a chunk border (Llama 4)."""

    kind: ClassVar[str] = "chunked attention"
    chunk: int

    @property
    def window_tokens(self) -> int:
        return self.chunk

    def windowed_bytes_per_token(self, kv: KvTypes) -> Fraction:
        return self._bytes_per_token(kv)


@dataclass(frozen=True, kw_only=True)
class LatentAttention(Layer):
    """MLA: one latent and one rope key per token for all heads, neither doubled for K and V nor split among ranks.

    Packed as ``fp8_ds_mla`` a token takes 656 B: 512 fp8 + 4 float32 scales + 64 rope values in bfloat16
    (source: vLLM 0.33, ``MLAAttentionSpec``).
    """

    kind: ClassVar[str] = "latent (MLA)"
    latent_dim: int
    rope_dim: int

    def growing_bytes_per_token(self, kv: KvTypes) -> Fraction:
        if kv.packed == "fp8_ds_mla":
            return Fraction(656)
        return kv.key.bytes_for(self.latent_dim + self.rope_dim)


@dataclass(frozen=True, kw_only=True)
class CrossAttention(HeadLayer):
    """K and V of an encoder's output (audio, image or source text): ``source_tokens``, whatever is decoded."""

    kind: ClassVar[str] = "cross attention"
    source_tokens: int

    def fixed_bytes(self, kv: KvTypes) -> int:
        return ceil(self._bytes_per_token(kv) * self.source_tokens)


@dataclass(frozen=True, kw_only=True)
class SharedKv(Layer):
    """Reads the KV of another layer and keeps nothing itself.

    ``read`` is what that layer keeps, because some engines allocate it a second time; None where it reads a recurrent
    state instead.
    """

    kind: ClassVar[str] = "shared KV"
    read: Layer | None = None

    def shard(self, ranks: int) -> Self:
        return self if self.read is None else replace(self, read=self.read.shard(ranks))


@dataclass(frozen=True, kw_only=True)
class IndexKeys(Layer):
    """Keys by which a sparse-attention indexer picks tokens: one entry per ``tokens_per_entry`` tokens, on every rank.

    DeepSeek's entry takes 128 fp8 values + one float32 scale = 132 B, whatever the KV type.
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
        return ceil(BFLOAT16.bytes_for(self.tokens * self.values_per_token))


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
    """What the next compressed entry is made of: float32 values of the last ``window`` tokens (DeepSeek-V4)."""

    kind: ClassVar[str] = "compressor state"
    values_per_token: int
    window: int

    @property
    def window_tokens(self) -> int:
        return self.window

    def windowed_bytes_per_token(self, kv: KvTypes) -> Fraction:
        return FLOAT32.bytes_for(self.values_per_token)
