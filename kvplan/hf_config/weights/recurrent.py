"""Parameters of recurrent mixers: Mamba 1 and 2, gated delta net, KDA, lightning attention, short convolution, RG-LRU.

Sources: vLLM 0.33, ``layers/mamba/``; every mixer is split by its heads or inner channels.
"""

from kvplan.hf_config.weights.decoder import Decoder, float32, linear
from kvplan.hf_config.weights.keys import switch, whole
from kvplan.layers import (
    GatedDeltaState,
    KdaState,
    LightningState,
    Mamba1State,
    Mamba2State,
    RgLruState,
    ShortConvState,
)
from kvplan.model import WeightPart


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
    """In = hidden × (2 inner + heads) and conv, split by heads; the B and C groups of 2 × groups × state channels are
    split, or kept whole on every rank where there is one; out = inner × hidden; gated norm of inner."""
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
    key heads × key dim, values are value heads × value dim; a norm of one value dim on every rank."""
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
    """Q, K, V, O of hidden × heads × dim each with a convolution on the first three; two low-rank gates
    (hidden × dim on every rank, dim × heads × dim split); one write strength per head."""
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
