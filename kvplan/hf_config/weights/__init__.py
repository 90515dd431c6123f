"""Config to weights: parameters by what tensor parallelism does to them, and the type each part is stored in."""

from collections.abc import Callable, Iterable, Mapping

from kvplan.hf_config.weights.attention import (
    attention_parts,
    hybrid_pattern_parts,
    latent_attention_parts,
    sparse_index_parts,
)
from kvplan.hf_config.weights.decoder import Decoder, linear, read_decoder, says_tying
from kvplan.hf_config.weights.deepseek_v4 import (
    deepseek_v4_layer_parts,
    deepseek_v4_outer_parts,
    is_deepseek_v4,
)
from kvplan.hf_config.weights.encoder_decoder import encoder_decoder_parts, is_encoder_decoder
from kvplan.hf_config.weights.encoders import encoder_parts
from kvplan.hf_config.weights.gemma import gemma4_layer_parts, gemma4_outer_parts, is_gemma4
from kvplan.hf_config.weights.keys import Config, whole
from kvplan.hf_config.weights.mixers import mixers, nemotron_pattern
from kvplan.hf_config.weights.mlp import dense_parts, is_mixture, mixture_parts
from kvplan.hf_config.weights.multi_token import multi_token_parts
from kvplan.hf_config.weights.nemotron_nas import block_parts, is_block_configured
from kvplan.hf_config.weights.quantization import quantize
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
    laguna_attention_parts,
    mllama_layer_parts,
    openelm_layer_parts,
    phi4flash_layer_parts,
    step_attention_parts,
)
from kvplan.hf_config.weights.zamba2 import zamba2_layer_parts
from kvplan.model import WeightPart, Weights

_MIXERS: Mapping[str, Callable[[Decoder, int], list[WeightPart]]] = {
    "latent": latent_attention_parts,
    "mamba1": mamba1_parts,
    "mamba2": mamba2_parts,
    "delta": gated_delta_parts,
    "kda": kda_parts,
    "lightning": lightning_parts,
    "convolution": short_convolution_parts,
    "rg_lru": rg_lru_parts,
}

_WHOLE_LAYERS: Mapping[str, Callable[[Decoder, int], list[WeightPart]]] = {
    "mllama_text_model": mllama_layer_parts,
    "openelm": openelm_layer_parts,
    "phi4flash": phi4flash_layer_parts,
    "zamba2": zamba2_layer_parts,
}
"""Classes whose layers are of their own kind, but for their norms."""

_GATED = ("qwen3_next", "qwen3_5")
"""Classes whose attention has an output gate unless their config switches it off."""

_MLLAMA_TOKENS = 8
"""Rows that Llama 3.2 Vision's embedding has beyond the vocabulary, and its head has not."""


def read_weights(
    config: Config,
    *,
    text: Config,
    quantization: Config | None = None,
    parameters: int | None = None,
    stored_bytes: int | None = None,
) -> Weights:
    """What is known of the weights: published totals as given, and parts where the architecture can be computed.

    ``text`` is the nested text config, or the config itself.
    """
    decoder = read_decoder(config, text)
    if is_encoder_decoder(text) and quantization is None:
        return Weights(parameters=parameters, stored_bytes=stored_bytes, parts=tuple(encoder_decoder_parts(text)))
    parts: tuple[WeightPart, ...] = ()
    if decoder is not None:
        parts = (*decoder_parts(decoder), *encoder_parts(config, decoder.hidden))
        if quantization is None and not says_tying(config, text):
            parts = _without_second_table(parts, parameters)
        sure = (
            (decoder.recognised or is_deepseek_v4(decoder))
            and not _lacks_width(decoder)
            and not _falls_short(decoder, parts, parameters, quantization)
        )
        if not sure and not _confirmed(parts, parameters):
            parts = ()
    method = None
    if quantization is not None:
        expert_dtype = text.get("expert_dtype") or quantization.get("expert_dtype")
        parts, method = quantize(parts, quantization, expert_dtype=expert_dtype)
    return Weights(parameters=parameters, stored_bytes=stored_bytes, parts=parts, quantization=method)


def _lacks_width(decoder: Decoder) -> bool:
    """Whether a layer has a dense MLP whose width the config does not say."""
    if decoder.intermediate is not None or is_block_configured(decoder) or decoder.model_type in _WHOLE_LAYERS:
        return False
    return any(
        kind not in {"none", "mamba1", "mamba2"} and not is_mixture(decoder, layer)
        for layer, kind in enumerate(mixers(decoder))
    )


def _falls_short(
    decoder: Decoder, parts: tuple[WeightPart, ...], parameters: int | None, quantization: Config | None
) -> bool:
    """Whether the published total is a quarter above the parts, a stored copy of the embedding allowed for: then the
    config does not say everything."""
    if not parameters or quantization is not None:
        return False
    counted = sum(part.parameters for part in parts) + decoder.vocabulary * decoder.hidden
    return counted * 5 < parameters * 4


def _without_second_table(parts: tuple[WeightPart, ...], parameters: int | None) -> tuple[WeightPart, ...]:
    """The parts without a head of their own, where no key speaks of tying and only so the published total is met."""
    rest = tuple(part for part in parts if part.name != "lm_head")
    return rest if not _confirmed(parts, parameters) and _confirmed(rest, parameters) else parts


def _confirmed(parts: Iterable[WeightPart], parameters: int | None) -> bool:
    """Whether the parts of a class that is not known add up to the published total, within one per cent."""
    if not parameters:
        return False
    return abs(sum(part.parameters for part in parts) - parameters) * 100 <= parameters


def decoder_parts(decoder: Decoder) -> list[WeightPart]:
    """Embedding, layers, last norm, head, and the layers that predict further tokens."""
    parts = _ends(decoder)
    if is_gemma4(decoder):
        parts += gemma4_outer_parts(decoder)
    if is_deepseek_v4(decoder):
        parts += deepseek_v4_outer_parts(decoder)
    kinds, pattern = mixers(decoder), nemotron_pattern(decoder)
    for layer, kind in enumerate(kinds):
        parts += layer_parts(decoder, layer, kind, letter=pattern[layer] if pattern else None)
    return parts + multi_token_parts(decoder, layer_parts)


def layer_parts(decoder: Decoder, layer: int, kind: str, letter: str | None = None) -> list[WeightPart]:
    """One decoder layer: its mixer, its feed-forward half and its norms; ``letter`` is Nemotron-H's."""
    if is_gemma4(decoder):
        parts = gemma4_layer_parts(decoder, layer)
    elif is_deepseek_v4(decoder):
        parts = deepseek_v4_layer_parts(decoder, layer)
    elif is_block_configured(decoder):
        parts = block_parts(decoder, layer)
    elif decoder.model_type in _WHOLE_LAYERS:
        parts = _WHOLE_LAYERS[decoder.model_type](decoder, layer)
    else:
        parts = _mixer(decoder, layer, kind)
        if letter is None or letter in "-E":
            parts += _feed_forward(decoder, layer, mixture=letter == "E" if letter else None)
    norms = decoder.traits.layer_norms * decoder.traits.norm_vectors
    if norms:
        parts.append(linear("norms", norms, decoder.hidden, "none", layer))
    return parts


def _ends(decoder: Decoder) -> list[WeightPart]:
    """The embedding, the last norm and the head (none of its own where tied; EAGLE-3's knows fewer tokens)."""
    traits, hidden = decoder.traits, decoder.hidden
    extra = _MLLAMA_TOKENS if decoder.model_type == "mllama_text_model" else 0
    parts = [linear("embed_tokens", decoder.vocabulary + extra, hidden, "vocabulary")]
    if not decoder.tied:
        rows = whole(decoder.config, "draft_vocab_size") or decoder.vocabulary
        parts.append(linear("lm_head", rows, hidden, "vocabulary"))
    if traits.head_bias:
        parts.append(linear("lm_head.bias", 1, decoder.vocabulary, "vocabulary"))
    if traits.position_rows is not None:
        rows = whole(decoder.config, "n_positions", "max_position_embeddings", "n_ctx") or 0
        parts.append(linear("positions", rows + traits.position_rows, hidden, "none"))
    if traits.norm_vectors:
        vectors = traits.norm_vectors * (2 if traits.embedding_norm else 1)
        parts.append(linear("final_norm", vectors, hidden, "none"))
    return parts


def _mixer(decoder: Decoder, layer: int, kind: str) -> list[WeightPart]:
    """The token-mixing half of one layer."""
    if kind == "none":
        return []
    if kind == "attention":
        return _attention(decoder, layer)
    if kind == "both":
        return _attention(decoder, layer) + mamba2_parts(decoder, layer)
    return _MIXERS[kind](decoder, layer)


def _attention(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Plain attention with what some classes add: an output gate, other widths on sliding layers."""
    if "hybrid_layer_pattern" in decoder.config or decoder.model_type == "mimo_v2_flash":
        return hybrid_pattern_parts(decoder, layer)
    if decoder.model_type in {"laguna", "afmoe"}:
        return laguna_attention_parts(decoder, layer)
    if decoder.model_type.startswith("step3p"):
        return step_attention_parts(decoder, layer)
    gated = bool(decoder.config.get("attn_output_gate", decoder.model_type.startswith(_GATED)))
    parts = attention_parts(decoder, layer, query_factor=2 if gated else 1)
    return parts + sparse_index_parts(decoder, layer)


def _feed_forward(decoder: Decoder, layer: int, *, mixture: bool | None = None) -> list[WeightPart]:
    """The feed-forward half of one layer."""
    if is_mixture(decoder, layer) if mixture is None else mixture:
        return mixture_parts(decoder, layer)
    width = whole(decoder.config, "intermediate_size_mlp", "dense_intermediate_size") or decoder.intermediate
    if width is None or decoder.model_type in {"mamba", "mamba2", "falcon_mamba"}:
        return []
    return dense_parts(decoder, layer, width)
