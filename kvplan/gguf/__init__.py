"""GGUF files (llama.cpp, Ollama): the model they describe, read from the header alone, here or over the network."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvplan.errors import InputError, unreadable
from kvplan.gguf.header import GgufHeader, Reader, read_header
from kvplan.gguf.metadata import read_gguf_metadata
from kvplan.gguf.weights import weight_parts
from kvplan.model import ModelSpec, Source

__all__ = ["Reader", "read_gguf", "read_gguf_metadata"]

_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def read_gguf(
    file: Path | Reader,
    *,
    model_id: str | None = None,
    source: Source | None = None,
    size_bytes: int | None = None,
    weight_bytes: int | None = None,
) -> ModelSpec:
    """The model behind a GGUF file: a path, or a function that reads a range of bytes (``read(offset, length)``).

    ``size_bytes`` is the file's size where a reader knows it; ``weight_bytes`` replaces the sum over the tensors (for a
    model split over several files, whose first holds the keys). Shards beside a local path are added up.
    Raises InputError for a damaged or foreign file.
    """
    if isinstance(file, Path):
        name = model_id or file.name
        headers = [_read_local(path) for path in (file, *_other_shards(file))]
    else:
        name = model_id or "model.gguf"
        headers = [read_header(file, file=name, size_bytes=size_bytes)]
    shards = headers[0].metadata.get("split.count", 1)
    is_partial = isinstance(shards, int) and shards > len(headers)
    model = read_gguf_metadata(
        headers[0].metadata,
        model_id=name,
        source=source or Source(name=f"header of {name}"),
        parameters=None if is_partial else sum(header.parameters for header in headers) or None,
        stored_bytes=weight_bytes or (None if is_partial else _stored_bytes(headers)),
    )
    if not is_partial:
        tensors = (tensor for header in headers for tensor in header.tensors)
        model = replace(model, weights=replace(model.weights, parts=weight_parts(tensors, len(model.layers))))
    if is_partial and weight_bytes is None:
        note = f"one of {shards} files: the weights of the others are not counted"
        model = replace(model, notes=(*model.notes, note))
    return model


def _stored_bytes(headers: Sequence[GgufHeader]) -> int | None:
    """Bytes of all tensors; None where there are none, or one has a type that is not known."""
    sizes = [header.stored_bytes for header in headers]
    return None if None in sizes else sum(size for size in sizes if size is not None) or None


def _read_local(path: Path) -> GgufHeader:
    """The header of a file on disk."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a GGUF file", hint="name the .gguf file in it", file=str(path))
    try:
        if not path.is_file() and path.exists():
            raise InputError(f"{path} is a device or pipe, not a GGUF file", hint="give a file", file=str(path))
        size = path.stat().st_size
        with path.open("rb") as stream:

            def read(offset: int, length: int) -> bytes:
                stream.seek(offset)
                return stream.read(length)

            return read_header(read, file=str(path), size_bytes=size)
    except OSError as error:
        raise unreadable(path, error) from error


def _other_shards(path: Path) -> list[Path]:
    """The other files of a split model that lie beside ``path``; none where one is missing."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return []
    names = [f"{match['stem']}-{number + 1:05d}-of-{match['count']}.gguf" for number in range(int(match["count"]))]
    shards = [path.with_name(name) for name in names if name != path.name]
    return shards if all(shard.is_file() for shard in shards) else []
