"""The longest context that a config allows: what vLLM derives as ``max_model_len`` when none is given."""

from collections.abc import Iterator, Mapping

from kvplan.hf_config.config import Fields

_LENGTH_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# Classes that map max_position_embeddings to the key that their files have.
_RENAMED = frozenset(
    {"gpt2", "gpt_bigcode", "gptj", "codegen", "dbrx", "kimi_linear", "bailing_hybrid", "bailing_moe_v2_5"}
)
# Classes that only read ``rope_parameters``, and drop the older ``rope_scaling`` (transformers 5.20).
_WITHOUT_OLD_ROPE = frozenset({"cohere2_moe"})
_LARGEST_FACTOR = 1_000_000  # a larger one is a mistake
# With these rope types the stated length is already scaled, so ``factor`` is not applied again.
_ALREADY_SCALED = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})


def read_context(text: Fields, family: str) -> int | None:
    """Tokens of the longest context, or None where the config does not say.

    The smallest length key, except that ``model_max_length`` wins; times the rope factor of types that extend the
    stated length (linear, dynamic, ntk). Gemma 3's length is stated scaled. Source: vLLM 0.33,
    ``derive_max_model_len_and_key``, ``_get_and_verify_max_len``.
    """
    stated = _stated_lengths(text)
    default = text.defaults.get("max_position_embeddings")
    is_renamed = bool(stated) and family in _RENAMED
    if isinstance(default, int) and "max_position_embeddings" not in text.values and not is_renamed:
        stated.append(default)
    if not stated:
        return None
    tokens = text.optional_count("model_max_length") or min(stated)
    factor = 1.0
    if not family.startswith("gemma3") and (text.says("rope_parameters") or family not in _WITHOUT_OLD_ROPE):
        for rope in _ropes(text):
            if _kind(rope) not in _ALREADY_SCALED:
                factor = _rope_factor(rope) or factor
    return int(tokens * factor)


def states_context(text: Fields) -> bool:
    """Whether the file itself states a length, under any of its names."""
    return bool(_stated_lengths(text))


def served_context(text: Fields) -> int | None:
    """Tokens that vLLM serves of a longrope model when no length is given; None for every other model.

    It is the original length, so that short sequences keep the short rope. Source: vLLM 0.33,
    ``_get_and_verify_max_len``.
    """
    if any(_kind(rope) == "longrope" for rope in _ropes(text)):
        return text.optional_count("original_max_position_embeddings")
    return None


def _stated_lengths(text: Fields) -> list[int]:
    return [length for name in _LENGTH_NAMES if text.says(name) and (length := text.optional_count(name)) is not None]


def _rope_factor(rope: Fields) -> float | None:
    """The factor by which a rope type extends the stated length; None (or 0) where the file has none."""
    factor = rope.number("factor")
    if factor is not None and not 0 <= factor <= _LARGEST_FACTOR:
        raise rope.broken("factor", factor, f"a factor from 0 to {_LARGEST_FACTOR:,}")
    return factor


def _kind(rope: Fields) -> str:
    kind = rope.text("rope_type", "type") or "default"
    return {"su": "longrope", "mrope": "default"}.get(kind, kind)


def _ropes(text: Fields) -> Iterator[Fields]:
    """The rope block, or a block for each layer kind where it is nested."""
    rope = text.section("rope_parameters", "rope_scaling")
    if rope is None:
        return
    inner = [value for value in rope.values.values() if isinstance(value, Mapping)]
    if inner and len(inner) == len([v for v in rope.values.values() if v is not None]):
        yield from (Fields(value, path=rope.path) for value in inner)
    else:
        yield rope
