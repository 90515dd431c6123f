"""Parameters of attention: query, key, value and output matrices, or MLA's latent ones with their indexer."""

from kvplan.hf_config.weights.decoder import Decoder, linear
from kvplan.hf_config.weights.keys import nested, numbers, whole, words
from kvplan.model import WeightPart


def attention_parts(
    decoder: Decoder,
    layer: int,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    query_factor: int = 1,
    has_kv: bool = True,
    has_value: bool = True,
    inputs: int | None = None,
) -> list[WeightPart]:
    """Q, K, V and O of one layer.

    Q = hidden × heads × head_dim (twice that with an output gate), K and V = hidden × KV heads × width,
    O = heads × value width × hidden. Q, O follow the query heads, K and V the KV heads.
    """
    heads = decoder.heads if heads is None else heads
    kv_heads = decoder.kv_heads if kv_heads is None else kv_heads
    head_dim = decoder.head_dim if head_dim is None else head_dim
    value_dim = head_dim if value_dim is None else value_dim
    inputs = decoder.hidden if inputs is None else inputs
    parts = [
        linear("self_attn.q_proj", inputs, heads * head_dim * query_factor, "heads", layer),
        linear("self_attn.o_proj", heads * value_dim, decoder.hidden, "heads", layer),
    ]
    kv_width = head_dim + (value_dim if has_value else 0)
    if has_kv:
        parts.append(
            linear("self_attn.kv_proj", inputs, kv_heads * kv_width, "kv_heads", layer, kv_heads=kv_heads),
        )
    vectors = decoder.hidden if decoder.out_bias else 0
    if decoder.qkv_bias:
        parts.append(linear("self_attn.q_bias", 1, heads * head_dim * query_factor, "heads", layer))
        if has_kv:
            parts.append(
                linear("self_attn.kv_bias", 1, kv_heads * kv_width, "kv_heads", layer, kv_heads=kv_heads),
            )
    if decoder.traits.head_norms == "head":
        vectors += head_dim * (2 if has_kv else 1)
    elif decoder.traits.head_norms == "full":
        parts.append(linear("self_attn.q_norm", 1, heads * head_dim, "heads", layer))
        parts.append(linear("self_attn.k_norm", 1, kv_heads * head_dim, "kv_heads", layer, kv_heads=kv_heads))
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
    if has_indexer(decoder, layer):
        parts += indexer_parts(decoder, layer, query_rank or hidden)
    return parts


def has_indexer(decoder: Decoder, layer: int) -> bool:
    """Whether the layer picks tokens itself instead of using an earlier layer's choice.

    ``indexer_types`` says; else layer i does when max(i − offset + 1, 0) % freq = 0 (offset 2, freq 1 by default).
    """
    config = decoder.config
    if whole(config, "index_head_dim") is None or whole(config, "index_topk") is None:
        return False
    types = words(config, "indexer_types")
    if types is not None and layer < len(types):
        return types[layer] == "full"
    frequency = whole(config, "index_topk_freq") or 1
    offset = whole(config, "index_skip_topk_offset")
    return max(layer - (2 if offset is None else offset) + 1, 0) % frequency == 0


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


def hybrid_pattern_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Attention whose sliding layers have their own head counts and widths (MiMo-V2: ``hybrid_layer_pattern``,
    or ``layer_types`` where transformers 5 saved it)."""
    pattern = numbers(decoder.config, "hybrid_layer_pattern") or ()
    kinds = words(decoder.config, "layer_types") or ()
    slides = bool(pattern[layer]) if layer < len(pattern) else kinds[layer : layer + 1] == ("sliding_attention",)
    prefix = "swa_" if slides else ""
    config = decoder.config
    return attention_parts(
        decoder,
        layer,
        heads=whole(config, f"{prefix}num_attention_heads") or decoder.heads,
        kv_heads=whole(config, f"{prefix}num_key_value_heads") or decoder.kv_heads,
        head_dim=whole(config, f"{prefix}head_dim") or decoder.head_dim,
        value_dim=whole(config, f"{prefix}v_head_dim") or whole(config, "v_head_dim"),
    )


def sparse_index_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """MiniMax-M3's indexer: queries split like the KV heads, one key head kept whole on every rank, a norm each.

    Source: vLLM 0.33, ``MinimaxM3QKVParallelLinearWithIndexer``; index values are switched off in every such layer.
    """
    sparse = nested(decoder.config, "sparse_attention_config")
    chosen = numbers(sparse, "sparse_attention_freq") if sparse is not None else None
    if sparse is None or chosen is None or layer >= len(chosen) or not chosen[layer]:
        return []
    heads, dim = whole(sparse, "sparse_num_index_heads") or 0, whole(sparse, "sparse_index_dim") or 0
    return [
        linear("self_attn.index_q_proj", decoder.hidden, heads * dim, "kv_heads", layer, kv_heads=heads),
        linear("self_attn.index_k_proj", decoder.hidden, dim, "none", layer),
        linear("self_attn.index_norms", 2, dim, "none", layer),
    ]
