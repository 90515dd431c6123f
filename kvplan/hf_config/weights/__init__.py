"""Config to weights: parameters by how tensor parallelism splits them, and the type each part is stored in."""

from collections.abc import Iterable

from kvplan.hf_config.config import LayerStack, ModelConfig
from kvplan.hf_config.weights.decoder import Decoder, read_decoder, states_tying
from kvplan.hf_config.weights.deepseek_v4 import deepseek_v4_outer_parts, is_deepseek_v4
from kvplan.hf_config.weights.encoders import encoder_decoder_parts, is_encoder_decoder
from kvplan.hf_config.weights.heterogeneous import gemma4_outer_parts, is_gemma4
from kvplan.hf_config.weights.layers import MTP_PREFIX, kinds_of, lacks_width, layer_parts, mtp_parts
from kvplan.hf_config.weights.parts import Config, linear, whole
from kvplan.hf_config.weights.quantization import quantize
from kvplan.hf_config.weights.vision import encoder_parts
from kvplan.model import WeightPart, Weights

_MLLAMA_TOKENS = 8
"""Rows that Llama 3.2 Vision's embedding has beyond the vocabulary, and its head has not."""


def read_weights(
    model: ModelConfig,
    stack: LayerStack,
    *,
    quantization: Config | None = None,
    parameters: int | None = None,
    stored_bytes: int | None = None,
) -> Weights:
    """The weights of a model that keeps ``stack``: published totals as given, and parts where they can be counted.

    Parts are returned only where they can be trusted: for a known class whose widths are all stated and whose sum does
    not fall short of the published total, or for any class whose sum meets that total within one per cent.
    """
    config, text = model.outer.values, model.text.values
    if is_encoder_decoder(text) and quantization is None:
        return Weights(parameters=parameters, stored_bytes=stored_bytes, parts=tuple(encoder_decoder_parts(text)))
    decoder = read_decoder(model, stack)
    parts: tuple[WeightPart, ...] = ()
    if decoder is not None:
        parts = (*_decoder_parts(decoder), *encoder_parts(config, decoder.hidden))
        parts = _without(parts, parameters, MTP_PREFIX)
        if quantization is None and not states_tying(config, text):
            parts = _without(parts, parameters, "lm_head")
        sure = (
            (decoder.recognised or is_deepseek_v4(decoder))
            and not lacks_width(decoder)
            and not _falls_short(decoder, parts, parameters, quantization)
        )
        if not sure and not _confirmed(parts, parameters):
            parts = ()
    method = None
    if quantization is not None:
        expert_dtype = text.get("expert_dtype") or quantization.get("expert_dtype")
        parts, method = quantize(parts, quantization, expert_dtype=expert_dtype)
    return Weights(parameters=parameters, stored_bytes=stored_bytes, parts=parts, quantization=method)


def _falls_short(
    decoder: Decoder, parts: tuple[WeightPart, ...], parameters: int | None, quantization: Config | None
) -> bool:
    """Whether the published total exceeds the parts by a quarter, even with a stored copy of the embedding: then the
    model has something that its config does not state."""
    if not parameters or quantization is not None:
        return False
    counted = sum(part.parameters for part in parts) + decoder.vocabulary * decoder.hidden
    return counted * 5 < parameters * 4


def _without(parts: tuple[WeightPart, ...], parameters: int | None, prefix: str) -> tuple[WeightPart, ...]:
    """The parts without those that begin with ``prefix``, if the published total is met only without them.

    That settles what no key states: whether the head is tied to the embedding, and whether MTP layers are stored.
    """
    rest = tuple(part for part in parts if not part.name.startswith(prefix))
    return rest if not _confirmed(parts, parameters) and _confirmed(rest, parameters) else parts


def _confirmed(parts: Iterable[WeightPart], parameters: int | None) -> bool:
    """Whether the parts add up to the published total within one per cent."""
    if not parameters:
        return False
    return abs(sum(part.parameters for part in parts) - parameters) * 100 <= parameters


def _decoder_parts(decoder: Decoder) -> list[WeightPart]:
    """Embedding, layers, last norm, head and MTP layers."""
    parts = _ends(decoder)
    if is_gemma4(decoder):
        parts += gemma4_outer_parts(decoder)
    if is_deepseek_v4(decoder):
        parts += deepseek_v4_outer_parts(decoder)
    for layer in range(len(decoder.stack)):
        half = decoder.halves[layer] if decoder.halves else None
        parts += layer_parts(decoder, layer, kinds_of(decoder, layer), half)
    return parts + mtp_parts(decoder)


def _ends(decoder: Decoder) -> list[WeightPart]:
    """The embedding, the last norm and the head, which is absent where tied and has fewer rows in EAGLE-3 drafts."""
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
