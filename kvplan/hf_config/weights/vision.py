"""Parameters of vision encoders and of the projectors that lead into the text model: one function per family.

Source: vLLM 0.33. An encoder of an unknown family is counted as a plain ViT.
"""

from collections.abc import Callable, Mapping

from kvplan.hf_config.weights.encoders import audio_parts, blocks, patches, positions, widths
from kvplan.hf_config.weights.parts import Config, linear, nested, whole
from kvplan.model import WeightPart


def encoder_parts(config: Config, text_hidden: int) -> list[WeightPart]:
    """Every vision and audio encoder that ``config`` describes; none for a text model."""
    thinker = nested(config, "thinker_config") or {}
    parts: list[WeightPart] = []
    vision = nested(config, "vision_config") or nested(thinker, "vision_config")
    if vision is None and config.get("model_type") == "llama4":
        vision = {}  # the class fills in a tower where the file has none
    if vision is not None:
        parts += _vision(config, vision, text_hidden)
    audio = nested(config, "audio_config") or nested(thinker, "audio_config")
    if audio is not None:
        parts += audio_parts(audio, text_hidden)
    return parts


def _vision(config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    family = str(vision.get("model_type") or config.get("model_type") or "")
    model = str(config.get("model_type") or "")
    for name, table in ((model, _OF_MODEL), (family, _VISION)):
        for start, parts_of in table.items():
            if name.startswith(start):
                return parts_of(config, vision, text_hidden)
    if "vt_hidden_size" in vision:
        return _moonvit(config, vision, text_hidden)
    if "depth" in vision and whole(vision, "spatial_merge_size"):
        return _qwen25(config, vision, text_hidden)
    return _plain_vit(config, vision, text_hidden)


def _plain_vit(config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """CLIP, InternViT and encoders of unknown family, with a two-layer projector."""
    hidden, depth, intermediate = widths(vision, hidden=1024, layers=24, intermediate=4096)
    merged = hidden * (4 if config.get("model_type") in _SHUFFLED else 1)
    return [
        patches(vision, hidden),
        positions(vision, hidden, image=336, extra=2),
        *blocks(depth, hidden, intermediate),
        linear("vision.projector", merged + text_hidden, text_hidden, "columns"),
    ]


def _pixtral(config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """Pixtral: gated MLP, RMS norms, no biases, no learned positions; Mistral 3 merges patches before the projector."""
    hidden, depth, intermediate = widths(vision, hidden=1024, layers=24, intermediate=4096)
    merge = whole(config, "spatial_merge_size") or 2
    merged = merge * merge * hidden + 1 if config.get("model_type") == "mistral3" else 0
    return [
        patches(vision, hidden, bias=False),
        *blocks(depth, hidden, intermediate, gated=True, attention_bias=False, mlp_bias=False, norm_vectors=2),
        linear("vision.norm", 1, hidden, "none"),
        linear("vision.merger", merged, hidden, "none"),
        linear("vision.projector", hidden + text_hidden, text_hidden, "columns"),
    ]


def _perception(config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """Step-3.7's encoder: two scales beside each layer's norms, two convolutions of stride 2, a projector."""
    hidden = whole(vision, "hidden_size", "width") or 1536
    depth = whole(vision, "num_hidden_layers", "layers") or 47
    ratio = vision.get("mlp_ratio")
    wide = int(ratio * hidden) if isinstance(ratio, int | float) else 8960
    side = (whole(vision, "image_size") or 728) // (whole(vision, "patch_size") or 14)
    downs = 9 * hidden * 2 * hidden + 2 * hidden + 9 * 2 * hidden * 4 * hidden + 4 * hidden
    return [
        patches(vision, hidden, bias=False),
        linear("vision.positions", whole(vision, "max_position_embeddings") or side * side, hidden, "none"),
        *blocks(depth, hidden, whole(vision, "intermediate_size") or wide, norm_vectors=6),
        linear("vision.norm", 2, hidden, "none"),
        linear("vision.downsample", 1, downs, "none"),
        linear("vision.projector", 4 * hidden + bool(config.get("projector_bias")), text_hidden, "none"),
    ]


def _siglip(_config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """SigLIP with Gemma-3's projector: one matrix into the text model."""
    hidden, depth, intermediate = widths(vision)
    return [
        patches(vision, hidden),
        positions(vision, hidden, image=896),
        *blocks(depth, hidden, intermediate),
        linear("vision.norm", 3, hidden, "none"),
        linear("vision.projector", hidden, text_hidden, "none"),
    ]


def _siglip2(config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """SigLIP-2 with 256 positions; LFM2-VL merges 2 × 2 patches and projects them through its own width."""
    hidden, depth, intermediate = widths(vision)
    middle = whole(config, "projector_hidden_size") or text_hidden
    return [
        patches(vision, hidden, patch=16),
        linear("vision.positions", whole(vision, "num_patches") or 256, hidden, "none"),
        *blocks(depth, hidden, intermediate),
        linear("vision.norm", 2, hidden, "none"),
        linear("vision.projector", 4 * hidden + 1, middle, "none"),
        linear("vision.projector_out", middle + 1, text_hidden, "none"),
    ]


def _merger(inputs: int, outputs: int, norm: int, *, name: str = "vision.merger") -> list[WeightPart]:
    """Qwen's merger of 2 × 2 patches: inputs × (inputs + outputs), the biases of both, a norm of ``norm`` values."""
    return [
        linear(name, inputs, inputs + outputs, "columns"),
        linear(f"{name}_bias", 1, inputs, "columns"),
        linear(f"{name}_vectors", 1, outputs + norm, "none"),
    ]


def _qwen3(config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """Qwen3-VL and Qwen3.5: learned positions, LayerNorms; Qwen3-VL has three more mergers (deepstack)."""
    hidden, depth, intermediate = widths(vision)
    merge = (whole(vision, "spatial_merge_size") or 2) ** 2
    outputs = whole(vision, "out_hidden_size") or text_hidden
    family = str(vision.get("model_type") or config.get("model_type") or "")
    parts = [
        patches(vision, hidden, temporal=whole(vision, "temporal_patch_size") or 2, patch=16),
        linear("vision.positions", whole(vision, "num_position_embeddings") or 2304, hidden, "none"),
        *blocks(depth, hidden, intermediate),
        *_merger(merge * hidden, outputs, 2 * hidden),
    ]
    for _ in range(deepstack_layers(vision, family)):
        parts += _merger(merge * hidden, outputs, 2 * merge * hidden, name="vision.deep_merger")
    return parts


def deepstack_layers(vision: Config, family: str) -> int:
    """Encoder layers whose output also goes to the text model, each through a merger of its own (Qwen3-VL: 3)."""
    listed = vision.get("deepstack_visual_indexes")
    if isinstance(listed, list):
        return len(listed)
    return 3 if family.startswith(("qwen3_vl", "qwen3_omni")) else 0


def _qwen25(_config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """Qwen2.5-VL: gated MLP with biases, RMS norms, no learned positions."""
    hidden, depth, intermediate = widths(vision, hidden=1280, layers=32, intermediate=3420)
    merge = (whole(vision, "spatial_merge_size") or 2) ** 2
    return [
        patches(vision, hidden, temporal=whole(vision, "temporal_patch_size") or 2, bias=False),
        *blocks(depth, hidden, intermediate, gated=True, norm_vectors=2),
        *_merger(merge * hidden, whole(vision, "out_hidden_size") or text_hidden, hidden),
    ]


def _qwen2(_config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """Qwen2-VL: width ``embed_dim`` (1280), an MLP four times as wide; ``hidden_size`` is the text model's."""
    hidden, depth = whole(vision, "embed_dim") or 1280, whole(vision, "depth") or 32
    return [
        patches(vision, hidden, temporal=2, bias=False),
        *blocks(depth, hidden, 4 * hidden),
        *_merger(4 * hidden, text_hidden, 2 * hidden),
    ]


def _glm4(_config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """GLM-4.1V and 4.5V: an MLP of the output width in every layer, a merging convolution, a gated merger."""
    hidden, depth, wide = widths(vision, hidden=1536, layers=24, intermediate=13696)
    outputs = whole(vision, "out_hidden_size") or text_hidden
    merge = (whole(vision, "spatial_merge_size") or 2) ** 2
    return [
        patches(vision, hidden, temporal=whole(vision, "temporal_patch_size") or 2),
        positions(vision, hidden, image=336),
        *blocks(depth, hidden, outputs, gated=True, attention_bias=False, mlp_bias=False, norm_vectors=2),
        linear("vision.downsample", merge * hidden + 1, outputs, "none"),
        linear("vision.norms_out", 2, hidden + outputs, "none"),
        linear("vision.merger", outputs, outputs + 3 * wide, "columns"),
    ]


def _llama4(_config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """Llama 4: a class token, pixel shuffle through a two-layer adapter, one projection."""
    hidden, depth, intermediate = widths(vision, hidden=768, layers=34, intermediate=5632)
    outputs = whole(vision, "vision_output_dim") or 7680
    side = whole(vision, "projector_output_dim") or 4096
    inputs = whole(vision, "projector_input_dim") or 4096
    return [
        linear("vision.patches", 3 * (whole(vision, "patch_size") or 14) ** 2, hidden, "columns"),
        positions(vision, hidden, image=336, extra=2),
        *blocks(depth, hidden, intermediate),
        linear("vision.norms_out", 4, hidden, "none"),
        linear("vision.adapter", intermediate + side, inputs, "columns"),
        linear("vision.projector", outputs, text_hidden, "columns"),
    ]


def _mllama(_config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """Llama 3.2 Vision: layers and gated global layers without attention biases; gated positions of one tile, and of
    every patch in every arrangement of up to ``max_num_tiles`` tiles (nine arrangements of four)."""
    hidden, depth, intermediate = widths(vision, hidden=1280, layers=32, intermediate=5120)
    side, tiles = whole(vision, "image_size") or 560, whole(vision, "max_num_tiles") or 4
    globals_ = whole(vision, "num_global_layers") or 8
    tokens = (side // (whole(vision, "patch_size") or 14)) ** 2 + 1
    shapes = 1 + sum(tiles // height for height in range(1, tiles + 1))
    gates = 3 + 2 * globals_
    return [
        patches(vision, hidden, bias=False),
        linear("vision.positions", tokens + shapes * tiles * tokens + 2 * shapes * tiles, hidden, "none"),
        *blocks(depth + globals_, hidden, intermediate, attention_bias=False),
        linear("vision.norms_out", 5, hidden, "none"),
        linear("vision.gates", 1, gates, "none"),
        linear("vision.projector", (whole(vision, "vision_output_dim") or 7680) + 1, text_hidden, "none"),
    ]


def _minimax_m3(config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """MiniMax-M3: a ViT with rotary positions and patches over two frames, a projector and a 2 × 2 merger."""
    hidden, depth, intermediate = widths(vision, hidden=1280, layers=32, intermediate=5120)
    compression = nested(vision, "img_token_compression_config") or {}
    frames, merge = whole(compression, "temporal_patch_size") or 2, whole(compression, "spatial_merge_size") or 2
    middle = whole(config, "projector_hidden_size") or text_hidden
    return [
        patches(vision, hidden, temporal=frames, bias=False),
        *blocks(depth, hidden, intermediate),
        linear("vision.norm", 2, hidden, "none"),
        linear("vision.projector", hidden + text_hidden, middle, "columns"),
        linear("vision.merger", merge * merge * text_hidden + text_hidden, middle, "columns"),
        linear("vision.projector_biases", 2, middle + text_hidden, "none"),
    ]


def _gemma4(_config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """Gemma 4: two position tables of 10,240 rows, gated MLP, four norms; a whole copy on every rank."""
    hidden, depth, intermediate = widths(vision, hidden=768, layers=16, intermediate=3072)
    positions = 2 * (whole(vision, "position_embedding_size") or 10240)
    return [
        patches(vision, hidden, patch=16, bias=False),
        linear("vision.positions", positions, hidden, "none"),
        *blocks(depth, hidden, intermediate, gated=True, attention_bias=False, mlp_bias=False, split="none"),
        linear("vision.head_norms", depth * 2, whole(vision, "head_dim") or 64, "none"),
        linear("vision.projector", hidden, text_hidden, "none"),
    ]


def _moonvit(_config: Config, vision: Config, text_hidden: int) -> list[WeightPart]:
    """Kimi's MoonViT: 64 × 64 positions, and a projector through the width of four merged patches."""
    hidden = whole(vision, "vt_hidden_size") or 1152
    depth = whole(vision, "vt_num_hidden_layers") or 27
    merged = 4 * hidden
    return [
        patches(vision, hidden),
        linear("vision.positions", 64 * 64, hidden, "none"),
        *blocks(depth, hidden, whole(vision, "vt_intermediate_size") or 4304),
        linear("vision.norms_out", 4, hidden, "none"),
        linear("vision.projector", merged + 1, merged, "none"),
        linear("vision.projector_out", merged + 1, text_hidden, "none"),
    ]


_EncoderParts = Callable[[Config, Config, int], list[WeightPart]]

_VISION: Mapping[str, _EncoderParts] = {
    "qwen3_vl": _qwen3,
    "qwen3_5": _qwen3,
    "qwen3_omni": _qwen3,
    "qwen2_5_vl": _qwen25,
    "qwen2_vl": _qwen2,
    "glm4v": _glm4,
    "llama4": _llama4,
    "mllama": _mllama,
    "pixtral": _pixtral,
    "gemma4": _gemma4,
    "siglip2": _siglip2,
    "siglip": _siglip,
}

_OF_MODEL: Mapping[str, _EncoderParts] = {
    "minimax_m3": _minimax_m3,
    "step3p7": _perception,
}
"""Encoders known by the model's type, whatever their own type says."""

_SHUFFLED = frozenset({"internvl", "internvl_chat"})
"""Models that concatenate 2 × 2 patches before the projector (pixel shuffle)."""
