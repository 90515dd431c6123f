"""The widths that weight arithmetic needs, read once under the names that published configs give them."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvplan.hf_config.weights.keys import Config, nested, switch, whole, words
from kvplan.hf_config.weights.traits import TRAITS, Traits
from kvplan.model import WeightPart

_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
_HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model", "model_dim")
_HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEAD_KEYS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups")
_HEAD_DIM_KEYS = ("head_dim", "kv_channels", "attention_head_dim", "hidden_size_per_head")
_MLP_KEYS = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "ff_intermediate_size", "block_ff_dim")

_CLASS_WIDTHS: Mapping[str, Mapping[str, int]] = {
    # transformers 5.24: what the class fills in where a nested text config is silent
    "llama": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008},
    "qwen2": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "intermediate_size": 22016,
        "vocab_size": 151936,
    },
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208},
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8, "num_local_experts": 8},
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256},
    "qwen3": {"head_dim": 128},
    "qwen2_moe": {"shared_expert_intermediate_size": 5632},
}


_GATE_AND_UP_TOGETHER = frozenset({"qwen", "molmo", "recurrent_gemma"})
"""Classes whose ``intermediate_size`` counts gate and up together."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The text decoder's widths; ``config`` stays at hand for what only some kinds have."""

    model_type: str
    config: Config
    traits: Traits
    layers: int
    hidden: int
    vocabulary: int
    tied: bool
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int | None
    recognised: bool

    @property
    def qkv_bias(self) -> bool:
        """Whether Q, K and V have a bias: the class's habit, else the config's key."""
        if self.traits.qkv_bias is not None:
            return self.traits.qkv_bias
        named = next(
            (
                key
                for key in ("attention_bias", "add_qkv_bias", "qkv_bias", "use_qkv_bias", "bias")
                if key in self.config
            ),
            None,
        )
        return named is not None and bool(self.config[named])

    @property
    def out_bias(self) -> bool:
        """Whether the attention's output projection has one."""
        if self.traits.out_bias is not None:
            return self.traits.out_bias
        for key in ("attention_out_bias", "attention_bias", "bias"):
            if key in self.config:
                return bool(self.config[key])
        return False

    @property
    def mlp_bias(self) -> bool:
        """Whether the MLP's matrices have one."""
        if self.traits.mlp_bias is not None:
            return self.traits.mlp_bias
        return switch(self.config, "mlp_bias", default=False)


def read_decoder(config: Config, text: Config) -> Decoder | None:
    """The decoder of ``text``; None where a width that the arithmetic needs is not stated."""
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    stated = {key: value for key, value in text.items() if value is not None}
    facts: Config = {**_CLASS_WIDTHS.get(model_type, {}), **_flat_experts(text), **stated}
    layers = whole(facts, *_LAYER_KEYS) or _listed_layers(facts)
    hidden = whole(facts, *_HIDDEN_KEYS)
    vocabulary = whole(facts, "padded_vocab_size", "vocab_size") or whole(config, "vocab_size")
    if layers is None or hidden is None or vocabulary is None:
        return None
    heads = whole(facts, *_HEAD_KEYS) or 0
    traits = TRAITS.get(model_type, Traits())
    return Decoder(
        model_type=model_type,
        config=facts,
        traits=traits,
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
        tied=_is_tied(config, text, traits),
        heads=heads,
        kv_heads=_kv_heads(facts, heads),
        head_dim=whole(facts, *_HEAD_DIM_KEYS) or (hidden // heads if heads else 0),
        intermediate=_intermediate(facts, hidden),
        recognised=model_type in TRAITS,
    )


def _flat_experts(text: Config) -> dict[str, object]:
    """DBRX's nested ``ffn_config`` under the usual names."""
    nested_facts = nested(text, "ffn_config") or {}
    return {
        name: nested_facts[key]
        for key, name in (("moe_num_experts", "num_experts"), ("ffn_hidden_size", "intermediate_size"))
        if key in nested_facts
    }


def _listed_layers(facts: Config) -> int | None:
    """Layers counted from a list, where no key counts them (Nemotron-3)."""
    listed = words(facts, "layers_block_type")
    pattern = facts.get("hybrid_override_pattern")
    if listed is not None:
        return len(listed)
    return len(pattern) if isinstance(pattern, str) else None


def _kv_heads(facts: Config, heads: int) -> int:
    """KV heads: the key, the multi-query switches of older classes, or one per query head."""
    if facts.get("multi_query_attention"):
        return whole(facts, "multi_query_group_num") or 1
    if switch(facts, "multi_query", default=facts.get("model_type") == "gpt_bigcode"):
        if facts.get("new_decoder_architecture"):
            return whole(facts, *_KV_HEAD_KEYS) or heads
        return 1 if "new_decoder_architecture" in facts or facts.get("model_type") == "gpt_bigcode" else heads
    attention = nested(facts, "attn_config") or {}
    return whole(facts, *_KV_HEAD_KEYS) or whole(attention, "kv_n_heads") or heads


def _intermediate(facts: Config, hidden: int) -> int | None:
    """Width of the dense MLP; classes of the GPT-2 line mean four times the hidden width where they are silent."""
    stated = whole(facts, *_MLP_KEYS)
    if stated is not None:
        if facts.get("block_auto_adjust_ff_dim") is True:  # LFM2 means two thirds of it, in whole multiples
            multiple = whole(facts, "block_multiple_of") or 256
            return -(-(2 * stated // 3) // multiple) * multiple
        return stated // 2 if facts.get("model_type") in _GATE_AND_UP_TOGETHER else stated
    ratio = whole(facts, "expansion_ratio")
    if ratio is not None:
        return ratio * hidden
    if facts.get("model_type") in {"gpt2", "gpt_bigcode", "gptj", "bloom", "falcon", "phi-msft", "phi"}:
        return 4 * hidden
    return None


_TYING = ("tie_word_embeddings", "tie_embedding", "share_input_output_layers")


def _is_tied(config: Config, text: Config, traits: Traits) -> bool:
    """Whether the head is the embedding: the text config's word, the outer one's, or the class's habit."""
    said = next((place[key] for place in (text, config) for key in _TYING if isinstance(place.get(key), bool)), None)
    return traits.tied if said is None else bool(said)


def says_tying(config: Config, text: Config) -> bool:
    """Whether a key of the file says if the head is the embedding."""
    return any(isinstance(place.get(key), bool) for place in (text, config) for key in _TYING)


def linear(
    name: str, inputs: int, outputs: int, split: str, layer: int | None = None, *, kv_heads: int | None = None
) -> WeightPart:
    """A matrix of ``inputs × outputs``."""
    return WeightPart(name=name, parameters=inputs * outputs, split=split, layer=layer, kv_heads=kv_heads)
