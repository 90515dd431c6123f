"""SGLang's own arithmetic: what the static share leaves, in which types and pages, and how it is shared out.

Source: ``kv_cache_configurator.py`` and ``pool_configurator.py`` of 0.5.23, ``model_runner.py`` of 0.5.6.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

from kvplan.engines.base import Deployment
from kvplan.engines.devices import H100_CAPABILITY, capability_of
from kvplan.engines.sglang.classes import SAYS_STATE_TYPE, TRACKED_STATE_CLASSES, TRACKED_STATES, Release, is_since
from kvplan.engines.sglang.sparse import EIGHT_BITS, FIRST_BLACKWELL, eight_bit_latents, sparse_page
from kvplan.engines.token_pool import named_type
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    ChunkedAttention,
    FullAttention,
    KvTypes,
    LatentAttention,
    Layer,
    RecurrentLayer,
    SharedKv,
    SlidingAttention,
    StoredType,
)
from kvplan.model import ModelSpec

# two values a byte, and a scale byte for 16 values; some releases leave the scales out of the sizes they print
_FOUR_BITS = StoredType(name="nvfp4", bytes_per_group=9, elements_per_group=16)

_TYPES: dict[str, StoredType] = {
    "bfloat16": BFLOAT16,
    "bf16": BFLOAT16,
    "fp8_e4m3": EIGHT_BITS,
    "fp8_e5m2": StoredType(name="fp8_e5m2", bytes_per_group=1),
    "fp8": EIGHT_BITS,
    # one scale byte for 32 values
    "mxfp8": StoredType(name="mxfp8", bytes_per_group=33, elements_per_group=32),
    "nvfp4": _FOUR_BITS,
    "fp4_mx_block16": _FOUR_BITS,
    "fp4_e2m1": _FOUR_BITS,
}
WINDOW_POOL_RATIO = Fraction(8, 10)
STATE_POOL_RATIO = Fraction(9, 10)
STATES_PER_REQUEST = 3
TRACKED_STATES_PER_REQUEST = 5
_LATENT_KERNEL_CLASS = "DeepseekV3ForCausalLM"
_LATENT_KERNEL_PAGE = 64


def kv_memory(free_before_bytes: int, free_after_bytes: int, fraction: Fraction) -> int:
    """Memory of the pools: free after loading − (free before loading) × (1 − mem_fraction_static). May be negative.

    >>> kv_memory(100, 60, Fraction(9, 10))
    50
    """
    return int(free_before_bytes * fraction) - (free_before_bytes - free_after_bytes)


def smallest_fraction(free_before_bytes: int, loaded_bytes: int) -> Fraction:
    """The ``mem_fraction_static`` at which nothing is left for KV: loaded / free before loading."""
    return Fraction(loaded_bytes, free_before_bytes)


def window_pool_tokens(full_tokens: int, ratio: Fraction, page_tokens: int) -> int:
    """Tokens of the window pool: full × ratio, down to whole pages.

    >>> window_pool_tokens(32768, Fraction(1, 10), 256)
    3072
    """
    return int(full_tokens * ratio) // page_tokens * page_tokens


def kv_types(
    model: ModelSpec, kv_dtype: str, capability: tuple[int, int] = H100_CAPABILITY, release: Release | None = None
) -> KvTypes:
    """The stored types under ``--kv-cache-dtype``.

    ``auto`` is the checkpoint's KV type, else the model's; for sparse MLA it is 8 bits on Blackwell.
    """
    word, sparse = kv_dtype, model.has_sparse_latents
    if word == "auto":
        word = model.kv_scheme or model.dtype
        if sparse:
            word = "fp8_e4m3" if capability[0] >= FIRST_BLACKWELL else "bfloat16"
        elif word == "float16":
            return KvTypes(key=FLOAT16, value=FLOAT16)
    stored = named_type(word, _TYPES, "SGLang")
    if sparse and stored not in (EIGHT_BITS, BFLOAT16):
        raise InputError(
            f"SGLang keeps sparse MLA in bfloat16 or fp8_e4m3, not in {word}", hint="--kv-dtype auto", key="kv_dtype"
        )
    if sparse and stored is EIGHT_BITS:
        return eight_bit_latents(model, capability, release)
    return KvTypes(key=stored, value=stored)


def page_tokens(model: ModelSpec, deployment: Deployment) -> int:
    """``--page-size``: 1; 64 entries with sparse MLA. On a B200 and its kin the default kernels want more: 64, or 128
    where K and V differ in width; with MLA only DeepSeek-V3's class.
    """
    if deployment.block_size is not None:
        return deployment.block_size
    if model.has_sparse_latents:
        return sparse_page(model)
    if capability_of(deployment)[0] != FIRST_BLACKWELL:
        return 1
    if model.keeps(LatentAttention):
        return _LATENT_KERNEL_PAGE if model.architecture == _LATENT_KERNEL_CLASS else 1
    heads = [layer for layer in model.caches if isinstance(layer, (FullAttention, SlidingAttention, ChunkedAttention))]
    return 64 if all(layer.head_dim == layer.value_head_dim for layer in heads) else 128


def as_stored(layer: Layer, architecture: str) -> Layer:
    """Conv states are bfloat16 and temporal states float32 whatever the model's type; ``mamba_ssm_dtype`` of the config
    replaces that, a key of Qwen3.5's. A layer that only reads another's KV has a place in the pool all the same.

    Source: ``mamba2_state_dtype``; a pool of 361 states of Qwen3.8-27B: 48 × 48 × 128 × 128 × 4 B each = 50.77 GiB, as
    its log says. Gemma-4-E4B: 35 window and 7 full layers are allocated, 18 of them shared.
    """
    if isinstance(layer, SharedKv):
        if layer.read is None:
            raise UnsupportedModelError(
                "cannot tell: SGLang allocates KV also for layers that only read another's, and which they read is "
                "not known",
                hint="plan it from the model's config.json, or start the engine once and read its log: kvplan "
                "calibrate LOG",
                key="engine",
            )
        return layer.read
    if not isinstance(layer, RecurrentLayer):
        return layer
    reads_type = architecture.lower().startswith(SAYS_STATE_TYPE)
    return replace(layer, conv_type=BFLOAT16, temporal_type=layer.temporal_type if reads_type else FLOAT32)


@dataclass(frozen=True, kw_only=True)
class Pools:
    """The memory of the pools shared out: ``kv_bytes`` for tokens, the rest for ``state_slots`` states and one more
    that pads a batch."""

    kv_bytes: int
    state_bytes: int
    state_slots: int


def share_out(memory: int, state_bytes: int, ratio: Fraction, *, slots: int | None = None) -> Pools:
    """States get ratio / (1 + ratio) of the memory in whole slots, or ``slots`` of them; tokens get the rest.

    Source: ``_handle_max_mamba_cache``.
    """
    if not state_bytes:
        return Pools(kv_bytes=memory, state_bytes=0, state_slots=0)
    count = slots if slots is not None else max(0, int(memory * ratio / (1 + ratio)) // state_bytes - 1)
    held = (count + 1) * state_bytes
    return Pools(kv_bytes=memory - held, state_bytes=held, state_slots=count)


def states_per_request(model: ModelSpec, deployment: Deployment) -> int:
    """States that bound the requests at once: 1 without the prefix cache, else 3, or 5 where it tracks states apart."""
    if deployment.prefix_caching is False:
        return 1
    tracked = model.architecture in TRACKED_STATE_CLASSES and is_since(deployment.engine.release, TRACKED_STATES)
    return TRACKED_STATES_PER_REQUEST if tracked else STATES_PER_REQUEST
