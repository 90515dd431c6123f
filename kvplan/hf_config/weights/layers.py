"""What one decoder layer is made of: its mixer, told from what the layer keeps, its feed-forward half and its norms."""

from collections.abc import Callable, Collection, Mapping

from kvplan.hf_config.weights.attention import (
    attention_parts,
    latent_attention_parts,
    mimo_attention_parts,
    sparse_index_parts,
)
from kvplan.hf_config.weights.decoder import Decoder, linear
from kvplan.hf_config.weights.deepseek_v4 import deepseek_v4_layer_parts, is_deepseek_v4
from kvplan.hf_config.weights.keys import whole
from kvplan.hf_config.weights.mlp import dense_parts, is_mixture, mixture_parts
from kvplan.hf_config.weights.recurrent import (
    gated_delta_parts,
    kda_parts,
    lightning_parts,
    mamba1_parts,
    mamba2_parts,
    rg_lru_parts,
    short_convolution_parts,
)
from kvplan.hf_config.weights.varying import (
    block_parts,
    gemma4_layer_parts,
    is_block_configured,
    is_gemma4,
    laguna_attention_parts,
    mllama_layer_parts,
    openelm_layer_parts,
    phi4flash_layer_parts,
    step_attention_parts,
    zamba2_layer_parts,
)
from kvplan.layers import (
    GatedDeltaState,
    HeadLayer,
    KdaState,
    LatentAttention,
    Layer,
    LightningState,
    Mamba1State,
    Mamba2State,
    RgLruState,
    SharedKv,
    ShortConvState,
)
from kvplan.model import WeightPart

LayerParts = Callable[[Decoder, int], list[WeightPart]]
Kinds = Collection[type[Layer]]
"""The kinds of what one layer keeps, which tell its mixer."""

_STATES: Mapping[type[Layer], LayerParts] = {
    Mamba1State: mamba1_parts,
    Mamba2State: mamba2_parts,
    GatedDeltaState: gated_delta_parts,
    KdaState: kda_parts,
    LightningState: lightning_parts,
    ShortConvState: short_convolution_parts,
    RgLruState: rg_lru_parts,
}

_WHOLE_LAYERS: Mapping[str, LayerParts] = {
    "mllama_text_model": mllama_layer_parts,
    "openelm": openelm_layer_parts,
    "phi4flash": phi4flash_layer_parts,
    "zamba2": zamba2_layer_parts,
}
"""Families whose layers are like no others, but for their norms."""

_ATTENTION: Mapping[str, LayerParts] = {
    "afmoe": laguna_attention_parts,
    "laguna": laguna_attention_parts,
    "mimo_v2": mimo_attention_parts,
    "mimo_v2_flash": mimo_attention_parts,
    "step3p5": step_attention_parts,
    "step3p5_text": step_attention_parts,
    "step3p7": step_attention_parts,
}
"""Model types whose attention has gates, or query heads of their own number in some layers."""


def kinds_of(decoder: Decoder, layer: int) -> Kinds:
    """The kinds of what ``layer`` keeps, in order."""
    return [type(kept) for kept in decoder.stack[layer]]


def layer_parts(decoder: Decoder, layer: int, kinds: Kinds, half: str | None = None) -> list[WeightPart]:
    """One decoder layer that keeps ``kinds``; ``half`` names it where mixers and MLPs are layers of their own."""
    if is_gemma4(decoder):
        parts = gemma4_layer_parts(decoder, layer)
    elif is_deepseek_v4(decoder):
        parts = deepseek_v4_layer_parts(decoder, layer)
    elif is_block_configured(decoder):
        parts = block_parts(decoder, layer)
    elif decoder.family in _WHOLE_LAYERS:
        parts = _WHOLE_LAYERS[decoder.family](decoder, layer)
    else:
        parts = _mixer(decoder, layer, kinds) + _feed_forward(decoder, layer, half)
    norms = decoder.traits.layer_norms * decoder.traits.norm_vectors
    if norms:
        parts.append(linear("norms", norms, decoder.hidden, "none", layer))
    return parts


def lacks_width(decoder: Decoder) -> bool:
    """Whether a layer has a dense MLP whose width the config does not say."""
    if decoder.intermediate is not None or is_block_configured(decoder) or decoder.family in _WHOLE_LAYERS:
        return False
    return any(
        set(kinds_of(decoder, layer)) - {Mamba1State, Mamba2State} and not is_mixture(decoder, layer)
        for layer in range(len(decoder.stack))
    )


def _mixer(decoder: Decoder, layer: int, kinds: Kinds) -> list[WeightPart]:
    """The token-mixing half: attention once, however many caches it keeps, and each recurrent state's mixer."""
    parts = []
    if any(issubclass(kind, (HeadLayer, LatentAttention, SharedKv)) for kind in kinds):
        parts += _attention(decoder, layer)
    for kind in kinds:
        if kind in _STATES:
            parts += _STATES[kind](decoder, layer)
    return parts


def _attention(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Latent attention where the config has a latent rank, else plain attention with what some classes add to it."""
    if whole(decoder.config, "kv_lora_rank") is not None:
        return latent_attention_parts(decoder, layer)
    if decoder.model_type in _ATTENTION:
        return _ATTENTION[decoder.model_type](decoder, layer)
    gated = bool(decoder.config.get("attn_output_gate", decoder.traits.output_gate))
    parts = attention_parts(decoder, layer, query_factor=2 if gated else 1)
    return parts + sparse_index_parts(decoder, layer)


def _feed_forward(decoder: Decoder, layer: int, half: str | None) -> list[WeightPart]:
    """The feed-forward half; nothing for a layer that is a mixer alone."""
    if half not in (None, "mlp", "moe"):
        return []
    if half == "moe" or (half is None and is_mixture(decoder, layer)):
        return mixture_parts(decoder, layer)
    width = whole(decoder.config, "intermediate_size_mlp", "dense_intermediate_size") or decoder.intermediate
    if width is None or decoder.model_type in {"mamba", "mamba2", "falcon_mamba"}:
        return []
    return dense_parts(decoder, layer, width)
