"""DeepSeek-V4: low-rank queries and outputs, one KV vector, compressors and indexers by layer, hyper-connections.

V4.1 compresses only in ``kv_source_layer_ids``, indexes only in ``index_source_layer_ids``, and looks up n-grams in
``engram_layer_ids``. Sources: vLLM 0.33, ``models/deepseek_v4`` and ``models/deepseek_v41``.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvplan.hf_config.weights.decoder import Decoder
from kvplan.hf_config.weights.mlp import mixture_parts
from kvplan.hf_config.weights.parts import float32, linear, numbers, whole, words
from kvplan.layers import CompressedKv, CompressedWindow, StoredType
from kvplan.model import WeightPart

# 8-bit values with a scale byte for 32.
_ROWS = StoredType(name="fp8", bytes_per_group=33, elements_per_group=32)


def is_deepseek_v4(decoder: Decoder) -> bool:
    """Whether layers compress their KV and the output projection has a low rank."""
    return decoder.keeps(0, CompressedWindow) and whole(decoder.config, "o_lora_rank") is not None


def _ratio(decoder: Decoder, layer: int) -> int:
    """Tokens per compressed entry of ``layer``; 0 where it only has its window, as MTP layers do."""
    kept = decoder.stack[layer] if layer < len(decoder.stack) else ()
    return next((each.tokens_per_entry for each in kept if isinstance(each, CompressedKv)), 0)


def deepseek_v4_layer_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Attention, experts and hyper-connections of one layer."""
    return [
        *_attention(decoder, layer),
        *_feed_forward(decoder, layer),
        _hyper_connection(decoder, layer),
        *_engram(decoder, layer),
    ]


def deepseek_v4_outer_parts(decoder: Decoder) -> list[WeightPart]:
    """The hyper-connection in front of the head: streams × streams × hidden, float32."""
    streams = whole(decoder.config, "hc_mult") or 1
    return [float32("hyper_connection_head", streams * (streams * decoder.hidden + 1) + 1, None)]


def _attention(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Q = hidden × q_rank + q_rank × heads × dim; kv = hidden × dim; o = heads × dim × o_rank, then groups × o_rank ×
    hidden. Down-projections are copied; a sink per head."""
    config, hidden = decoder.config, decoder.hidden
    query_rank, dim = whole(config, "q_lora_rank") or 0, whole(config, "head_dim") or 0
    out_rank, groups = whole(config, "o_lora_rank") or 0, whole(config, "o_groups") or 1
    parts = [
        linear("self_attn.qkv_a_proj", hidden, query_rank + dim, "none", layer),
        linear("self_attn.q_b_proj", query_rank, decoder.heads * dim, "heads", layer),
        linear("self_attn.o_a_proj", decoder.heads * dim, out_rank, "heads", layer),
        linear("self_attn.o_b_proj", groups * out_rank, hidden, "heads", layer),
        linear("self_attn.vectors", 1, query_rank + dim, "none", layer),
        float32("self_attn.sink", decoder.heads, layer, "heads"),
    ]
    if (sources := numbers(config, "kv_source_layer_ids")) is not None:
        return parts + _shared_compression(decoder, layer, sources)
    ratio = _ratio(decoder, layer)
    if ratio > 1:
        parts += _compressor(decoder, layer, ratio, dim, "self_attn.compressor")
    if ratio == 4:
        heads, index_dim = whole(config, "index_n_heads") or 0, whole(config, "index_head_dim") or 0
        parts.append(linear("self_attn.indexer.wq_b_proj", query_rank, heads * index_dim, "none", layer))
        parts.append(linear("self_attn.indexer.weights", hidden, heads, "none", layer))
        parts += _compressor(decoder, layer, ratio, index_dim, "self_attn.indexer.compressor")
    return parts


def _shared_compression(decoder: Decoder, layer: int, sources: Sequence[int]) -> list[WeightPart]:
    """V4.1: a compressor of hidden × dim (twice, with a gate, where it pools) in the source layers; the indexer's
    queries and head weights in the layers that choose tokens; its keys are made from a source layer's latent."""
    config, hidden, dim = decoder.config, decoder.hidden, whole(decoder.config, "head_dim") or 0
    heads, index_dim = whole(config, "index_n_heads") or 0, whole(config, "index_head_dim") or 0
    parts = []
    if layer in sources:
        gates = 2 if _ratio(decoder, layer) > 1 else 1
        parts += [
            linear("self_attn.compressor", hidden, gates * dim, "none", layer),
            linear("self_attn.compressor.norm", 1, dim, "none", layer),
            linear("self_attn.indexer.wk", dim, index_dim, "none", layer),
            linear("self_attn.indexer.norm", 1, index_dim, "none", layer),
        ]
    if layer in (numbers(config, "index_source_layer_ids") or ()):
        rank = whole(config, "q_lora_rank") or 0
        parts.append(linear("self_attn.indexer.wq_b_proj", rank, heads * index_dim, "none", layer))
        parts.append(linear("self_attn.indexer.weights", hidden, heads, "none", layer))
    return parts


def _engram(decoder: Decoder, layer: int) -> list[WeightPart]:
    """V4.1's table of n-grams: 8-bit rows with a scale per 32 values, split by hash heads. The rows of one token, one
    per head and order, are projected to a key for every stream and a value."""
    config, hidden = decoder.config, decoder.hidden
    listed, rows = numbers(config, "engram_layer_ids") or (), numbers(config, "engram_num_embeddings") or ()
    if layer not in listed or len(rows) != len(listed):
        return []
    dim, streams = whole(config, "engram_head_dim") or 0, whole(config, "hc_mult") or 1
    columns = ((whole(config, "engram_max_ngram_size") or 1) - 1) * (whole(config, "engram_n_heads") or 0)
    table = linear("engram.table", rows[listed.index(layer)], dim, "columns", layer)
    return [
        replace(table, stored=_ROWS),
        linear("engram.wkv_proj", columns * dim, (streams + 1) * hidden, "columns", layer),
        linear("engram.vectors", 2 * streams, hidden, "none", layer),
    ]


def _compressor(decoder: Decoder, layer: int, ratio: int, dim: int, name: str) -> list[WeightPart]:
    """Two matrices of hidden × width (width doubled where entries overlap, at ratio 4), float32 positions, a norm."""
    width = dim * (2 if ratio == 4 else 1)
    return [
        linear(name, decoder.hidden, 2 * width, "none", layer),
        linear(f"{name}.norm", 1, dim, "none", layer),
        float32(f"{name}.positions", ratio * width, layer),
    ]


def _feed_forward(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Experts; the first layers choose them by a 32-bit table from token to experts instead of a correction."""
    own = whole(decoder.config, "dspark_n_routed_experts") if layer >= decoder.layers else None
    if own is not None:  # V4.1's MTP layers have fewer experts
        decoder = replace(decoder, config={**decoder.config, "n_routed_experts": own})
    parts = mixture_parts(decoder, layer)
    kinds = words(decoder.config, "mlp_layer_types") or ()
    hashed = whole(decoder.config, "num_hash_layers") or kinds.count("hash_moe")
    count, chosen = whole(decoder.config, "n_routed_experts") or 0, whole(decoder.config, "num_experts_per_tok") or 0
    if layer < hashed:
        return [*parts, float32("mlp.expert_table", decoder.vocabulary * chosen, layer)]
    return [*parts, float32("mlp.gate_correction", count, layer)]


def _hyper_connection(decoder: Decoder, layer: int) -> WeightPart:
    """2 × (((2 + streams) × streams) × (streams × hidden + 1) + 3), float32: before attention and before experts."""
    streams = whole(decoder.config, "hc_mult") or 1
    mixes = (2 + streams) * streams
    return float32("hyper_connection", 2 * (mixes * (streams * decoder.hidden + 1) + 3), layer)
