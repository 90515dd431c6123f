"""Stacks of full or latent attention and linear attention: gated delta nets, Kimi delta attention, lightning."""

from dataclasses import replace

from kvplan.hf_config.described import Described, LayerStack
from kvplan.hf_config.latent import SPARSE_NAMES, index_keys, latent_cache, own_indexer
from kvplan.hf_config.mixed import FULL_NAMES, kinds_by_index, layer_kinds, listed_kinds, mixed_stack
from kvplan.hf_config.recurrent import GLM5_KDA, bailing_kda_state, gated_delta_state, kda_state, lightning_state
from kvplan.hf_config.standard import full_attention
from kvplan.layers import IndexTail


def read_gated_delta(model: Described) -> LayerStack:
    """Qwen3-Next, Qwen3.5, OLMo-hybrid: ``layer_types``, else the last of every ``full_attention_interval`` (4)."""

    def is_full(index: int) -> bool:
        return (index + 1) % (model.text.optional_count("full_attention_interval") or 4) == 0

    return mixed_stack(model, layer_kinds(model, "layer_types", is_full=is_full), gated_delta_state)


def read_kda(model: Described) -> LayerStack:
    """Kimi-Linear: KDA and, on the full layers, MLA (AliceAI: plain attention). ``linear_attn_config`` numbers both
    from 1; files that transformers 5 saved have ``layer_types`` instead."""
    full_cache = full_attention if model.family == "alice_ai" else latent_cache
    linear = model.text.section("linear_attn_config")
    if linear is None:
        found = listed_kinds(model, "layer_types")
        if found is None:
            raise model.text.missing("linear_attn_config", "layer_types")
        return mixed_stack(model, found, kda_state, full_cache)
    full = linear.counts("full_attn_layers")
    recurrent = linear.counts("kda_layers")
    if full is None or recurrent is None:
        raise linear.missing("full_attn_layers" if full is None else "kda_layers")
    layers = range(1, model.layers + 1)
    if any((number in full) == (number in recurrent) for number in layers):
        raise linear.contradicts("kda_layers", f"with full_attn_layers it must name each of {model.layers} layers once")
    kept, state = full_cache(model), kda_state(model)
    return tuple((kept,) if number in full else (state,) for number in layers)


def read_pooled_sparse(model: Described) -> LayerStack:
    """GLM-5.3-Flash: three KDA layers, then one of sparse MLA, unless ``layer_types`` says otherwise.

    A layer with an indexer of its own (``full`` in ``indexer_types``) keeps one pooled key per ``index_kpool`` (16)
    tokens, and the raw tail of tokens from which the next one is made.
    Source: transformers 5.20, ``Glm5NextTextConfig``; vLLM 0.33, ``Glm5NextIndexerCache``, ``Glm5NextTailCache``.
    """
    text = model.text
    key, kinds = layer_kinds(model, "layer_types", is_full=lambda index: index % 4 == 3)
    sparse = FULL_NAMES | SPARSE_NAMES
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


def read_lightning(model: Described) -> LayerStack:
    """MiniMax-Text-01, M1: ``attn_type_list`` (1 = full, 0 = lightning) or ``layer_types``."""
    marks = model.text.counts("attn_type_list", least=0)
    if marks is not None:
        marks = model.text.by_layer("attn_type_list", marks, model.layers, (0, 1))
        kinds = "attn_type_list", ["full_attention" if mark else "linear_attention" for mark in marks]
    else:  # transformers' MiniMaxConfig without a list: even layers are full
        kinds = layer_kinds(model, "layer_types", is_full=lambda index: index % 2 == 0)
    return mixed_stack(model, kinds, lightning_state)


def read_grouped_lightning(model: Described) -> LayerStack:
    """Ling 2.5: the last of every ``layer_group_size`` layers is MLA, the others lightning attention.

    Source: vLLM 0.33, ``bailing_moe_linear.is_linear_layer``.
    """
    size = model.text.count("layer_group_size")
    kinds = kinds_by_index(model, lambda index: (index + 1) % size == 0)
    return mixed_stack(model, kinds, lightning_state, latent_cache)


def read_grouped_kda(model: Described) -> LayerStack:
    """Ling 3: as Ling 2.5 with KDA; layers beyond the last whole group are MLA too.

    Source: vLLM 0.33, ``bailing_moe_v3._is_kda_layer``.
    """
    size = model.text.count("layer_group_size")
    whole = model.layers // size * size
    kinds = kinds_by_index(model, lambda index: (index + 1) % size == 0 or index >= whole)
    return mixed_stack(model, kinds, bailing_kda_state, latent_cache)
