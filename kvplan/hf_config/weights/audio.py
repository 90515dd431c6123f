"""Parameters of audio encoders and their projectors. Source: vLLM 0.33."""

from dataclasses import replace

from kvplan.hf_config.weights.decoder import linear
from kvplan.hf_config.weights.encoder_blocks import blocks, widths
from kvplan.hf_config.weights.keys import Config, whole
from kvplan.model import WeightPart


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
