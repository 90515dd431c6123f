"""Latent attention (MLA), with and without an indexer, and DeepSeek-V4's compressed caches."""

from dataclasses import replace

from kvplan.hf_config.attention import full_attention, full_heads, read_standard
from kvplan.hf_config.config import LayerStack, ModelConfig
from kvplan.layers import CompressedKv, CompressedWindow, CompressorState, IndexKeys, LatentAttention, Layer

_FP8_VALUES_PER_SCALE = 128
_SCALE_BYTES = 4


def read_latent(model: ModelConfig) -> LayerStack:
    """MLA: ``kv_lora_rank + qk_rope_head_dim`` values per token and layer, whatever the head counts say.

    A file with ``kv_lora_rank: null`` (DeepSeek-VL2-tiny, DeepSeek-OCR) describes plain K and V. Source: vLLM 0.33,
    ``ModelArchConfigConvertorBase.is_deepseek_mla`` and ``MLAAttentionSpec``.
    """
    text = model.text
    if "kv_lora_rank" in text.values and text.value("kv_lora_rank") is None:
        plain = {name: value for name, value in text.defaults.items() if name != "head_dim"}
        return read_standard(replace(model, text=replace(text, defaults=plain)))
    return ((latent_cache(model),),) * model.layers


def latent_cache(model: ModelConfig) -> LatentAttention:
    """The latent of one layer."""
    return LatentAttention(latent_dim=model.text.count("kv_lora_rank"), rope_dim=model.text.size("qk_rope_head_dim"))


def index_keys(model: ModelConfig) -> IndexKeys:
    """DeepSeek's indexer: ``index_head_dim`` fp8 values and one float32 scale per 128 of them (128 → 132 B).

    Source: vLLM 0.33, ``DeepseekV32IndexerCache``.
    """
    width = model.text.count("index_head_dim")
    return IndexKeys(bytes_per_entry=width + width // _FP8_VALUES_PER_SCALE * _SCALE_BYTES)


def read_sparse_latent(model: ModelConfig) -> LayerStack:
    """MLA with an indexer, whose keys come on top on the layers that have an indexer of their own."""
    latent, keys = latent_cache(model), index_keys(model)
    return tuple((latent, keys) if own else (latent,) for own in own_indexer(model))


_LISTS_INDEXERS = frozenset({"glm5_next_text", "hy_v4"})


def own_indexer(model: ModelConfig) -> list[bool]:
    """Which layers have an indexer of their own; the others reuse the tokens that an earlier layer chose.

    In this order: ``indexer_types``, for the few classes that read it (DeepSeek-V3.2 and GLM-5 do not, even where their
    files have it); ``index_topk_pattern``, where ``S`` marks a layer that shares, and layers beyond the pattern have
    their own; else layer i has its own if max(i − ``index_skip_topk_offset`` + 1, 0) is a multiple of
    ``index_topk_freq`` (offset 2 and frequency 1 where absent, so every layer). Source: vLLM 0.33,
    ``DeepseekV32Attention``.
    """
    text, layers = model.text, model.layers
    listed = text.texts("indexer_types") if model.family in _LISTS_INDEXERS else None
    if listed is not None:
        return [kind == "full" for kind in text.by_layer("indexer_types", listed, layers, ("full", "shared"))]
    pattern = text.value("index_topk_pattern")
    if pattern is not None:
        marks = list(pattern) if isinstance(pattern, str) else text.texts("index_topk_pattern") or []
        return [index >= len(marks) or marks[index] != "S" for index in range(layers)]
    every = text.optional_count("index_topk_freq") or 1
    offset = text.size("index_skip_topk_offset", default=2)
    return [max(index - offset + 1, 0) % every == 0 for index in range(layers)]


SPARSE_NAMES = frozenset({"sparse_attention", "sparse", "indexed_attention", "deepseek_sparse_attention"})


def read_listed_sparse(model: ModelConfig) -> LayerStack:
    """Hunyuan 4: MLA on every layer, sparse on those that ``layer_types`` marks.

    A sparse layer that ``indexer_types`` calls ``full`` has an indexer of its own; without that key, layer 0 and every
    fourth layer from 1 on. Source: vLLM 0.33, ``HYV4Attention``, ``HYV4Config``.
    """
    text, layers = model.text, model.layers
    kinds = text.texts("layer_types") or []
    owns = own_indexer(model)
    if not text.says("indexer_types"):
        owns = [index == 0 or (index - 1) % 4 == 0 for index in range(layers)]
    latent = latent_cache(model)
    sparse = [kind in SPARSE_NAMES for kind in kinds[:layers]]
    if not any(sparse):
        return ((latent,),) * layers
    keys = index_keys(model)
    sparse += [False] * (layers - len(sparse))
    return tuple((latent, keys) if each and own else (latent,) for each, own in zip(sparse, owns, strict=True))


def read_double_latent(model: ModelConfig) -> LayerStack:
    """LongCat-Flash: two latent caches in each decoder layer.

    ``num_layers`` counts decoder layers; ``num_hidden_layers``, where present, counts sublayers. Source: vLLM 0.33,
    ``FlashDecoderLayer``.
    """
    layers = model.text.optional_count("num_layers") or model.text.count("num_hidden_layers") // 2
    return ((latent_cache(model),) * 2,) * layers


def read_expanded_latent(model: ModelConfig) -> LayerStack:
    """MiniCPM3: the weights are latent, but vLLM stores what they expand to.

    That is a key and a value for every head, both ``qk_nope_head_dim + qk_rope_head_dim`` wide. Source: vLLM 0.33,
    ``MiniCPM3Attention``.
    """
    width = model.text.count("qk_nope_head_dim") + model.text.count("qk_rope_head_dim")
    return ((full_heads(model.query_heads, width),),) * model.layers


_COMPRESSED_HEAD_DIM = 512
_COMPRESSED_ENTRY_BYTES = 584  # vLLM's fp8_ds_mla at head size 512: 448 fp8 + 64 rope × 2 B + 8 B of scales


def read_compressed(model: ModelConfig) -> LayerStack:
    """DeepSeek-V4: every layer keeps a packed window of tokens, and most keep compressed entries beside it.

    A layer of ratio 4 or 128 adds one entry for that many tokens, and the compressor's float32 state, from which the
    next entry is made. At ratio 4 neighbouring entries overlap, so the state holds 2 × 2 × head_dim values per token
    over two groups of 4 tokens; at ratio 128 it holds 2 × head_dim values over one group. Only ratio 4 has an indexer,
    with a compressor of its own. ``compress_ratios`` has an entry for each layer, then for the MTP layers.
    Source: vLLM 0.33, ``DeepseekV4Attention``, ``DeepseekCompressor``, ``SlidingWindowMLASpec``.
    """
    window = _packed_window(model)
    return tuple((window, *_compressed_caches(model, ratio)) for ratio in _ratios(model))


def _compressed_caches(model: ModelConfig, ratio: int) -> tuple[Layer, ...]:
    """What a layer of this ratio keeps beside its window."""
    if ratio <= 1:
        return ()
    entries = CompressedKv(bytes_per_entry=_COMPRESSED_ENTRY_BYTES, tokens_per_entry=ratio)
    if ratio == 128:
        return entries, CompressorState(values_per_token=2 * _COMPRESSED_HEAD_DIM, window=ratio)
    if ratio != 4:
        raise model.text.refused("compress_ratios", f"compression ratio {ratio} is not known")
    return (
        entries,
        CompressorState(values_per_token=4 * _COMPRESSED_HEAD_DIM, window=2 * ratio),
        replace(index_keys(model), tokens_per_entry=ratio),
        CompressorState(values_per_token=4 * model.text.count("index_head_dim"), window=2 * ratio),
    )


def _packed_window(model: ModelConfig) -> CompressedWindow:
    if model.text.count("head_dim") != _COMPRESSED_HEAD_DIM:
        raise model.text.refused("head_dim", f"the packed entry is only known for {_COMPRESSED_HEAD_DIM}")
    return CompressedWindow(bytes_per_entry=_COMPRESSED_ENTRY_BYTES, window=model.text.count("sliding_window"))


def _ratios(model: ModelConfig) -> list[int]:
    """The ratio of each layer: ``compress_ratios``, else what ``compress_rates`` gives for the layer's type."""
    text, layers = model.text, model.layers
    ratios = text.counts("compress_ratios", minimum=0)
    if ratios is None:
        rates, kinds = text.section("compress_rates"), text.texts("layer_types")
        if rates is None or kinds is None:
            raise text.missing("compress_ratios")
        ratios = [rates.size(kind, default=0) for kind in kinds]
    if len(ratios) < layers:
        raise text.contradicts(
            "compress_ratios",
            f"compressed attention layout with {len(ratios)} entries for {layers} layers is not supported",
        )
    return ratios[:layers]


def read_compressed_sources(model: ModelConfig) -> LayerStack:
    """DeepSeek-V4.1: as V4, but only the layers in ``kv_source_layer_ids`` keep compressed entries.

    Index keys are kept where such a layer is also in ``index_source_layer_ids``; the other index sources read the keys
    of the latest KV source below them. A ratio above 1 needs a ring of 8 float32 rows of 2 × head_dim values.
    Source: vLLM 0.33, ``vllm/models/deepseek_v41``: ``DeepseekV4Attention`` (584 B a record; 528 B only on capability
    10), ``CompressorStateCache``.
    """
    text = model.text
    own = _packed_window(model)
    kv_sources, index_sources = text.needed_counts("kv_source_layer_ids"), text.needed_counts("index_source_layer_ids")
    stack: list[tuple[Layer, ...]] = []
    for index, ratio in enumerate(_ratios(model)):
        if ratio > 2:
            raise text.refused("compress_ratios", f"compression ratio {ratio} is not known for this class")
        kept: list[Layer] = [own]
        if ratio and index in kv_sources:
            kept.append(CompressedKv(bytes_per_entry=_COMPRESSED_ENTRY_BYTES, tokens_per_entry=ratio))
            if ratio > 1:
                kept.append(CompressorState(values_per_token=2 * _COMPRESSED_HEAD_DIM, window=8))
            if index in index_sources:
                kept.append(replace(index_keys(model), tokens_per_entry=ratio))
        stack.append(tuple(kept))
    return tuple(stack)


def read_indexed_heads(model: ModelConfig) -> LayerStack:
    """MiniMax-M3: plain K and V, and an index key of ``sparse_index_dim`` on the layers that ``sparse_attention_freq``
    marks with 1. Source: vLLM 0.33, ``MiniMaxM3Indexer``."""
    cache = full_attention(model)
    sparse = model.text.section("sparse_attention_config")
    if sparse is None or not sparse.flag("use_sparse_attention", default=True):
        return ((cache,),) * model.layers
    marks = sparse.by_layer("sparse_attention_freq", sparse.needed_counts("sparse_attention_freq"), model.layers)
    keys = IndexKeys(bytes_per_entry=sparse.count("sparse_index_dim") * 2)
    return tuple((cache, keys) if mark else (cache,) for mark in marks)
