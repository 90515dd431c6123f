"""Small models written down by their layers, for tests that are about pages and pools rather than configs."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from kvplan.layers import BFLOAT16, FLOAT16, FLOAT32, Layer, StoredType
from kvplan.model import ModelSpec, Shape, Source, Weights


def kinds_of_layers(base: type[Layer] = Layer) -> set[type[Layer]]:
    """Every class that is a kind of its own: the leaves that name one."""
    found = {base} if "kind" in vars(base) else set()
    for child in base.__subclasses__():
        found |= kinds_of_layers(child)
    return found


KINDS = {kind.kind: kind for kind in kinds_of_layers()}
LLAMA_CONFIG: dict[str, Any] = {
    # https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_STORED: dict[str, StoredType] = {stored.name: stored for stored in (BFLOAT16, FLOAT16, FLOAT32)}


def layer_of(facts: Mapping[str, Any]) -> Layer:
    """A layer from its kind and fields, as golden rows write them; types by name."""
    kind = KINDS[facts["kind"]]
    known = {field.name for field in fields(kind)}
    values = {key: _STORED.get(value, value) if isinstance(value, str) else value for key, value in facts.items()}
    return kind(**{key: value for key, value in values.items() if key in known})


def model_of(layers: Sequence[Sequence[Layer]], *, window: int | None = 32768, **facts: Any) -> ModelSpec:
    """A model of ``layers`` (what each decoder layer keeps); further facts by name."""
    return ModelSpec(
        id=facts.pop("id", "test/model"),
        architecture="TestForCausalLM",
        source=Source(name="a test"),
        layers=tuple(tuple(kept) for kept in layers),
        max_context_tokens=window,
        query_heads=facts.pop("query_heads", ()),
        dtype=facts.pop("dtype", "bfloat16"),
        shape=facts.pop("shape", Shape(hidden=4096)),
        weights=facts.pop("weights", Weights()),
        **facts,
    )
