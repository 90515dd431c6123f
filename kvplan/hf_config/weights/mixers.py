"""Which mixer and which feed-forward each decoder layer has, read from the config's layer lists and switches."""

from collections.abc import Mapping

from kvplan.hf_config.weights.decoder import Decoder
from kvplan.hf_config.weights.keys import nested, numbers, whole, words

_WORDS: Mapping[str, str] = {
    "linear_attention": "delta",
    "mamba": "mamba2",
    "mamba2": "mamba2",
    "conv": "convolution",
    "recurrent": "rg_lru",
    "attention": "attention",
    "full_attention": "attention",
    "sliding_attention": "attention",
    "chunked_attention": "attention",
}
_PATTERN = {"M": "mamba2", "*": "attention", "-": "none", "E": "none"}
_NEMOTRON_WORDS = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}


_LINEAR: Mapping[str, str] = {
    "bamba": "mamba2",
    "granitemoehybrid": "mamba2",
    "kimi_linear": "kda",
    "minimax": "lightning",
}
"""What ``linear_attention`` means to classes that transformers 5 saves with it; to others the gated delta net."""


def mixers(decoder: Decoder) -> tuple[str, ...]:
    """One word per layer: attention, latent, mamba1, mamba2, delta, kda, lightning, convolution, rg_lru, both
    (attention beside Mamba-2) or none (a layer that only has a feed-forward half)."""
    config, count = decoder.config, decoder.layers
    pattern = nemotron_pattern(decoder)
    if pattern is not None:
        return tuple(_PATTERN[letter] for letter in pattern)
    if decoder.model_type in {"mamba", "falcon_mamba"}:
        return ("mamba1",) * count
    if decoder.model_type == "mamba2":
        return ("mamba2",) * count
    if decoder.model_type == "falcon_h1":
        return ("both",) * count
    kda = nested(config, "linear_attn_config")
    if kda is not None:
        recurrent = numbers(kda, "kda_layers") or ()
        return tuple("kda" if i + 1 in recurrent else "latent" for i in range(count))
    named = words(config, "layer_types")
    if whole(config, "kv_lora_rank") is not None:
        if decoder.model_type == "kimi_linear" and named is not None and len(named) >= count:
            return tuple("kda" if word == "linear_attention" else "latent" for word in named[:count])
        return ("latent",) * count
    if period := whole(config, "attn_layer_period"):
        offset = whole(config, "attn_layer_offset") or 0
        return tuple("attention" if i % period == offset else "mamba1" for i in range(count))
    if (listed := numbers(config, "attn_layer_indices")) is not None:
        return tuple("attention" if i in listed else "mamba2" for i in range(count))
    if (listed := numbers(config, "full_attn_idxs")) is not None:
        return tuple("attention" if i in listed else "convolution" for i in range(count))
    if (types := numbers(config, "attn_type_list")) is not None:
        return tuple("attention" if kind else "lightning" for kind in types[:count])
    if (blocks := words(config, "_block_types") or words(config, "block_types")) is not None:
        return tuple(_WORDS.get(blocks[i % len(blocks)], "attention") for i in range(count))
    if named is not None and len(named) >= count:
        meaning = {**_WORDS, "linear_attention": _LINEAR.get(decoder.model_type, "delta")}
        return tuple(meaning.get(word, "attention") for word in named[:count])
    if decoder.model_type in {"bamba", "granitemoehybrid"}:  # transformers 5.24: all Mamba where nothing is listed
        return ("mamba2",) * count
    if whole(config, "linear_num_value_heads") is not None:
        interval = whole(config, "full_attention_interval") or 4
        return tuple("delta" if (i + 1) % interval else "attention" for i in range(count))
    return ("attention",) * count


def nemotron_pattern(decoder: Decoder) -> str | None:
    """Nemotron-H's string, one letter per layer: M Mamba-2, * attention, - MLP, E experts; None for other models."""
    if decoder.model_type != "nemotron_h":
        return None
    pattern = decoder.config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern
    listed = words(decoder.config, "layers_block_type")
    return "".join(_NEMOTRON_WORDS[word] for word in listed) if listed is not None else None
