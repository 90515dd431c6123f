"""Gemma 4 and 3n: other widths on full layers, layers that share KV, experts beside the MLP, per-layer embeddings.

Sources: vLLM 0.33, ``gemma4.py``; transformers 5.24, ``modeling_gemma4.py``, ``modeling_gemma3n.py``.
"""

from kvplan.hf_config.weights.attention import attention_parts
from kvplan.hf_config.weights.decoder import Decoder, linear
from kvplan.hf_config.weights.keys import switch, whole
from kvplan.hf_config.weights.mlp import dense_parts, experts
from kvplan.layers import SharedKv
from kvplan.model import WeightPart


def is_gemma4(decoder: Decoder) -> bool:
    """Whether the full layers have widths of their own (``global_head_dim``) or tokens have per-layer embeddings."""
    stated = whole(decoder.config, "global_head_dim", "hidden_size_per_layer_input") is not None
    return stated or decoder.model_type.startswith("gemma4")


def gemma4_layer_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Attention, MLP, and what this layer has beside them."""
    return [
        *attention_parts(decoder, layer, has_kv=not _is_shared(decoder, layer)),
        *dense_parts(decoder, layer, _mlp_width(decoder, layer)),
        *_experts(decoder, layer),
        *_per_layer_input(decoder, layer),
    ]


def gemma4_outer_parts(decoder: Decoder) -> list[WeightPart]:
    """The per-layer embedding table: rows × layers × width, split like the embedding, and its projection."""
    width = whole(decoder.config, "hidden_size_per_layer_input") or 0
    if not width:
        return []
    rows = whole(decoder.config, "vocab_size_per_layer_input") or decoder.vocabulary
    return [
        linear("embed_tokens_per_layer", rows, decoder.layers * width, "columns"),
        linear("per_layer_model_projection", decoder.hidden, decoder.layers * width, "columns"),
        linear("per_layer_projection_norm", 1, width, "none"),
    ]


def _is_shared(decoder: Decoder, layer: int) -> bool:
    """Whether the layer reads the KV of an earlier one, and so has no K and V matrices."""
    return decoder.keeps(layer, SharedKv)


def _mlp_width(decoder: Decoder, layer: int) -> int:
    wide = switch(decoder.config, "use_double_wide_mlp", default=False) and _is_shared(decoder, layer)
    return (decoder.intermediate or 0) * (2 if wide else 1)


def _experts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Routed experts beside the dense MLP: three more norms, a router with a scale per input and per expert."""
    count = experts(decoder)
    if not count:
        return []
    width = whole(decoder.config, "moe_intermediate_size", "expert_intermediate_size") or 0
    return [
        linear("experts", count * 3 * decoder.hidden, width, "columns", layer),
        linear("mlp.router", decoder.hidden + 1, count, "none", layer),
        linear("mlp.router_norms", 4, decoder.hidden, "none", layer),
    ]


def _per_layer_input(decoder: Decoder, layer: int) -> list[WeightPart]:
    width = whole(decoder.config, "hidden_size_per_layer_input") or 0
    if not width:
        return []
    return [
        linear("per_layer_input_gate", 2 * decoder.hidden, width, "none", layer),
        linear("per_layer_input_norm", 1, decoder.hidden, "none", layer),
    ]
