"""The longest context a config allows: what vLLM derives as its ``max_model_len`` when none is asked for."""

from collections.abc import Iterator, Mapping

from kvplan.hf_config.fields import Fields

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
# These keep the length already scaled: ``factor`` is not applied again.
_ALREADY_SCALED = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})


def read_context(text: Fields, family: str) -> int | None:
    """Tokens of the longest window, or None where the config does not say.

    The smallest length key, except that ``model_max_length`` wins; times the rope factor of types that extend the
    stated length (linear, dynamic, ntk); Gemma 3's is stated scaled. longrope serves its original length unless a
    longer one is asked for. Source: vLLM 0.33, ``derive_max_model_len_and_key``, ``_get_and_verify_max_len``.
    """
    lengths = [length for name in _LENGTH_NAMES if (length := text.optional_count(name)) is not None]
    if not lengths:
        return None
    tokens = text.optional_count("model_max_length") or min(lengths)
    ropes = list(_ropes(text))
    factor = 1.0
    if not family.startswith("gemma3"):
        for rope in ropes:
            if _kind(rope) not in _ALREADY_SCALED:
                factor = rope.number("factor") or factor
    if any(_kind(rope) == "longrope" for rope in ropes):
        return text.optional_count("original_max_position_embeddings") or int(tokens * factor)
    return int(tokens * factor)


def _kind(rope: Fields) -> str:
    kind = rope.text("rope_type", "type") or "default"
    return {"su": "longrope", "mrope": "default"}.get(kind, kind)


def _ropes(text: Fields) -> Iterator[Fields]:
    """The rope block, or one for each layer kind where it is nested."""
    rope = text.section("rope_parameters", "rope_scaling")
    if rope is None:
        return
    inner = [value for value in rope.values.values() if isinstance(value, Mapping)]
    if inner and len(inner) == len([v for v in rope.values.values() if v is not None]):
        yield from (Fields(value, path=rope.path) for value in inner)
    else:
        yield rope
