"""config.json to ``ModelSpec``: features are read, class defaults are written down, the rest is refused.

The path of a config, one module a step: ``config`` (typed keys, language block), ``families`` (which class),
``defaults`` (what that class fills in), ``readers`` (the table from family to the function that reads its layers), then
``context``, ``dtypes``, ``shape`` and ``weights``.

To add an attention kind:

1. a dataclass in ``kvplan/layers``, exported there: its ``kind``, its bytes, its share of a rank;
2. a function from ``ModelConfig`` to layers beside its relatives here, and its line in ``readers.READERS``; a line in
   ``families`` if published names spell the family differently, one in ``defaults`` if its config class has defaults;
3. a strategy in ``LAYERS`` of ``tests/strategies.py``, which puts it under all laws;
4. a golden row in ``tests/test_layers.py``, and a published model with its arithmetic in ``tests/configs``.

Tests name whatever is missing. Engines refuse a kind by name until they know how to store it; weights are counted once
``weights`` knows the class.
"""

from collections.abc import Mapping

from kvplan.errors import InputError, UnsupportedModelError
from kvplan.hf_config.config import CHECK_HINT, HEAD_NAMES, KV_HEAD_NAMES, LAYER_NAMES, Fields, ModelConfig
from kvplan.hf_config.context import read_context, served_context, states_context
from kvplan.hf_config.defaults import class_keys
from kvplan.hf_config.dtypes import quantises_weights, quantization_block, read_dtype, read_kv_scheme
from kvplan.hf_config.families import ENCODER_HINT, find_family, language_block
from kvplan.hf_config.readers import next_token_layers, reader_of
from kvplan.hf_config.shape import query_head_counts, read_shape
from kvplan.hf_config.weights import read_weights
from kvplan.model import ModelSpec, Source

__all__ = ["read_config"]

_WITHOUT_HEADS = frozenset({"mamba", "mamba2", "falcon_mamba", "rwkv5"})
_ENCODER_DECODERS = frozenset({"whisper", "bart", "t5"})
# Families that count layers or heads under names of their own, so that the usual ones cannot be required.
_OWN_NAMES = _WITHOUT_HEADS | _ENCODER_DECODERS | {"openelm", "nemotron_h"}
# vLLM 0.33, ``FalconAttention``: built without the cache's settings, so it stays 16-bit whatever KV type is given; only
# the scheme of compressed-tensors reaches it, with the weights' quantization.
_IGNORES_KV_DTYPE = frozenset({"falcon"})


def read_config(
    config: Mapping[str, object],
    *,
    model_id: str,
    source: Source,
    quantization: Mapping[str, object] | None = None,
    parameters: int | None = None,
    weight_bytes: int | None = None,
) -> ModelSpec:
    """The model that a config.json describes.

    ``quantization`` is the hf_quant_config.json beside it; ``parameters`` and ``weight_bytes`` are published totals.
    Raises UnsupportedModelError for what is not understood and InputError for an impossible value, both with the key.
    """
    model = _model_config(config, source)
    text, outer, family = model.text, model.outer, model.family
    layers = reader_of(model)(model)
    block = quantization_block(outer, text, quantization)
    is_nested = text.values is not outer.values and block is not None and block.path.startswith(text.path)
    kv_scheme = read_kv_scheme(block, family=family, layers=layers, is_nested=is_nested)
    names = outer.texts("architectures") or text.texts("architectures")
    return ModelSpec(
        id=model_id,
        architecture=names[0] if names else outer.text("model_type") or text.text("model_type") or family,
        source=source,
        layers=layers,
        next_token_layers=next_token_layers(model, layers),
        max_context_tokens=read_context(text, family),
        states_context=states_context(text),
        query_heads=() if family in _WITHOUT_HEADS else query_head_counts(model),
        dtype=model.dtype.name,
        shape=read_shape(model),
        weights=read_weights(
            model,
            layers,
            quantization=block.values if block is not None and quantises_weights(block) else None,
            parameters=parameters,
            stored_bytes=weight_bytes,
        ),
        kv_scheme=kv_scheme,
        ignores_kv_dtype=family in _IGNORES_KV_DTYPE and kv_scheme != "fp8",
        notes=_notes(model),
        is_encoder_decoder=family in _ENCODER_DECODERS,
    )


def _model_config(config: Mapping[str, object], source: Source) -> ModelConfig:
    """The config with its language block found, its family known and its class defaults filled in."""
    if not isinstance(config, Mapping):
        raise InputError(f"a config is an object, not {type(config).__name__}", hint=CHECK_HINT, file=source.name)
    outer = Fields(config)
    text = language_block(outer)
    is_nested = text.values is not outer.values
    family = find_family(outer, text)
    _require_causal(outer, family, is_nested=is_nested)
    text = text.with_defaults(class_keys(family, is_nested=is_nested))
    if not is_nested and family not in _OWN_NAMES:
        _require_shape(text)
    return ModelConfig(text=text, outer=outer, family=family, dtype=read_dtype(outer, text, family))


def _notes(model: ModelConfig) -> tuple[str, ...]:
    """What the user should know and no other field states."""
    notes = []
    served = served_context(model.text)
    if served is not None:
        notes.append(f"longrope: vLLM serves {served:,} tokens unless a longer window is asked for")
    if model.family == "explicit":
        notes.append("the config names no known class: read by its own keys as a decoder without further features")
    if model.family in ("t5", "bart"):
        notes.append("cross-attention KV is priced for the longest source text")
    return tuple(notes)


def _require_shape(text: Fields) -> None:
    """One message for everything that a flat file leaves out.

    Query heads only matter for KV where they give the KV heads or the head width, and never for a latent.
    """
    wanted: dict[str, tuple[str, ...]] = {"number of layers": LAYER_NAMES}
    if not text.says("kv_lora_rank") and not (text.says(*KV_HEAD_NAMES) and text.says("head_dim")):
        wanted["query heads"] = HEAD_NAMES
    missing = {what: names for what, names in wanted.items() if not text.says(*names)}
    if missing:
        if not text.says(*KV_HEAD_NAMES):
            missing["KV heads"] = KV_HEAD_NAMES
        keys = ", ".join(f"{what} ({names[0]})" for what, names in missing.items())
        raise UnsupportedModelError(
            f"the config does not state the sizes that a plan needs; missing: {keys}",
            hint="give the model's own config.json; kvplan assumes no default size",
            key=next(iter(missing.values()))[0],
        )


def _require_causal(outer: Fields, family: str, *, is_nested: bool) -> None:
    """Refuses a decoder with bidirectional attention (an embedding model), which keeps no KV cache.

    PaliGemma, which says the same of its prompt, keeps one. Source: vLLM 0.33, ``Gemma3TextModelConfig``.
    """
    both_ways = "use_bidirectional_attention" if family == "gemma3_text" and not is_nested else None
    for name, value in ((both_ways, True), ("is_causal", False)):
        if name and outer.value(name) is value:
            why = "a model with bidirectional attention keeps no KV cache, so there is none to plan"
            raise outer.refused(name, why, hint=ENCODER_HINT)
