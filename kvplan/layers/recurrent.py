"""Recurrent layers: a convolution's last steps and a temporal state, of the same size at any length."""

from dataclasses import dataclass, replace
from math import ceil, prod
from typing import ClassVar, Self

from kvplan.layers.base import BFLOAT16, KvTypes, Layer, StoredType, share


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
        return ceil(
            self.conv_type.bytes_for(_elements(self.conv_shape()))
            + self.temporal_type.bytes_for(_elements(self.temporal_shape()))
        )


def _elements(shape: tuple[int, ...]) -> int:
    """Product of ``shape``; 0 for (), which means that there is no such state."""
    return prod(shape) if shape else 0


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
class NgramConvState(RecurrentLayer):
    """Dilated convolution over n-gram embeddings (Qwen4-Exp): the last ``steps`` steps of ``channels`` channels.

    Every rank keeps the whole.
    """

    kind: ClassVar[str] = "n-gram convolution"
    channels: int
    steps: int

    def conv_shape(self) -> tuple[int, ...]:
        return (self.steps, self.channels)


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
