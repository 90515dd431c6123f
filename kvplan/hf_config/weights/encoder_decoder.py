"""Encoder-decoders: Whisper, BART, T5. The decoder has attention to itself and to the encoder's output."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvplan.hf_config.weights.decoder import linear
from kvplan.hf_config.weights.keys import Config, whole
from kvplan.model import WeightPart


@dataclass(frozen=True, kw_only=True)
class _Habits:
    """``biased``: matrices have biases and norms have them too. ``positions``: tables of learned positions, and rows
    beyond the stated length. ``projected_audio``: the encoder starts with two convolutions over mel bands."""

    biased: bool = True
    position_rows: int | None = 0
    tied: bool = True
    projected_audio: bool = False


_HABITS: Mapping[str, _Habits] = {
    "whisper": _Habits(projected_audio=True),
    "bart": _Habits(position_rows=2),
    "mbart": _Habits(position_rows=2),
    "t5": _Habits(biased=False, position_rows=None),
}


def is_encoder_decoder(text: Config) -> bool:
    """Whether this file counts the class."""
    return text.get("model_type") in _HABITS


def encoder_decoder_parts(text: Config) -> list[WeightPart]:
    """Embedding; encoder layers of one attention, decoder layers of two, each with an MLP; positions, convolutions.

    An attention is 4 × d_model × (heads × head width), which is not d_model² for T5 (``d_kv``). Layers carry no index:
    such models are not split into pipeline stages.
    """
    habits = _HABITS[str(text["model_type"])]
    width = whole(text, "d_model") or 0
    inner = (whole(text, "d_kv") or 0) * (whole(text, "num_heads") or 0) or width
    vocabulary = whole(text, "vocab_size") or 0
    encoders = whole(text, "encoder_layers", "num_layers") or 0
    decoders = whole(text, "decoder_layers", "num_decoder_layers") or encoders
    encoder_mlp = whole(text, "encoder_ffn_dim", "d_ff") or 4 * width
    decoder_mlp = whole(text, "decoder_ffn_dim", "d_ff") or 4 * width
    if not width or not encoders or not vocabulary:
        return []
    matrices = 3 if str(text.get("feed_forward_proj", "")).startswith("gated") else 2
    parts = [linear("embed_tokens", vocabulary, width, "vocabulary")]
    if text.get("tie_word_embeddings") is False or not habits.tied:
        parts.append(linear("lm_head", vocabulary, width, "vocabulary"))
    for name, layers, attentions, mlp in (("encoder", encoders, 1, encoder_mlp), ("decoder", decoders, 2, decoder_mlp)):
        parts.append(linear(f"{name}.attention", layers * attentions * 4 * width, inner, "heads"))
        parts.append(linear(f"{name}.mlp", layers * matrices * width, mlp, "columns"))
        vectors = (2 if habits.biased else 1) * ((attentions + 1) * layers + 1)
        if habits.biased:
            parts.append(linear(f"{name}.bias", layers, attentions * 3 * inner + mlp, "columns"))
            vectors += layers * (attentions + 1)
        parts.append(linear(f"{name}.vectors", vectors, width, "none"))
    return parts + _input_parts(text, habits, width)


def _input_parts(text: Config, habits: _Habits, width: int) -> list[WeightPart]:
    """Learned positions of both halves, and what comes before the encoder."""
    if habits.position_rows is None:
        heads, buckets = whole(text, "num_heads") or 0, whole(text, "relative_attention_num_buckets") or 32
        return [linear("relative_positions", 2 * buckets, heads, "heads")]
    sources = whole(text, "max_source_positions", "max_position_embeddings") or 0
    targets = whole(text, "max_target_positions", "max_position_embeddings") or 0
    parts = [linear("positions", sources + targets + 2 * habits.position_rows, width, "none")]
    if habits.projected_audio:
        mel = whole(text, "num_mel_bins") or 80
        parts.append(linear("convolutions", 3 * mel + 1 + 3 * width + 1, width, "none"))
    else:
        parts.append(linear("embedding_norms", 4, width, "none"))
    return parts
