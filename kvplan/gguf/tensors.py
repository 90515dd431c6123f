"""The tensors of a GGUF file: their types, their bytes, and the weights sorted by where an engine puts them.

A block of elements takes a fixed number of bytes, its scales included. Source: ggml's type table (``ggml.h`` and
``GGML_QUANT_SIZES`` of the gguf package 0.19).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from kvplan.layers import StoredType
from kvplan.model import WeightPart

# type number: (name, elements of a block, bytes of a block)
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 40),
    10: ("q2_K", 256, 84),
    11: ("q3_K", 256, 110),
    12: ("q4_K", 256, 144),
    13: ("q5_K", 256, 176),
    14: ("q6_K", 256, 210),
    15: ("q8_K", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
}


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor as the header describes it; ``offset_bytes`` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type_number: int
    offset_bytes: int

    @property
    def elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)

    @property
    def bytes(self) -> int | None:
        """Bytes in the file, whole blocks of the type; None for an unknown type.

        >>> Tensor(name="w", shape=(4096, 4096), type_number=8, offset_bytes=0).bytes
        17825792
        """
        if self.type_number not in TENSOR_TYPES:
            return None
        _, block_elements, block_bytes = TENSOR_TYPES[self.type_number]
        return -(-self.elements // block_elements) * block_bytes


def stored_bytes(tensors: Sequence[Tensor]) -> int | None:
    """Bytes of all tensors; None where there are none, or one has an unknown type."""
    sizes = [tensor.bytes for tensor in tensors]
    known = [size for size in sizes if size is not None]
    return sum(known) or None if len(known) == len(sizes) else None


_OUTSIDE = {
    "token_embd.weight": ("embed_tokens", "vocabulary"),
    "output.weight": ("lm_head", "vocabulary"),
    "output_norm.weight": ("final_norm", "none"),
}
"""Tensors outside of the layers → a part's name and how it is split."""
_BLOCK = re.compile(r"blk\.(\d+)\.(.*)")
_MTP = "mtp.layer"
"""MTP layers are in the file but are not loaded."""


def weight_parts(tensors: Iterable[Tensor], layers: int) -> tuple[WeightPart, ...]:
    """One part for each place and type; none where a tensor has an unknown type.

    ``layers`` is the number that a context runs; tensors of later ones belong to MTP layers.
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
        return _MTP, "columns", None
    return "mlp.experts" if "_exps." in block[2] else "layer", "columns", int(block[1])


def _stored(type_number: int) -> StoredType:
    name, block_elements, block_bytes = TENSOR_TYPES[type_number]
    return StoredType(name=name, bytes_per_group=block_bytes, elements_per_group=block_elements)
