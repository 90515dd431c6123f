"""Nemotron-NAS: every layer has its own grouping of heads, its own MLP width, or neither."""

from collections.abc import Mapping, Sequence

from kvplan.hf_config.weights.attention import attention_parts
from kvplan.hf_config.weights.decoder import Decoder, linear
from kvplan.hf_config.weights.keys import Config, nested, whole
from kvplan.hf_config.weights.mlp import dense_parts
from kvplan.model import WeightPart

_MULTIPLE = 256
"""MLP widths are rounded up to a multiple of this (vLLM 0.33, ``nemotron_nas.py``, ``find_multiple``)."""


def is_block_configured(decoder: Decoder) -> bool:
    """Whether ``block_configs`` describes the layers one by one."""
    return isinstance(decoder.config.get("block_configs"), Sequence)


def block_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Attention with the layer's own number of KV heads, and an MLP of 2 × ``ffn_mult`` × hidden / 3; a half that is
    a ``no_op`` has nothing, one that was replaced by a linear layer has hidden × hidden."""
    blocks = decoder.config.get("block_configs")
    block = blocks[layer] if isinstance(blocks, Sequence) and layer < len(blocks) else None
    if not isinstance(block, Mapping):
        return []
    attention, forward = nested(block, "attention") or {}, nested(block, "ffn") or {}
    parts = _replacement(decoder, attention, layer, "self_attn")
    if not parts and not attention.get("no_op"):
        parts = attention_parts(decoder, layer)
    linear_mlp = _replacement(decoder, forward, layer, "mlp")
    if linear_mlp or forward.get("no_op"):
        return parts + linear_mlp
    ratio = forward.get("ffn_mult")
    width = whole(forward, "intermediate_size") or 0
    if isinstance(ratio, int | float):
        width = -(-int(2 * ratio * decoder.hidden / 3) // _MULTIPLE) * _MULTIPLE
    return parts + dense_parts(decoder, layer, width)


def _replacement(decoder: Decoder, half: Config, layer: int, name: str) -> list[WeightPart]:
    if not half.get("replace_with_linear"):
        return []
    return [linear(f"{name}.linear_proj", decoder.hidden, decoder.hidden, "none", layer)]
