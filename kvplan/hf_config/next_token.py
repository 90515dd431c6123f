"""Layers that guess further tokens: what each keeps, for the classes whose layers vLLM loads for speculation.

Sources: vLLM 0.33, ``SpeculativeConfig.hf_config_override`` (which classes, and how many layers) and each class's
``*_mtp.py`` (what a layer is).
"""

from kvplan.hf_config.described import Described
from kvplan.layers import CompressedWindow, FullAttention, Layer

_COUNT_NAMES = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
_LIKE_THE_MODELS = frozenset(
    {"deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "glm4_moe_lite", "mimo", "ernie4_5_moe"}
)
"""A decoder layer as the model's own, with an indexer of its own where any has one."""
_FULL_ATTENTION = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
"""Full attention, though most of the model's layers are recurrent."""
_ONE_UNSAID = frozenset({"qwen3_next"})
"""The file does not say how many; the class has one."""


def next_token_layers(model: Described, layers: tuple[tuple[Layer, ...], ...]) -> tuple[tuple[Layer, ...], ...]:
    """What each layer that guesses keeps; () where the checkpoint has none, or vLLM loads none of this class."""
    found = model.text.value(*_COUNT_NAMES)
    if not found and (found is not None or model.family not in _ONE_UNSAID):
        return ()
    count = 1 if found is None else model.text.layers(*_COUNT_NAMES)
    if model.family in _LIKE_THE_MODELS:
        return (max(layers, key=len),) * count
    full = next((kept for layer in layers for kept in layer if isinstance(kept, FullAttention)), None)
    if model.family in _FULL_ATTENTION and full is not None:
        return ((full,),) * count
    if model.family == "nemotron_h" and full is not None:
        return ((full,) * _nemotron_attention(model),) * count
    if model.family == "deepseek_v4":
        window = tuple(kept for kept in layers[-1] if isinstance(kept, CompressedWindow))
        return (window,) * count
    return ()


def _nemotron_attention(model: Described) -> int:
    """Attention layers of one Nemotron-H guess: ``*`` of a pattern, or names of a list."""
    pattern = model.text.text("mtp_hybrid_override_pattern")
    if pattern is not None:
        return pattern.count("*")
    names = model.text.texts("mtp_layers_block_type") or []
    return sum(name in ("attention", "full_attention") for name in names)
