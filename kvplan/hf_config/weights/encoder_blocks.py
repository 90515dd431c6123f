"""What encoders of pictures and sound have in common: transformer blocks, patches, positions and their widths."""

from kvplan.hf_config.weights.decoder import linear
from kvplan.hf_config.weights.keys import Config, whole
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
    """Hidden width, layers and MLP width, with the class's own figures where the config is silent."""
    width = whole(vision, "hidden_size", "d_model", "embed_dim") or hidden
    return (
        width,
        whole(vision, "num_hidden_layers", "depth", "encoder_layers") or layers,
        whole(vision, "intermediate_size", "encoder_ffn_dim") or intermediate,
    )


def patches(vision: Config, hidden: int, *, temporal: int = 1, patch: int = 14, bias: bool = True) -> WeightPart:
    side = whole(vision, "patch_size") or patch
    return linear("vision.patches", 3 * temporal * side * side + int(bias), hidden, "none")


def positions(vision: Config, hidden: int, *, image: int, patch: int = 14, extra: int = 0) -> WeightPart:
    side = (whole(vision, "image_size") or image) // (whole(vision, "patch_size") or patch)
    return linear("vision.positions", side * side + extra, hidden, "none")
