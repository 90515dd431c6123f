"""Widths that the engines' activation terms need: of the language model, its experts and its vision encoder.

Also the query-head counts that tensor parallelism must divide.
"""

from collections.abc import Mapping, Sequence

from kvplan.hf_config.config import HEAD_NAMES, HIDDEN_NAMES, ModelConfig
from kvplan.hf_config.weights.encoders import widths
from kvplan.hf_config.weights.parts import Config, nested, whole
from kvplan.hf_config.weights.vision import deepstack_layers
from kvplan.model import EncoderShape, Shape

# Keys by which published configs say that the model has a vision encoder.
_VISION_KEYS = ("vision_config", "vision_tower", "mm_vision_tower", "vision_encoder", "visual", "image_size")
# Parts of the names of architectures that embed, rank or classify instead of generating.
_POOLING_WORDS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "RewardModel",
    "ForEmbedding",
    "ForRetrieval",
    "TextModel",
    "CLIPModel",
    "Qwen3Model",
)


def read_shape(model: ModelConfig) -> Shape:
    """Widths of the language model; null where the config does not state one, 0 for the hidden width."""
    text, outer = model.text, model.outer
    listed = outer.texts("architectures") or [""]
    vision = outer.section("vision_config") if isinstance(outer.value("vision_config"), Mapping) else None
    experts = _width(model, "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return Shape(
        hidden=text.optional_count(*HIDDEN_NAMES) or 0,
        vocabulary=text.optional_count("vocab_size", "padded_vocab_size", "n_vocab"),
        intermediate=_dense_width(model, experts),
        experts=experts,
        experts_per_token=_width(
            model, "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts"
        ),
        expert_intermediate=_width(
            model, "moe_intermediate_size", "expert_ffn_hidden_size", "expert_intermediate_size"
        ),
        has_vision=any(outer.says(key) for key in _VISION_KEYS),
        vision_layers=None if vision is None else vision.optional_count("num_hidden_layers"),
        vision_hidden=None if vision is None else vision.optional_count("hidden_size"),
        encoder=encoder_shape(outer.values),
        is_pooling=any(word in listed[0] for word in _POOLING_WORDS),
    )


def _dense_width(model: ModelConfig, experts: int | None) -> int | None:
    """Width of the dense MLP; 0 is accepted only where every layer has experts (Qwen3-Coder, MiniMax)."""
    names = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff")
    width = _width(model, *names)
    if width is None and experts is None and model.text.says(*names):
        name = next(name for name in names if model.text.says(name))
        raise model.text.broken(name, model.text.value(name), "a width above zero, and the config has no experts")
    return width


def _width(model: ModelConfig, *names: str) -> int | None:
    """A width; the largest where the file lists one per layer; None where it is 0 or absent."""
    text = model.text
    found = text.value(*names)
    if isinstance(found, Sequence) and not isinstance(found, str):
        name = next(name for name in names if text.value(name) == found)
        return max(text.by_layer(name, text.counts(name, minimum=0) or [], model.layers)) or None
    return text.size(*names, default=0) or None


def query_head_counts(model: ModelConfig) -> tuple[int, ...]:
    """Every number of query heads that must divide among tensor-parallel ranks."""
    text = model.text
    listed = text.items("num_query_heads")
    if listed is not None:
        return tuple(sorted(set(text.counts("num_query_heads") or [])))
    if model.family in ("whisper", "bart"):
        return (text.count("decoder_attention_heads"),)
    if text.value(*HEAD_NAMES) is None:
        return ()
    heads = {model.query_heads}
    heads |= set(text.counts("num_attention_heads_per_layer") or [])
    sliding = text.optional_count("swa_num_attention_heads")
    if sliding is not None:
        heads.add(sliding)
    other = text.section("attention_other_setting")
    of_other = None if other is None else other.optional_count("num_attention_heads")
    if of_other is not None:
        heads.add(of_other)
    return tuple(sorted(heads))


_QWEN_ITEM_TOKENS = 16384
"""Qwen's processors shrink an image to 12,845,056 pixels at 28 × 28 per token, or to 16,777,216 at 32 × 32: the same
number of tokens (their preprocessor_config.json; logs print "a budget of 16384 tokens, … 1 image items")."""
_GEMMA4_ITEM_TOKENS = 32 * (70 + 8)
"""A video of 32 frames: 70 tokens each, and 8 of frame and time marks (vLLM 0.33, ``gemma4_mm.py``; logs: 2,496)."""


def encoder_shape(config: Config) -> EncoderShape | None:
    """The shape of the vision encoder that ``config`` describes; None where it describes none.

    Patches per token: the square of ``spatial_merge_size`` or ``pooling_kernel_size``; all patches of an image over its
    tokens where a projector pools them (Gemma 3: 4,096 / 256); 1 in LLaVA; else 2 × 2, as in most encoders.
    """
    vision = nested(config, "vision_config")
    if vision is None:
        vision = nested(nested(config, "thinker_config") or {}, "vision_config")
    if vision is None:
        return None
    family = str(vision.get("model_type") or config.get("model_type") or "")
    if family.startswith(("qwen2_vl", "qwen2_5", "qwen3")):
        return _qwen_encoder(vision, family)
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


def _qwen_encoder(vision: Config, family: str) -> EncoderShape:
    """Qwen2-VL's width is ``embed_dim`` (its ``hidden_size`` is the text model's); Qwen3-VL makes three more vectors of
    each token (deepstack)."""
    if family.startswith("qwen2_vl"):
        hidden = whole(vision, "embed_dim") or 1280
        intermediate = 4 * hidden
    elif family.startswith("qwen2_5"):
        hidden, _, intermediate = widths(vision, hidden=1280, intermediate=3420)
    else:
        hidden, _, intermediate = widths(vision)
    return EncoderShape(
        hidden=hidden,
        intermediate=intermediate,
        patches_per_token=(whole(vision, "spatial_merge_size") or 2) ** 2,
        item_tokens=_QWEN_ITEM_TOKENS,
        outputs=1 + deepstack_layers(vision, family),
    )
