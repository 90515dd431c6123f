"""Decoders whose layers are alike but for what they keep: full attention, windows and chunks, plain or shared."""

from kvplan.hf_config.described import Described, LayerStack
from kvplan.hf_config.heads import Heads, read_heads
from kvplan.hf_config.windows import Span, read_spans
from kvplan.layers import ChunkedAttention, FullAttention, Layer, SharedKv, SlidingAttention


def attention(heads: Heads, span: Span) -> Layer:
    """The cache of one attention layer."""
    if span.tokens is None:
        return FullAttention(kv_heads=heads.kv, head_dim=heads.head_dim, value_head_dim=heads.value_head_dim)
    if span.rule == "chunked":
        return ChunkedAttention(
            kv_heads=heads.kv, head_dim=heads.head_dim, value_head_dim=heads.value_head_dim, chunk=span.tokens
        )
    return SlidingAttention(
        kv_heads=heads.kv, head_dim=heads.head_dim, value_head_dim=heads.value_head_dim, window=span.tokens
    )


def read_standard(model: Described) -> LayerStack:
    """Layers of a plain decoder: one cache a layer, as wide as the heads say, as long as the windows say."""
    heads = read_heads(model)
    return tuple((attention(heads, span),) for span in read_spans(model, model.layers))


def read_cross_layer_shared(model: Described) -> LayerStack:
    """Hunyuan: with ``use_cla`` true, ``cla_share_factor`` neighbours share the KV of the first of them; the factor
    alone means nothing. Source: the published ``hunyuan.py`` (``cla_share_factor``: layers per KV)."""
    stack = read_standard(model)
    if not model.text.flag("use_cla"):
        return stack
    factor = model.text.optional_count("cla_share_factor") or 1
    return tuple(kept if index % factor == 0 else (SharedKv(),) for index, kept in enumerate(stack))


def read_tail_shared(model: Described) -> LayerStack:
    """Gemma 3n: the last ``num_kv_shared_layers`` layers read the KV of earlier ones (15 where the key is absent)."""
    text = model.text
    shared = 15 if "num_kv_shared_layers" not in text.values else text.size("num_kv_shared_layers", default=0)
    stack = read_standard(model)
    if shared >= len(stack):
        raise text.refused("num_kv_shared_layers", f"it leaves none of the {len(stack)} layers with KV of its own")
    own = len(stack) - shared
    return stack[:own] + ((SharedKv(),),) * shared
