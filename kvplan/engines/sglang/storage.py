"""How SGLang stores KV: its types, its pages, and the layers that it stores in another form than the model.

Source: ``kv_cache_configurator.py`` and ``pool_configurator.py`` of 0.5.23, ``model_runner.py`` of 0.5.6; for sparse
MLA (DeepSeek-V3.2, GLM-5) also ``_dsa_split_backend_resolution`` of ``overrides.py``, 0.5.9 to 0.5.23.
"""

from collections.abc import Iterable
from dataclasses import replace

from kvplan.engines.deployment import Deployment, is_since
from kvplan.engines.devices import capability_of
from kvplan.engines.sglang.classes import SAYS_STATE_TYPE, Release
from kvplan.engines.token_pool import named_type
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    MXFP8,
    NVFP4,
    ChunkedAttention,
    FullAttention,
    IndexKeys,
    KvTypes,
    LatentAttention,
    Layer,
    RecurrentLayer,
    SharedKv,
    SlidingAttention,
    StoredType,
)
from kvplan.model import ModelSpec

_EIGHT_BITS = StoredType(name="fp8_e4m3", bytes_per_group=1)
# a float32 scale for 128 values: a latent without rope keys
_SCALED_LATENT = StoredType(name="fp8_ds_mla", bytes_per_group=33, elements_per_group=32)
_TYPES = {
    "bfloat16": BFLOAT16,
    "bf16": BFLOAT16,
    "fp8_e4m3": _EIGHT_BITS,
    "fp8_e5m2": StoredType(name="fp8_e5m2", bytes_per_group=1),
    "fp8": _EIGHT_BITS,
    "mxfp8": MXFP8,
    # some releases leave the scales of 4-bit values out of the sizes that they print
    "nvfp4": NVFP4,
    "fp4_mx_block16": NVFP4,
    "fp4_e2m1": NVFP4,
}
_BLACKWELL, _WORKSTATION_BLACKWELL = 10, 12
"""Major compute capabilities: of data-centre cards such as the B200, and of workstation cards."""
_PAGE_ENTRIES = 64
"""Index entries of a page with sparse MLA."""
_LATENT_KERNEL_CLASS = "DeepseekV3ForCausalLM"
"""The class whose MLA kernel on Blackwell reads pages of 64 tokens."""
_FIRST_BARE_LATENTS: Release = (0, 5, 12)
"""The first release that stores 8-bit latents without scales on Blackwell."""
_FIRST_SHARED_INDEX: Release = (0, 5, 19)
"""The first release that allocates no index keys for layers that use another layer's."""


def kv_types(model: ModelSpec, deployment: Deployment) -> KvTypes:
    """The stored types under ``--kv-cache-dtype``.

    ``auto`` is the checkpoint's KV type, else the model's; for sparse MLA it is 8 bits on Blackwell, else 16.
    """
    word, is_sparse = deployment.kv_dtype, model.has_sparse_latents
    if word == "auto":
        word = model.kv_scheme or model.dtype
        if is_sparse:
            word = "fp8_e4m3" if capability_of(deployment)[0] >= _BLACKWELL else "bfloat16"
        elif word == "float16":
            return KvTypes(key=FLOAT16, value=FLOAT16)
    stored = named_type(word, _TYPES, "SGLang")
    if is_sparse and stored not in (_EIGHT_BITS, BFLOAT16):
        raise InputError(
            f"SGLang keeps sparse MLA in bfloat16 or fp8_e4m3, not in {word}", hint="--kv-dtype auto", key="kv_dtype"
        )
    if is_sparse and stored is _EIGHT_BITS:
        return _eight_bit_latents(model, capability_of(deployment)[0], deployment.engine.release)
    return KvTypes(key=stored, value=stored)


def _eight_bit_latents(model: ModelSpec, major: int, release: Release | None) -> KvTypes:
    """On Blackwell, TensorRT-LLM's kernels read bare 8-bit values since 0.5.12 (576 B a token). Elsewhere, and for
    GLM-5's class on a workstation's Blackwell, latents have scales and rope keys are bfloat16 (656 B).

    Source: ``calculate_mla_kv_cache_dim``.
    """
    is_scaled_class = model.architecture == "GlmMoeDsaForCausalLM" and major == _WORKSTATION_BLACKWELL
    if major >= _BLACKWELL and is_since(release, _FIRST_BARE_LATENTS) and not is_scaled_class:
        return KvTypes(key=_EIGHT_BITS, value=_EIGHT_BITS)
    if not any(layer.rope_dim for layer in model.caches if isinstance(layer, LatentAttention)):
        return KvTypes(key=_SCALED_LATENT, value=_SCALED_LATENT)
    return KvTypes(key=_EIGHT_BITS, value=_EIGHT_BITS, packed="fp8_ds_mla")


def page_tokens(model: ModelSpec, deployment: Deployment) -> int:
    """``--page-size``: 1 by default.

    With sparse MLA 64 index entries: tokens, or groups of tokens whose keys are pooled (GLM-5.3-Flash: 4). On
    data-centre Blackwell the default kernels use 64, or 128 where K and V differ in width; with MLA only those of
    DeepSeek-V3's class.
    """
    if deployment.block_size is not None:
        return deployment.block_size
    if model.has_sparse_latents:
        return _PAGE_ENTRIES * max(layer.tokens_per_entry for layer in model.caches if isinstance(layer, IndexKeys))
    if capability_of(deployment)[0] != _BLACKWELL:
        return 1
    if model.keeps(LatentAttention):
        return 64 if model.architecture == _LATENT_KERNEL_CLASS else 1
    heads = [layer for layer in model.caches if isinstance(layer, (FullAttention, SlidingAttention, ChunkedAttention))]
    return 64 if all(layer.head_dim == layer.value_head_dim for layer in heads) else 128


def stored_layers(model: ModelSpec, layers: Iterable[Layer], release: Release | None) -> list[Layer]:
    """``layers`` of ``model`` in the form in which SGLang stores them.

    Before 0.5.19 index keys are allocated also for layers that use another layer's
    (``_compute_dsa_indexer_cell_size``).
    """
    stored = [_stored(layer, model.architecture) for layer in layers]
    index = [layer for layer in stored if isinstance(layer, IndexKeys)]
    if not index or is_since(release, _FIRST_SHARED_INDEX):
        return stored
    latents = sum(isinstance(layer, LatentAttention) for layer in stored)
    return stored + index[:1] * (latents - len(index))


def _stored(layer: Layer, architecture: str) -> Layer:
    """Conv states are bfloat16 and temporal states float32 whatever the model's type, except with Qwen3.5's config key
    ``mamba_ssm_dtype``. A layer that only reads another's KV has a place in the pool all the same.

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
