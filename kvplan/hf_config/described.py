"""A config on its way to layers: its language block, its outer block, and the type its class runs in."""

from dataclasses import dataclass

from kvplan.errors import UnsupportedModelError
from kvplan.hf_config.fields import MEASURE_HINT, Fields
from kvplan.layers import Layer, StoredType

LayerStack = tuple[tuple[Layer, ...], ...]
"""What each decoder layer keeps, in order."""

LAYER_NAMES = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
HEAD_NAMES = ("num_attention_heads", "n_head", "n_heads", "num_heads")
HIDDEN_NAMES = ("hidden_size", "n_embd", "n_embed", "d_model", "model_dim")
KV_HEAD_NAMES = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups")


@dataclass(frozen=True, kw_only=True)
class Described:
    """``family`` is the language model's kind (a key of the readers' table); ``dtype`` the type its state is kept in;
    ``strict`` says that its class refuses an explicit null."""

    text: Fields
    outer: Fields
    family: str
    dtype: StoredType
    strict: bool = False

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return self.text.layers(*LAYER_NAMES)

    @property
    def query_heads(self) -> int:
        """Query heads of a layer; where a file only says KV heads and the head width, one for each KV head."""
        silent = self.text.value(*HEAD_NAMES) is None
        if silent and self.text.says(*KV_HEAD_NAMES) and self.text.says("head_dim"):
            return self.text.count(*KV_HEAD_NAMES)
        return self.text.count(*HEAD_NAMES)

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.text.count(*HIDDEN_NAMES)

    def unknown_layer(self, key: str, name: str) -> UnsupportedModelError:
        """The error for a layer that ``key`` calls ``name``."""
        where = self.text.path + key
        words = f"layer type {name!r} in {where} is not known for {self.family}"
        return UnsupportedModelError(words, hint=MEASURE_HINT, key=where)
