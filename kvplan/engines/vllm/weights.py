"""Bytes of weights on each rank: what tensor, pipeline and expert parallelism leave of a model's parts."""

from fractions import Fraction

from kvplan.model import WeightPart

VOCABULARY_PADDING = 64  # rows; vLLM 0.33, ``DEFAULT_VOCAB_PADDING_SIZE``
_BYTES_PER_ELEMENT = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


def padded_vocabulary(vocabulary: int) -> int:
    """Rows of the embedding as vLLM keeps it: the next multiple of 64.

    >>> padded_vocabulary(32000), padded_vocabulary(73448)
    (32000, 73472)
    """
    return -(-vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING


def rank_share(part: WeightPart, tensor_parallel: int, vocabulary: int | None) -> Fraction:
    """Parameters of ``part`` on one tensor-parallel rank.

    heads, columns: parameters / tp. kv_heads: parameters × max(1, kv_heads // tp) / kv_heads. vocabulary: parameters ×
    padded vocabulary / vocabulary / tp. none: all.
    """
    if part.split == "none":
        return Fraction(part.parameters)
    if part.split == "kv_heads":
        heads = part.kv_heads or 1
        return Fraction(part.parameters * max(1, heads // tensor_parallel), heads)
    if part.split == "vocabulary" and vocabulary and part.parameters % vocabulary == 0:
        return Fraction(part.parameters // vocabulary * padded_vocabulary(vocabulary), tensor_parallel)
    return Fraction(part.parameters, tensor_parallel)


def part_bytes(part: WeightPart, elements: Fraction, dtype: str) -> Fraction:
    """Bytes of ``elements`` elements in the part's own type, or in the model's."""
    if part.stored is not None:
        return elements * part.stored.bytes_per_group / part.stored.elements_per_group
    return elements * _BYTES_PER_ELEMENT.get(dtype, 2)
