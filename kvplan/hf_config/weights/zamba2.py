"""Zamba2: Mamba-2 on every layer, and a few transformer blocks whose matrices the hybrid layers share.

Source: vLLM 0.33, ``models/zamba2.py``.
"""

from kvplan.hf_config.weights.decoder import Decoder, linear
from kvplan.hf_config.weights.keys import switch, whole
from kvplan.hf_config.weights.recurrent import mamba2_parts
from kvplan.layers import FullAttention
from kvplan.model import WeightPart


def zamba2_layer_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """A Mamba-2 mixer; a hybrid layer adds hidden × hidden and its adapters of the shared block, and the first layers
    that use a block bring the block: attention and norm over twice the hidden width, and a gated MLP."""
    parts = mamba2_parts(decoder, layer)
    if not decoder.keeps(layer, FullAttention):
        return parts
    parts.append(linear("linear_proj", decoder.hidden, decoder.hidden, "none", layer))
    parts += _adapters(decoder, layer)
    if sum(decoder.keeps(earlier, FullAttention) for earlier in range(layer)) < (
        whole(decoder.config, "num_mem_blocks") or 1
    ):
        parts += _block(decoder, layer)
    return parts


def _block(decoder: Decoder, layer: int) -> list[WeightPart]:
    hidden, width = decoder.hidden, decoder.intermediate or 4 * decoder.hidden
    parts = [
        linear("shared.self_attn.qkv_proj", 2 * hidden, 3 * 2 * hidden, "heads", layer),
        linear("shared.self_attn.o_proj", 2 * hidden, hidden, "heads", layer),
        linear("shared.mlp.proj", 3 * hidden, width, "columns", layer),
        linear("shared.norms", 3, hidden, "none", layer),
    ]
    if switch(decoder.config, "add_bias_linear", default=False):
        parts.append(linear("shared.mlp.bias", 2, width, "columns", layer))
        parts.append(linear("shared.mlp.out_bias", 1, hidden, "none", layer))
    return parts


def _adapters(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Low-rank pairs of a layer's own: on gate and up, and on Q, K and V where the config asks for them."""
    config, hidden = decoder.config, decoder.hidden
    rank = whole(config, "adapter_rank", "lora_rank") or 128
    width = decoder.intermediate or 4 * hidden
    parts = [linear("mlp.adapter", rank, hidden + 2 * width, "columns", layer)]
    key = "use_shared_attention_adapter" if "use_shared_attention_adapter" in config else "use_shared_attention_lora"
    if switch(config, key, default=False):
        parts.append(linear("self_attn.adapters", 3 * rank, 4 * hidden, "columns", layer))
    return parts
