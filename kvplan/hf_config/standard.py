"""Decoders whose layers are alike but for what they keep: full attention, windows and chunks, plain or shared."""

from collections.abc import Sequence

from kvplan.hf_config.described import Described, LayerStack
from kvplan.hf_config.heads import Heads, read_heads
from kvplan.hf_config.windows import FULL, Span, read_spans
from kvplan.layers import ChunkedAttention, FullAttention, Layer, SharedKv, SlidingAttention


def attention(heads: Heads, span: Span) -> Layer:
    """The cache of one attention layer."""
    kept = {"kv_heads": heads.kv, "head_dim": heads.head_dim, "value_head_dim": heads.value_head_dim}
    if span.tokens is None:
        return FullAttention(**kept)
    if span.rule == "chunked":
        return ChunkedAttention(**kept, chunk=span.tokens)
    return SlidingAttention(**kept, window=span.tokens)


def full_attention(model: Described) -> Layer:
    """The cache of a layer that keeps every token."""
    return attention(read_heads(model), FULL)


def own_caches(model: Described) -> list[Layer]:
    """A cache for every layer, as wide as the heads say and as long as the windows say."""
    heads = read_heads(model)
    return [attention(heads, span) for span in read_spans(model, model.layers)]


def share_tail(model: Described, caches: Sequence[Layer], shared: int) -> LayerStack:
    """The last ``shared`` layers read the KV of earlier ones and keep none."""
    own = len(caches) - shared
    if own < 1:
        why = f"it leaves none of the {len(caches)} layers with KV of its own"
        raise model.text.contradicts("num_kv_shared_layers", why)
    return tuple((kept,) if index < own else (SharedKv(read=kept),) for index, kept in enumerate(caches))


# Keys by which other families say that layers keep something else than their own K and V.
_NOT_PLAIN = (
    "attention_other_setting", "attn_layer_period", "attn_type_list", "block_configs", "block_types",
    "compress_ratios", "conv_L_cache", "cross_attention_layers", "hybrid_layer_pattern", "hybrid_override_pattern",
    "index_topk", "layers_block_type", "linear_attn_config", "linear_num_key_heads", "mamba_d_state",
    "num_global_key_value_heads", "num_kv_shared_layers", "param_sink_number", "sparse_attention_config",
    "ssm_state_size", "use_cla",
)  # fmt: skip

_TELLING_STEMS = ("lora_rank", "latent", "compress", "ssm", "state_size", "mamba", "recurrent", "linear_attn", "nsa_")
"""Parts of key names by which a model of no known class says that it keeps something else than K and V."""


def _a_model_of(family: str) -> str:
    return "a model of no known class" if family == "explicit" else f"a {family} model"


def read_standard(model: Described) -> LayerStack:
    """Layers of a plain decoder: one cache a layer, as wide as the heads say, as long as the windows say.

    A file that also says something of another kind (a state size, a block list) is refused, not half read; values that
    switch nothing on (false, 0, an empty list, a list of ones) are let through.
    """
    for name in _NOT_PLAIN:
        found = model.text.value(name)
        if found and not (isinstance(found, list) and all(item == 1 for item in found)):
            raise model.text.refused(name, f"{_a_model_of(model.family)} is not known to have it")
    if model.family == "explicit":
        for name, found in model.text.values.items():
            if found and any(stem in name.lower() for stem in _TELLING_STEMS):
                why = "compressed or unknown attention layout of a model of no known class, not supported"
                raise model.text.refused(name, why)
    return tuple((kept,) for kept in own_caches(model))


def read_cross_layer_shared(model: Described) -> LayerStack:
    """Hunyuan: with ``use_cla`` true, ``cla_share_factor`` neighbours share the KV of the first of them; the factor
    alone means nothing. Source: the published ``hunyuan.py`` (``cla_share_factor``: layers per KV)."""
    if not model.text.flag("use_cla"):
        return read_standard(model)
    factor = model.text.optional_count("cla_share_factor") or 1
    return tuple(
        (kept if index % factor == 0 else SharedKv(read=kept),) for index, kept in enumerate(own_caches(model))
    )


def read_tail_shared(model: Described) -> LayerStack:
    """Gemma 3n: the last ``num_kv_shared_layers`` layers read the KV of earlier ones (15 where the key is absent)."""
    text = model.text
    shared = 15 if "num_kv_shared_layers" not in text.values else text.size("num_kv_shared_layers", default=0)
    return share_tail(model, own_caches(model), shared)
