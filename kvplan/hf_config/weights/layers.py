"""What one decoder layer is made of: its mixer, told from what the layer keeps, its feed-forward half and its norms.

Also the MTP (multi-token prediction) layers: stored in the checkpoint, loaded only when used for speculation.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from kvplan.hf_config.heterogeneous import NEMOTRON_LETTERS
from kvplan.hf_config.readers import MTP_COUNT_NAMES, MTP_UNSTATED
from kvplan.hf_config.weights import heterogeneous, mixers
from kvplan.hf_config.weights.decoder import Decoder
from kvplan.hf_config.weights.deepseek_v4 import deepseek_v4_layer_parts, is_deepseek_v4
from kvplan.hf_config.weights.mlp import dense_parts, is_mixture, mixture_parts
from kvplan.hf_config.weights.parts import linear, whole
from kvplan.layers import (
    FullAttention,
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
"""The kinds of caches that one layer keeps, which tell its mixer."""

_STATES: Mapping[type[Layer], LayerParts] = {
    Mamba1State: mixers.mamba1_parts,
    Mamba2State: mixers.mamba2_parts,
    GatedDeltaState: mixers.gated_delta_parts,
    KdaState: mixers.kda_parts,
    LightningState: mixers.lightning_parts,
    ShortConvState: mixers.short_convolution_parts,
    RgLruState: mixers.rg_lru_parts,
}

_WHOLE_LAYERS: Mapping[str, LayerParts] = {
    "mllama_text_model": heterogeneous.mllama_layer_parts,
    "openelm": heterogeneous.openelm_layer_parts,
    "phi4flash": heterogeneous.phi4flash_layer_parts,
    "zamba2": heterogeneous.zamba2_layer_parts,
}
"""Families whose layers are like no others, except for their norms."""

_ATTENTION: Mapping[str, LayerParts] = {
    "afmoe": heterogeneous.laguna_attention_parts,
    "laguna": heterogeneous.laguna_attention_parts,
    "mimo_v2": mixers.mimo_attention_parts,
    "mimo_v2_flash": mixers.mimo_attention_parts,
    "step3p5": heterogeneous.step_attention_parts,
    "step3p5_text": heterogeneous.step_attention_parts,
    "step3p7": heterogeneous.step_attention_parts,
}
"""Model types whose attention has gates, or another number of query heads in some layers."""


def kinds_of(decoder: Decoder, layer: int) -> Kinds:
    """The kinds of caches that ``layer`` keeps, in order."""
    return [type(kept) for kept in decoder.stack[layer]]


def layer_parts(decoder: Decoder, layer: int, kinds: Kinds, half: str | None = None) -> list[WeightPart]:
    """One decoder layer that keeps ``kinds``; ``half`` names its kind where mixers and MLPs are separate layers."""
    if heterogeneous.is_gemma4(decoder):
        parts = heterogeneous.gemma4_layer_parts(decoder, layer)
    elif is_deepseek_v4(decoder):
        parts = deepseek_v4_layer_parts(decoder, layer)
    elif heterogeneous.is_block_configured(decoder):
        parts = heterogeneous.block_parts(decoder, layer)
    elif decoder.family in _WHOLE_LAYERS:
        parts = _WHOLE_LAYERS[decoder.family](decoder, layer)
    else:
        parts = _mixer(decoder, layer, kinds) + _feed_forward(decoder, layer, half)
    norms = decoder.traits.layer_norms * decoder.traits.norm_vectors
    if norms:
        parts.append(linear("norms", norms, decoder.hidden, "none", layer))
    return parts


def lacks_width(decoder: Decoder) -> bool:
    """Whether a layer has a dense MLP whose width the config does not state."""
    if (
        decoder.intermediate is not None
        or heterogeneous.is_block_configured(decoder)
        or decoder.family in _WHOLE_LAYERS
    ):
        return False
    return any(
        set(kinds_of(decoder, layer)) - {Mamba1State, Mamba2State} and not is_mixture(decoder, layer)
        for layer in range(len(decoder.stack))
    )


def _mixer(decoder: Decoder, layer: int, kinds: Kinds) -> list[WeightPart]:
    """The token mixer: attention once, however many caches it keeps, and the mixer of each recurrent state."""
    parts = []
    if any(issubclass(kind, (HeadLayer, LatentAttention, SharedKv)) for kind in kinds):
        parts += _attention(decoder, layer)
    for kind in kinds:
        if kind in _STATES:
            parts += _STATES[kind](decoder, layer)
    return parts


def _attention(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Latent attention where the config has a latent rank, else plain attention with what some classes add."""
    if whole(decoder.config, "kv_lora_rank") is not None:
        return mixers.latent_attention_parts(decoder, layer)
    if decoder.model_type in _ATTENTION:
        return _ATTENTION[decoder.model_type](decoder, layer)
    gated = bool(decoder.config.get("attn_output_gate", decoder.traits.output_gate))
    parts = mixers.attention_parts(decoder, layer, query_factor=2 if gated else 1)
    return parts + mixers.sparse_index_parts(decoder, layer)


def _feed_forward(decoder: Decoder, layer: int, half: str | None) -> list[WeightPart]:
    """The feed-forward half; nothing for a layer that is only a mixer."""
    if half not in (None, "mlp", "moe"):
        return []
    if half == "moe" or (half is None and is_mixture(decoder, layer)):
        return mixture_parts(decoder, layer)
    width = whole(decoder.config, "intermediate_size_mlp", "dense_intermediate_size") or decoder.intermediate
    if width is None or decoder.model_type in {"mamba", "mamba2", "falcon_mamba"}:
        return []
    return dense_parts(decoder, layer, width)


MTP_PREFIX = "mtp."
_MTP_OWN_EMBEDDINGS = frozenset({"deepseek_v3", "deepseek_v32", "glm4_moe_lite", "kimi_k2"})
"""Model types whose checkpoints store the embedding and the head a second time with the MTP layer."""


def mtp_parts(decoder: Decoder) -> list[WeightPart]:
    """Each MTP layer: a matrix of 2 × hidden × hidden that joins the last hidden state with the token, two norms, a
    decoder layer with attention (or Nemotron-H's own pattern of layers), and a norm.

    Sources: vLLM 0.33, ``deepseek_mtp.py``, ``qwen3_5_mtp.py``.
    """
    count = whole(decoder.config, *MTP_COUNT_NAMES)
    if count is None and decoder.model_type in MTP_UNSTATED:
        count = 1
    if not count:
        return []
    pattern = decoder.config.get("mtp_hybrid_override_pattern")
    halves = [NEMOTRON_LETTERS.get(letter) for letter in pattern] if isinstance(pattern, str) else [None]
    own = []
    for half in halves:
        kinds = [FullAttention] if half in (None, "full_attention") else []
        own += layer_parts(decoder, decoder.layers, kinds, half)
    own.append(linear("join", 2 * decoder.hidden, decoder.hidden, "none"))
    own.append(linear("norms", 3, decoder.hidden, "none"))
    if decoder.model_type in _MTP_OWN_EMBEDDINGS:
        own.append(linear("embed_tokens", 2 * decoder.vocabulary, decoder.hidden, "vocabulary"))
    if decoder.model_type.startswith("step3p"):  # a head per MTP layer (vLLM 0.33, ``Step3p5MTP``)
        own.append(linear("lm_head", decoder.vocabulary, decoder.hidden, "vocabulary"))
    return [replace(part, name=MTP_PREFIX + part.name, parameters=count * part.parameters, layer=None) for part in own]
