"""The header of a GGUF file: its keys, with typed access, and its tensors; the weights are not touched.

Layout (GGUF 2 and 3, little-endian): magic, version, tensor count, key count; keys; tensor descriptions; padding; data.
Source: ggml's ``gguf.cpp`` and the format's published description.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvplan.errors import InputError, UnsupportedModelError
from kvplan.files import RangeReader
from kvplan.gguf.tensors import Tensor

_CONFIG_HINT = "plan from the model's config.json, for an engine that kvplan models it on"
WHOLE_FILE_HINT = "take a complete GGUF file, or convert the model again"

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
# Bounds far above any published file, so that a damaged header is refused before it is read.
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 17
_MAX_ELEMENTS = 1 << 30
_MAX_TEXTS = 1 << 22
_LARGEST_HEADER_BYTES = 512 << 20
_LONGEST_KEPT_ARRAY = 4096
"""Lists with one number per layer are shorter, vocabularies longer."""
_FIRST_READ_BYTES = 8 << 20
"""Each later read asks for four times as much."""
_DEFAULT_ALIGNMENT = 32
_AGAIN_HINT = "the header is damaged; download the file again"


@dataclass(frozen=True, kw_only=True)
class LongArray:
    """An array that was skipped (vocabularies, merges): only its length is kept."""

    elements: int


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """Keys and tensors of one GGUF file. ``data_offset_bytes`` is where the tensors' data begins."""

    metadata: dict[str, object]
    tensors: tuple[Tensor, ...]
    data_offset_bytes: int

    @property
    def file_bytes(self) -> int:
        """Bytes that the whole file must have: the data's start plus the furthest end of a tensor."""
        ends = [tensor.offset_bytes + tensor.bytes for tensor in self.tensors if tensor.bytes is not None]
        return self.data_offset_bytes + max(ends, default=0)


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The keys of one file, ``<architecture>.<name>``: one number for all layers, or a list with one each."""

    metadata: Mapping[str, object]
    architecture: str
    file: str

    def unsupported(self, message: str, *, key: str) -> UnsupportedModelError:
        """The error for a cache that is not modelled."""
        return UnsupportedModelError(f"{self.file}: {message}", hint=_CONFIG_HINT, file=self.file, key=key)

    def missing(self, name: str) -> InputError:
        """The error for a needed key that the file does not have."""
        key = f"{self.architecture}.{name}"
        return InputError(f"{self.file} has no key {key}", hint=WHOLE_FILE_HINT, file=self.file, key=key)

    def wrong(self, key: str, value: object, wanted: str) -> InputError:
        """The error for a key whose value is not ``wanted``."""
        return InputError(
            f"{self.file}: {key} is {value!r}, not {wanted}", hint=WHOLE_FILE_HINT, file=self.file, key=key
        )

    def raw(self, name: str) -> object:
        """The value of ``<architecture>.<name>``, or of the bare ``<name>``; None where the file has neither."""
        return self.metadata.get(f"{self.architecture}.{name}", self.metadata.get(name))

    def number(self, name: str) -> int | None:
        """A whole number of zero or more, or None where the key is absent."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(f"{self.architecture}.{name}", value, "a whole number")
        return value

    def needed(self, name: str) -> int:
        """As ``number``, but the key must be there."""
        value = self.number(name)
        if value is None:
            raise self.missing(name)
        return value

    def per_layer(self, name: str, layers: int) -> tuple[int, ...] | None:
        """A number for each layer, from a list or one number for all; None where the key is absent."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, LongArray):
            raise self.wrong(f"{self.architecture}.{name}", f"{value.elements} numbers", f"a list for {layers} layers")
        if isinstance(value, Sequence) and not isinstance(value, str):
            numbers = tuple(int(item) for item in value if isinstance(item, (int, bool)))
            if len(numbers) != len(value) or len(numbers) < layers or min(numbers, default=0) < 0:
                raise self.wrong(f"{self.architecture}.{name}", value, f"a list of whole numbers for {layers} layers")
            return numbers[:layers]
        number = self.number(name)
        return None if number is None else (number,) * layers


class _Cursor:
    """Reads a file from front to back and asks its reader for more when needed: 8 MiB, then four times as much."""

    def __init__(self, read: RangeReader, file: str, size_bytes: int | None) -> None:
        self._read = read
        self._file = file
        self._size = size_bytes
        self._buffer = b""
        self._next_read = _FIRST_READ_BYTES
        self.position = 0

    def fail(self, what: str, hint: str = _AGAIN_HINT, key: str | None = None) -> InputError:
        return InputError(f"{self._file} is not a usable GGUF file: {what}", hint=hint, file=self._file, key=key)

    def take(self, length: int) -> bytes:
        """The next ``length`` bytes; InputError where the file ends first, or the header is absurdly long."""
        end = self.position + length
        while end > len(self._buffer):
            if end > _LARGEST_HEADER_BYTES:
                raise self.fail(f"its header would be larger than {_LARGEST_HEADER_BYTES >> 20} MiB")
            wanted = max(self._next_read, end - len(self._buffer))
            if self._size is not None:
                wanted = min(wanted, self._size - len(self._buffer))
            more = self._read(len(self._buffer), wanted) if wanted > 0 else b""
            if not more:
                raise self.fail(
                    f"it ends after {len(self._buffer):,} bytes, in the middle of its header",
                    hint="download it again: the transfer was cut",
                )
            self._buffer += more
            self._next_read *= 4
        taken = self._buffer[self.position : end]
        self.position = end
        return taken

    def skip_texts(self, count: int, what: str) -> None:
        """Skips ``count`` texts without decoding them (a vocabulary has a quarter of a million)."""
        length_of = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if self.position + 8 > len(self._buffer):
                self.take(8)
                self.position -= 8
            (length,) = length_of(self._buffer, self.position)
            if length > _MAX_ELEMENTS:
                raise self.fail(f"it claims {length:,} bytes in {what}")
            self.position += 8 + length

    def number(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(code, self.take(struct.calcsize(code)))[0]
        return value

    def count(self, code: str, what: str, maximum: int) -> int:
        value = self.number(code)
        if value > maximum:
            raise self.fail(f"it claims {value:,} {what}")
        return int(value)

    def text(self, what: str) -> str:
        length = self.count("<Q", f"bytes for {what}", _MAX_ELEMENTS)
        return self.take(length).decode("utf-8", errors="replace")


def read_header(read: RangeReader, *, file: str, size_bytes: int | None = None) -> GgufHeader:
    """The header behind ``read``, in as few reads as it takes (8 MiB, then 32, 128 …).

    ``size_bytes`` is the file's size where it is known: a header or tensors that do not fit in it are refused. Raises
    InputError naming ``file``.
    """
    cursor = _Cursor(read, file, size_bytes)
    _check_version(cursor)
    tensor_count = cursor.count("<Q", "tensors", _MAX_TENSORS)
    key_count = cursor.count("<Q", "keys", _MAX_KEYS)
    metadata: dict[str, object] = {}
    for _ in range(key_count):
        key = cursor.text("a key")
        if key in metadata:
            raise cursor.fail(f"the key {key!r} appears twice", key=key)
        metadata[key] = _value(cursor, int(cursor.number("<I")), key)
    tensors = tuple(_tensor(cursor) for _ in range(tensor_count))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise cursor.fail(f"general.alignment is {alignment!r}", key="general.alignment")
    data_offset = -(-cursor.position // alignment) * alignment
    header = GgufHeader(metadata=metadata, tensors=tensors, data_offset_bytes=data_offset)
    if tensors and size_bytes is not None and size_bytes < header.file_bytes:
        raise cursor.fail(
            f"its tensors end at byte {header.file_bytes:,}, the file at {size_bytes:,}",
            hint="download it again: the transfer was cut",
        )
    return header


def _check_version(cursor: _Cursor) -> None:
    """Steps over the magic and the version, 2 or 3; InputError for another format, version or byte order."""
    magic = cursor.take(4)
    if magic != b"GGUF":
        raise cursor.fail(
            f"it begins with {magic!r}, not with b'GGUF'", hint="give a .gguf file, a config.json or a Hub id"
        )
    version = int(cursor.number("<I"))
    if version and version & 0xFFFF == 0:
        raise cursor.fail(
            "it is big-endian", hint="convert it with gguf-py's gguf_convert_endian, or take another file"
        )
    if version == 1:
        raise cursor.fail(
            "it is GGUF version 1", hint="convert the model again: versions 2 and 3 are in use since 2023"
        )
    if version not in (2, 3):
        raise cursor.fail(f"its version {version} is not known (2 and 3 are)")


def _value(cursor: _Cursor, type_number: int, key: str) -> object:
    """One value; of a long array only the length is kept."""
    if type_number in _SCALARS:
        return cursor.number(_SCALARS[type_number])
    if type_number == _STRING:
        return cursor.text(f"the value of {key}")
    if type_number != _ARRAY:
        raise cursor.fail(f"the key {key!r} has the unknown type {type_number}", key=key)
    element_type = int(cursor.number("<I"))
    count = cursor.count("<Q", f"elements in {key}", _MAX_TEXTS if element_type == _STRING else _MAX_ELEMENTS)
    if element_type == _STRING:
        if count <= _LONGEST_KEPT_ARRAY:
            return [cursor.text(f"an element of {key}") for _ in range(count)]
        cursor.skip_texts(count, f"an element of {key}")
        return LongArray(elements=count)
    if element_type not in _SCALARS:
        raise cursor.fail(f"the array {key!r} holds the unknown type {element_type}", key=key)
    code = _SCALARS[element_type]
    raw = cursor.take(count * struct.calcsize(code))
    if count > _LONGEST_KEPT_ARRAY:
        return LongArray(elements=count)
    return list(struct.unpack(f"<{count}{code[1]}", raw))


def _tensor(cursor: _Cursor) -> Tensor:
    name = cursor.text("a tensor's name")
    dimensions = cursor.count("<I", f"dimensions for the tensor {name!r}", 4)
    shape = tuple(int(cursor.number("<Q")) for _ in range(dimensions))
    return Tensor(
        name=name,
        shape=shape,
        type_number=int(cursor.number("<I")),
        offset_bytes=int(cursor.number("<Q")),
    )
