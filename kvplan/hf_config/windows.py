"""Which layers keep every token, which keep a window, which a chunk: every way in which configs say it."""

from dataclasses import dataclass

from kvplan.hf_config.described import Described
from kvplan.hf_config.fields import Fields
from kvplan.hf_config.window_classes import NO_RULE, PERIOD_NAMES, WINDOW_RULES, WindowRule


@dataclass(frozen=True, kw_only=True)
class Span:
    """What one layer keeps: ``rule`` is ``full``, ``sliding`` or ``chunked``; ``tokens`` of the window or chunk."""

    rule: str
    tokens: int | None = None


FULL = Span(rule="full")

_RULES = {
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


def read_spans(model: Described, layers: int) -> list[Span]:
    """What each layer keeps, in order.

    A list of layers wins over a pattern, and a pattern over the class's own period. Without any of these, or with a
    list of sliding layers alone, the one ``sliding_window`` holds for every layer (vLLM's ``CacheConfig``).
    """
    if model.family == "llama4_text":
        return _chunked_spans(model, layers)
    own = _own_windows(model, layers)
    if own is not None:
        return own
    window = _window(model)
    kinds = _layer_kinds(model, layers)
    if kinds is None or set(kinds) == {"sliding"}:
        return [FULL if window is None else Span(rule="sliding", tokens=window)] * layers
    windows = model.text.counts("sliding_windows", least=0)  # EXAONE-MoE: a window of its own for each layer
    listed = [window] * layers if not windows else model.text.by_layer("sliding_windows", windows, layers)
    return [_span(model, kind, tokens) for kind, tokens in zip(kinds, listed, strict=True)]


def _span(model: Described, kind: str, window: int | None) -> Span:
    if kind == "sliding":
        return FULL if window is None else Span(rule="sliding", tokens=window)
    if kind == "chunked":
        return Span(rule="chunked", tokens=model.text.count("attention_chunk_size"))
    return FULL


def _window(model: Described) -> int | None:
    """Tokens of the window, or None; 0 means none, as in vLLM."""
    rule = _rule(model)
    if rule.switched and not model.text.flag("use_sliding_window"):
        return None
    if rule.switched and "sliding_window" not in model.text.values:
        return 4096  # the class default of these, which the switch otherwise hides
    tokens = model.text.size("sliding_window", default=0)
    return tokens + rule.extra_tokens if tokens else None


def _rule(model: Described) -> WindowRule:
    return WINDOW_RULES.get(model.family, NO_RULE)


def _own_windows(model: Described, layers: int) -> list[Span] | None:
    """Windows that a file says layer by layer, without a list of kinds: ``interleaved_sliding_window`` (one number, or
    a list that repeats; null is full) of openPangu and PLaMo 3; the left half of ``window_sizes`` of Domyn (0 is full).

    Source: vLLM 0.33, ``OpenPanguEmbeddedAttention``, ``Plamo3AttentionMixer``, ``DomynEdgeAttention`` (window + 1).
    """
    text = model.text
    if model.family == "domyn_edge" and text.says("window_sizes"):
        pairs = text.items("window_sizes") or []
        said = [pair[0] if isinstance(pair, list) and pair else None for pair in pairs]
        extra = 1
    elif model.family in ("pangu", "plamo3") and text.says("interleaved_sliding_window"):
        listed = text.value("interleaved_sliding_window")
        said, extra = list(listed) if isinstance(listed, list) else [listed], 0
        said = [said[index % len(said)] for index in range(layers)] if said else []
    else:
        return None
    name = "window_sizes" if extra else "interleaved_sliding_window"
    return [_listed_span(text, name, found, extra) for found in text.by_layer(name, said, layers)]


def _listed_span(text: Fields, name: str, found: object, extra: int) -> Span:
    if found is None or found == 0:
        return FULL
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise text.broken(name, found, "a window's tokens, or null")
    return Span(rule="sliding", tokens=found + extra)


def _layer_kinds(model: Described, layers: int) -> list[str] | None:
    """``full``, ``sliding`` or ``chunked`` for every layer, or None where nothing tells layers apart."""
    listed = model.text.texts("layer_types")
    if model.family == "gpt_oss" and listed is not None and set(listed) != {"sliding_attention"}:
        listed = None  # vLLM 0.33, OAIAttention: every second layer slides, whatever the list says
    rule = _rule(model)
    if listed is not None:
        kinds = [layer_rule(model, name) for name in model.text.by_layer("layer_types", listed, layers)]
        if rule.one_window and set(kinds) != {"sliding"}:
            return ["full"] * layers
    else:
        pattern = model.text.value(*PERIOD_NAMES)
        if isinstance(pattern, str):
            kinds = _from_letters(model, pattern, layers)
        elif rule.from_layer is not None:
            first = model.text.size("max_window_layers", default=rule.from_layer)
            kinds = ["sliding" if index >= first else "full" for index in range(layers)]
        elif rule.period is not None:
            period = model.text.optional_count(*PERIOD_NAMES) or rule.period
            full_at = 0 if rule.full_first else (layers - 1) % period if rule.counted_back else period - 1
            kinds = ["full" if index % period == full_at else "sliding" for index in range(layers)]
        elif rule.full_unless_listed:
            kinds = ["full"] * layers
        else:
            return None
    if rule.ends_full:
        kinds[-1] = "full"
    return kinds


def layer_rule(model: Described, name: str) -> str:
    """What the name of an attention layer in ``layer_types`` stands for: ``full``, ``sliding`` or ``chunked``."""
    if name not in _RULES:
        raise model.unknown_layer("layer_types", name)
    return _RULES[name]


def _from_letters(model: Described, pattern: str, layers: int) -> list[str]:
    """EXAONE-4's ``LLLG``: L slides, G is full; the last layer is full."""
    if not pattern or set(pattern) - {"L", "G"}:
        raise model.text.refused("sliding_window_pattern", "only the letters L and G are known")
    kinds = ["sliding" if pattern[index % len(pattern)] == "L" else "full" for index in range(layers)]
    kinds[-1] = "full"
    return kinds


def _chunked_spans(model: Described, layers: int) -> list[Span]:
    """Llama 4: layers with rope attend within a chunk, layers without (every fourth unless listed) to everything.

    Source: vLLM 0.33, ``Llama4Attention`` (``no_rope_layers``, ``attention_chunk_size``; 8,192 where absent).
    """
    text = model.text
    chunk = 8192 if "attention_chunk_size" not in text.values else text.size("attention_chunk_size", default=0)
    listed = text.counts("no_rope_layers", least=0)
    if not listed:
        step = text.optional_count("no_rope_layer_interval") or 4
        listed = [int((index + 1) % step != 0) for index in range(layers)]
    listed = text.by_layer("no_rope_layers", listed, layers)
    return [Span(rule="chunked", tokens=chunk) if chunk and rope else FULL for rope in listed]
