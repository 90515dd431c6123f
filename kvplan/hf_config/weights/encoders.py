"""Parameters of encoders: the blocks that image and audio towers share, audio towers, and encoder-decoder models.

Source: vLLM 0.33. Vision towers are in ``vision``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvplan.hf_config.weights.parts import Config, linear, whole
from kvplan.model import WeightPart


def blocks(
    depth: int,
    hidden: int,
    intermediate: int,
    *,
    gated: bool = False,
    attention_bias: bool = True,
    mlp_bias: bool = True,
    norm_vectors: int = 4,
    split: str = "columns",
    name: str = "vision",
) -> list[WeightPart]:
    """Encoder layers: 4 × hidden² attention and an MLP, split by heads and columns; output biases and norms copied."""
    matrices = 3 if gated else 2
    parts = [
        linear(f"{name}.attention", depth * 4 * hidden, hidden, split),
        linear(f"{name}.mlp", depth * matrices * hidden, intermediate, split),
        linear(f"{name}.norms", depth * norm_vectors, hidden, "none"),
    ]
    if attention_bias:
        parts.append(linear(f"{name}.attention_bias", depth * 3, hidden, split))
        parts.append(linear(f"{name}.attention_out_bias", depth, hidden, "none"))
    if mlp_bias:
        parts.append(linear(f"{name}.mlp_bias", depth * (matrices - 1), intermediate, split))
        parts.append(linear(f"{name}.mlp_out_bias", depth, hidden, "none"))
    return parts


def widths(vision: Config, *, hidden: int = 1152, layers: int = 27, intermediate: int = 4304) -> tuple[int, int, int]:
    """Hidden width, layers and MLP width, with the class's own values where the config has none."""
    width = whole(vision, "hidden_size", "d_model", "embed_dim") or hidden
    return (
        width,
        whole(vision, "num_hidden_layers", "depth", "encoder_layers") or layers,
        whole(vision, "intermediate_size", "encoder_ffn_dim") or intermediate,
    )


def patches(vision: Config, hidden: int, *, temporal: int = 1, patch: int = 14, bias: bool = True) -> WeightPart:
    """The convolution from a patch of three colours, over ``temporal`` frames, to a vector."""
    side = whole(vision, "patch_size") or patch
    return linear("vision.patches", 3 * temporal * side * side + int(bias), hidden, "none")


def positions(vision: Config, hidden: int, *, image: int, extra: int = 0) -> WeightPart:
    """A learned position for every patch of the largest image, and ``extra`` vectors such as a class token."""
    side = (whole(vision, "image_size") or image) // (whole(vision, "patch_size") or 14)
    return linear("vision.positions", side * side + extra, hidden, "none")


def audio_parts(audio: Config, text_hidden: int) -> list[WeightPart]:
    """Whisper's encoder (Qwen2-Audio, Voxtral), or Qwen3's with its three strided convolutions."""
    hidden, depth, intermediate = widths(audio, hidden=1280, layers=32, intermediate=5120)
    mel = whole(audio, "num_mel_bins") or 128
    family = str(audio.get("model_type") or "")
    qwen3 = family.startswith(("qwen3_asr", "qwen3_omni"))
    heads = whole(audio, "encoder_attention_heads")
    layers = blocks(depth, hidden, intermediate, name="audio", split="columns" if qwen3 else "none")
    parts = [
        *(replace(part, kv_heads=heads) if part.split == "columns" else part for part in layers),
        linear("audio.norm", 2, hidden, "none"),
    ]
    if qwen3:
        channels = whole(audio, "downsample_hidden_size") or 480
        outputs = whole(audio, "output_dim") or 3584
        bands = (mel + 7) // 8
        parts += [
            linear("audio.convolutions", 9 + 1 + 2 * (9 * channels + 1), channels, "none"),
            linear("audio.convolution_out", channels * bands, hidden, "none"),
            linear("audio.projector", hidden + 1, hidden + outputs, "none"),
        ]
        return parts
    merge = 4 if family == "voxtral_encoder" else 1
    return [
        *parts,
        linear("audio.convolutions", 3 * (mel + hidden) + 2, hidden, "none"),
        linear("audio.positions", whole(audio, "max_source_positions") or 1500, hidden, "none"),
        linear("audio.projector", merge * hidden + (1 if merge == 1 else text_hidden), text_hidden, "none"),
    ]


@dataclass(frozen=True, kw_only=True)
class _Seq2SeqTraits:
    """``biased``: matrices and norms have biases. ``position_rows``: rows of the learned position tables beyond the
    stated length; None where positions are relative. ``has_audio``: the encoder starts with two convolutions over mel
    bands."""

    biased: bool = True
    position_rows: int | None = 0
    has_audio: bool = False


_SEQ2SEQ_TRAITS: Mapping[str, _Seq2SeqTraits] = {
    "whisper": _Seq2SeqTraits(has_audio=True),
    "bart": _Seq2SeqTraits(position_rows=2),
    "mbart": _Seq2SeqTraits(position_rows=2),
    "t5": _Seq2SeqTraits(biased=False, position_rows=None),
}


def is_encoder_decoder(text: Config) -> bool:
    """Whether ``encoder_decoder_parts`` counts the class."""
    return text.get("model_type") in _SEQ2SEQ_TRAITS


def encoder_decoder_parts(text: Config) -> list[WeightPart]:
    """Embedding; encoder layers with one attention, decoder layers with two, each with an MLP; positions, convolutions.

    An attention is 4 × d_model × (heads × head width), which is not d_model² for T5 (``d_kv``). Layers carry no index,
    because such models are not split into pipeline stages.
    """
    traits = _SEQ2SEQ_TRAITS[str(text["model_type"])]
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
    if text.get("tie_word_embeddings") is False:
        parts.append(linear("lm_head", vocabulary, width, "vocabulary"))
    for name, layers, attentions, mlp in (("encoder", encoders, 1, encoder_mlp), ("decoder", decoders, 2, decoder_mlp)):
        parts.append(linear(f"{name}.attention", layers * attentions * 4 * width, inner, "heads"))
        parts.append(linear(f"{name}.mlp", layers * matrices * width, mlp, "columns"))
        vectors = (2 if traits.biased else 1) * ((attentions + 1) * layers + 1)
        if traits.biased:
            parts.append(linear(f"{name}.bias", layers, attentions * 3 * inner + mlp, "columns"))
            vectors += layers * (attentions + 1)
        parts.append(linear(f"{name}.vectors", vectors, width, "none"))
    return parts + _input_parts(text, traits, width)


def _input_parts(text: Config, traits: _Seq2SeqTraits, width: int) -> list[WeightPart]:
    """Learned positions of both halves, and what comes before the encoder."""
    if traits.position_rows is None:
        heads, buckets = whole(text, "num_heads") or 0, whole(text, "relative_attention_num_buckets") or 32
        return [linear("relative_positions", 2 * buckets, heads, "heads")]
    sources = whole(text, "max_source_positions", "max_position_embeddings") or 0
    targets = whole(text, "max_target_positions", "max_position_embeddings") or 0
    parts = [linear("positions", sources + targets + 2 * traits.position_rows, width, "none")]
    if traits.has_audio:
        mel = whole(text, "num_mel_bins") or 80
        parts.append(linear("convolutions", 3 * mel + 1 + 3 * width + 1, width, "none"))
    else:
        parts.append(linear("embedding_norms", 4, width, "none"))
    return parts
