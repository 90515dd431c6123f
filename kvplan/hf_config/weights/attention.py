"""Parameters of attention: query, key, value and output matrices, or MLA's latent ones with their indexer."""

from kvplan.hf_config.weights.decoder import Decoder, linear
from kvplan.hf_config.weights.keys import nested, whole
from kvplan.layers import IndexKeys, SlidingAttention
from kvplan.model import WeightPart


def attention_parts(
    decoder: Decoder, layer: int, *, heads: int | None = None, query_factor: int = 1, has_kv: bool = True
) -> list[WeightPart]:
    """Q, K, V and O of one layer, with their biases and the norms of heads.

    Q = hidden × heads × head_dim (twice that with an output gate), K and V = hidden × KV heads × width,
    O = heads × value width × hidden. Q and O are split by the query heads, K and V by the KV heads.
    """
    heads, cache, hidden = decoder.heads if heads is None else heads, decoder.cache(layer), decoder.hidden
    query_width = heads * cache.head_dim * query_factor
    kv_width = cache.kv_heads * (cache.head_dim + cache.value_head_dim)
    parts = [
        linear("self_attn.q_proj", hidden, query_width, "heads", layer),
        linear("self_attn.o_proj", heads * cache.value_head_dim, hidden, "heads", layer),
    ]
    if has_kv:
        parts.append(linear("self_attn.kv_proj", hidden, kv_width, "kv_heads", layer, kv_heads=cache.kv_heads))
    if decoder.qkv_bias:
        parts.append(linear("self_attn.q_bias", 1, query_width, "heads", layer))
        if has_kv:
            parts.append(linear("self_attn.kv_bias", 1, kv_width, "kv_heads", layer, kv_heads=cache.kv_heads))
    return parts + _vectors(decoder, layer, heads, has_kv=has_kv)


def _vectors(decoder: Decoder, layer: int, heads: int, *, has_kv: bool) -> list[WeightPart]:
    """The output bias and the norms of Q and K: one of head_dim for all heads, or one over the heads' whole width."""
    cache = decoder.cache(layer)
    vectors = decoder.hidden if decoder.out_bias else 0
    parts = []
    if decoder.traits.head_norms == "head":
        vectors += cache.head_dim * (2 if has_kv else 1)
    elif decoder.traits.head_norms == "full":
        width = cache.kv_heads * cache.head_dim
        parts.append(linear("self_attn.q_norm", 1, heads * cache.head_dim, "heads", layer))
        parts.append(linear("self_attn.k_norm", 1, width, "kv_heads", layer, kv_heads=cache.kv_heads))
    if vectors:
        parts.append(linear("self_attn.vectors", 1, vectors, "none", layer))
    return parts


def latent_attention_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """MLA: down to a latent (a copy on every rank), up to the heads (split), and the output.

    q = hidden × q_rank + q_rank × heads × (nope + rope), or hidden × heads × (nope + rope) without a query rank;
    kv = hidden × (kv_rank + rope) + kv_rank × heads × (nope + value); o = heads × value × hidden.
    Source: vLLM 0.33, ``DeepseekV2MLAAttention``.
    """
    config, hidden, heads = decoder.config, decoder.hidden, decoder.heads
    rank = whole(config, "kv_lora_rank") or 0
    rope = whole(config, "qk_rope_head_dim") or 0
    nope = whole(config, "qk_nope_head_dim") or 0
    value = whole(config, "v_head_dim") or nope
    query_rank = whole(config, "q_lora_rank")
    parts = [
        linear("self_attn.kv_a_proj", hidden, rank + rope, "none", layer),
        linear("self_attn.kv_b_proj", rank, heads * (nope + value), "heads", layer),
        linear("self_attn.o_proj", heads * value, hidden, "heads", layer),
        linear("self_attn.vectors", 1, rank + (query_rank or 0), "none", layer),
    ]
    if query_rank:
        parts += [
            linear("self_attn.q_a_proj", hidden, query_rank, "none", layer),
            linear("self_attn.q_b_proj", query_rank, heads * (nope + rope), "heads", layer),
        ]
    else:
        parts.append(linear("self_attn.q_proj", hidden, heads * (nope + rope), "heads", layer))
    if decoder.keeps(layer, IndexKeys):
        parts += indexer_parts(decoder, layer, query_rank or hidden)
    return parts


def indexer_parts(decoder: Decoder, layer: int, query_inputs: int) -> list[WeightPart]:
    """The sparse-attention indexer, a copy on every rank: queries, one key, and a weight per index head.

    q_rank × index_heads × dim + hidden × dim + hidden × index_heads; a key norm with weight and bias.
    Source: vLLM 0.33, ``Indexer``.
    """
    heads = whole(decoder.config, "index_n_heads") or 0
    dim = whole(decoder.config, "index_head_dim") or 0
    return [
        linear("self_attn.indexer.wq_b_proj", query_inputs, heads * dim, "none", layer),
        linear("self_attn.indexer.wk", decoder.hidden, dim, "none", layer),
        linear("self_attn.indexer.weights", decoder.hidden, heads, "none", layer),
        linear("self_attn.indexer.norm", 2, dim, "none", layer),
    ]


def mimo_attention_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """MiMo-V2: sliding layers have query heads of their own number."""
    slides = isinstance(decoder.cache(layer), SlidingAttention)
    return attention_parts(decoder, layer, heads=whole(decoder.config, "swa_num_attention_heads") if slides else None)


def sparse_index_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """MiniMax-M3's indexer: queries split like the KV heads, one key head kept whole on every rank, a norm each.

    Source: vLLM 0.33, ``MinimaxM3QKVParallelLinearWithIndexer``; index values are switched off in every such layer.
    """
    sparse = nested(decoder.config, "sparse_attention_config")
    if sparse is None or not decoder.keeps(layer, IndexKeys):
        return []
    heads, dim = whole(sparse, "sparse_num_index_heads") or 0, whole(sparse, "sparse_index_dim") or 0
    return [
        linear("self_attn.index_q_proj", decoder.hidden, heads * dim, "kv_heads", layer, kv_heads=heads),
        linear("self_attn.index_k_proj", decoder.hidden, dim, "none", layer),
        linear("self_attn.index_norms", 2, dim, "none", layer),
    ]
