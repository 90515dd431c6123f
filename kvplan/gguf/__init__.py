"""GGUF files (llama.cpp, Ollama): the model they describe, read from the header alone, here or over the network.

Layers are read by feature; what is not understood is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kvplan.errors import InputError, unreadable
from kvplan.files import RangeReader, require_file
from kvplan.gguf.header import WHOLE_FILE_HINT, GgufHeader, Keys, LongArray, read_header
from kvplan.gguf.layers import KEEPS_NO_KV, read_layers
from kvplan.gguf.tensors import stored_bytes, weight_parts
from kvplan.model import MAX_LAYERS, ModelSpec, Shape, Source, Weights

__all__ = ["read_gguf", "read_gguf_metadata"]

_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def read_gguf(
    file: Path | RangeReader,
    *,
    model_id: str | None = None,
    source: Source | None = None,
) -> ModelSpec:
    """The model in a GGUF file: a path, or a function that reads a range of bytes (``read(offset, length)``).

    Shards beside a local path are added up. Raises InputError for a damaged file or one of another format.
    """
    if isinstance(file, Path):
        name = model_id or file.name
        headers = [_read_local(path) for path in (file, *_other_shards(file))]
    else:
        name = model_id or "model.gguf"
        headers = [read_header(file, file=name)]
    model = read_gguf_metadata(headers[0].metadata, model_id=name, source=source or Source(name=f"header of {name}"))
    shards = headers[0].metadata.get("split.count", 1)
    if isinstance(shards, int) and shards > len(headers):
        note = f"one of {shards} files: the weights of the others are not counted"
        return replace(model, notes=(*model.notes, note))
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    weights = replace(
        model.weights,
        parameters=sum(tensor.elements for tensor in tensors) or None,
        stored_bytes=stored_bytes(tensors),
        parts=weight_parts(tensors, len(model.layers)),
    )
    return replace(model, weights=weights)


def _read_local(path: Path) -> GgufHeader:
    """The header of a file on disk."""
    try:
        require_file(path)
        size = path.stat().st_size
        with path.open("rb") as stream:

            def read(offset: int, length: int) -> bytes:
                stream.seek(offset)
                return stream.read(length)

            return read_header(read, file=str(path), size_bytes=size)
    except OSError as error:
        raise unreadable(path, error) from error


def _other_shards(path: Path) -> list[Path]:
    """The other files of a split model beside ``path``; none where one is missing."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return []
    names = [f"{match['stem']}-{number + 1:05d}-of-{match['count']}.gguf" for number in range(int(match["count"]))]
    shards = [path.with_name(name) for name in names if name != path.name]
    return shards if all(shard.is_file() for shard in shards) else []


_REFUSED = {
    "clip": "the projector beside a vision model, not the model",
    "deepseek4": "compressed KV",
    "dots3note": "window layers beside an indexer",
    "glm5-next": "pooled index keys",
    "hy-v4": "an indexer of its own layout",
    "minimax-m3": "index keys beside grouped attention",
    "qwen4exp": "index keys beside recurrent state",
    "t5": "an encoder whose output length sets the cross-attention cache",
}


def read_gguf_metadata(
    metadata: Mapping[str, object],
    *,
    model_id: str = "model.gguf",
    source: Source | None = None,
) -> ModelSpec:
    """The model that a GGUF file's keys describe, without its tensors.

    ``block_count`` includes MTP layers; the main context keeps nothing for them, so they are left out.
    Raises InputError for a missing or malformed key, UnsupportedModelError for a cache that is not modelled.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise InputError(
            f"{model_id} has no key general.architecture",
            hint=WHOLE_FILE_HINT,
            file=model_id,
            key="general.architecture",
        )
    keys = Keys(metadata=metadata, architecture=architecture, file=model_id)
    _refuse(keys)
    count = keys.needed("block_count") - (keys.number("nextn_predict_layers") or 0)
    if not 0 < count <= MAX_LAYERS:
        raise keys.wrong(
            f"{architecture}.block_count", keys.raw("block_count"), f"a number of layers from 1 to {MAX_LAYERS:,}"
        )
    layers, notes = read_layers(keys, count)
    heads = keys.per_layer("attention.head_count", count) or ()
    return ModelSpec(
        id=model_id,
        architecture=architecture,
        source=source or Source(name=model_id),
        layers=layers,
        max_context_tokens=keys.number("context_length"),
        query_heads=tuple(sorted({number for number in heads if number})),
        dtype="float16",
        shape=_shape(keys, count),
        weights=Weights(quantization=_quantization(metadata)),
        notes=notes,
    )


def _refuse(keys: Keys) -> None:
    reason = _REFUSED.get(keys.architecture)
    if reason is None and keys.raw("attention.cross_attention_layers") is not None:
        reason = "cross-attention layers"
    if reason is not None:
        message = f"the GGUF architecture {keys.architecture!r} ({reason}) is not modelled"
        raise keys.unsupported(message, key="general.architecture")


def _shape(keys: Keys, count: int) -> Shape:
    vocabulary = keys.number("vocab_size")
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if vocabulary is None and isinstance(tokens, LongArray):
        vocabulary = tokens.elements
    elif vocabulary is None and isinstance(tokens, list):
        vocabulary = len(tokens)
    widths = keys.per_layer("feed_forward_length", count)
    expert_widths = keys.per_layer("expert_feed_forward_length", count)
    experts = keys.number("expert_count")
    return Shape(
        hidden=keys.number("embedding_length") or 0,
        vocabulary=vocabulary,
        intermediate=max(widths) if widths else None,
        experts=experts or None,
        experts_per_token=keys.number("expert_used_count") or None,
        expert_intermediate=max(expert_widths) if expert_widths else None,
        is_pooling=keys.architecture in KEEPS_NO_KV,
    )


# ``general.file_type``: what most tensors are stored in (llama.cpp's ``llama_ftype``).
_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    25: "IQ4_NL",
    30: "IQ4_XS",
    32: "BF16",
    38: "MXFP4",
    39: "NVFP4",
}


def _quantization(metadata: Mapping[str, object]) -> str | None:
    number = metadata.get("general.file_type")
    if not isinstance(number, int):
        return None
    name = _FILE_TYPES.get(number, f"file type {number}")
    return f"gguf {name}"
