"""Layers that predict further tokens: stored in the checkpoint, loaded only when they are used for speculation."""

from collections.abc import Callable
from dataclasses import replace

from kvplan.hf_config.weights.decoder import Decoder, linear
from kvplan.hf_config.weights.keys import whole
from kvplan.model import WeightPart

PREFIX = "mtp."
_OWN_EMBEDDINGS = frozenset({"deepseek_v3", "deepseek_v32", "glm4_moe_lite", "kimi_k2"})
"""Classes whose checkpoints store the embedding and the head once more beside the multi-token layer."""


def multi_token_parts(
    decoder: Decoder, layer_parts: Callable[[Decoder, int, str, str | None], list[WeightPart]]
) -> list[WeightPart]:
    """Each layer: a matrix of 2 × hidden × hidden that joins the last hidden state with the token, two norms, a decoder
    layer of the model's last kind, and a norm. Sources: vLLM 0.33, ``deepseek_mtp.py``, ``qwen3_5_mtp.py``."""
    count = whole(decoder.config, "num_nextn_predict_layers", "mtp_num_hidden_layers") or 0
    if not count:
        return []
    pattern = decoder.config.get("mtp_hybrid_override_pattern")
    own = layer_parts(decoder, decoder.layers, _last_kind(decoder), None) if not isinstance(pattern, str) else []
    for letter in pattern if isinstance(pattern, str) else "":
        own += layer_parts(decoder, decoder.layers, "attention" if letter == "*" else "none", letter)
    own.append(linear("join", 2 * decoder.hidden, decoder.hidden, "none"))
    own.append(linear("norms", 3, decoder.hidden, "none"))
    if decoder.model_type in _OWN_EMBEDDINGS:
        own.append(linear("embed_tokens", 2 * decoder.vocabulary, decoder.hidden, "vocabulary"))
    if decoder.model_type.startswith("step3p"):  # a head for every further token (vLLM 0.33, ``Step3p5MTP``)
        own.append(linear("lm_head", decoder.vocabulary, decoder.hidden, "vocabulary"))
    return [replace(part, name=PREFIX + part.name, parameters=count * part.parameters, layer=None) for part in own]


def _last_kind(decoder: Decoder) -> str:
    return "latent" if whole(decoder.config, "kv_lora_rank") is not None else "attention"
