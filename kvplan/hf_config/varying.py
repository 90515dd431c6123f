"""Decoders whose KV heads or head widths differ from layer to layer."""

from kvplan.errors import UnsupportedModelError
from kvplan.hf_config.described import Described, LayerStack
from kvplan.hf_config.fields import CHECK_HINT, MOST_LAYERS, Fields
from kvplan.hf_config.heads import Heads, read_heads
from kvplan.hf_config.recurrent import jamba_state
from kvplan.hf_config.standard import attention, share_tail
from kvplan.hf_config.windows import FULL, Span, layer_rule, read_spans
from kvplan.layers import FullAttention, Layer, SharedKv


def read_wide_full(model: Described) -> LayerStack:
    """Gemma 4, DiffusionGemma: full layers are ``global_head_dim`` (512) wide and may have
    ``num_global_key_value_heads`` (null: as many as sliding ones); K and V are both stored even with
    ``attention_k_eq_v``; the last ``num_kv_shared_layers`` layers read the KV of earlier ones.

    Files that transformers 5.20 saved say the widths of a layer in ``per_layer_config`` instead.
    Source: vLLM 0.33, ``Gemma4Attention``.
    """
    text = model.text
    sliding = read_heads(model)
    width = text.optional_count("global_head_dim") or 512
    global_kv = text.optional_count("num_global_key_value_heads")
    own_kv = text.flag("attention_k_eq_v", default=model.family == "diffusion_gemma_text")
    kv = global_kv if global_kv is not None and own_kv else sliding.kv
    wide = Heads(query=sliding.query, kv=kv, head_dim=width, value_head_dim=width)
    spans = read_spans(model, model.layers)
    stack = [
        attention(_said_of_layer(text, index, wide if span == FULL else sliding), span)
        for index, span in enumerate(spans)
    ]
    return share_tail(model, stack, text.size("num_kv_shared_layers", default=0))


def _said_of_layer(text: Fields, index: int, heads: Heads) -> Heads:
    """``heads`` with what ``per_layer_config`` says of layer ``index``; its keys are numbers, padded with zeros."""
    listed = text.section("per_layer_config")
    name = next((key for key in listed.values if key.isdecimal() and int(key) == index), None) if listed else None
    said = listed.section(name) if listed and name else None
    if said is None:
        return heads
    width = said.optional_count("head_dim") or heads.head_dim
    kv = said.optional_count("num_key_value_heads") or heads.kv
    return Heads(query=heads.query, kv=kv, head_dim=width, value_head_dim=width)


def read_asymmetric(model: Described) -> LayerStack:
    """MiMo-V2: keys are wider than values, and sliding layers (1 in ``hybrid_layer_pattern``) have heads of their own.

    Source: vLLM 0.33, ``MiMoV2FlashDecoderLayer``: the ``swa_`` keys where the layer slides.
    """
    text = model.text
    full = read_heads(model)
    marks = text.counts("hybrid_layer_pattern", least=0)
    if marks is None:
        raise text.missing("hybrid_layer_pattern")
    head_dim = text.optional_count("swa_head_dim") or full.head_dim
    narrow = Heads(
        query=text.optional_count("swa_num_attention_heads") or full.query,
        kv=text.optional_count("swa_num_key_value_heads") or full.kv,
        head_dim=head_dim,
        value_head_dim=text.optional_count("swa_v_head_dim") or full.value_head_dim,
    )
    window = Span(rule="sliding", tokens=text.count("sliding_window_size", "sliding_window"))
    slides = (attention(narrow, window),)
    stays = (attention(full, FULL),)
    return tuple(
        slides if mark else stays for mark in text.by_layer("hybrid_layer_pattern", marks, model.layers, (0, 1))
    )


def read_sliding_override(model: Described) -> LayerStack:
    """Step-3.5: sliding layers may take heads from ``attention_other_setting``; the KV-head key is
    ``num_attention_groups``. Source: vLLM 0.33, ``Step3p5DecoderLayer``."""
    other = model.text.section("attention_other_setting")
    heads = read_heads(model)
    narrow = heads
    if other is not None:
        narrow = Heads(
            query=other.optional_count("num_attention_heads") or heads.query,
            kv=other.optional_count("num_attention_groups") or heads.kv,
            head_dim=other.optional_count("head_dim") or heads.head_dim,
            value_head_dim=other.optional_count("head_dim") or heads.value_head_dim,
        )
    return tuple((attention(heads if span == FULL else narrow, span),) for span in read_spans(model, model.layers))


def read_blocks(model: Described) -> LayerStack:
    """Nemotron-NAS: KV heads of layer i are query heads / ``n_heads_in_group``; no KV where the attention is a no-op
    or a linear layer. DeciLM-7B lists ``num_key_value_heads_per_layer`` instead."""
    text = model.text
    query = model.query_heads
    head_dim = text.optional_count("head_dim") or model.hidden // query
    listed = text.counts("num_key_value_heads_per_layer")
    if listed is not None:
        listed = text.by_layer("num_key_value_heads_per_layer", listed, model.layers)
        return tuple((_full(kv, head_dim),) for kv in listed)
    blocks = text.items("block_configs")
    if blocks is None:
        raise text.missing("block_configs", "num_key_value_heads_per_layer")
    if len(blocks) != model.layers:
        raise text.contradicts("block_configs", f"it has {len(blocks)} blocks for {model.layers} layers")
    return tuple(_block(model, block, index, query, head_dim) for index, block in enumerate(blocks))


def _block(model: Described, block: object, index: int, query: int, head_dim: int) -> tuple[Layer, ...]:
    path = f"{model.text.path}block_configs[{index}]."
    fields = Fields(block, path=path).section("attention") if isinstance(block, dict) else None
    if fields is None:
        raise UnsupportedModelError(f"{path}attention is missing", hint=CHECK_HINT, key=f"{path}attention")
    if fields.flag("no_op") or fields.flag("replace_with_linear"):
        return ()
    if fields.says("window_length"):
        raise fields.refused("window_length", "windows inside a block are not known")
    group = fields.count("n_heads_in_group")
    if query % group:
        raise fields.contradicts("n_heads_in_group", f"it does not divide {query} query heads")
    return (_full(query // group, head_dim),)


def read_looped(model: Described) -> LayerStack:
    """IQuest-LoopCoder: every layer runs ``loop_num`` (2) times with a cache for each; the later ones keep
    ``loop_window_size`` (64) tokens. Source: vLLM 0.33, ``LoopCoderAttention``."""
    text = model.text
    heads, loops = read_heads(model), _loops(model, "loop_num", 2)
    window = Span(rule="sliding", tokens=text.optional_count("loop_window_size") or 64)
    again = (attention(heads, window),) * (loops - 1)
    return tuple((attention(heads, span), *again) for span in read_spans(model, model.layers))


def read_cycles(model: Described) -> LayerStack:
    """HRM-Text: two stacks of ``num_layers_per_stack`` layers (``num_hidden_layers``, where the file does not say it)
    run ``H_cycles`` × (``L_cycles`` + 1) times, each time with caches of its own. Source: vLLM 0.33,
    ``HrmTextAttention``; transformers 5.20, ``HrmTextConfig``."""
    text = model.text.with_defaults({**model.text.defaults, "H_cycles": 2, "L_cycles": 3})
    layers = text.optional_count("num_layers_per_stack") or model.layers
    cycles = text.count("H_cycles") * (text.count("L_cycles") + 1)
    if layers * cycles > MOST_LAYERS:
        raise text.broken("H_cycles", text.value("H_cycles"), f"a number of cycles that {layers} layers can run")
    return ((attention(read_heads(model), FULL),),) * (layers * cycles)


def _loops(model: Described, name: str, default: int) -> int:
    """How many times a layer runs; each time it keeps a cache of its own."""
    loops = model.text.optional_count(name) or default
    if loops * model.layers > MOST_LAYERS:
        raise model.text.broken(name, loops, f"a number of loops that {model.layers} layers can run")
    return loops


def read_recurrent_depth(model: Described) -> LayerStack:
    """Dory: a layer attends or is an MLP (every second, where ``layer_types`` is absent; of the attention layers each
    fourth is full); the layers between the first ``n_input_layers`` and the last ``n_output_layers`` run
    ``n_recurrent_loops`` times, with a cache for each unless ``recurrent_kv_cache_mode`` is ``last_loop``.

    Source: vLLM 0.33, ``DoryConfig``, ``DoryAttention``.
    """
    text, layers = model.text, model.layers
    listed = text.texts("layer_types")
    if listed is None:
        kinds = ["mlp" if index % 2 else "full" if index % 8 == 6 else "sliding" for index in range(layers)]
    else:
        cut = text.by_layer("layer_types", listed, layers)
        kinds = ["mlp" if name == "mlp" else layer_rule(model, name) for name in cut]
    first, last = text.size("n_input_layers", default=0), layers - text.size("n_output_layers", default=0)
    mode = text.text("recurrent_kv_cache_mode") or "per_loop"
    if mode not in ("per_loop", "last_loop"):
        raise text.refused("recurrent_kv_cache_mode", "only per_loop and last_loop are known")
    loops = _loops(model, "n_recurrent_loops", 1) if mode == "per_loop" else 1
    heads = read_heads(model)
    spans = {"full": FULL, "sliding": Span(rule="sliding", tokens=text.count("sliding_window"))}
    return tuple(
        () if kind == "mlp" else (attention(heads, spans[kind]),) * (loops if first <= index < last else 1)
        for index, kind in enumerate(kinds)
    )


def read_listed_heads(model: Described) -> LayerStack:
    """OpenELM: ``num_kv_heads`` lists the KV heads of each layer."""
    text = model.text
    kv = text.counts("num_kv_heads")
    if kv is None:
        raise text.missing("num_kv_heads")
    if len(kv) != model.layers:
        raise text.contradicts("num_kv_heads", f"it has {len(kv)} entries for {model.layers} layers")
    return tuple((_full(heads, text.count("head_dim")),) for heads in kv)


def _full(kv: int, head_dim: int) -> Layer:
    return FullAttention(kv_heads=kv, head_dim=head_dim, value_head_dim=head_dim)


def read_yoco(model: Described) -> LayerStack:
    """Phi-4-mini-flash: the first half keeps states and windows, the second half reads one layer's KV.

    With n layers and ``mb_per_layer`` 2, layers 0 … n/2 − 1 alternate Mamba-1 and sliding attention, layer n/2 is
    Mamba-1, layer n/2 + 1 keeps full KV, and all later layers read the state and the KV of those two.
    Source: the published ``modeling_phi4flash.py`` and ``configuration_phi4flash.py``.
    """
    text, layers = model.text, model.layers
    heads = read_heads(model)
    every = text.optional_count("mb_per_layer") or 2
    windows = text.value("sliding_window")
    window = text.count("sliding_window") if not isinstance(windows, list) else None
    half = layers // 2
    state = jamba_state(model)
    stack: list[tuple[Layer, ...]] = []
    for index in range(layers):
        if index > half + 1:
            stack.append((SharedKv(read=None if index % every == 0 else attention(heads, FULL)),))
        elif index % every == 0:
            stack.append((state,))
        elif index < half:
            tokens = window if window is not None else _listed_window(model, index)
            stack.append((attention(heads, FULL if tokens is None else Span(rule="sliding", tokens=tokens)),))
        else:
            stack.append((attention(heads, FULL),))
    return tuple(stack)


def _listed_window(model: Described, index: int) -> int | None:
    found = model.text.by_layer("sliding_window", model.text.items("sliding_window") or [], model.layers)[index]
    return found if isinstance(found, int) and found > 0 else None
