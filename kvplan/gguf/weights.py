"""What a GGUF file's tensors weigh, sorted by where an engine puts them: the embedding, the head, layer by layer."""

import re
from collections.abc import Iterable

from kvplan.gguf.header import Tensor
from kvplan.gguf.tensor_types import TENSOR_TYPES
from kvplan.layers import StoredType
from kvplan.model import WeightPart

_OUTSIDE = {
    "token_embd.weight": ("embed_tokens", "vocabulary"),
    "output.weight": ("lm_head", "vocabulary"),
    "output_norm.weight": ("final_norm", "none"),
}
"""Tensors outside of the layers → a part's name and how it is split."""
_BLOCK = re.compile(r"blk\.(\d+)\.(.*)")
_GUESSING = "mtp.layer"
"""Next-token layers are in the file and are not loaded."""


def weight_parts(tensors: Iterable[Tensor], layers: int) -> tuple[WeightPart, ...]:
    """One part for each place and type; none where a tensor has a type that is not known.

    ``layers`` are those that a context runs; tensors of later ones belong to next-token layers.
    """
    elements: dict[tuple[str, str, int | None, int], int] = {}
    for tensor in tensors:
        if tensor.type_number not in TENSOR_TYPES:
            return ()
        place = (*_place(tensor.name, layers), tensor.type_number)
        elements[place] = elements.get(place, 0) + tensor.elements
    return tuple(
        WeightPart(name=name, parameters=count, split=split, layer=layer, stored=_stored(type_number))
        for (name, split, layer, type_number), count in elements.items()
        if count
    )


def _place(name: str, layers: int) -> tuple[str, str, int | None]:
    """A part's name, how it is split, and its layer."""
    block = _BLOCK.fullmatch(name)
    if block is None:
        return (*_OUTSIDE.get(name, ("other", "none")), None)
    if int(block[1]) >= layers:
        return _GUESSING, "columns", None
    return "mlp.experts" if "_exps." in block[2] else "layer", "columns", int(block[1])


def _stored(type_number: int) -> StoredType:
    name, block_elements, block_bytes = TENSOR_TYPES[type_number]
    return StoredType(name=name, bytes_per_group=block_bytes, elements_per_group=block_elements)
