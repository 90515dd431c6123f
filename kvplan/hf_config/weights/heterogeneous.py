"""Decoders whose layers differ from one another: OpenELM, Phi-4-flash, Gemma 4, Nemotron-NAS, Zamba2 …

Sources: the published ``modeling_openelm.py``, ``modeling_phi4flash.py``; vLLM 0.10.1, ``mllama.py``; vLLM 0.33's file
of each other class; transformers 5.24, Gemma 4 and 3n. The sums meet published totals (tests/test_weights.py).
"""

from collections.abc import Mapping, Sequence

from kvplan.hf_config.weights.decoder import Decoder
from kvplan.hf_config.weights.mixers import attention_parts, mamba1_parts, mamba2_parts
from kvplan.hf_config.weights.mlp import dense_parts, experts
from kvplan.hf_config.weights.parts import Config, linear, nested, numbers, switch, whole
from kvplan.layers import FullAttention, SharedKv, SlidingAttention
from kvplan.model import WeightPart


def openelm_layer_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Heads and MLP width by layer: hidden × ``ffn_multipliers``, rounded to ``ffn_dim_divisor``.

    Where the multipliers are not listed, they grow from 0.5 to 4 across the layers, as in every published model.
    """
    queries = numbers(decoder.config, "num_query_heads") or ()
    if layer >= len(queries):
        return []
    attention = attention_parts(decoder, layer, heads=queries[layer])
    return attention + dense_parts(decoder, layer, _openelm_width(decoder, layer))


def _openelm_width(decoder: Decoder, layer: int) -> int:
    stated = decoder.config.get("ffn_multipliers")
    listed = stated if isinstance(stated, Sequence) and not isinstance(stated, str) else ()
    values = [float(value) for value in listed if isinstance(value, int | float)]
    if len(values) == decoder.layers:
        ratio = values[layer]
    else:
        low, high = (values[0], values[-1]) if values else (0.5, 4.0)
        ratio = round(low + (high - low) * layer / max(decoder.layers - 1, 1), 2)
    divisor = whole(decoder.config, "ffn_dim_divisor") or 256
    wanted = ratio * decoder.hidden
    width = max(divisor, int(wanted + divisor / 2) // divisor * divisor)
    return width + divisor if width * 10 < wanted * 9 else width


def phi4flash_layer_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """SambaY: Mamba on every second layer and attention between.

    From two layers past the middle on, a gate on an earlier layer's state replaces Mamba, and attention only has
    queries. Differential attention adds four lambdas and a norm.
    """
    hidden, config = decoder.hidden, decoder.config
    crosses = layer >= decoder.layers // 2 + 2
    period = whole(config, "mb_per_layer") or 2
    if layer % period == 0:
        inner = (whole(config, "mamba_expand") or 2) * hidden
        gate = [
            linear("mixer.in_proj", hidden, inner, "columns", layer),
            linear("mixer.out_proj", inner, hidden, "columns", layer),
        ]
        parts = gate if crosses else mamba1_parts(decoder, layer)
    else:
        parts = attention_parts(decoder, layer, has_kv=not crosses)
        parts.append(linear("self_attn.differential", 6, decoder.head_dim, "none", layer))
    return parts + dense_parts(decoder, layer, decoder.intermediate or 4 * hidden)


def mllama_layer_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Llama's layer; those in ``cross_attention_layers`` also have norms for Q and K and two gates."""
    parts = attention_parts(decoder, layer) + dense_parts(decoder, layer, decoder.intermediate or 0)
    if layer in (numbers(decoder.config, "cross_attention_layers") or ()):
        parts.append(linear("cross_attn.vectors", 2, decoder.head_dim + 1, "none", layer))
    return parts


def laguna_attention_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Laguna and AFMoE: query heads by layer where listed, and a gate for every head (Laguna's ``gating``: true or
    ``per-head``) or for every value of a head."""
    listed = numbers(decoder.config, "num_attention_heads_per_layer") or ()
    heads = listed[layer] if layer < len(listed) else decoder.heads
    parts = attention_parts(decoder, layer, heads=heads)
    gating = decoder.config.get("gating", "per-element" if decoder.model_type == "afmoe" else True)
    if gating:
        width = heads if gating is True or gating == "per-head" else heads * decoder.head_dim
        parts.append(linear("self_attn.g_proj", decoder.hidden, width, "heads", layer))
    return parts


def step_attention_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Step-3.5 and Step-3.7: sliding layers have another number of query heads, and each head may have a gate."""
    config, heads = decoder.config, decoder.heads
    if isinstance(decoder.cache(layer), SlidingAttention):
        other = nested(config, "attention_other_setting") or {}
        heads = whole(config, "num_sliding_attention_heads") or whole(other, "num_attention_heads") or heads
    parts = attention_parts(decoder, layer, heads=heads)
    if switch(config, "use_head_wise_attn_gate", default=False):
        parts.append(linear("self_attn.g_proj", decoder.hidden, heads, "heads", layer))
    return parts


_MULTIPLE = 256
"""Nemotron-NAS rounds its MLP widths up to a multiple of this (vLLM 0.33, ``find_multiple``)."""


def is_block_configured(decoder: Decoder) -> bool:
    """Whether ``block_configs`` describes the layers one by one."""
    return isinstance(decoder.config.get("block_configs"), Sequence)


def block_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Attention with the layer's own KV heads, and an MLP of 2 × ``ffn_mult`` × hidden / 3; a half that is a ``no_op``
    has nothing, one that was replaced by a linear layer has hidden × hidden."""
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


def zamba2_layer_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """A Mamba-2 mixer; a hybrid layer adds hidden × hidden and its adapters of the shared block.

    The first ``num_mem_blocks`` hybrid layers also count the shared block itself.
    """
    parts = mamba2_parts(decoder, layer)
    if not decoder.keeps(layer, FullAttention):
        return parts
    parts.append(linear("linear_proj", decoder.hidden, decoder.hidden, "none", layer))
    parts += _adapters(decoder, layer)
    hybrids_before = sum(decoder.keeps(earlier, FullAttention) for earlier in range(layer))
    if hybrids_before < (whole(decoder.config, "num_mem_blocks") or 1):
        parts += _shared_block(decoder, layer)
    return parts


def _shared_block(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Attention and norm over twice the hidden width, and a gated MLP."""
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
    """A layer's own low-rank pairs: on gate and up, and on Q, K and V where the config asks for them."""
    config, hidden = decoder.config, decoder.hidden
    rank = whole(config, "adapter_rank", "lora_rank") or 128
    width = decoder.intermediate or 4 * hidden
    parts = [linear("mlp.adapter", rank, hidden + 2 * width, "columns", layer)]
    key = "use_shared_attention_adapter" if "use_shared_attention_adapter" in config else "use_shared_attention_lora"
    if switch(config, key, default=False):
        parts.append(linear("self_attn.adapters", 3 * rank, 4 * hidden, "columns", layer))
    return parts


def is_gemma4(decoder: Decoder) -> bool:
    """Whether the full layers have widths of their own (``global_head_dim``) or tokens have per-layer embeddings."""
    stated = whole(decoder.config, "global_head_dim", "hidden_size_per_layer_input") is not None
    return stated or decoder.model_type.startswith("gemma4")


def gemma4_layer_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Attention, MLP, experts and per-layer input. A layer that reads the KV of an earlier one has no K and V matrices,
    and its MLP may be twice as wide."""
    is_shared = decoder.keeps(layer, SharedKv)
    is_wide = is_shared and switch(decoder.config, "use_double_wide_mlp", default=False)
    return [
        *attention_parts(decoder, layer, has_kv=not is_shared),
        *dense_parts(decoder, layer, (decoder.intermediate or 0) * (2 if is_wide else 1)),
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
