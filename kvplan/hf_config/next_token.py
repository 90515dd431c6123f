"""Layers that guess further tokens: what each keeps, for the classes whose layers vLLM loads for speculation.

Sources: vLLM 0.33, ``SpeculativeConfig.hf_config_override`` (which classes, and how many layers) and each class's
``*_mtp.py`` (what a layer is).
"""

from kvplan.hf_config.described import Described
from kvplan.layers import CompressedWindow, FullAttention, Layer

COUNT_NAMES = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
_LIKE_THE_MODELS = frozenset(
    {"deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "glm4_moe_lite", "mimo", "ernie4_5_moe"}
)
"""Classes whose further layers are like the model's own, with an indexer where any of those has one."""
_FULL_ATTENTION = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
"""Classes whose further layers have full attention, though most of the model's layers are recurrent."""
ONE_UNSAID = frozenset({"qwen3_next"})
"""Classes that have one such layer without their files saying so."""


def next_token_layers(model: Described, layers: tuple[tuple[Layer, ...], ...]) -> tuple[tuple[Layer, ...], ...]:
    """What each further layer keeps; () where the checkpoint has none, or vLLM loads none for this class."""
    found = model.text.value(*COUNT_NAMES)
    if not found and (found is not None or model.family not in ONE_UNSAID):
        return ()
    count = 1 if found is None else model.text.layers(*COUNT_NAMES)
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
    """Attention layers in one of Nemotron-H's further layers, as its pattern of letters or its list of names says."""
    pattern = model.text.text("mtp_hybrid_override_pattern")
    if pattern is not None:
        return pattern.count("*")
    names = model.text.texts("mtp_layers_block_type") or []
    return sum(name in ("attention", "full_attention") for name in names)
