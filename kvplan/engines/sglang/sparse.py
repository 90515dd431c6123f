"""Sparse MLA (DeepSeek-V3.2, GLM-5) under SGLang: pages, how 8-bit latents are stored, which layers have index keys.

Source: ``calculate_mla_kv_cache_dim`` of ``kv_cache_configurator.py``, ``_dsa_split_backend_resolution`` of
``overrides.py``, ``_compute_dsa_indexer_cell_size`` of ``pool_configurator.py``; 0.5.9 to 0.5.23.
"""

from collections.abc import Sequence
from fractions import Fraction

from kvplan.engines.sglang.classes import Release, is_since
from kvplan.layers import IndexKeys, KvTypes, LatentAttention, Layer, StoredType
from kvplan.model import ModelSpec

EIGHT_BITS = StoredType(name="fp8_e4m3", bytes_per_group=1)
_WITH_SCALES = StoredType(name="fp8_ds_mla", bytes_per_group=33, elements_per_group=32)
"""A float32 scale for 128 values: a latent without rope keys."""
FIRST_BLACKWELL = 10
_WORKSTATION_BLACKWELL = 12
_PAGE_ENTRIES = 64
_FIRST_WITHOUT_SCALES: Release = (0, 5, 12)
_FIRST_SHARED_INDEX: Release = (0, 5, 19)


def sparse_page(model: ModelSpec) -> int:
    """64 index entries: tokens, or groups of tokens where their keys are pooled (GLM-5.3-Flash: 4)."""
    return _PAGE_ENTRIES * max(layer.tokens_per_entry for layer in model.caches if isinstance(layer, IndexKeys))


def eight_bit_latents(model: ModelSpec, capability: tuple[int, int], release: Release | None) -> KvTypes:
    """On Blackwell TensorRT-LLM's kernels read bare 8-bit values, since 0.5.12 (576 B a token); elsewhere latents have
    their scales beside them and rope keys are bfloat16 (656 B); so on a workstation's Blackwell for GLM-5's class.
    """
    scaled_class = model.architecture == "GlmMoeDsaForCausalLM" and capability[0] == _WORKSTATION_BLACKWELL
    if capability[0] >= FIRST_BLACKWELL and is_since(release, _FIRST_WITHOUT_SCALES) and not scaled_class:
        return KvTypes(key=EIGHT_BITS, value=EIGHT_BITS)
    if not any(layer.rope_dim for layer in model.caches if isinstance(layer, LatentAttention)):
        return KvTypes(key=_WITH_SCALES, value=_WITH_SCALES)
    return KvTypes(key=EIGHT_BITS, value=EIGHT_BITS, packed="fp8_ds_mla")


def with_index_keys(layers: Sequence[Layer], release: Release | None) -> list[Layer]:
    """``layers`` and the index keys that releases before 0.5.19 allocate also for layers which use another's."""
    index = [layer for layer in layers if isinstance(layer, IndexKeys)]
    if not index or is_since(release, _FIRST_SHARED_INDEX):
        return list(layers)
    latents = sum(isinstance(layer, LatentAttention) for layer in layers)
    return [*layers, *index[:1] * (latents - len(index))]


def draft_layer_bytes(model: ModelSpec, kv: KvTypes) -> Fraction:
    """Bytes a token of a draft's layer beside sparse MLA: one of the model's latents, and index keys of its own."""
    latent = next(layer for layer in model.caches if isinstance(layer, LatentAttention))
    index = next(layer for layer in model.caches if isinstance(layer, IndexKeys))
    return latent.growing_bytes_per_token(kv) + index.growing_bytes_per_token(kv)
