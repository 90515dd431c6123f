"""Writes small GGUF files byte by byte, so that the reader is tested against the format and not against itself."""

import struct
from collections.abc import Mapping, Sequence

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10


def text(value: str) -> bytes:
    """A GGUF string: length, then UTF-8."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item: object) -> bytes:
    """Type number and value, as a writer would choose them."""
    if isinstance(item, bool):
        return struct.pack("<I?", BOOL, item)
    if isinstance(item, int):
        return struct.pack("<IQ", UINT64, item) if item >= 2**32 else struct.pack("<II", UINT32, item)
    if isinstance(item, float):
        return struct.pack("<If", FLOAT32, item)
    if isinstance(item, str):
        return struct.pack("<I", STRING) + text(item)
    assert isinstance(item, Sequence)
    if item and isinstance(item[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(item)) + b"".join(text(str(part)) for part in item)
    if item and isinstance(item[0], bool):
        return struct.pack(f"<IIQ{len(item)}?", ARRAY, BOOL, len(item), *item)
    return struct.pack(f"<IIQ{len(item)}i", ARRAY, INT32, len(item), *item)


def gguf_bytes(
    metadata: Mapping[str, object],
    tensors: Mapping[str, tuple[tuple[int, ...], int, int]] | None = None,
    *,
    version: int = 3,
    with_data: bool = True,
) -> bytes:
    """A whole file. ``tensors``: name → (shape, type number, bytes); each is padded to 32 bytes."""
    described = dict(tensors or {})
    out = b"GGUF" + struct.pack("<IQQ", version, len(described), len(metadata))
    for key, item in metadata.items():
        out += text(key) + value(item)
    offset = 0
    for name, (shape, type_number, size) in described.items():
        out += (
            text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", type_number, offset)
        )
        offset += -(-size // 32) * 32
    out += b"\0" * (-len(out) % 32)
    return out + (b"\0" * offset if with_data else b"")
