"""Which layers keep every token, which a window, which a chunk: what configs say, and what their class adds.

``WINDOW_RULES`` is the table from a family to its class's rule; ``read_spans`` applies it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvplan.hf_config.config import Fields, ModelConfig


@dataclass(frozen=True, kw_only=True)
class Span:
    """The tokens that a layer keeps: a window or chunk of ``tokens``, or all of them (None)."""

    tokens: int | None = None
    is_chunk: bool = False


FULL = Span()


@dataclass(frozen=True, kw_only=True)
class WindowRule:
    """How a config class slides where its file does not say so layer by layer.

    ``switched``: only where ``use_sliding_window`` is true (default false). ``from_layer``: from layer
    ``max_window_layers`` on, with this default. ``period``: one layer in so many is full, the last one, or the first
    with ``full_first``; ``counted_back`` counts periods from the last layer. ``ends_full``: the last layer is full,
    whatever a list says. ``full_unless_listed``: all layers are full unless ``layer_types`` says otherwise.
    ``one_window``: the class gives every layer the same window, so with a list of mixed kinds all layers are full.
    ``extra_tokens`` are kept beyond the stated window.

    Sources: ``layer_types`` as the config classes of transformers 5.20 build it, which vLLM 0.33's model classes read;
    for ``one_window`` and ``extra_tokens``, those model classes.
    """

    switched: bool = False
    from_layer: int | None = None
    period: int | None = None
    full_first: bool = False
    counted_back: bool = False
    ends_full: bool = False
    full_unless_listed: bool = False
    one_window: bool = False
    extra_tokens: int = 0


_ONE_WINDOW = (
    "bailing_moe", "chatglm", "clip_text_model", "cohere", "deepseek", "ernie4_5_moe", "ernie4_5_vl_moe_text",
    "exaone", "falcon", "gemma", "glm4", "glm4_moe", "glm4v_moe_text", "glm4v_text", "glm_ocr_text", "gpt2", "gptj",
    "hy_v3", "hyperclovax", "internlm2", "k2_horizon", "mimo", "minicpm", "minimax_m2", "mixtral", "molmo",
    "molmo2_text", "nemotron", "olmoe", "opt", "orion", "pangu", "param2moe", "phimoe", "qwen3_vl_text", "sarvam",
    "solar", "stablelm", "step1", "step3_text",
)  # fmt: skip

WINDOW_RULES: Mapping[str, WindowRule] = {
    **dict.fromkeys(_ONE_WINDOW, WindowRule(one_window=True)),
    "afmoe": WindowRule(period=4),
    "cohere2": WindowRule(period=4, extra_tokens=1),
    "cohere2_moe": WindowRule(period=4, extra_tokens=1),
    "cwm": WindowRule(period=4, full_first=True),
    "diffusion_gemma_text": WindowRule(period=6, ends_full=True),
    "dots1": WindowRule(from_layer=62),
    "exaone4": WindowRule(period=4),
    "exaone_moe": WindowRule(period=4),
    "gemma2": WindowRule(period=2),
    "gemma3_text": WindowRule(period=6),
    "gemma3n_text": WindowRule(period=5),
    "gemma4_text": WindowRule(period=6, ends_full=True),
    "gemma4_unified_text": WindowRule(period=6, ends_full=True),
    "gpt_oss": WindowRule(period=2),
    "granite_swa": WindowRule(period=4, full_first=True),
    "granitemoe_swa": WindowRule(period=4, full_first=True),
    "kolibri1": WindowRule(period=5),
    "laguna": WindowRule(full_unless_listed=True),
    "mellum": WindowRule(full_unless_listed=True),
    "muse_glimmer_text": WindowRule(period=4, counted_back=True),
    "olmo3": WindowRule(period=4),
    "qwen2": WindowRule(switched=True, from_layer=28, one_window=True),
    "qwen2_5_omni_text": WindowRule(switched=True, from_layer=28, one_window=True),
    "qwen2_5_vl_text": WindowRule(switched=True, from_layer=80, one_window=True),
    # its config class mixes kinds where none are listed; its model class does not read them
    "qwen2_moe": WindowRule(switched=True, full_unless_listed=True, one_window=True),
    "qwen2_vl_text": WindowRule(switched=True, from_layer=80, one_window=True),
    "qwen3": WindowRule(switched=True, from_layer=28, one_window=True),
    "qwen3_moe": WindowRule(switched=True, one_window=True),
    "qwen3_omni_moe_text": WindowRule(switched=True, one_window=True),
    "qwen3_vl_moe_text": WindowRule(switched=True, one_window=True),
    "smollm3": WindowRule(switched=True),
    "step3p5": WindowRule(full_unless_listed=True),
    "vaultgemma": WindowRule(period=2),
}

_PERIOD_NAMES = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "full": "full",
    "global": "full",
    "global_attention": "full",
    "sliding_attention": "sliding",
    "sliding_window_attention": "sliding",
    "sliding": "sliding",
    "local": "sliding",
    "local_attention": "sliding",
    "chunked_attention": "chunked",
}


def attention_kind(model: ModelConfig, name: str) -> str:
    """``full``, ``sliding`` or ``chunked``, for the name of an attention layer in ``layer_types``."""
    if name not in _KINDS:
        raise model.unknown_layer("layer_types", name)
    return _KINDS[name]


def read_spans(model: ModelConfig, layers: int) -> list[Span]:
    """The span of each layer, in order.

    A list of layers wins over a pattern, and a pattern over the class's own period. Without any of these, or with a
    list of sliding layers alone, the one ``sliding_window`` holds for every layer (vLLM's ``CacheConfig``).
    """
    if model.family == "llama4_text":
        return _chunked_spans(model, layers)
    listed = _listed_windows(model, layers)
    if listed is not None:
        return listed
    text = model.text
    rule = WINDOW_RULES.get(model.family, WindowRule())
    window = _window(text, rule)
    kinds = _layer_kinds(model, rule, layers)
    if kinds is None or set(kinds) == {"sliding"}:
        return [Span(tokens=window)] * layers
    windows = text.counts("sliding_windows", minimum=0)  # EXAONE-MoE: a window of its own for each layer
    by_layer = [window] * layers if not windows else text.by_layer("sliding_windows", windows, layers)
    spans = {"full": FULL}
    if "chunked" in kinds:
        spans["chunked"] = Span(tokens=text.count("attention_chunk_size"), is_chunk=True)
    return [spans.get(kind, Span(tokens=tokens)) for kind, tokens in zip(kinds, by_layer, strict=True)]


def _window(text: Fields, rule: WindowRule) -> int | None:
    """Tokens of the window, or None; 0 means none, as in vLLM."""
    if rule.switched and not text.flag("use_sliding_window"):
        return None
    if rule.switched and "sliding_window" not in text.values:
        return 4096  # the class default of these, which only the switch turns on
    tokens = text.size("sliding_window", default=0)
    return tokens + rule.extra_tokens if tokens else None


def _layer_kinds(model: ModelConfig, rule: WindowRule, layers: int) -> list[str] | None:
    """``full``, ``sliding`` or ``chunked`` for every layer, or None where nothing tells layers apart."""
    text = model.text
    listed = text.texts("layer_types")
    if model.family == "gpt_oss" and listed is not None and set(listed) != {"sliding_attention"}:
        listed = None  # vLLM 0.33, OAIAttention: every second layer slides, whatever the list says
    if listed is not None:
        kinds = [attention_kind(model, name) for name in text.by_layer("layer_types", listed, layers)]
        if rule.one_window and set(kinds) != {"sliding"}:
            return ["full"] * layers
    elif isinstance(pattern := text.value(*_PERIOD_NAMES), str):
        kinds = _from_letters(text, pattern, layers)
    elif rule.from_layer is not None:
        first = text.size("max_window_layers", default=rule.from_layer)
        kinds = ["sliding" if index >= first else "full" for index in range(layers)]
    elif rule.period is not None:
        period = text.optional_count(*_PERIOD_NAMES) or rule.period
        full_at = 0 if rule.full_first else (layers - 1) % period if rule.counted_back else period - 1
        kinds = ["full" if index % period == full_at else "sliding" for index in range(layers)]
    elif rule.full_unless_listed:
        kinds = ["full"] * layers
    else:
        return None
    if rule.ends_full:
        kinds[-1] = "full"
    return kinds


def _from_letters(text: Fields, pattern: str, layers: int) -> list[str]:
    """EXAONE-4's ``LLLG``: L slides, G is full; the last layer is full."""
    if not pattern or set(pattern) - {"L", "G"}:
        raise text.refused("sliding_window_pattern", "only the letters L and G are known")
    kinds = ["sliding" if pattern[index % len(pattern)] == "L" else "full" for index in range(layers)]
    kinds[-1] = "full"
    return kinds


def _listed_windows(model: ModelConfig, layers: int) -> list[Span] | None:
    """Windows that a file lists by layer without naming kinds; None where it does not.

    openPangu and PLaMo 3: ``interleaved_sliding_window``, one number or a list that repeats (null is full). Domyn: the
    left half of ``window_sizes`` (0 is full), plus one token.
    Source: vLLM 0.33, ``OpenPanguEmbeddedAttention``, ``Plamo3AttentionMixer``, ``DomynEdgeAttention``.
    """
    text = model.text
    if model.family == "domyn_edge" and text.says("window_sizes"):
        name, extra = "window_sizes", 1
        stated = [pair[0] if isinstance(pair, list) and pair else None for pair in text.items(name) or []]
    elif model.family in ("pangu", "plamo3") and text.says("interleaved_sliding_window"):
        name, extra = "interleaved_sliding_window", 0
        listed = text.value(name)
        period = list(listed) if isinstance(listed, list) else [listed]
        stated = [period[index % len(period)] for index in range(layers)] if period else []
    else:
        return None
    return [_listed_span(text, name, found, extra) for found in text.by_layer(name, stated, layers)]


def _listed_span(text: Fields, name: str, found: object, extra: int) -> Span:
    if found is None or found == 0:
        return FULL
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise text.broken(name, found, "a number of tokens, or null")
    return Span(tokens=found + extra)


def _chunked_spans(model: ModelConfig, layers: int) -> list[Span]:
    """Llama 4: layers with rope attend within a chunk, layers without (every fourth unless listed) to everything.

    Source: vLLM 0.33, ``Llama4Attention`` (``no_rope_layers``, ``attention_chunk_size``; 8,192 where absent).
    """
    text = model.text
    chunk = 8192 if "attention_chunk_size" not in text.values else text.size("attention_chunk_size", default=0)
    listed = text.counts("no_rope_layers", minimum=0)
    if not listed:
        step = text.optional_count("no_rope_layer_interval") or 4
        listed = [int((index + 1) % step != 0) for index in range(layers)]
    listed = text.by_layer("no_rope_layers", listed, layers)
    return [Span(tokens=chunk, is_chunk=True) if chunk and has_rope else FULL for has_rope in listed]
