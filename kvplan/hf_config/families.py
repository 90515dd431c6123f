"""Which family a config belongs to: by its language block's model type, or by its architecture's name."""

from collections.abc import Mapping

from kvplan.errors import UnsupportedModelError
from kvplan.hf_config.defaults import CLASS_DEFAULTS
from kvplan.hf_config.fields import Fields
from kvplan.hf_config.names import ARCHITECTURES, ENCODERS, LAST_WORDS, MODEL_TYPES
from kvplan.hf_config.readers import PLAIN_FAMILIES, READERS

ENCODER_HINT = "bound its batches by the engine's max_num_batched_tokens: beside its weights nothing else grows"
_LANGUAGE_BLOCKS = ("thinker_config", "text_config", "llm_config", "language_config", "lm_config")


def language_block(outer: Fields) -> Fields:
    """The block that describes the language model: nested under one of its usual names, or the file itself."""
    block = (None if outer.says(*_LANGUAGE_BLOCKS) else outer.section("vlm_config")) or outer
    for name in _LANGUAGE_BLOCKS:
        inner = block.section(name)
        if inner is not None:
            block = inner
    return block


def known_family(name: str | None) -> str | None:
    """The family of a model type, or None. A wrapper's type and its text model's are one name, but for ``_text``.

    >>> known_family("gemma3"), known_family("qwen3_asr_text")
    ('gemma3_text', 'qwen3')
    """
    name = name or ""
    for each in (name, f"{name}_text", name.removesuffix("_text")):
        family = MODEL_TYPES.get(each, each)
        if family in _FAMILIES:
            return family
    return None


def architecture_family(architecture: str | None) -> str | None:
    """The family of an architecture's name, or None.

    >>> architecture_family("Qwen3MoeForCausalLM"), architecture_family("MadeUpForCausalLM")
    ('qwen3_moe', None)
    """
    if architecture is None:
        return None
    stem = _stem(architecture)
    return ARCHITECTURES.get(stem) or plain_family(stem)


def plain_family(stem: str) -> str | None:
    """The family or model type that ``stem`` spells in capitals and without underscores, or None."""
    return known_family(_BY_PLAIN_NAME.get(_plain(stem)))


def _stem(architecture: str) -> str:
    return next((architecture.removesuffix(word) for word in LAST_WORDS if architecture.endswith(word)), architecture)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


_FAMILIES = frozenset({*CLASS_DEFAULTS, *READERS, *PLAIN_FAMILIES})
_BY_PLAIN_NAME: Mapping[str, str] = {
    **{_plain(name.removesuffix("_text")): name for name in _FAMILIES},
    **{_plain(name): name for name in (*MODEL_TYPES, *_FAMILIES)},
}


def find_family(outer: Fields, text: Fields) -> str:
    """The family of the language model.

    A nested block's own model type decides; else the architecture; else the outer model type. A config that names
    neither is read by what it says itself (``explicit``): every needed key must be there. A name that is not known is
    refused.
    """
    nested = text.values is not outer.values
    architectures = outer.texts("architectures") or []
    model_type = outer.text("model_type")
    if architectures and _stem(architectures[0]) in ENCODERS:
        raise UnsupportedModelError(
            f"architectures names {architectures[0]!r}, an encoder: it keeps no KV cache, so there is none to plan",
            hint=ENCODER_HINT,
            key="architectures",
        )
    if nested:
        inner = known_family(text.text("model_type"))
        if inner is not None:
            return inner
        listed = text.texts("architectures") or []
        if listed and architecture_family(listed[0]):
            return architecture_family(listed[0]) or ""
        if text.text("model_type") is not None:
            raise _unknown(f"{text.path}model_type", text.text("model_type"))
    if architectures:
        family = architecture_family(architectures[0])
        if family is None:
            raise _unknown("architectures", architectures[0])
        return family
    return known_family(model_type) or "explicit"


def _unknown(key: str, name: str | None) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{key} names {name!r}, which kvplan does not know: it refuses rather than guesses what such a model keeps",
        hint="give a local config.json without architectures and with a known model_type, if one describes its layers",
        key=key,
    )
