"""Stacks that mix attention with recurrent layers: which layer is which, in every way that configs say it."""

from collections.abc import Callable
from dataclasses import replace

from kvplan.errors import UnsupportedModelError
from kvplan.hf_config.described import Described, LayerStack
from kvplan.hf_config.fields import MEASURE_HINT
from kvplan.hf_config.heads import Heads, read_heads
from kvplan.hf_config.latent import SPARSE_NAMES, index_keys, latent_cache, own_indexer
from kvplan.hf_config.recurrent import (
    GLM5_KDA,
    bailing_kda_state,
    bamba_state,
    flat_kda_state,
    gated_delta_state,
    jamba_state,
    kda_state,
    lightning_state,
    nemotron_state,
    plamo2_state,
    rg_lru_state,
    short_conv_state,
    zamba2_state,
)
from kvplan.hf_config.standard import attention, full_attention
from kvplan.hf_config.windows import FULL, Span, checked_length
from kvplan.layers import IndexTail, Layer

_FULL_NAMES = frozenset({"attention", "full_attention"})
_LINEAR_NAMES = frozenset({"mamba", "mamba2", "linear_attention", "linear", "recurrent", "conv"})


Cache = Callable[[Described], Layer]
Kinds = tuple[str, list[str]]
"""The key that says what each layer is, and a name for every layer."""


def _mixed(model: Described, kinds: Kinds, state: Cache, full: Cache = full_attention) -> LayerStack:
    """One cache for every layer: ``full`` or ``state`` by its name in ``kinds``; other names are refused."""
    key, names = kinds
    unknown = next((name for name in names if name not in _FULL_NAMES | _LINEAR_NAMES), None)
    if unknown is not None:
        raise UnsupportedModelError(
            f"layer type {unknown!r} in {model.text.path}{key} is not known for {model.family}",
            hint=MEASURE_HINT,
            key=model.text.path + key,
        )
    caches = {name: (full if name in _FULL_NAMES else state)(model) for name in dict.fromkeys(names)}
    return tuple((caches[name],) for name in names)


def _kinds(model: Described, *lists: str, is_full: Callable[[int], bool]) -> Kinds:
    """The first of ``lists`` that the file has; without any, ``is_full`` says which layers are attention."""
    return _listed(model, *lists) or _by_index(model, is_full)


def _listed(model: Described, *names: str) -> Kinds | None:
    for name in names:
        listed = model.text.texts(name)
        if listed is not None:
            return name, checked_length(model, name, listed, model.layers)
    return None


def _by_index(model: Described, is_full: Callable[[int], bool]) -> Kinds:
    return "layer_types", ["full_attention" if is_full(index) else "linear_attention" for index in range(model.layers)]


def read_gated_delta(model: Described) -> LayerStack:
    """Qwen3-Next, Qwen3.5, OLMo-hybrid: ``layer_types``, else the last of every ``full_attention_interval`` (4)."""

    def is_full(index: int) -> bool:
        return (index + 1) % (model.text.optional_count("full_attention_interval") or 4) == 0

    return _mixed(model, _kinds(model, "layer_types", is_full=is_full), gated_delta_state)


def read_jamba(model: Described) -> LayerStack:
    """Jamba: attention where index % ``attn_layer_period`` (8) == ``attn_layer_offset`` (4)."""
    period = model.text.optional_count("attn_layer_period") or 8
    offset = model.text.size("attn_layer_offset", default=4)
    return _mixed(model, _by_index(model, lambda index: index % period == offset), jamba_state)


def read_bamba(model: Described) -> LayerStack:
    """Bamba: attention only on the layers that ``attn_layer_indices`` names."""
    indices = model.text.counts("attn_layer_indices", least=0) or []
    return _mixed(model, _by_index(model, lambda index: index in indices), bamba_state)


def read_granite_hybrid(model: Described) -> LayerStack:
    """Granite 4 hybrids: ``layer_types`` (or ``layers_block_type``); every layer recurrent where absent."""
    return _mixed(model, _kinds(model, "layer_types", "layers_block_type", is_full=lambda _: False), bamba_state)


def read_parallel_hybrid(model: Described) -> LayerStack:
    """Falcon-H1: every layer has attention and a Mamba-2 state side by side."""
    indices = model.text.counts("attn_layer_indices", least=0)
    cache, state = full_attention(model), bamba_state(model)
    return tuple((cache, state) if indices is None or index in indices else (state,) for index in range(model.layers))


NEMOTRON_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_NEMOTRON_NAMES = frozenset({"mamba", "linear_attention", "attention", "full_attention", "mlp", "moe"})
_WITHOUT_CACHE = frozenset({"mlp", "moe"})


def read_nemotron_hybrid(model: Described) -> LayerStack:
    """Nemotron-H: a letter (M, *, -, E) or a name for each layer; MLP and expert layers keep nothing.

    A ``sliding_window`` holds for every attention layer. Source: vLLM 0.33, ``NemotronHAttention``.
    """
    kinds = nemotron_kinds(model)
    cached = [kind for kind in kinds if kind not in _WITHOUT_CACHE]
    window = model.text.size("sliding_window", default=0)
    span = Span(rule="sliding", tokens=window) if window else FULL

    def full(model: Described) -> Layer:
        return attention(read_heads(model), span)

    caches = iter(_mixed(model, ("layer_types", cached), nemotron_state, full))
    return tuple(() if kind in _WITHOUT_CACHE else next(caches) for kind in kinds)


def nemotron_kinds(model: Described) -> list[str]:
    """What each layer of Nemotron-H is, by name. The list's length is the number of layers: the newest files have no
    ``num_hidden_layers`` at all."""
    text = model.text
    pattern = text.text("hybrid_override_pattern")
    if pattern is not None:
        if not pattern or set(pattern) - set(NEMOTRON_LETTERS):
            raise text.refused("hybrid_override_pattern", "only M, *, - and E are known")
        return [NEMOTRON_LETTERS[letter] for letter in pattern]
    key = "layer_types" if text.says("layer_types") else "layers_block_type"
    kinds = text.texts(key)
    if not kinds:
        raise text.missing("hybrid_override_pattern", "layers_block_type")
    if set(kinds) - _NEMOTRON_NAMES:
        raise text.refused(key, f"only {', '.join(sorted(_NEMOTRON_NAMES))} layers are known")
    return kinds


def read_zamba2(model: Described) -> LayerStack:
    """Zamba2: a Mamba-2 state on every layer, and KV of its own on each hybrid layer, though the attention weights are
    shared. Attention works on twice the hidden size: its head width is 2 × hidden / heads, whatever ``kv_channels``
    says, with one KV head per query head. Source: vLLM 0.33, ``Zamba2Attention``."""
    text = model.text
    ids = text.counts("hybrid_layer_ids", least=0)
    key, kinds = _listed(model, "layers_block_type", "layer_types") or ("hybrid_layer_ids", None)
    if ids is None:
        if kinds is None:
            raise text.missing("hybrid_layer_ids", "layers_block_type")
        unknown = set(kinds) - {"hybrid", "mamba", "linear_attention", "m", "g"}
        if unknown:
            raise text.refused(key, "only hybrid and mamba layers are known")
        ids = [index for index, kind in enumerate(kinds) if kind in ("hybrid", "g")]
    query = model.query_heads
    width = text.optional_count("attention_hidden_size") or 2 * model.hidden
    if width % query:
        raise text.contradicts("num_attention_heads", f"it does not divide the attention width {width}")
    if any(index >= model.layers for index in ids):
        raise text.contradicts("hybrid_layer_ids", f"it names layers beyond the {model.layers} that there are")
    cache = attention(Heads(query=query, kv=query, head_dim=width // query, value_head_dim=width // query), FULL)
    state = zamba2_state(model)
    return tuple((cache, state) if index in ids else (state,) for index in range(model.layers))


def read_short_conv(model: Described) -> LayerStack:
    """LFM2: ``layer_types`` (conv / full_attention), else attention on ``full_attn_idxs`` (all where absent)."""

    def is_full(index: int) -> bool:
        indices = model.text.counts("full_attn_idxs", least=0)
        return indices is None or index in indices

    return _mixed(model, _kinds(model, "layer_types", is_full=is_full), short_conv_state)


def read_kda(model: Described) -> LayerStack:
    """Kimi-Linear: KDA and, on the full layers, MLA. ``linear_attn_config`` numbers both from 1; files that
    transformers 5 saved have ``layer_types`` instead."""
    linear = model.text.section("linear_attn_config")
    if linear is None:
        found = _listed(model, "layer_types")
        if found is None:
            raise model.text.missing("linear_attn_config")
        return _mixed(model, found, kda_state, latent_cache)
    full = linear.counts("full_attn_layers")
    recurrent = linear.counts("kda_layers")
    if full is None or recurrent is None:
        raise linear.missing("full_attn_layers" if full is None else "kda_layers")
    layers = range(1, model.layers + 1)
    if any((number in full) == (number in recurrent) for number in layers):
        raise linear.contradicts("kda_layers", f"with full_attn_layers it must name each of {model.layers} layers once")
    latent, state = latent_cache(model), kda_state(model)
    return tuple((latent,) if number in full else (state,) for number in layers)


def read_pooled_sparse(model: Described) -> LayerStack:
    """GLM-5.3-Flash: three KDA layers, then one of sparse MLA, unless ``layer_types`` says otherwise.

    A layer with an indexer of its own (``full`` in ``indexer_types``) keeps one pooled key per ``index_kpool`` (16)
    tokens, and the raw tail of tokens from which the next one is made.
    Source: transformers 5.20, ``Glm5NextTextConfig``; vLLM 0.33, ``Glm5NextIndexerCache``, ``Glm5NextTailCache``.
    """
    text = model.text
    key, kinds = _kinds(model, "layer_types", is_full=lambda index: index % 4 == 3)
    sparse = _FULL_NAMES | SPARSE_NAMES
    if set(kinds) - sparse - {"linear_attention"}:
        raise text.refused(key, "only linear_attention and sparse attention layers are known")
    pool = text.optional_count("index_kpool") or 16
    width = text.count("index_head_dim")
    entry = replace(index_keys(model), tokens_per_entry=pool)
    tail = (IndexTail(tokens=pool, values_per_token=2 * width),) if pool > 1 else ()
    latent, state = latent_cache(model), replace(kda_state(model, GLM5_KDA), bounded_gate=True)
    owns = own_indexer(model)
    return tuple(
        (state,) if kind == "linear_attention" else (latent, entry, *tail) if owns[index] else (latent,)
        for index, kind in enumerate(kinds)
    )


def read_flat_kda(model: Described) -> LayerStack:
    """AliceAI: full attention and KDA by ``layer_types``; KDA's sizes are under the flat ``linear_`` keys.

    Source: vLLM 0.33, ``AliceAIDecoderLayer``.
    """
    kinds = _listed(model, "layer_types")
    if kinds is None:
        raise model.text.missing("layer_types")
    return _mixed(model, kinds, flat_kda_state)


def read_lightning(model: Described) -> LayerStack:
    """MiniMax-Text-01, M1: ``attn_type_list`` (1 = full, 0 = lightning) or ``layer_types``."""
    marks = model.text.counts("attn_type_list", least=0)
    if marks is not None:
        if len(marks) < model.layers or set(marks) - {0, 1}:
            raise model.text.contradicts("attn_type_list", f"0 or 1 is expected for each of {model.layers} layers")
        kinds = "attn_type_list", ["full_attention" if mark else "linear_attention" for mark in marks[: model.layers]]
    else:  # transformers' MiniMaxConfig without a list: even layers are full
        kinds = _kinds(model, "layer_types", is_full=lambda index: index % 2 == 0)
    return _mixed(model, kinds, lightning_state)


def _is_group_end(index: int, size: int) -> bool:
    return (index + 1) % size == 0


def read_grouped_lightning(model: Described) -> LayerStack:
    """Ling 2.5: the last of every ``layer_group_size`` layers is MLA, the others lightning attention.

    Source: vLLM 0.33, ``bailing_moe_linear.is_linear_layer``.
    """
    size = model.text.count("layer_group_size")
    return _mixed(model, _by_index(model, lambda index: _is_group_end(index, size)), lightning_state, latent_cache)


def read_grouped_kda(model: Described) -> LayerStack:
    """Ling 3: as Ling 2.5 with KDA; layers beyond the last whole group are MLA too.

    Source: vLLM 0.33, ``bailing_moe_v3._is_kda_layer``.
    """
    size = model.text.count("layer_group_size")
    whole = model.layers // size * size
    kinds = _by_index(model, lambda index: _is_group_end(index, size) or index >= whole)
    return _mixed(model, kinds, bailing_kda_state, latent_cache)


def read_plamo2(model: Described) -> LayerStack:
    """PLaMo 2: Mamba where index % ``mamba_step`` is not ``mamba_step // 2``, attention elsewhere.

    Attention slides over ``attention_window_size`` tokens, except on the layers in ``full_attention_idx``.
    Source: the published ``modeling_plamo.py``.
    """
    text, layers = model.text, model.layers
    step = text.count("mamba_step")
    full = text.counts("full_attention_idx", least=0) or []
    heads, window = read_heads(model), Span(rule="sliding", tokens=text.count("attention_window_size"))
    state = plamo2_state(model)
    stack: list[tuple[Layer, ...]] = []
    for index in range(layers):
        recurrent = index != layers - 1 if layers <= step // 2 else index % step != step // 2
        if recurrent and text.flag("mamba_enabled", default=True):
            stack.append((state,))
        else:
            stack.append((attention(heads, FULL if index in full else window),))
    return tuple(stack)


def read_rg_lru(model: Described) -> LayerStack:
    """RecurrentGemma: ``_block_types`` (recurrent, recurrent, attention where absent) repeats over the layers."""
    text = model.text
    pattern = text.texts("_block_types", "block_types") or ["recurrent", "recurrent", "attention"]
    window = text.optional_count("attention_window_size", "sliding_window") or 2048
    span = Span(rule="sliding", tokens=window)
    kinds = [pattern[index % len(pattern)] for index in range(model.layers)]
    return _mixed(model, ("_block_types", kinds), rg_lru_state, lambda model: attention(read_heads(model), span))
