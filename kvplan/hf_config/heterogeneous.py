"""Decoders whose layers differ in heads or widths, are attention or an MLP, or run more than once.

Gemma 4, MiMo-V2, Step-3.5, Nemotron-NAS, OpenELM, IQuest-LoopCoder, HRM-Text, Dory, Nemotron-H, Phi-4-mini-flash.
"""

from kvplan.errors import UnsupportedModelError
from kvplan.hf_config.attention import full_attention, full_heads, limited, share_tail
from kvplan.hf_config.config import CHECK_HINT, Fields, LayerStack, ModelConfig
from kvplan.hf_config.hybrid import named_stack
from kvplan.hf_config.recurrent import jamba_state, nemotron_state
from kvplan.hf_config.windows import FULL, Span, attention_kind, read_spans
from kvplan.layers import FullAttention, Layer, SharedKv
from kvplan.model import MAX_LAYERS


def read_wide_full(model: ModelConfig) -> LayerStack:
    """Gemma 4, DiffusionGemma: full layers are ``global_head_dim`` (512) wide.

    They may have ``num_global_key_value_heads`` (null: as many as the sliding ones); K and V are both stored even with
    ``attention_k_eq_v``; the last ``num_kv_shared_layers`` layers read the KV of earlier ones. Files saved by
    transformers 5.20 state the widths of a layer in ``per_layer_config`` instead.
    Source: vLLM 0.33, ``Gemma4Attention``.
    """
    text = model.text
    sliding = full_attention(model)
    width = text.optional_count("global_head_dim") or 512
    global_kv = text.optional_count("num_global_key_value_heads")
    has_own_kv = text.flag("attention_k_eq_v", default=model.family == "diffusion_gemma_text")
    wide = full_heads(global_kv if global_kv is not None and has_own_kv else sliding.kv_heads, width)
    caches = [
        limited(_stated_heads(text, index, wide if span == FULL else sliding), span)
        for index, span in enumerate(read_spans(model, model.layers))
    ]
    return share_tail(model, caches, text.size("num_kv_shared_layers", default=0))


def _stated_heads(text: Fields, index: int, heads: FullAttention) -> FullAttention:
    """``heads`` with what ``per_layer_config`` says of layer ``index``; its keys are numbers, padded with zeros."""
    listed = text.section("per_layer_config")
    name = next((key for key in listed.values if key.isdecimal() and int(key) == index), None) if listed else None
    stated = listed.section(name) if listed and name else None
    if stated is None:
        return heads
    width = stated.optional_count("head_dim") or heads.head_dim
    return full_heads(stated.optional_count("num_key_value_heads") or heads.kv_heads, width)


def read_asymmetric(model: ModelConfig) -> LayerStack:
    """MiMo-V2: keys are wider than values, and sliding layers (1 in ``hybrid_layer_pattern``) have heads of their own.

    Source: vLLM 0.33, ``MiMoV2FlashDecoderLayer``: the ``swa_`` keys where the layer slides.
    """
    text = model.text
    full = full_attention(model)
    marks = text.needed_counts("hybrid_layer_pattern")
    narrow = FullAttention(
        kv_heads=text.optional_count("swa_num_key_value_heads") or full.kv_heads,
        head_dim=text.optional_count("swa_head_dim") or full.head_dim,
        value_head_dim=text.optional_count("swa_v_head_dim") or full.value_head_dim,
    )
    sliding = limited(narrow, Span(tokens=text.count("sliding_window_size", "sliding_window")))
    marks = text.by_layer("hybrid_layer_pattern", marks, model.layers, (0, 1))
    return tuple((sliding if mark else full,) for mark in marks)


def read_sliding_override(model: ModelConfig) -> LayerStack:
    """Step-3.5: sliding layers may take heads from ``attention_other_setting``; the KV-head key is
    ``num_attention_groups``. Source: vLLM 0.33, ``Step3p5DecoderLayer``."""
    other = model.text.section("attention_other_setting") or Fields({})
    heads = full_attention(model)
    narrow = FullAttention(
        kv_heads=other.optional_count("num_attention_groups") or heads.kv_heads,
        head_dim=other.optional_count("head_dim") or heads.head_dim,
        value_head_dim=other.optional_count("head_dim") or heads.value_head_dim,
    )
    return tuple((limited(heads if span == FULL else narrow, span),) for span in read_spans(model, model.layers))


def read_blocks(model: ModelConfig) -> LayerStack:
    """Nemotron-NAS: KV heads of layer i are query heads / ``n_heads_in_group``; no KV where the attention is a no-op
    or a linear layer. DeciLM-7B lists ``num_key_value_heads_per_layer`` instead."""
    text = model.text
    query = model.query_heads
    head_dim = text.optional_count("head_dim") or model.hidden // query
    listed = text.counts("num_key_value_heads_per_layer")
    if listed is not None:
        listed = text.by_layer("num_key_value_heads_per_layer", listed, model.layers)
        return tuple((full_heads(kv, head_dim),) for kv in listed)
    blocks = text.items("block_configs")
    if blocks is None:
        raise text.missing("block_configs", "num_key_value_heads_per_layer")
    if len(blocks) != model.layers:
        raise text.contradicts("block_configs", f"it has {len(blocks)} blocks for {model.layers} layers")
    return tuple(_block(text, block, index, query, head_dim) for index, block in enumerate(blocks))


def _block(text: Fields, block: object, index: int, query: int, head_dim: int) -> tuple[Layer, ...]:
    path = f"{text.path}block_configs[{index}]."
    attention = Fields(block, path=path).section("attention") if isinstance(block, dict) else None
    if attention is None:
        raise UnsupportedModelError(f"{path}attention is missing", hint=CHECK_HINT, key=f"{path}attention")
    if attention.flag("no_op") or attention.flag("replace_with_linear"):
        return ()
    if attention.says("window_length"):
        raise attention.refused("window_length", "windows inside a block are not known")
    group = attention.count("n_heads_in_group")
    if query % group:
        raise attention.contradicts("n_heads_in_group", f"it does not divide {query} query heads")
    return (full_heads(query // group, head_dim),)


def read_listed_heads(model: ModelConfig) -> LayerStack:
    """OpenELM: ``num_kv_heads`` lists the KV heads of each layer."""
    text = model.text
    listed = text.needed_counts("num_kv_heads", minimum=1)
    if len(listed) != model.layers:
        raise text.contradicts("num_kv_heads", f"it has {len(listed)} entries for {model.layers} layers")
    return tuple((full_heads(kv, text.count("head_dim")),) for kv in listed)


def read_looped(model: ModelConfig) -> LayerStack:
    """IQuest-LoopCoder: every layer runs ``loop_num`` (2) times with a cache for each; the later ones keep
    ``loop_window_size`` (64) tokens. Source: vLLM 0.33, ``LoopCoderAttention``."""
    heads, loops = full_attention(model), _loops(model, "loop_num", 2)
    window = Span(tokens=model.text.optional_count("loop_window_size") or 64)
    again = (limited(heads, window),) * (loops - 1)
    return tuple((limited(heads, span), *again) for span in read_spans(model, model.layers))


def read_cycles(model: ModelConfig) -> LayerStack:
    """HRM-Text: two stacks of ``num_layers_per_stack`` layers (else ``num_hidden_layers``) run ``H_cycles`` ×
    (``L_cycles`` + 1) times, each time with caches of their own.

    Source: vLLM 0.33, ``HrmTextAttention``; transformers 5.20, ``HrmTextConfig``.
    """
    text = model.text.with_defaults({"H_cycles": 2, "L_cycles": 3})
    layers = text.optional_count("num_layers_per_stack") or model.layers
    cycles = text.count("H_cycles") * (text.count("L_cycles") + 1)
    if layers * cycles > MAX_LAYERS:
        raise text.broken("H_cycles", text.value("H_cycles"), f"a number of cycles that {layers} layers can run")
    return ((full_attention(model),),) * (layers * cycles)


def _loops(model: ModelConfig, name: str, default: int) -> int:
    """How many times a layer runs; each time it keeps a cache of its own."""
    loops = model.text.optional_count(name) or default
    if loops * model.layers > MAX_LAYERS:
        raise model.text.broken(name, loops, f"a number of loops that {model.layers} layers can run")
    return loops


def read_recurrent_depth(model: ModelConfig) -> LayerStack:
    """Dory: a layer is attention or an MLP, and the middle layers run ``n_recurrent_loops`` times.

    Where ``layer_types`` is absent, every second layer is an MLP and every fourth attention layer is full. The layers
    between the first ``n_input_layers`` and the last ``n_output_layers`` loop, with a cache for each run unless
    ``recurrent_kv_cache_mode`` is ``last_loop``. Source: vLLM 0.33, ``DoryConfig``, ``DoryAttention``.
    """
    text, layers = model.text, model.layers
    listed = text.texts("layer_types")
    if listed is None:
        kinds = ["mlp" if index % 2 else "full" if index % 8 == 6 else "sliding" for index in range(layers)]
    else:
        listed = text.by_layer("layer_types", listed, layers)
        kinds = ["mlp" if name == "mlp" else attention_kind(model, name) for name in listed]
    first, last = text.size("n_input_layers", default=0), layers - text.size("n_output_layers", default=0)
    mode = text.text("recurrent_kv_cache_mode") or "per_loop"
    if mode not in ("per_loop", "last_loop"):
        raise text.refused("recurrent_kv_cache_mode", "only per_loop and last_loop are known")
    loops = _loops(model, "n_recurrent_loops", 1) if mode == "per_loop" else 1
    full = full_attention(model)
    caches = {"full": full, "sliding": limited(full, Span(tokens=text.count("sliding_window")))}
    if set(kinds) - {"mlp", *caches}:
        raise text.refused("layer_types", "only mlp, full and sliding attention layers are known")
    return tuple(
        () if kind == "mlp" else (caches[kind],) * (loops if first <= index < last else 1)
        for index, kind in enumerate(kinds)
    )


# The letters of ``hybrid_override_pattern``, and the names that newer files list instead.
NEMOTRON_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_NEMOTRON_NAMES = frozenset({"mamba", "linear_attention", "attention", "full_attention", "mlp", "moe"})


def read_nemotron_hybrid(model: ModelConfig) -> LayerStack:
    """Nemotron-H: a letter (M, *, -, E) or a name for each layer; MLP and expert layers keep nothing.

    A ``sliding_window`` holds for every attention layer. Source: vLLM 0.33, ``NemotronHAttention``.
    """
    kinds = nemotron_kinds(model)
    span = Span(tokens=model.text.size("sliding_window", default=0) or None)
    names = [kind for kind in kinds if kind not in ("mlp", "moe")]
    caches = iter(
        named_stack(model, "layer_types", names, nemotron_state, lambda model: limited(full_attention(model), span))
    )
    return tuple(() if kind in ("mlp", "moe") else next(caches) for kind in kinds)


def nemotron_kinds(model: ModelConfig) -> list[str]:
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


def read_yoco(model: ModelConfig) -> LayerStack:
    """Phi-4-mini-flash: the first half keeps states and windows, the second half reads one layer's KV.

    With n layers and ``mb_per_layer`` 2, layers 0 … n/2 − 1 alternate Mamba-1 and sliding attention, layer n/2 is
    Mamba-1, layer n/2 + 1 keeps full KV, and all later layers read the state and the KV of those two.
    Source: the published ``modeling_phi4flash.py`` and ``configuration_phi4flash.py``.
    """
    text, layers = model.text, model.layers
    full, state = full_attention(model), jamba_state(model)
    every = text.optional_count("mb_per_layer") or 2
    half = layers // 2
    if isinstance(text.value("sliding_window"), list):
        windows = text.by_layer("sliding_window", text.items("sliding_window") or [], layers)
    else:
        windows = [text.count("sliding_window")] * layers
    stack: list[Layer] = []
    for index, window in enumerate(windows):
        is_state = index % every == 0
        if index > half + 1:
            stack.append(SharedKv(read=None if is_state else full))
        elif is_state:
            stack.append(state)
        elif index < half and isinstance(window, int) and window > 0:
            stack.append(limited(full, Span(tokens=window)))
        else:
            stack.append(full)
    return tuple((kept,) for kept in stack)
