"""Stacks that mix attention with recurrent layers: which layer is which, as configs say it.

The states themselves are in ``recurrent``. A layer that has both keeps two caches.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvplan.hf_config import recurrent
from kvplan.hf_config.attention import full_attention, full_heads, limited
from kvplan.hf_config.config import Fields, LayerStack, ModelConfig
from kvplan.hf_config.latent import SPARSE_NAMES, index_keys, latent_cache, own_indexer
from kvplan.hf_config.windows import Span
from kvplan.layers import FullAttention, IndexKeys, IndexTail, Layer, NgramConvState

_FULL_NAMES = frozenset({"attention", "full_attention"})
_LINEAR_NAMES = frozenset({"mamba", "mamba2", "linear_attention", "linear", "recurrent", "conv"})

Cache = Callable[[ModelConfig], Layer]


def named_stack(
    model: ModelConfig, key: str, names: Sequence[str], state: Cache, full: Cache = full_attention
) -> LayerStack:
    """One cache for every layer: ``full`` or ``state`` by its name under ``key``; other names are refused."""
    unknown = next((name for name in names if name not in _FULL_NAMES | _LINEAR_NAMES), None)
    if unknown is not None:
        raise model.unknown_layer(key, unknown)
    caches = {name: (full if name in _FULL_NAMES else state)(model) for name in dict.fromkeys(names)}
    return tuple((caches[name],) for name in names)


def _mixed_stack(
    model: ModelConfig, state: Cache, *lists: str, is_full: Callable[[int], bool], full: Cache = full_attention
) -> LayerStack:
    """One cache for every layer: by the first of ``lists`` that the file has, else by a rule on the layer's index."""
    return named_stack(model, *_layer_names(model, *lists, is_full=is_full), state, full)


def _layer_names(model: ModelConfig, *lists: str, is_full: Callable[[int], bool]) -> tuple[str, list[str]]:
    """The first of ``lists`` that the file has, else names by ``is_full``; with the key that they stand under."""
    return _listed_names(model, *lists) or (
        "layer_types",
        ["full_attention" if is_full(index) else "linear_attention" for index in range(model.layers)],
    )


def _listed_names(model: ModelConfig, *lists: str) -> tuple[str, list[str]] | None:
    """The first of ``lists`` that the file has: its key, and a name for every layer."""
    for key in lists:
        listed = model.text.texts(key)
        if listed is not None:
            return key, model.text.by_layer(key, listed, model.layers)
    return None


def read_gated_delta(model: ModelConfig) -> LayerStack:
    """Qwen3-Next, Qwen3.5, OLMo-hybrid: ``layer_types``, else the last of every ``full_attention_interval`` (4)."""

    def is_full(index: int) -> bool:
        return (index + 1) % (model.text.optional_count("full_attention_interval") or 4) == 0

    return _mixed_stack(model, recurrent.gated_delta_state, "layer_types", is_full=is_full)


def read_pooled_gated_delta(model: ModelConfig) -> LayerStack:
    """Qwen4-Exp: as Qwen3.5, with an indexer on full layers and n-gram embeddings on the ``ple_layer_ids`` (from 1).

    An indexer keeps one pooled key in bfloat16 per ``indexer_compress_ratio`` tokens, and the raw keys of the group
    that is still open, each with three int64 positions in the multimodal class. N-gram embeddings pass a dilated
    convolution over all residual streams, whose state every rank keeps: (``ple_conv_kernel_size`` − 1) ×
    ``ngram_size`` steps. Source: vLLM 0.33, ``QSAKeyStateCache``, ``QSACompressedKeyCache``, ``qwen4_exp`` PLE layer.
    """
    text = model.text.with_defaults({"hc_count": 4, "ple_conv_kernel_size": 4, "ngram_size": 3})
    beside: tuple[Layer, ...] = ()
    if text.says("indexer_n_heads"):
        width, pool = text.count("indexer_head_dim"), text.count("indexer_compress_ratio")
        rope = text.section("rope_parameters", "rope_scaling") or Fields({})
        is_multimodal = (model.outer.texts("architectures") or [""])[0] == "Qwen4ExpForConditionalGeneration"
        raw = -(-width // 4) * 4 + 12 if is_multimodal and rope.says("mrope_section") else width
        keys = IndexKeys(bytes_per_entry=2 * width, tokens_per_entry=pool)
        beside = (keys, IndexTail(tokens=pool, values_per_token=raw))
    ngrams = NgramConvState(
        channels=text.count("hc_count") * model.hidden,
        steps=(text.count("ple_conv_kernel_size") - 1) * text.count("ngram_size"),
        conv_type=model.dtype,
        temporal_type=model.dtype,
    )
    ngram_layers = text.counts("ple_layer_ids") or []
    stack: list[tuple[Layer, ...]] = []
    for number, (kept,) in enumerate(read_gated_delta(model), start=1):
        own = (kept, *beside) if isinstance(kept, FullAttention) else (kept,)
        stack.append((*own, ngrams) if number in ngram_layers else own)
    return tuple(stack)


def read_kda(model: ModelConfig) -> LayerStack:
    """Kimi-Linear: KDA and, on the full layers, MLA (AliceAI: plain attention).

    ``linear_attn_config`` numbers both from 1; files saved by transformers 5 have ``layer_types`` instead.
    """
    full_cache = full_attention if model.family == "alice_ai" else latent_cache
    linear = model.text.section("linear_attn_config")
    if linear is None:
        listed = _listed_names(model, "layer_types")
        if listed is None:
            raise model.text.missing("linear_attn_config", "layer_types")
        return named_stack(model, *listed, recurrent.kda_state, full_cache)
    full, kda = linear.needed_counts("full_attn_layers", minimum=1), linear.needed_counts("kda_layers", minimum=1)
    numbers = range(1, model.layers + 1)
    if any((number in full) == (number in kda) for number in numbers):
        raise linear.contradicts("kda_layers", f"with full_attn_layers it must name each of {model.layers} layers once")
    kept, state = full_cache(model), recurrent.kda_state(model)
    return tuple((kept,) if number in full else (state,) for number in numbers)


def read_pooled_sparse(model: ModelConfig) -> LayerStack:
    """GLM-5.3-Flash: three KDA layers, then one of sparse MLA, unless ``layer_types`` says otherwise.

    A layer with an indexer of its own (``full`` in ``indexer_types``) keeps one pooled key per ``index_kpool`` (16)
    tokens, and the raw tail of tokens from which the next one is made.
    Source: transformers 5.20, ``Glm5NextTextConfig``; vLLM 0.33, ``Glm5NextIndexerCache``, ``Glm5NextTailCache``.
    """
    text = model.text
    key, names = _layer_names(model, "layer_types", is_full=lambda index: index % 4 == 3)
    if set(names) - _FULL_NAMES - SPARSE_NAMES - {"linear_attention"}:
        raise text.refused(key, "only linear_attention and sparse attention layers are known")
    pool = text.optional_count("index_kpool") or 16
    width = text.count("index_head_dim")
    entry = replace(index_keys(model), tokens_per_entry=pool)
    tail = (IndexTail(tokens=pool, values_per_token=2 * width),) if pool > 1 else ()
    latent, state = latent_cache(model), replace(recurrent.kda_state(model, recurrent.GLM5_KDA), bounded_gate=True)
    owns = own_indexer(model)
    return tuple(
        (state,) if name == "linear_attention" else (latent, entry, *tail) if owns[index] else (latent,)
        for index, name in enumerate(names)
    )


def read_lightning(model: ModelConfig) -> LayerStack:
    """MiniMax-Text-01, M1: ``attn_type_list`` (1 = full, 0 = lightning), else ``layer_types``, else even layers are
    full (transformers, ``MiniMaxConfig``)."""
    marks = model.text.counts("attn_type_list", minimum=0)
    if marks is None:
        return _mixed_stack(model, recurrent.lightning_state, "layer_types", is_full=lambda index: index % 2 == 0)
    marks = model.text.by_layer("attn_type_list", marks, model.layers, (0, 1))
    names = ["full_attention" if mark else "linear_attention" for mark in marks]
    return named_stack(model, "attn_type_list", names, recurrent.lightning_state)


def read_grouped_lightning(model: ModelConfig) -> LayerStack:
    """Ling 2.5: the last of every ``layer_group_size`` layers is MLA, the others are lightning attention.

    Source: vLLM 0.33, ``bailing_moe_linear.is_linear_layer``.
    """
    size = model.text.count("layer_group_size")
    return _mixed_stack(
        model, recurrent.lightning_state, is_full=lambda index: (index + 1) % size == 0, full=latent_cache
    )


def read_grouped_kda(model: ModelConfig) -> LayerStack:
    """Ling 3: as Ling 2.5 with KDA; layers beyond the last whole group are MLA too.

    Source: vLLM 0.33, ``bailing_moe_v3._is_kda_layer``.
    """
    size = model.text.count("layer_group_size")
    whole = model.layers // size * size

    def is_full(index: int) -> bool:
        return (index + 1) % size == 0 or index >= whole

    return _mixed_stack(model, recurrent.bailing_kda_state, is_full=is_full, full=latent_cache)


def read_jamba(model: ModelConfig) -> LayerStack:
    """Jamba: attention where index % ``attn_layer_period`` (8) == ``attn_layer_offset`` (4)."""
    period = model.text.optional_count("attn_layer_period") or 8
    offset = model.text.size("attn_layer_offset", default=4)
    return _mixed_stack(model, recurrent.jamba_state, is_full=lambda index: index % period == offset)


def read_bamba(model: ModelConfig) -> LayerStack:
    """Bamba: attention only on the layers that ``attn_layer_indices`` names."""
    indices = model.text.counts("attn_layer_indices", minimum=0) or []
    return _mixed_stack(model, recurrent.bamba_state, is_full=lambda index: index in indices)


def read_granite_hybrid(model: ModelConfig) -> LayerStack:
    """Granite 4 hybrids: ``layer_types`` (or ``layers_block_type``); every layer is recurrent where absent."""
    return _mixed_stack(model, recurrent.bamba_state, "layer_types", "layers_block_type", is_full=lambda _: False)


def read_parallel_hybrid(model: ModelConfig) -> LayerStack:
    """Falcon-H1: every layer has attention and a Mamba-2 state side by side."""
    indices = model.text.counts("attn_layer_indices", minimum=0)
    cache, state = full_attention(model), recurrent.bamba_state(model)
    return tuple((cache, state) if indices is None or index in indices else (state,) for index in range(model.layers))


def read_zamba2(model: ModelConfig) -> LayerStack:
    """Zamba2: a Mamba-2 state on every layer, and KV of its own on each hybrid layer, though the attention weights are
    shared.

    Attention works on twice the hidden size: its head width is 2 × hidden / heads, whatever ``kv_channels`` says, with
    one KV head per query head. Source: vLLM 0.33, ``Zamba2Attention``.
    """
    text = model.text
    ids = text.counts("hybrid_layer_ids", minimum=0)
    listed = _listed_names(model, "layers_block_type", "layer_types")
    if ids is None:
        if listed is None:
            raise text.missing("hybrid_layer_ids", "layers_block_type")
        key, names = listed
        if set(names) - {"hybrid", "mamba", "linear_attention", "m", "g"}:
            raise text.refused(key, "only hybrid and mamba layers are known")
        ids = [index for index, name in enumerate(names) if name in ("hybrid", "g")]
    query = model.query_heads
    width = text.optional_count("attention_hidden_size") or 2 * model.hidden
    if width % query:
        raise text.contradicts("num_attention_heads", f"it does not divide the attention width {width}")
    if any(index >= model.layers for index in ids):
        raise text.contradicts("hybrid_layer_ids", f"it names layers beyond the last of {model.layers}")
    cache, state = full_heads(query, width // query), recurrent.zamba2_state(model)
    return tuple((cache, state) if index in ids else (state,) for index in range(model.layers))


def read_short_conv(model: ModelConfig) -> LayerStack:
    """LFM2: ``layer_types`` (conv / full_attention), else attention on ``full_attn_idxs`` (all where absent)."""

    def is_full(index: int) -> bool:
        indices = model.text.counts("full_attn_idxs", minimum=0)
        return indices is None or index in indices

    return _mixed_stack(model, recurrent.short_conv_state, "layer_types", is_full=is_full)


def read_plamo2(model: ModelConfig) -> LayerStack:
    """PLaMo 2: Mamba where index % ``mamba_step`` is not ``mamba_step // 2``, attention elsewhere.

    Attention slides over ``attention_window_size`` tokens, except on the layers in ``full_attention_idx``.
    Source: the published ``modeling_plamo.py``.
    """
    text, layers = model.text, model.layers
    step = text.count("mamba_step")
    full = text.counts("full_attention_idx", minimum=0) or []
    cache, state = full_attention(model), recurrent.plamo2_state(model)
    window = limited(cache, Span(tokens=text.count("attention_window_size")))
    stack: list[tuple[Layer, ...]] = []
    for index in range(layers):
        is_recurrent = index != layers - 1 if layers <= step // 2 else index % step != step // 2
        if is_recurrent and text.flag("mamba_enabled", default=True):
            stack.append((state,))
        else:
            stack.append((cache if index in full else window,))
    return tuple(stack)


def read_rg_lru(model: ModelConfig) -> LayerStack:
    """RecurrentGemma: ``_block_types`` (recurrent, recurrent, attention where absent) repeats over the layers."""
    text = model.text
    pattern = text.texts("_block_types", "block_types") or ["recurrent", "recurrent", "attention"]
    span = Span(tokens=text.optional_count("attention_window_size", "sliding_window") or 2048)
    names = [pattern[index % len(pattern)] for index in range(model.layers)]
    return named_stack(
        model, "_block_types", names, recurrent.rg_lru_state, lambda model: limited(full_attention(model), span)
    )
