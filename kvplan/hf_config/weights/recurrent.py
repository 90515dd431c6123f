"""Parameters of recurrent mixers: Mamba 1 and 2, gated delta net, KDA, lightning attention, short convolution, RG-LRU.

Sources: vLLM 0.33, ``layers/mamba/``; every mixer is split by its heads or inner channels.
"""

from kvplan.hf_config.weights.decoder import Decoder, linear
from kvplan.hf_config.weights.keys import nested, switch, whole
from kvplan.layers import FLOAT32
from kvplan.model import WeightPart


def _float32(name: str, parameters: int, layer: int) -> WeightPart:
    """A vector that stays float32 whatever the model's type (decay rates)."""
    return WeightPart(name=name, parameters=parameters, split="columns", layer=layer, stored=FLOAT32)


def mamba1_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """In = hidden × 2 inner; conv = inner × (kernel + 1); x = inner × (rank + 2 state); dt = (rank + 1) × inner;
    A = inner × state and D = inner, float32; out = inner × hidden. The rank of dt is hidden / 16 where not stated."""
    config, hidden = decoder.config, decoder.hidden
    expand = whole(config, "expand", "mamba_expand") or 2
    inner = (decoder.intermediate if decoder.model_type in {"mamba", "falcon_mamba"} else None) or expand * hidden
    state = whole(config, "state_size", "mamba_d_state") or 16
    kernel = whole(config, "conv_kernel", "mamba_d_conv") or 4
    rank = whole(config, "time_step_rank", "mamba_dt_rank") or -(-hidden // 16)
    parts = [
        linear("mixer.in_proj", hidden, 2 * inner, "columns", layer),
        linear("mixer.conv", inner, kernel + 1, "columns", layer),
        linear("mixer.x_proj", inner, rank + 2 * state, "columns", layer),
        linear("mixer.dt_proj", rank + 1, inner, "columns", layer),
        _float32("mixer.a", inner * (state + 1), layer),
        linear("mixer.out_proj", inner, hidden, "columns", layer),
    ]
    if decoder.model_type == "jamba":
        parts.append(linear("mixer.norms", 1, rank + 2 * state, "none", layer))
    return parts


def mamba2_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """In = hidden × (2 inner + heads) and conv, split by heads; the B and C groups of 2 × groups × state channels are
    split, or kept whole on every rank where there is one; out = inner × hidden; gated norm of inner."""
    config, hidden = decoder.config, decoder.hidden
    heads = whole(config, "mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads") or 0
    head_dim = whole(config, "mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim") or 64
    inner = whole(config, "mamba_d_ssm") or heads * head_dim
    if not inner:
        inner = (whole(config, "mamba_expand", "expand") or 2) * hidden
    heads = heads or inner // head_dim
    state = whole(config, "ssm_state_size", "mamba_d_state", "state_size") or 0
    groups = whole(config, "n_groups", "mamba_n_groups", "mamba_ngroups") or 1
    kernel = whole(config, "conv_kernel", "mamba_d_conv", "conv_dimension") or 4
    kernel += 1 if switch(config, "mamba_conv_bias", default=switch(config, "use_conv_bias", default=True)) else 0
    channels = 2 * groups * state
    return [
        linear("mixer.in_proj", hidden, 2 * inner + heads, "columns", layer),
        linear("mixer.in_groups_proj", hidden, channels, "kv_heads", layer, kv_heads=groups),
        linear("mixer.conv", inner, kernel, "columns", layer),
        linear("mixer.conv_groups", channels, kernel, "kv_heads", layer, kv_heads=groups),
        _float32("mixer.a", heads, layer),
        linear("mixer.vectors", 1, 2 * heads + inner, "columns", layer),
        linear("mixer.out_proj", inner, hidden, "columns", layer),
    ]


def gated_delta_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """In = hidden × (2 keys + 2 values + 2 value heads), conv over 2 keys + values, out = values × hidden; keys are
    key heads × key dim, values are value heads × value dim; a norm of one value dim on every rank."""
    config, hidden = decoder.config, decoder.hidden
    keys = (whole(config, "linear_num_key_heads") or 0) * (whole(config, "linear_key_head_dim") or 0)
    value_heads, value_dim = whole(config, "linear_num_value_heads") or 0, whole(config, "linear_value_head_dim") or 0
    values = value_heads * value_dim
    kernel = whole(config, "linear_conv_kernel_dim") or 4
    return [
        linear("linear_attn.in_proj", hidden, 2 * keys + 2 * values, "columns", layer),
        linear("linear_attn.in_gates", hidden, 2 * value_heads, "columns", layer),
        linear("linear_attn.conv", 2 * keys + values, kernel, "columns", layer),
        _float32("linear_attn.a", value_heads, layer),
        linear("linear_attn.dt_bias", 1, value_heads, "columns", layer),
        linear("linear_attn.norm", 1, value_dim, "none", layer),
        linear("linear_attn.out_proj", values, hidden, "columns", layer),
    ]


def kda_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Q, K, V, O of hidden × heads × dim each with a convolution on the first three; two low-rank gates
    (hidden × dim on every rank, dim × heads × dim split); one write strength per head."""
    config, flat = nested(decoder.config, "linear_attn_config") or {}, decoder.config  # flat: transformers 5
    heads = whole(config, "num_heads") or whole(flat, "linear_num_heads") or 0
    dim = whole(config, "head_dim") or whole(flat, "linear_head_dim") or 0
    kernel = whole(config, "short_conv_kernel_size") or whole(flat, "linear_conv_kernel_dim") or 4
    hidden, width = decoder.hidden, heads * dim
    return [
        linear("self_attn.qkv_proj", hidden, 3 * width, "columns", layer),
        linear("self_attn.conv", 3 * width, kernel, "columns", layer),
        linear("self_attn.gates_a_proj", hidden, 2 * dim, "none", layer),
        linear("self_attn.gates_b_proj", dim, 2 * width, "columns", layer),
        linear("self_attn.b_proj", hidden, heads, "columns", layer),
        _float32("self_attn.a", heads + width, layer),
        linear("self_attn.norm", 1, dim, "none", layer),
        linear("self_attn.o_proj", width, hidden, "columns", layer),
    ]


def lightning_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Q, K, V, output gate and O of hidden × heads × head_dim each, and a norm of that width (MiniMax-Text-01)."""
    width = decoder.heads * decoder.head_dim
    return [
        linear("self_attn.qkv_proj", decoder.hidden, 3 * width, "columns", layer),
        linear("self_attn.gate_proj", decoder.hidden, width, "columns", layer),
        linear("self_attn.o_proj", width, decoder.hidden, "columns", layer),
        linear("self_attn.norm", 1, width, "columns", layer),
    ]


def short_convolution_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """In = hidden × 3 channels, conv = channels × kernel, out = channels × hidden (LFM2)."""
    channels = decoder.hidden
    kernel = whole(decoder.config, "conv_L_cache") or 3
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
    width = whole(decoder.config, "lru_width") or decoder.hidden
    kernel = whole(decoder.config, "conv1d_width") or 4
    return [
        linear("temporal.in_proj", decoder.hidden + 1, 2 * width, "columns", layer),
        linear("temporal.conv", width, kernel + 1, "columns", layer),
        linear("temporal.gates", width, 2 * (width // max(1, decoder.heads)) + 3, "columns", layer),
        linear("temporal.out_proj", width + 1, decoder.hidden, "columns", layer),
    ]
