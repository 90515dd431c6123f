"""Parameters of token mixers: attention, latent attention with its indexer, and the recurrent mixers.

Sources: vLLM 0.33, each attention class as named and ``layers/mamba/``. Recurrent mixers are split by their heads or
inner channels.
"""

from kvplan.hf_config.weights.decoder import Decoder
from kvplan.hf_config.weights.parts import float32, linear, nested, switch, whole
from kvplan.layers import (
    GatedDeltaState,
    IndexKeys,
    KdaState,
    LightningState,
    Mamba1State,
    Mamba2State,
    RgLruState,
    ShortConvState,
    SlidingAttention,
)
from kvplan.model import WeightPart


def attention_parts(
    decoder: Decoder, layer: int, *, heads: int | None = None, query_factor: int = 1, has_kv: bool = True
) -> list[WeightPart]:
    """Q, K, V and O of one layer, with their biases and head norms.

    Q = hidden × heads × head_dim (twice that with an output gate), K and V = hidden × KV heads × width,
    O = heads × value width × hidden. Q and O are split by query heads, K and V by KV heads.
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
    """The output bias and the norms of Q and K: of head_dim for all heads, or over the width of all heads."""
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
    """MLA: down to a latent (copied), up to the heads (split), and the output.

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
    """The sparse-attention indexer, copied to every rank: queries, one key, and a weight per index head.

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
    """MiMo-V2: sliding layers have another number of query heads."""
    slides = isinstance(decoder.cache(layer), SlidingAttention)
    return attention_parts(decoder, layer, heads=whole(decoder.config, "swa_num_attention_heads") if slides else None)


def sparse_index_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """MiniMax-M3's indexer: queries split like the KV heads, one key head copied to every rank, a norm each.

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


def mamba1_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """In = hidden × 2 inner; conv = inner × (kernel + 1); x = inner × (rank + 2 state); dt = (rank + 1) × inner;
    A = inner × state and D = inner, float32; out = inner × hidden. The rank of dt is hidden / 16 where not stated."""
    kept, hidden = decoder.state(layer, Mamba1State), decoder.hidden
    inner, state = kept.inner, kept.state
    rank = whole(decoder.config, "time_step_rank", "mamba_dt_rank") or -(-hidden // 16)
    parts = [
        linear("mixer.in_proj", hidden, 2 * inner, "columns", layer),
        linear("mixer.conv", inner, kept.conv_kernel + 1, "columns", layer),
        linear("mixer.x_proj", inner, rank + 2 * state, "columns", layer),
        linear("mixer.dt_proj", rank + 1, inner, "columns", layer),
        float32("mixer.a", inner * (state + 1), layer, "columns"),
        linear("mixer.out_proj", inner, hidden, "columns", layer),
    ]
    if decoder.model_type == "jamba":
        parts.append(linear("mixer.norms", 1, rank + 2 * state, "none", layer))
    return parts


def mamba2_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """In = hidden × (2 inner + heads) and conv, split by heads; B and C of 2 × groups × state channels, split by groups
    (copied where there is one); out = inner × hidden; a gated norm of inner."""
    config, hidden = decoder.config, decoder.hidden
    kept = decoder.state(layer, Mamba2State)
    heads, inner, channels = kept.heads, kept.heads * kept.head_dim, 2 * kept.groups * kept.state
    has_bias = switch(config, "mamba_conv_bias", default=switch(config, "use_conv_bias", default=True))
    kernel = kept.conv_kernel + has_bias
    return [
        linear("mixer.in_proj", hidden, 2 * inner + heads, "columns", layer),
        linear("mixer.in_groups_proj", hidden, channels, "kv_heads", layer, kv_heads=kept.groups),
        linear("mixer.conv", inner, kernel, "columns", layer),
        linear("mixer.conv_groups", channels, kernel, "kv_heads", layer, kv_heads=kept.groups),
        float32("mixer.a", heads, layer, "columns"),
        linear("mixer.vectors", 1, 2 * heads + inner, "columns", layer),
        linear("mixer.out_proj", inner, hidden, "columns", layer),
    ]


def gated_delta_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """In = hidden × (2 keys + 2 values + 2 value heads), conv over 2 keys + values, out = values × hidden; keys are
    key heads × key dim, values are value heads × value dim; a norm of value dim, copied."""
    kept, hidden = decoder.state(layer, GatedDeltaState), decoder.hidden
    keys, values = kept.key_heads * kept.key_dim, kept.value_heads * kept.value_dim
    return [
        linear("linear_attn.in_proj", hidden, 2 * keys + 2 * values, "columns", layer),
        linear("linear_attn.in_gates", hidden, 2 * kept.value_heads, "columns", layer),
        linear("linear_attn.conv", 2 * keys + values, kept.conv_kernel, "columns", layer),
        float32("linear_attn.a", kept.value_heads, layer, "columns"),
        linear("linear_attn.dt_bias", 1, kept.value_heads, "columns", layer),
        linear("linear_attn.norm", 1, kept.value_dim, "none", layer),
        linear("linear_attn.out_proj", values, hidden, "columns", layer),
    ]


def kda_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Q, K, V, O of hidden × heads × dim each, with a convolution on the first three; two low-rank gates
    (hidden × dim copied, dim × heads × dim split); one write strength per head."""
    kept, hidden = decoder.state(layer, KdaState), decoder.hidden
    heads, dim, width = kept.heads, kept.dim, kept.heads * kept.dim
    return [
        linear("self_attn.qkv_proj", hidden, 3 * width, "columns", layer),
        linear("self_attn.conv", 3 * width, kept.conv_kernel, "columns", layer),
        linear("self_attn.gates_a_proj", hidden, 2 * dim, "none", layer),
        linear("self_attn.gates_b_proj", dim, 2 * width, "columns", layer),
        linear("self_attn.b_proj", hidden, heads, "columns", layer),
        float32("self_attn.a", heads + width, layer, "columns"),
        linear("self_attn.norm", 1, dim, "none", layer),
        linear("self_attn.o_proj", width, hidden, "columns", layer),
    ]


def lightning_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Q, K, V, output gate and O of hidden × heads × head_dim each, and a norm of that width (MiniMax-Text-01)."""
    kept = decoder.state(layer, LightningState)
    width = kept.heads * kept.head_dim
    return [
        linear("self_attn.qkv_proj", decoder.hidden, 3 * width, "columns", layer),
        linear("self_attn.gate_proj", decoder.hidden, width, "columns", layer),
        linear("self_attn.o_proj", width, decoder.hidden, "columns", layer),
        linear("self_attn.norm", 1, width, "columns", layer),
    ]


def short_convolution_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """In = hidden × 3 channels, conv = channels × kernel, out = channels × hidden (LFM2)."""
    kept = decoder.state(layer, ShortConvState)
    channels, kernel = kept.channels, kept.conv_kernel
    bias = switch(decoder.config, "conv_bias", default=False)
    parts = [
        linear("conv.in_proj", decoder.hidden, 3 * channels, "columns", layer),
        linear("conv.conv", channels, kernel, "columns", layer),
        linear("conv.out_proj", channels, decoder.hidden, "columns", layer),
    ]
    if bias:
        parts.append(linear("conv.bias", 5, channels, "columns", layer))
    return parts


def rg_lru_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """x, y and out of hidden × width with biases, conv = width × (kernel + 1), and two block-diagonal gates of
    width × width / heads with biases (RecurrentGemma)."""
    kept = decoder.state(layer, RgLruState)
    width, kernel = kept.width, kept.conv_kernel
    return [
        linear("temporal.in_proj", decoder.hidden + 1, 2 * width, "columns", layer),
        linear("temporal.conv", width, kernel + 1, "columns", layer),
        linear("temporal.gates", width, 2 * (width // max(1, decoder.heads)) + 3, "columns", layer),
        linear("temporal.out_proj", width + 1, decoder.hidden, "columns", layer),
    ]
