"""The text decoder's widths, read once under the names that published configs give them."""

from dataclasses import dataclass
from typing import TypeVar

from kvplan.hf_config.config import HEAD_NAMES, HIDDEN_NAMES, LAYER_NAMES, LayerStack, ModelConfig
from kvplan.hf_config.heterogeneous import nemotron_kinds
from kvplan.hf_config.weights.parts import Config, nested, whole
from kvplan.hf_config.weights.traits import TRAITS, Traits
from kvplan.layers import FullAttention, HeadLayer, Layer, SharedKv

_HEAD_DIM_KEYS = ("head_dim", "kv_channels", "attention_head_dim", "hidden_size_per_head")
_MLP_KEYS = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "ff_intermediate_size", "block_ff_dim")

State = TypeVar("State", bound=Layer)


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The text decoder's widths; ``config`` is kept for what only some kinds have.

    ``stack`` is what each layer keeps, which tells its mixer. ``halves`` says what each layer is in a model whose
    mixers and feed-forward halves are separate layers (Nemotron-H).
    """

    model_type: str
    family: str
    config: Config
    traits: Traits
    layers: int
    hidden: int
    vocabulary: int
    tied: bool
    heads: int
    head_dim: int
    intermediate: int | None
    recognised: bool
    stack: LayerStack
    halves: tuple[str, ...] | None = None

    def keeps(self, layer: int, kind: type[Layer]) -> bool:
        """Whether ``layer`` keeps a cache of ``kind``; for an MTP layer, whether any layer of the model does."""
        return any(isinstance(kept, kind) for kept in self._kept(layer))

    def state(self, layer: int, kind: type[State]) -> State:
        """The recurrent state of ``kind`` that ``layer`` keeps."""
        return next(kept for kept in self._kept(layer) if isinstance(kept, kind))

    def cache(self, layer: int) -> HeadLayer:
        """The keys and values of ``layer``, its own or those it reads: the source of its KV heads and their width."""
        kept = [each.read if isinstance(each, SharedKv) else each for each in self._kept(layer)]
        heads = [each for each in kept if isinstance(each, HeadLayer)]
        plain = FullAttention(kv_heads=self.heads, head_dim=self.head_dim, value_head_dim=self.head_dim)
        return next((each for each in heads if isinstance(each, FullAttention)), next(iter(heads), plain))

    def _kept(self, layer: int) -> list[Layer]:
        """What ``layer`` keeps; for an MTP layer, which is beyond the stack, what any layer keeps."""
        return [kept for layer_kept in self.stack[layer : layer + 1] or self.stack for kept in layer_kept]

    @property
    def qkv_bias(self) -> bool:
        """Whether Q, K and V have a bias."""
        return self._has(
            "attention_bias", "add_qkv_bias", "qkv_bias", "use_qkv_bias", "bias", always=self.traits.qkv_bias
        )

    @property
    def out_bias(self) -> bool:
        """Whether the attention's output projection has a bias."""
        return self._has("attention_out_bias", "attention_bias", "bias", always=self.traits.out_bias)

    @property
    def mlp_bias(self) -> bool:
        """Whether the MLP's matrices have biases."""
        return self._has("mlp_bias", always=self.traits.mlp_bias)

    def _has(self, *keys: str, always: bool | None) -> bool:
        """``always`` where the class leaves no choice, else the first of ``keys`` that the config has."""
        if always is not None:
            return always
        return next((bool(self.config[key]) for key in keys if key in self.config), False)


def read_decoder(model: ModelConfig, stack: LayerStack) -> Decoder | None:
    """The decoder that keeps ``stack``; None where the config does not state its width or vocabulary."""
    config, text = model.outer.values, model.text.values
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    stated = {key: value for key, value in text.items() if value is not None}
    facts: Config = {**model.text.defaults, **_flat_experts(text), **stated}
    hidden = whole(facts, *HIDDEN_NAMES)
    vocabulary = whole(facts, "padded_vocab_size", "vocab_size") or whole(config, "vocab_size")
    if hidden is None or vocabulary is None:
        return None
    heads = whole(facts, *HEAD_NAMES) or 0
    traits = TRAITS.get(model_type, Traits())
    return Decoder(
        model_type=model_type,
        family=model.family,
        config=facts,
        traits=traits,
        layers=whole(facts, *LAYER_NAMES) or len(stack),
        hidden=hidden,
        vocabulary=vocabulary,
        tied=_is_tied(config, text, traits),
        heads=heads,
        head_dim=whole(facts, *_HEAD_DIM_KEYS) or (hidden // heads if heads else 0),
        intermediate=_intermediate(facts, traits, hidden),
        recognised=model_type in TRAITS,
        stack=stack,
        halves=tuple(nemotron_kinds(model)) if model.family == "nemotron_h" else None,
    )


def _flat_experts(text: Config) -> dict[str, object]:
    """DBRX's nested ``ffn_config`` under the usual names."""
    nested_facts = nested(text, "ffn_config") or {}
    return {
        name: nested_facts[key]
        for key, name in (("moe_num_experts", "num_experts"), ("ffn_hidden_size", "intermediate_size"))
        if key in nested_facts
    }


def _intermediate(facts: Config, traits: Traits, hidden: int) -> int | None:
    """Width of the dense MLP, as the config states it or its class fills it in."""
    stated = whole(facts, *_MLP_KEYS)
    if stated is None:
        factor = whole(facts, "expansion_ratio") or traits.mlp_factor
        return None if factor is None else factor * hidden
    if facts.get("block_auto_adjust_ff_dim") is True:  # LFM2: two thirds of it, rounded up to a multiple
        multiple = whole(facts, "block_multiple_of") or 256
        return -(-(2 * stated // 3) // multiple) * multiple
    return stated // 2 if traits.width_of_both else stated


_TYING = ("tie_word_embeddings", "tie_embedding", "share_input_output_layers")


def _is_tied(config: Config, text: Config, traits: Traits) -> bool:
    """Whether head and embedding are one matrix: as the text config says, else the outer one, else the class."""
    stated = next((place[key] for place in (text, config) for key in _TYING if isinstance(place.get(key), bool)), None)
    return traits.tied if stated is None else bool(stated)


def states_tying(config: Config, text: Config) -> bool:
    """Whether the file states if embeddings are tied."""
    return any(isinstance(place.get(key), bool) for place in (text, config) for key in _TYING)
