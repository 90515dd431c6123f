"""Stacks that mix attention with Mamba, short convolutions or RG-LRU: which layer is which, as configs say it."""

from kvplan.hf_config.described import Described, LayerStack
from kvplan.hf_config.heads import Heads, read_heads
from kvplan.hf_config.mixed import kinds_by_index, layer_kinds, listed_kinds, mixed_stack
from kvplan.hf_config.recurrent import (
    bamba_state,
    jamba_state,
    nemotron_state,
    plamo2_state,
    rg_lru_state,
    short_conv_state,
    zamba2_state,
)
from kvplan.hf_config.standard import attention, full_attention
from kvplan.hf_config.windows import FULL, Span
from kvplan.layers import Layer


def read_jamba(model: Described) -> LayerStack:
    """Jamba: attention where index % ``attn_layer_period`` (8) == ``attn_layer_offset`` (4)."""
    period = model.text.optional_count("attn_layer_period") or 8
    offset = model.text.size("attn_layer_offset", default=4)
    return mixed_stack(model, kinds_by_index(model, lambda index: index % period == offset), jamba_state)


def read_bamba(model: Described) -> LayerStack:
    """Bamba: attention only on the layers that ``attn_layer_indices`` names."""
    indices = model.text.counts("attn_layer_indices", least=0) or []
    return mixed_stack(model, kinds_by_index(model, lambda index: index in indices), bamba_state)


def read_granite_hybrid(model: Described) -> LayerStack:
    """Granite 4 hybrids: ``layer_types`` (or ``layers_block_type``); every layer recurrent where absent."""
    return mixed_stack(
        model, layer_kinds(model, "layer_types", "layers_block_type", is_full=lambda _: False), bamba_state
    )


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

    caches = iter(mixed_stack(model, ("layer_types", cached), nemotron_state, full))
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
    key, kinds = listed_kinds(model, "layers_block_type", "layer_types") or ("hybrid_layer_ids", None)
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

    return mixed_stack(model, layer_kinds(model, "layer_types", is_full=is_full), short_conv_state)


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
    return mixed_stack(model, ("_block_types", kinds), rg_lru_state, lambda model: attention(read_heads(model), span))
