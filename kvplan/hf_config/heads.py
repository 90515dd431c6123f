"""How many KV heads a layer has, and how wide they are, in every way that configs say it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvplan.errors import UnsupportedModelError
from kvplan.hf_config.described import KV_HEAD_NAMES, Described
from kvplan.hf_config.fields import CHECK_HINT, Fields


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Query heads and KV heads of a layer, the width of a key and of a value."""

    query: int
    kv: int
    head_dim: int
    value_head_dim: int


def read_heads(model: Described) -> Heads:
    """Heads of a model whose layers are alike.

    Source of the exceptions: the model classes of vLLM 0.33, each named at its rule.
    """
    query = model.query_heads
    head_dim = read_head_dim(model, query)
    value_head_dim = model.text.optional_count("v_head_dim") if model.family in _VALUE_WIDTH_FAMILIES else None
    kv = read_kv_heads(model, query)
    if query % kv:
        raise UnsupportedModelError(
            f"{query} query heads cannot share {kv} KV heads",
            hint=CHECK_HINT,
            key=f"{model.text.path}{KV_HEAD_NAMES[0]}",
        )
    return Heads(query=query, kv=kv, head_dim=head_dim, value_head_dim=value_head_dim or head_dim)


_VALUE_WIDTH_FAMILIES = frozenset({"mimo_v2_flash"})

_HEAD_DIM_NAMES = {
    "chatglm": ("kv_channels",),
    "qwen": ("kv_channels",),
    "jetmoe": ("kv_channels", "head_dim"),
    "nemotron_h": ("head_dim", "attention_head_dim"),
}


# Classes with a default head width whose field still takes a null (transformers 5.20: ``head_dim: int | None``).
_NULL_IS_ABSENT = frozenset({"afmoe", "ernie4_5", "glm", "paddleocr_vl_text", "seed_oss"})


def read_head_dim(model: Described, query_heads: int) -> int:
    """Width of a head: the key, else the class default, else hidden / query heads (whole, as engines divide it).

    Most classes with a width of their own refuse an explicit null; the others take hidden / query heads.
    """
    names = _HEAD_DIM_NAMES.get(model.family, ("head_dim", "hidden_size_per_head"))
    said_null = any(name in model.text.values for name in names) and model.text.value(*names) is None
    has_default = any(model.text.defaults.get(name) is not None for name in names)
    if said_null and has_default and model.family not in _NULL_IS_ABSENT:
        raise model.text.missing(*names)
    said = model.text.size(*names, default=0)
    if said:
        return said
    hidden = model.hidden
    if hidden % query_heads:
        raise UnsupportedModelError(
            f"hidden size {hidden} is not a multiple of {query_heads} query heads, and the config says no head width",
            hint=f"add {model.text.path}head_dim to a local copy of config.json and give its path as MODEL",
            key=f"{model.text.path}head_dim",
        )
    return hidden // query_heads


def read_kv_heads(model: Described, query_heads: int) -> int:
    """KV heads of a layer: by the class's own rule, else as the key says.

    Where the key is absent, the class default holds, else one for each query head. A null means the latter where the
    class allows it.
    """
    text = model.text
    if model.family in _OWN_RULES:
        return _OWN_RULES[model.family](text, query_heads)
    kv = text.optional_count(*KV_HEAD_NAMES)
    if kv is not None:
        return kv
    said_null = any(name in text.values for name in KV_HEAD_NAMES)
    if model.family == "explicit" or (said_null and model.strict):
        raise text.missing(*KV_HEAD_NAMES)
    return query_heads


def _falcon(text: Fields, query_heads: int) -> int:
    """The new decoder says its KV heads; the old one has 1 with ``multi_query``, whatever ``num_kv_heads`` says
    (Falcon-7B says 71), and one for each query head without. The oldest files of the new decoder (Falcon-40B's, model
    type RefinedWeb) do not say that they are. Source: vLLM 0.33, ``FalconAttention``, ``RWConfig``."""
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

_OWN_RULES: Mapping[str, Callable[[Fields, int], int]] = {
    **dict.fromkeys(_ONE_EACH, _one_each),
    "chatglm": _chatglm,
    "dbrx": _in_attention_block,
    "falcon": _falcon,
    "gpt_bigcode": _multi_query,
    "mpt": _in_attention_block,
}
"""Classes without the usual key; those without any key give each query head its own KV head (vLLM 0.33)."""
