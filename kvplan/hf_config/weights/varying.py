"""Decoders whose layers differ in heads or kind: OpenELM, Phi-4-flash, Llama 3.2 Vision, Laguna, AFMoE, Step-3.5.

Sources: the published ``modeling_openelm.py`` and ``modeling_phi4flash.py``; vLLM 0.10.1, ``mllama.py``; vLLM 0.33,
``step3p5.py``, ``laguna.py``, ``afmoe.py``. The sums meet published totals to the parameter (tests/test_weights.py).
"""

from collections.abc import Sequence

from kvplan.hf_config.weights.attention import attention_parts
from kvplan.hf_config.weights.decoder import Decoder, linear
from kvplan.hf_config.weights.keys import nested, numbers, switch, whole
from kvplan.hf_config.weights.mlp import dense_parts
from kvplan.hf_config.weights.recurrent import mamba1_parts
from kvplan.layers import SlidingAttention
from kvplan.model import WeightPart


def openelm_layer_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Heads and MLP width of the layer's own: hidden × ``ffn_multipliers``, in whole ``ffn_dim_divisor``; where the
    multipliers are not recorded, from half to four across the layers, as every published model has them."""
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
    """SambaY: Mamba on every second layer and attention between; from two layers past the middle on, a gate on an
    earlier layer's state instead of a Mamba, and queries alone. Differential attention adds four lambdas and a norm."""
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
    """Llama's layer; one of ``cross_attention_layers`` has a norm each for Q and K and two gates beside."""
    parts = attention_parts(decoder, layer) + dense_parts(decoder, layer, decoder.intermediate or 0)
    if layer in (numbers(decoder.config, "cross_attention_layers") or ()):
        parts.append(linear("cross_attn.vectors", 2, decoder.head_dim + 1, "none", layer))
    return parts


def laguna_attention_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Laguna and AFMoE: query heads by layer where they are listed, and a gate for every head (Laguna's ``gating`` true
    or ``per-head``) or for every value of a head."""
    listed = numbers(decoder.config, "num_attention_heads_per_layer") or ()
    heads = listed[layer] if layer < len(listed) else decoder.heads
    parts = attention_parts(decoder, layer, heads=heads)
    gating = decoder.config.get("gating", "per-element" if decoder.model_type == "afmoe" else True)
    if gating:
        width = heads if gating is True or gating == "per-head" else heads * decoder.head_dim
        parts.append(linear("self_attn.g_proj", decoder.hidden, width, "heads", layer))
    return parts


def step_attention_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """Step-3.5 and Step-3.7: sliding layers have query heads of their own number, and each head may have a gate."""
    config, heads = decoder.config, decoder.heads
    if isinstance(decoder.cache(layer), SlidingAttention):
        other = nested(config, "attention_other_setting") or {}
        heads = whole(config, "num_sliding_attention_heads") or whole(other, "num_attention_heads") or heads
    parts = attention_parts(decoder, layer, heads=heads)
    if switch(config, "use_head_wise_attn_gate", default=False):
        parts.append(linear("self_attn.g_proj", decoder.hidden, heads, "heads", layer))
    return parts
