"""How many tokens a block of vLLM's cache holds, as attention kernels and recurrent states demand.

Source: vLLM 0.33, ``Platform.update_block_size_for_backend``, the choice of attention backends in ``platforms/cuda.py``
and the block sizes each backend declares. Exact for compute capability 9.0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.engines.vllm.releases import CHECKED_RELEASE
from kvplan.engines.vllm.specs import PACKED_KERNEL_BLOCK
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import (
    ChunkedAttention,
    CompressedKv,
    CompressedWindow,
    CrossAttention,
    FullAttention,
    GatedDeltaState,
    IndexKeys,
    IndexTail,
    KdaState,
    KvTypes,
    LatentAttention,
    Layer,
    Mamba2State,
    NgramConvState,
    RecurrentLayer,
    SlidingAttention,
)

DEFAULT_BLOCK = 16
FLASHINFER_GDN_ALIGNMENT = 64
"""FlashInfer's gated delta net kernel exports states at multiples of 64 tokens."""
_FIRST_FP8 = (8, 9)
"""The first compute capability with 8-bit floats (Ada)."""
_FLASHINFER_WIDTHS = frozenset({64, 128, 256, 512})
"""Head widths that FlashInfer's attention has kernels for."""
_PACKED_LATENT_WIDTH = 576
"""512 values of a latent and 64 of its rope key."""
_FIRST_KDA_EXPORT, _FIRST_MAMBA2_EXPORT, _FIRST_DELTA_EXPORT = (0, 29), (0, 32), (0, 33)
"""The first releases whose prefill kernels export states: see ``checkpoint_blocks``."""


@dataclass(frozen=True, kw_only=True)
class KernelBlock:
    """The kernels' default block, and the number that a block asked for must be a multiple of."""

    preferred: int
    multiple: int


def kernel_block(layers: Sequence[Layer], kv: KvTypes, capability: tuple[int, int]) -> KernelBlock:
    """What the attention kernels of ``layers`` demand of a block, by attention kind, KV type and GPU generation.

    Raises InputError where no kernel for the GPU reads the KV type.
    """
    kept = [layer for layer in layers if not isinstance(layer, RecurrentLayer)]
    is_fp8 = kv.key.bytes_per_group == 1
    if is_fp8 and capability < _FIRST_FP8:
        _check_8_bit_before_ada(kept, capability)
    if any(isinstance(layer, (CompressedKv, CompressedWindow)) for layer in kept):
        return KernelBlock(preferred=PACKED_KERNEL_BLOCK, multiple=PACKED_KERNEL_BLOCK)
    is_indexed = any(isinstance(layer, IndexKeys) for layer in kept)
    if any(isinstance(layer, LatentAttention) for layer in kept):
        if is_indexed:
            widths = {layer.latent_dim + layer.rope_dim for layer in kept if isinstance(layer, LatentAttention)}
            return _sparse_latent_block(capability, is_8_bit=is_fp8, widths=widths)
        return _latent_block(kv, capability)
    if is_indexed and not any(isinstance(layer, IndexTail) for layer in kept):  # Qwen4-Exp's takes any multiple of 16
        return KernelBlock(preferred=128, multiple=128)  # MiniMax-M3: a page is one block of its sparse attention
    widest = max((layer.head_dim for layer in kept if isinstance(layer, (FullAttention, SlidingAttention))), default=0)
    if is_fp8 and capability == (9, 0) and widest == 512:
        return KernelBlock(preferred=64, multiple=16)  # FlashAttention 4 reads tiles of 64; Triton if 16 is asked for
    return KernelBlock(preferred=DEFAULT_BLOCK, multiple=16)


def _check_8_bit_before_ada(layers: Sequence[Layer], capability: tuple[int, int]) -> None:
    """Before capability 8.9 only FlashInfer reads 8-bit KV: from Ampere on, without MLA, and for few head widths."""
    widths = {
        width
        for layer in layers
        if isinstance(layer, (FullAttention, SlidingAttention, ChunkedAttention, CrossAttention))
        for width in (layer.head_dim, layer.value_head_dim)
    }
    if (
        capability < (8, 0)
        or not widths <= _FLASHINFER_WIDTHS
        or any(isinstance(layer, (LatentAttention, CrossAttention)) for layer in layers)
    ):
        raise InputError(
            f"no attention kernel of vLLM reads 8-bit KV of this model at compute capability "
            f"{capability[0]}.{capability[1]}",
            hint="use --kv-dtype auto, or a GPU of capability 8.9 or newer",
            key="kv_dtype",
        )


def _latent_block(kv: KvTypes, capability: tuple[int, int]) -> KernelBlock:
    """Dense MLA. Hopper: FlashAttention for 16-bit KV (16), FlashMLA for fp8 (64; Triton if 16 is asked for)."""
    if kv.key.name == "fp8_e5m2":
        raise InputError("no MLA kernel of vLLM stores KV in fp8_e5m2", hint="use fp8", key="kv_dtype")
    if capability[0] == 10:
        return KernelBlock(preferred=32, multiple=16)
    if capability[0] == 9 and kv.key.bytes_per_group == 1:
        return KernelBlock(preferred=64, multiple=16)
    return KernelBlock(preferred=DEFAULT_BLOCK, multiple=16)


def _sparse_latent_block(capability: tuple[int, int], *, is_8_bit: bool, widths: set[int]) -> KernelBlock:
    """Sparse MLA: the indexer reads pages of 64. Only Hopper and newer have kernels; Hopper's read 8-bit KV only where
    a latent and its rope key are 576 values (GLM-5.3-Flash's are 512)."""
    if is_8_bit and capability[0] == 9 and widths != {_PACKED_LATENT_WIDTH}:
        raise InputError(
            f"no sparse MLA kernel of vLLM reads 8-bit KV of latents of {', '.join(map(str, sorted(widths)))} values "
            "on Hopper",
            hint="use --kv-dtype auto",
            key="kv_dtype",
        )
    if capability < (9, 0):
        raise InputError(
            f"vLLM has no sparse MLA kernel for compute capability {capability[0]}.{capability[1]}",
            hint="sparse MLA models need Hopper or newer",
            key="gpu",
        )
    return KernelBlock(preferred=64, multiple=64)


def attention_block(block: KernelBlock, asked: int | None) -> int:
    """The block asked for where the kernels take it, else the preferred one; InputError for another."""
    if asked is None:
        return block.preferred
    if asked < 1 or asked % block.multiple:
        raise InputError(
            f"no attention kernel of vLLM takes blocks of {asked} tokens for this model",
            hint=f"--block-size takes multiples of {block.multiple}",
            key="block_size",
        )
    return asked


def checkpoint_blocks(
    layer: RecurrentLayer, capability: tuple[int, int], release: tuple[int, ...] = CHECKED_RELEASE
) -> int:
    """1 where the layer's prefill kernel can export a state from within a chunk for the prefix cache, else 0.

    Kimi-K3's KDA on FlashKDA since 0.29, Mamba-2 since 0.32, gated delta net on FlashInfer's kernel since 0.33.
    Source: ``num_prefill_checkpoint_blocks`` of vLLM 0.28 (none), 0.29, 0.31, 0.32 and 0.33.
    """
    if isinstance(layer, Mamba2State):
        return int(release >= _FIRST_MAMBA2_EXPORT)
    if isinstance(layer, GatedDeltaState):
        return int(_exports_delta_states(layer, capability, release))
    if isinstance(layer, KdaState):
        is_flash = layer.bounded_gate and layer.dim == 128 and capability >= (9, 0)
        return int(is_flash and release >= _FIRST_KDA_EXPORT)
    return int(isinstance(layer, NgramConvState))  # its class is new in 0.33


def _exports_delta_states(layer: GatedDeltaState, capability: tuple[int, int], release: tuple[int, ...]) -> bool:
    """FlashInfer's kernel, since 0.33: on capability 9.0, or Blackwell (10.x, 12.x) with key heads of 128; not for
    OLMo-hybrid's variant.

    Source: vLLM 0.33, ``_resolve_gdn_prefill_backend``.
    """
    if layer.negative_eigenvalues or release < _FIRST_DELTA_EXPORT:
        return False
    return capability == (9, 0) or (capability[0] in (10, 12) and layer.key_dim == 128)


def state_alignment(
    layers: Sequence[RecurrentLayer], capability: tuple[int, int], release: tuple[int, ...] = CHECKED_RELEASE
) -> int:
    """The number of tokens that a block must be a multiple of, so that a prefill can export states at block ends.

    Only gated delta net needs it, and only where every recurrent layer can export (vLLM 0.33,
    ``get_mamba_prefill_checkpoint_alignment``).
    """
    others = (layer for layer in layers if not isinstance(layer, NgramConvState))
    if all(isinstance(each, GatedDeltaState) and _exports_delta_states(each, capability, release) for each in others):
        return FLASHINFER_GDN_ALIGNMENT
    return 1


def hybrid_block(
    attention: Layer,
    states: Sequence[RecurrentLayer],
    kv: KvTypes,
    *,
    block_tokens: int,
    prefix_caching: bool,
    capability: tuple[int, int],
    release: tuple[int, ...] = CHECKED_RELEASE,
) -> tuple[int, int]:
    """A block so long that the attention page of a layer holds a state, and the bytes of that page.

    Attention block = alignment × ceil(state bytes / (alignment × attention bytes per token of one layer)).

    Alignment = the kernels' block, at least 128 with MLA; with prefix caching, its least common multiple with the
    alignment of exported states. Worked case (Qwen3.5-35B-A3B): state 3 × 8,192 × 2 + 32 × 128 × 128 × 4 =
    2,146,304 B, attention 2 × 2 × 256 × 2 = 2,048 B a token, alignment 64: 64 × ceil(2,146,304 / 131,072) = 1,088.
    """
    alignment = max(block_tokens, 128) if isinstance(attention, LatentAttention) else block_tokens
    if prefix_caching:
        alignment = math.lcm(alignment, state_alignment(states, capability, release))
    per_token = attention.growing_bytes_per_token(kv) or attention.windowed_bytes_per_token(kv)
    if per_token.denominator != 1:
        raise UnsupportedModelError(
            "cannot tell: attention bytes per token of this hybrid are not whole", hint="give --kv-dtype auto"
        )
    state_bytes = max(layer.fixed_bytes(kv) for layer in states)
    block = max(block_tokens, alignment * math.ceil(state_bytes / (alignment * per_token)))
    return block, block * int(per_token)
