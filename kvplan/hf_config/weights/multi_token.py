"""Layers that predict further tokens: stored in the checkpoint, loaded only when they are used for speculation."""

from dataclasses import replace

from kvplan.hf_config.hybrid import NEMOTRON_LETTERS
from kvplan.hf_config.next_token import COUNT_NAMES, ONE_UNSAID
from kvplan.hf_config.weights.decoder import Decoder, linear
from kvplan.hf_config.weights.keys import whole
from kvplan.hf_config.weights.layers import layer_parts
from kvplan.layers import FullAttention
from kvplan.model import WeightPart

PREFIX = "mtp."
_OWN_EMBEDDINGS = frozenset({"deepseek_v3", "deepseek_v32", "glm4_moe_lite", "kimi_k2"})
"""Classes whose checkpoints store the embedding and the head a second time with the multi-token layer."""


def multi_token_parts(decoder: Decoder) -> list[WeightPart]:
    """Each layer: a matrix of 2 × hidden × hidden that joins the last hidden state with the token, two norms, a decoder
    layer with attention (or Nemotron-H's own pattern of layers), and a norm.

    Sources: vLLM 0.33, ``deepseek_mtp.py``, ``qwen3_5_mtp.py``.
    """
    count = whole(decoder.config, *COUNT_NAMES)
    if count is None and decoder.model_type in ONE_UNSAID:
        count = 1
    if not count:
        return []
    pattern = decoder.config.get("mtp_hybrid_override_pattern")
    halves = [NEMOTRON_LETTERS.get(letter) for letter in pattern] if isinstance(pattern, str) else [None]
    own = []
    for half in halves:
        kinds = [FullAttention] if half in (None, "full_attention") else []
        own += layer_parts(decoder, decoder.layers, kinds, half)
    own.append(linear("join", 2 * decoder.hidden, decoder.hidden, "none"))
    own.append(linear("norms", 3, decoder.hidden, "none"))
    if decoder.model_type in _OWN_EMBEDDINGS:
        own.append(linear("embed_tokens", 2 * decoder.vocabulary, decoder.hidden, "vocabulary"))
    if decoder.model_type.startswith("step3p"):  # a head for every further token (vLLM 0.33, ``Step3p5MTP``)
        own.append(linear("lm_head", decoder.vocabulary, decoder.hidden, "vocabulary"))
    return [replace(part, name=PREFIX + part.name, parameters=count * part.parameters, layer=None) for part in own]
