"""What one layer keeps for one sequence: a frozen dataclass per attention kind, each stating its own bytes.

A sequence is priced piecewise by ``bytes_for(tokens)``: some layers grow with every token, some stop at a window,
some hold a fixed amount. No layer knows an engine or a page.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Self

from kvplan.errors import InputError


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


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Base of all kinds: a layer that keeps nothing. Kinds override what they keep.

    ``bytes_for(tokens)`` is the answer; the three parts say which piece grows without end, which piece grows until a
    window is full, and which piece does not depend on the length.
    """

    kind: ClassVar[str]

    @property
    def window_tokens(self) -> int | None:
        """Tokens after which the layer stops growing, or None."""
        return None

    def growing_bytes_per_token(self, kv: KvTypes) -> Fraction:
        """Bytes that every further token adds, without end."""
        return Fraction(0)

    def windowed_bytes_per_token(self, kv: KvTypes) -> Fraction:
        """Bytes that a token adds while the window fills."""
        return Fraction(0)

    def fixed_bytes(self, kv: KvTypes) -> int:
        """Bytes of a sequence of any length."""
        return 0

    def bytes_for(self, tokens: int, kv: KvTypes) -> int:
        """Bytes that a sequence of ``tokens`` tokens holds in this layer, before an engine's pages."""
        grown = self.growing_bytes_per_token(kv) * tokens
        windowed = self.windowed_bytes_per_token(kv) * min(tokens, self.window_tokens or 0)
        return self.fixed_bytes(kv) + _whole(grown + windowed)

    def shard(self, ranks: int) -> Self:
        """The share of one of ``ranks`` tensor-parallel ranks; a copy of the whole where the kind is not split.

        Raises InputError when the heads cannot be shared out.
        """
        return self


def _whole(amount: Fraction) -> int:
    """``amount`` rounded up: a started group of elements occupies its bytes."""
    return -(-amount.numerator // amount.denominator)


def share(count: int, ranks: int, what: str) -> int:
    """``count / ranks`` where that is whole; InputError otherwise.

    >>> share(32, 8, "query heads")
    4
    """
    if count % ranks:
        raise InputError(
            f"tensor parallelism {ranks} does not divide {count} {what}",
            hint=f"choose a tensor parallelism that divides {count}",
            key="tensor_parallel",
        )
    return count // ranks


def share_or_replicate(kv_heads: int, ranks: int) -> int:
    """KV heads of one rank: ``max(1, kv_heads // ranks)``; beyond one head a rank, heads are replicated.

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


@dataclass(frozen=True, kw_only=True)
class _HeadLayer(Layer):
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
class FullAttention(_HeadLayer):
    """Every token's K and V stay (MHA, GQA and MQA differ only in ``kv_heads``)."""

    kind: ClassVar[str] = "full attention"

    def growing_bytes_per_token(self, kv: KvTypes) -> Fraction:
        return self._bytes_per_token(kv)


@dataclass(frozen=True, kw_only=True)
class SlidingAttention(_HeadLayer):
    """K and V of the last ``window`` tokens."""

    kind: ClassVar[str] = "sliding window"
    window: int

    @property
    def window_tokens(self) -> int:
        return self.window

    def windowed_bytes_per_token(self, kv: KvTypes) -> Fraction:
        return self._bytes_per_token(kv)


@dataclass(frozen=True, kw_only=True)
class ChunkedAttention(_HeadLayer):
    """K and V of the current chunk of ``chunk`` tokens; a token never attends across a chunk border (Llama 4)."""

    kind: ClassVar[str] = "chunked attention"
    chunk: int

    @property
    def window_tokens(self) -> int:
        return self.chunk

    def windowed_bytes_per_token(self, kv: KvTypes) -> Fraction:
        return self._bytes_per_token(kv)


@dataclass(frozen=True, kw_only=True)
class LatentAttention(Layer):
    """MLA: one latent and one rope key per token, shared by all heads: not doubled for K and V, copied on every rank.

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
class IndexKeys(Layer):
    """Keys by which a sparse-attention indexer picks tokens, one entry per ``tokens_per_entry`` tokens, copied on every
    rank. DeepSeek's: 128 fp8 values + one float32 scale = 132 B, whatever the KV type."""

    kind: ClassVar[str] = "index keys"
    bytes_per_entry: int
    tokens_per_entry: int = 1

    def growing_bytes_per_token(self, kv: KvTypes) -> Fraction:
        return Fraction(self.bytes_per_entry, self.tokens_per_entry)


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
    """Float32 values from which the next compressed entry is made, for the last ``window`` tokens (DeepSeek-V4)."""

    kind: ClassVar[str] = "compressor state"
    values_per_token: int
    window: int

    @property
    def window_tokens(self) -> int:
        return self.window

    def windowed_bytes_per_token(self, kv: KvTypes) -> Fraction:
        return FLOAT32.bytes_for(self.values_per_token)


@dataclass(frozen=True, kw_only=True)
class CrossAttention(_HeadLayer):
    """K and V of an encoder's output (audio, image or source text): ``source_tokens`` of them, whatever is decoded."""

    kind: ClassVar[str] = "cross attention"
    source_tokens: int

    def fixed_bytes(self, kv: KvTypes) -> int:
        return _whole(self._bytes_per_token(kv) * self.source_tokens)


@dataclass(frozen=True, kw_only=True)
class SharedKv(Layer):
    """Reads the KV that another layer keeps; keeps nothing itself."""

    kind: ClassVar[str] = "shared KV"


@dataclass(frozen=True, kw_only=True)
class RecurrentLayer(Layer):
    """Base of recurrent kinds: a conv state and a temporal state whose size does not depend on the length."""

    conv_type: StoredType = BFLOAT16
    temporal_type: StoredType = BFLOAT16

    def conv_shape(self) -> tuple[int, ...]:
        """(steps kept, channels) of the convolution; () where there is none."""
        return ()

    def temporal_shape(self) -> tuple[int, ...]:
        """Shape of the recurrent state; () where there is none."""
        return ()

    def fixed_bytes(self, kv: KvTypes) -> int:
        """Elements of both states, each in its own type."""
        return _whole(
            self.conv_type.bytes_for(_elements(self.conv_shape()))
            + self.temporal_type.bytes_for(_elements(self.temporal_shape()))
        )


def _elements(shape: tuple[int, ...]) -> int:
    """Product of ``shape``; 0 for (), which here means "no such state"."""
    product = 1 if shape else 0
    for side in shape:
        product *= side
    return product


@dataclass(frozen=True, kw_only=True)
class Mamba1State(RecurrentLayer):
    """Mamba-1: conv over ``inner`` channels, state ``inner × state``."""

    kind: ClassVar[str] = "Mamba-1 state"
    inner: int
    state: int
    conv_kernel: int

    def conv_shape(self) -> tuple[int, ...]:
        return (self.conv_kernel - 1, self.inner)

    def temporal_shape(self) -> tuple[int, ...]:
        return (self.inner, self.state)

    def shard(self, ranks: int) -> Self:
        return replace(self, inner=share(self.inner, ranks, "inner channels"))


@dataclass(frozen=True, kw_only=True)
class Mamba2State(RecurrentLayer):
    """Mamba-2: conv over inner + 2 × groups × state channels, state heads × head_dim × state.

    ``groups`` divides by the ranks, or is 1 and then every rank keeps it.
    """

    kind: ClassVar[str] = "Mamba-2 state"
    heads: int
    head_dim: int
    state: int
    groups: int
    conv_kernel: int

    def conv_shape(self) -> tuple[int, ...]:
        return (self.conv_kernel - 1, self.heads * self.head_dim + 2 * self.groups * self.state)

    def temporal_shape(self) -> tuple[int, ...]:
        return (self.heads, self.head_dim, self.state)

    def shard(self, ranks: int) -> Self:
        groups = 1 if self.groups == 1 else share(self.groups, ranks, "Mamba groups")
        return replace(self, heads=share(self.heads, ranks, "Mamba heads"), groups=groups)


@dataclass(frozen=True, kw_only=True)
class GatedDeltaState(RecurrentLayer):
    """Gated delta net (Qwen3-Next, Qwen3.5): conv over 2 × key heads × key dim + value heads × value dim channels,
    state value heads × value dim × key dim.

    ``negative_eigenvalues`` marks OLMo-hybrid's variant, whose kernel cannot hand out states from within a chunk.
    """

    kind: ClassVar[str] = "gated delta state"
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_kernel: int
    negative_eigenvalues: bool = False

    def conv_shape(self) -> tuple[int, ...]:
        return (self.conv_kernel - 1, 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim)

    def temporal_shape(self) -> tuple[int, ...]:
        return (self.value_heads, self.value_dim, self.key_dim)

    def shard(self, ranks: int) -> Self:
        return replace(
            self,
            key_heads=share(self.key_heads, ranks, "linear key heads"),
            value_heads=share(self.value_heads, ranks, "linear value heads"),
        )


@dataclass(frozen=True, kw_only=True)
class KdaState(RecurrentLayer):
    """Kimi delta attention: conv over 3 × heads × dim channels, state heads × dim × dim in float32.

    ``bounded_gate`` marks Kimi-K3's gate, whose prefill kernel can hand out states from within a chunk.
    """

    kind: ClassVar[str] = "KDA state"
    heads: int
    dim: int
    conv_kernel: int
    bounded_gate: bool = False

    def conv_shape(self) -> tuple[int, ...]:
        return (self.conv_kernel - 1, 3 * self.heads * self.dim)

    def temporal_shape(self) -> tuple[int, ...]:
        return (self.heads, self.dim, self.dim)

    def shard(self, ranks: int) -> Self:
        return replace(self, heads=share(self.heads, ranks, "KDA heads"))


@dataclass(frozen=True, kw_only=True)
class LightningState(RecurrentLayer):
    """Lightning (linear) attention: state heads × head_dim × head_dim, no convolution."""

    kind: ClassVar[str] = "lightning state"
    heads: int
    head_dim: int

    def temporal_shape(self) -> tuple[int, ...]:
        return (self.heads, self.head_dim, self.head_dim)

    def shard(self, ranks: int) -> Self:
        return replace(self, heads=share(self.heads, ranks, "linear heads"))


@dataclass(frozen=True, kw_only=True)
class ShortConvState(RecurrentLayer):
    """Short convolution (LFM2): the last ``conv_kernel − 1`` steps of ``channels`` channels."""

    kind: ClassVar[str] = "short convolution"
    channels: int
    conv_kernel: int

    def conv_shape(self) -> tuple[int, ...]:
        return (self.conv_kernel - 1, self.channels)

    def shard(self, ranks: int) -> Self:
        return replace(self, channels=share(self.channels, ranks, "convolution channels"))


@dataclass(frozen=True, kw_only=True)
class RgLruState(RecurrentLayer):
    """RG-LRU (RecurrentGemma): the last ``conv_kernel − 1`` steps and one state vector, both ``width`` wide."""

    kind: ClassVar[str] = "RG-LRU state"
    width: int
    conv_kernel: int

    def conv_shape(self) -> tuple[int, ...]:
        return (self.conv_kernel - 1, self.width)

    def temporal_shape(self) -> tuple[int, ...]:
        return (self.width,)

    def shard(self, ranks: int) -> Self:
        return replace(self, width=share(self.width, ranks, "recurrent channels"))


@dataclass(frozen=True, kw_only=True)
class RwkvState(RecurrentLayer):
    """RWKV-5/6: heads × head_dim × head_dim, and the previous token's vector for time mixing and channel mixing."""

    kind: ClassVar[str] = "RWKV state"
    heads: int
    head_dim: int

    def conv_shape(self) -> tuple[int, ...]:
        return (2, self.heads * self.head_dim)

    def temporal_shape(self) -> tuple[int, ...]:
        return (self.heads, self.head_dim, self.head_dim)

    def shard(self, ranks: int) -> Self:
        return replace(self, heads=share(self.heads, ranks, "RWKV heads"))
