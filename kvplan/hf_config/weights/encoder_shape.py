"""What an encoder of pictures holds while it runs: its widths, its patches, and the largest item that it is given."""

from kvplan.hf_config.weights.encoder_blocks import widths
from kvplan.hf_config.weights.keys import Config, nested, whole
from kvplan.model import EncoderShape

_QWEN_ITEM_TOKENS = 16384
"""Qwen's processors shrink a picture to 12,845,056 pixels of 28 × 28 a token, or to 16,777,216 of 32 × 32: as many
tokens (their preprocessor_config.json; logs print "a budget of 16384 tokens, … 1 image items")."""
_GEMMA4_ITEM_TOKENS = 32 * (70 + 8)
"""A video of 32 frames, each 70 tokens and 8 of frame and time marks (vLLM 0.33, ``gemma4_mm.py``; logs: 2,496)."""


def encoder_shape(config: Config) -> EncoderShape | None:
    """The shape of the vision encoder that ``config`` describes, None where it describes none.

    Patches per token: a square of ``spatial_merge_size`` or ``pooling_kernel_size``; all patches of a picture over its
    tokens where a projector pools them (Gemma 3: 4,096 / 256); 1 in LLaVA; else 2 × 2, as most encoders merge.
    """
    vision = nested(config, "vision_config")
    if vision is None:
        vision = nested(nested(config, "thinker_config") or {}, "vision_config")
    if vision is None:
        return None
    family = str(vision.get("model_type") or config.get("model_type") or "")
    if family.startswith(("qwen2_vl", "qwen2_5", "qwen3")):
        return _qwen(vision, family)
    hidden, _, intermediate = widths(vision)
    model = str(config.get("model_type") or "")
    side = (whole(vision, "image_size") or 0) // (whole(vision, "patch_size") or 14)
    pooled, item = (whole(vision, "spatial_merge_size") or whole(config, "spatial_merge_size") or 2) ** 2, 0
    if family.startswith("gemma4"):
        pooled, item = (whole(vision, "pooling_kernel_size") or 3) ** 2, _GEMMA4_ITEM_TOKENS
    elif model.startswith("gemma3"):
        item = whole(config, "mm_tokens_per_image") or 256
        pooled = max(1, (side or 64) ** 2 // item)
    elif model.startswith("llava"):
        pooled, item = 1, (side or 24) ** 2 if model == "llava" else 0
    return EncoderShape(hidden=hidden, intermediate=intermediate, patches_per_token=pooled, item_tokens=item)


def _qwen(vision: Config, family: str) -> EncoderShape:
    """Qwen2-VL's own width is ``embed_dim`` (its ``hidden_size`` is the text model's); Qwen3-VL makes three more
    vectors of each token (deepstack)."""
    if family.startswith("qwen2_vl"):
        hidden = whole(vision, "embed_dim") or 1280
        intermediate = 4 * hidden
    elif family.startswith("qwen2_5"):
        hidden, _, intermediate = widths(vision, hidden=1280, intermediate=3420)
    else:
        hidden, _, intermediate = widths(vision)
    deep = vision.get("deepstack_visual_indexes")
    more = len(deep) if isinstance(deep, list) else 3 * family.startswith(("qwen3_vl", "qwen3_omni"))
    return EncoderShape(
        hidden=hidden,
        intermediate=intermediate,
        patches_per_token=(whole(vision, "spatial_merge_size") or 2) ** 2,
        item_tokens=_QWEN_ITEM_TOKENS,
        outputs=1 + more,
    )
