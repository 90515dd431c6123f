"""Widths that an engine's activation terms need, and the query-head counts that tensor parallelism must divide."""

from collections.abc import Mapping, Sequence

from kvplan.hf_config.described import HEAD_NAMES, HIDDEN_NAMES, Described
from kvplan.hf_config.weights.encoder_shape import encoder_shape
from kvplan.model import Shape

_VISION_KEYS = ("vision_config", "vision_tower", "mm_vision_tower", "vision_encoder", "visual", "image_size")
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


def read_shape(model: Described) -> Shape:
    """Widths of the language model; null where the config does not say, and 0 for the hidden width."""
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


def _dense_width(model: Described, experts: int | None) -> int | None:
    """Width of the dense MLP; only a model whose every layer has experts may say 0 (Qwen3-Coder, MiniMax)."""
    names = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff")
    width = _width(model, *names)
    if width is None and experts is None and model.text.says(*names):
        name = next(name for name in names if model.text.says(name))
        raise model.text.broken(name, model.text.value(name), "a width above zero, and the config names no experts")
    return width


def _width(model: Described, *names: str) -> int | None:
    """A width; the largest where the file lists one per layer; None where it says 0 or nothing."""
    text = model.text
    found = text.value(*names)
    if isinstance(found, Sequence) and not isinstance(found, str):
        name = next(name for name in names if text.value(name) == found)
        return max(text.by_layer(name, text.counts(name, least=0) or [], model.layers)) or None
    return text.size(*names, default=0) or None


def query_head_counts(model: Described) -> tuple[int, ...]:
    """Every query-head count that must divide among tensor-parallel ranks."""
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
    if other is not None and other.optional_count("num_attention_heads") is not None:
        heads.add(other.count("num_attention_heads"))
    return tuple(sorted(heads))
