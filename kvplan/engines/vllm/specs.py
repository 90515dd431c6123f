"""One layer's cache on one rank as vLLM pages it: the tokens and bytes of a page, and what it keeps of a request.

Sources: vLLM 0.33, ``kv_cache_interface.py`` and each layer's ``get_kv_cache_spec``.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

from kvplan.errors import UnsupportedModelError
from kvplan.layers import (
    ChunkedAttention,
    CompressedKv,
    CompressedWindow,
    CompressorState,
    CrossAttention,
    FullAttention,
    IndexKeys,
    IndexTail,
    KvTypes,
    LatentAttention,
    Layer,
    NgramConvState,
    RecurrentLayer,
    SharedKv,
    SlidingAttention,
)

FULL, LATENT, SLIDING, CHUNKED, STATE, CROSS, PACKED_WINDOW, RING = (
    "full",
    "latent",
    "sliding",
    "chunked",
    "state",
    "cross",
    "packed window",
    "ring",
)
"""Families of caches that vLLM treats alike. ``full`` and ``latent`` keep every token and may share a group."""

_RULES = {FULL: "full", LATENT: "full", SLIDING: "sliding", CHUNKED: "chunked", PACKED_WINDOW: "sliding"}

PACKED_ALIGNMENT_BYTES = 576
"""Pages of DeepSeek-V4 are whole rows of 576 B, so that several page sizes can lie side by side in a block."""

PACKED_KERNEL_BLOCK = 256
"""Tokens that the kernels of compressed KV (DeepSeek-V4) and of pooled index keys (GLM-5.3-Flash) read at once. Longer
blocks start at multiples of one read."""


@dataclass(frozen=True, kw_only=True)
class PageSpec:
    """One cache of one layer. ``layer`` is the rank's share of it: equal layers page equally.

    ``decoder_layer``: index of the decoder layer that owns the cache, for pipeline stages. ``retained_tokens`` are kept
    below the window. ``page_bytes`` may be padded. ``fixed_blocks``: what a request takes where its length does not
    matter. Where pages lie side by side, blocks start at multiples of ``stride_bytes``.
    """

    family: str
    layer: Layer
    decoder_layer: int
    block_tokens: int
    page_bytes: int
    window_tokens: int | None = None
    retained_tokens: int = 0
    fixed_blocks: int = 0
    stride_bytes: int = 1

    @property
    def rule(self) -> str:
        """How a request is charged: see ``CacheGroup``."""
        return _RULES.get(self.family, "fixed")

    @property
    def keeps_all_tokens(self) -> bool:
        """Whether the cache grows with every token."""
        return self.family in (FULL, LATENT)

    @property
    def sameness(self) -> tuple[object, ...]:
        """Caches for which this is equal form one bucket."""
        return (self.family, self.layer, self.block_tokens, self.page_bytes, self.window_tokens, self.fixed_blocks)

    @property
    def token_demand(self) -> tuple[object, ...]:
        """Caches for which this is equal may share a group even if their pages differ: they need the same slots."""
        if self.keeps_all_tokens:
            return ("all tokens", self.block_tokens)
        if self.family == STATE:
            is_replicated = isinstance(self.layer, NgramConvState)
            return (self.family, self.block_tokens, self.page_bytes, self.fixed_blocks, is_replicated)
        return (self.family, self.block_tokens, self.window_tokens)

    def with_block(self, block_tokens: int) -> Self:
        """The same cache with a page of ``block_tokens``, and bytes in proportion."""
        assert self.page_bytes * block_tokens % self.block_tokens == 0
        return replace(self, block_tokens=block_tokens, page_bytes=self.page_bytes * block_tokens // self.block_tokens)


def padded(amount: int, alignment: int) -> int:
    """``amount`` rounded up to a multiple of ``alignment``.

    >>> padded(37376, 576)
    37440
    """
    return -(-amount // alignment) * alignment


def attention_spec(
    layer: Layer,
    decoder_layer: int,
    kv: KvTypes,
    *,
    block_tokens: int,
    encoder_tokens: int,
    pools_index: bool = False,
) -> PageSpec | None:
    """The cache of a layer that is not recurrent; None where it keeps nothing.

    ``encoder_tokens``: the encoder's token budget, by which cross attention is sized. ``pools_index``: index entries of
    several tokens lie beside plain latents (GLM-5.3-Flash), not beside compressed KV (DeepSeek-V4).
    Raises UnsupportedModelError for a kind that vLLM does not page.
    """
    growing, windowed = layer.growing_bytes_per_token(kv), layer.windowed_bytes_per_token(kv)

    def paged(family: str, bytes_per_token: Fraction, block: int = block_tokens, **more: int) -> PageSpec:
        page = bytes_per_token * block
        assert page.denominator == 1, "vLLM's types have whole bytes"
        return PageSpec(
            family=family,
            layer=layer,
            decoder_layer=decoder_layer,
            block_tokens=block,
            page_bytes=page.numerator,
            **more,
        )

    match layer:
        case SharedKv():
            return None
        case FullAttention():
            return paged(FULL, growing)
        case SlidingAttention():
            return paged(SLIDING, windowed, window_tokens=layer.window)
        case ChunkedAttention():
            return paged(CHUNKED, windowed, window_tokens=layer.chunk)
        case LatentAttention():
            return paged(LATENT, growing, stride_bytes=int(growing) if pools_index else 1)  # read row by row
        case IndexKeys() if layer.tokens_per_entry == 1 or pools_index:
            read = math.gcd(PACKED_KERNEL_BLOCK, block_tokens)
            in_pieces = layer.tokens_per_entry > 1 and read < block_tokens
            return paged(LATENT, growing, stride_bytes=int(growing * read) if in_pieces else 1)
        case IndexTail():
            return paged(RING, Fraction(layer.fixed_bytes(kv), layer.tokens), layer.tokens, fixed_blocks=1)
        case CrossAttention():
            decoder = FullAttention(
                kv_heads=layer.kv_heads, head_dim=layer.head_dim, value_head_dim=layer.value_head_dim
            )
            return paged(CROSS, decoder.growing_bytes_per_token(kv), fixed_blocks=-(-encoder_tokens // block_tokens))
        case CompressedKv() | IndexKeys() | CompressedWindow() | CompressorState():
            return _packed_spec(layer, decoder_layer, kv, block_tokens=block_tokens)
        case _:
            raise UnsupportedModelError(
                f"cannot tell: how vLLM pages {layer.kind} layers is not known",
                hint="start the engine once and read its log: kvplan calibrate LOG",
            )


def _packed_spec(layer: Layer, decoder_layer: int, kv: KvTypes, *, block_tokens: int) -> PageSpec:
    """A cache of DeepSeek-V4's kind: blocks count tokens even where entries are compressed, and pages are padded.

    The window's block is 64 tokens; the compressor states' 4 and 8, so that their pages are about as large. Kernels
    read a block of more than 256 tokens in pieces, so blocks start at multiples of a piece.
    Source: vLLM 0.33, ``models/deepseek_v4`` (attention and compressor).
    """
    family, window, block, stride = LATENT, None, block_tokens, 1
    match layer:
        case CompressedWindow():
            family, window, block = PACKED_WINDOW, layer.window, 64
            page = layer.windowed_bytes_per_token(kv) * block
        case CompressorState():
            family, window, block = PACKED_WINDOW, layer.window, 4 if layer.window == 8 else 8
            page = layer.windowed_bytes_per_token(kv) * block
        case _:
            page = layer.growing_bytes_per_token(kv) * block
            if block > PACKED_KERNEL_BLOCK:
                piece = layer.growing_bytes_per_token(kv) * PACKED_KERNEL_BLOCK
                stride = padded(piece.numerator, PACKED_ALIGNMENT_BYTES)
    assert page.denominator == 1, "a block holds whole entries"
    return PageSpec(
        family=family,
        layer=layer,
        decoder_layer=decoder_layer,
        block_tokens=block,
        page_bytes=padded(page.numerator, PACKED_ALIGNMENT_BYTES),
        window_tokens=window,
        stride_bytes=stride,
    )


def state_spec(
    layer: RecurrentLayer, decoder_layer: int, kv: KvTypes, *, block_tokens: int, page_bytes: int, blocks: int
) -> PageSpec:
    """A recurrent layer's state in a page of ``page_bytes``; a request takes ``blocks`` of them."""
    assert page_bytes >= layer.fixed_bytes(kv)
    return PageSpec(
        family=STATE,
        layer=layer,
        decoder_layer=decoder_layer,
        block_tokens=block_tokens,
        page_bytes=page_bytes,
        fixed_blocks=blocks,
    )
