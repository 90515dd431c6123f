"""Attention that keeps keys and values: how many KV heads, how wide, and the plain decoders that are made of it.

Source of the exceptions: the model classes of vLLM 0.33, each named at its rule.
"""

from collections.abc import Callable, Mapping, Sequence

from kvplan.errors import UnsupportedModelError
from kvplan.hf_config.config import CHECK_HINT, KV_HEAD_NAMES, Fields, LayerStack, ModelConfig
from kvplan.hf_config.defaults import STRICT_FAMILIES
from kvplan.hf_config.windows import Span, read_spans
from kvplan.layers import ChunkedAttention, CrossAttention, FullAttention, Layer, SharedKv, SlidingAttention


def full_attention(model: ModelConfig) -> FullAttention:
    """The cache of a layer that keeps every token, in a model whose layers have the same heads."""
    query = model.query_heads
    head_dim = _head_dim(model, query)
    kv = _kv_heads(model, query)
    if query % kv:
        raise UnsupportedModelError(
            f"{query} query heads cannot share {kv} KV heads",
            hint=CHECK_HINT,
            key=f"{model.text.path}{KV_HEAD_NAMES[0]}",
        )
    value_head_dim = model.text.optional_count("v_head_dim") if model.family == "mimo_v2_flash" else None
    return FullAttention(kv_heads=kv, head_dim=head_dim, value_head_dim=value_head_dim or head_dim)


def full_heads(kv_heads: int, head_dim: int) -> FullAttention:
    """Full attention whose keys and values are equally wide."""
    return FullAttention(kv_heads=kv_heads, head_dim=head_dim, value_head_dim=head_dim)


def limited(cache: FullAttention, span: Span) -> Layer:
    """``cache`` with only the tokens of ``span``."""
    if span.tokens is None:
        return cache
    if span.is_chunk:
        return ChunkedAttention(**vars(cache), chunk=span.tokens)
    return SlidingAttention(**vars(cache), window=span.tokens)


def own_caches(model: ModelConfig) -> list[Layer]:
    """A cache for every layer: the same heads, each with its own span."""
    cache = full_attention(model)
    return [limited(cache, span) for span in read_spans(model, model.layers)]


_HEAD_DIM_NAMES = {
    "chatglm": ("kv_channels",),
    "qwen": ("kv_channels",),
    "jetmoe": ("kv_channels", "head_dim"),
    "nemotron_h": ("head_dim", "attention_head_dim"),
}
_NULL_IS_ABSENT = frozenset({"afmoe", "ernie4_5", "glm", "paddleocr_vl_text", "seed_oss"})
"""Classes with a default head width that still accept a null (transformers 5.20: ``head_dim: int | None``)."""


def _head_dim(model: ModelConfig, query_heads: int) -> int:
    """Width of a head: the key, else the class default, else hidden / query heads, which must divide.

    Most classes with a default width refuse an explicit null; the others then take hidden / query heads.
    """
    text = model.text
    names = _HEAD_DIM_NAMES.get(model.family, ("head_dim", "hidden_size_per_head"))
    is_null = any(name in text.values for name in names) and text.value(*names) is None
    has_default = any(text.defaults.get(name) is not None for name in names)
    if is_null and has_default and model.family not in _NULL_IS_ABSENT:
        raise text.missing(*names)
    if stated := text.size(*names, default=0):
        return stated
    hidden = model.hidden
    if hidden % query_heads:
        raise UnsupportedModelError(
            f"hidden size {hidden} is not a multiple of {query_heads} query heads, and the config has no head width",
            hint=f"add {text.path}head_dim to a local copy of config.json and give its path as MODEL",
            key=f"{text.path}head_dim",
        )
    return hidden // query_heads


def _kv_heads(model: ModelConfig, query_heads: int) -> int:
    """KV heads of a layer: by the family's own rule, else the key, else the class default, else one per query head.

    An explicit null means one per query head, where the class accepts it.
    """
    text = model.text
    if model.family in _KV_HEAD_RULES:
        return _KV_HEAD_RULES[model.family](text, query_heads)
    kv = text.optional_count(*KV_HEAD_NAMES)
    if kv is not None:
        return kv
    is_null = any(name in text.values for name in KV_HEAD_NAMES)
    if model.family == "explicit" or (is_null and model.family in STRICT_FAMILIES):
        raise text.missing(*KV_HEAD_NAMES)
    return query_heads


def _falcon(text: Fields, query_heads: int) -> int:
    """The new decoder states its KV heads; the old one has 1 with ``multi_query``, whatever ``num_kv_heads`` says
    (Falcon-7B says 71), and one per query head without.

    The oldest files of the new decoder (Falcon-40B's, model type RefinedWeb) do not say which they are.
    Source: vLLM 0.33, ``FalconAttention``, ``RWConfig``.
    """
    if text.flag("new_decoder_architecture", default=text.text("model_type") == "RefinedWeb"):
        return text.optional_count("num_kv_heads", "n_head_kv") or query_heads
    return _multi_query(text, query_heads)


def _multi_query(text: Fields, query_heads: int) -> int:
    """One KV head unless the file says false (transformers, ``GPTBigCodeConfig``)."""
    return 1 if text.flag("multi_query", default=True) else query_heads


def _chatglm(text: Fields, query_heads: int) -> int:
    return text.count("multi_query_group_num") if text.flag("multi_query_attention") else query_heads


def _in_attention_block(text: Fields, query_heads: int) -> int:
    attention = text.section("attn_config")
    return (attention.optional_count("kv_n_heads") if attention else None) or query_heads


def _one_each(_text: Fields, query_heads: int) -> int:
    return query_heads


_ONE_EACH = (
    "baichuan", "bloom", "codegen", "gpt2", "gpt_neo", "gpt_neox", "gpt_neox_japanese", "gptj", "internlm", "jais",
    "opt", "qwen",
)  # fmt: skip

_KV_HEAD_RULES: Mapping[str, Callable[[Fields, int], int]] = {
    **dict.fromkeys(_ONE_EACH, _one_each),
    "chatglm": _chatglm,
    "dbrx": _in_attention_block,
    "falcon": _falcon,
    "gpt_bigcode": _multi_query,
    "mpt": _in_attention_block,
}
"""Families without the usual key. Those without any key have one KV head per query head (vLLM 0.33)."""

# Keys by which other families say that layers keep something other than their own K and V.
_NOT_PLAIN = (
    "attention_other_setting", "attn_layer_period", "attn_type_list", "block_configs", "block_types",
    "compress_ratios", "conv_L_cache", "cross_attention_layers", "hybrid_layer_pattern", "hybrid_override_pattern",
    "index_topk", "layers_block_type", "linear_attn_config", "linear_num_key_heads", "mamba_d_state",
    "num_global_key_value_heads", "num_kv_shared_layers", "param_sink_number", "sparse_attention_config",
    "ssm_state_size", "use_cla",
)  # fmt: skip

_TELLING_STEMS = ("lora_rank", "latent", "compress", "ssm", "state_size", "mamba", "recurrent", "linear_attn", "nsa_")
"""Parts of key names by which a model of no known class says that it keeps something other than K and V."""


def read_standard(model: ModelConfig) -> LayerStack:
    """A plain decoder: one cache per layer, as wide as the heads and as long as the span.

    A file that also describes something else (a state size, a block list) is refused rather than half read; a value
    that switches nothing on (false, 0, an empty list, a list of ones) is accepted.
    """
    text, is_explicit = model.text, model.family == "explicit"
    for name in _NOT_PLAIN:
        found = text.value(name)
        if found and not (isinstance(found, list) and all(item == 1 for item in found)):
            kind = "a model of no known class" if is_explicit else f"a {model.family} model"
            raise text.refused(name, f"{kind} is not known to have it")
    if is_explicit:
        for name, found in text.values.items():
            if found and any(stem in name.lower() for stem in _TELLING_STEMS):
                why = "compressed or unknown attention layout of a model of no known class, not supported"
                raise text.refused(name, why)
    return tuple((kept,) for kept in own_caches(model))


def read_cross_layer_shared(model: ModelConfig) -> LayerStack:
    """Hunyuan: with ``use_cla``, groups of ``cla_share_factor`` layers share the KV of their first one.

    The factor alone means nothing. Source: the published ``hunyuan.py`` (``cla_share_factor``: layers per KV).
    """
    if not model.text.flag("use_cla"):
        return read_standard(model)
    factor = model.text.optional_count("cla_share_factor") or 1
    return tuple(
        (kept if index % factor == 0 else SharedKv(read=kept),) for index, kept in enumerate(own_caches(model))
    )


def read_tail_shared(model: ModelConfig) -> LayerStack:
    """Gemma 3n: the last ``num_kv_shared_layers`` layers read the KV of earlier ones (15 where the key is absent)."""
    text = model.text
    shared = 15 if "num_kv_shared_layers" not in text.values else text.size("num_kv_shared_layers", default=0)
    return share_tail(model, own_caches(model), shared)


def share_tail(model: ModelConfig, caches: Sequence[Layer], shared: int) -> LayerStack:
    """The last ``shared`` layers keep nothing and read the KV of earlier ones."""
    own = len(caches) - shared
    if own < 1:
        why = f"it leaves none of the {len(caches)} layers with KV of its own"
        raise model.text.contradicts("num_kv_shared_layers", why)
    return tuple((kept,) if index < own else (SharedKv(read=kept),) for index, kept in enumerate(caches))


def read_seq2seq(model: ModelConfig) -> LayerStack:
    """Whisper, BART, mBART, Marian, Pegasus; ``num_hidden_layers`` may count the encoder.

    Whisper's cross KV always holds ``max_source_positions`` tokens (1,500 where absent). The others' is as long as the
    source text; the longest is priced: ``max_position_embeddings``.
    Source: vLLM 0.33, ``WhisperAttention``, ``WhisperCrossAttention``.
    """
    text = model.text
    heads, width = text.count("decoder_attention_heads"), text.count("d_model")
    if width % heads:
        raise text.contradicts("decoder_attention_heads", f"it does not divide d_model {width}")
    if model.family == "whisper":
        source = text.optional_count("max_source_positions") or 1500
    else:
        source = text.count("max_position_embeddings")
    return _self_and_cross(text.layers("decoder_layers"), full_heads(heads, width // heads), source)


def read_t5(model: ModelConfig) -> LayerStack:
    """T5: heads × ``d_kv`` need not be ``d_model``.

    Positions are relative, so the file does not bound the source text: cross KV is priced for ``n_positions``, else for
    the 512 tokens that the model was trained on. Source: Raffel et al. 2020, section 3.1.1.
    """
    text = model.text
    layers = text.layers("num_decoder_layers", "num_layers")
    cache = full_heads(text.count("num_heads"), text.count("d_kv"))
    return _self_and_cross(layers, cache, text.optional_count("n_positions") or 512)


def _self_and_cross(layers: int, own: FullAttention, source_tokens: int) -> LayerStack:
    return ((own, CrossAttention(**vars(own), source_tokens=source_tokens)),) * layers


def read_vision_cross(model: ModelConfig) -> LayerStack:
    """Llama 3.2 Vision: the layers in ``cross_attention_layers`` hold the KV of the image instead of tokens.

    An image is at most ``max_num_tiles`` (4) tiles of (image_size / patch_size)² + 1 patches. Source: transformers
    5.20, ``MllamaVisionModel`` (one class token per tile), ``MllamaTextConfig``, ``MllamaTextCrossAttention``.
    """
    indices = model.text.counts("cross_attention_layers", minimum=0)
    if indices is None:
        indices = [3, 8, 13, 18, 23, 28, 33, 38]
    vision = model.outer.section("vision_config") or Fields({})
    side = vision.optional_count("image_size") or 448
    patch = vision.optional_count("patch_size") or 14
    tiles = vision.optional_count("max_num_tiles") or 4
    own = full_attention(model)
    cross = CrossAttention(**vars(own), source_tokens=tiles * ((side // patch) ** 2 + 1))
    return tuple((cross,) if index in indices else (own,) for index in range(model.layers))
