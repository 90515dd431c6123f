"""The files of a checkpoint, without its weights: config.json, the index of shards, file sizes and headers."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvplan.errors import InputError, unreadable
from kvplan.files import require_file

_CONFIG_HINT = "give the config.json that the model's publisher ships"
# A config.json is kilobytes; the largest published one (module lists of a quantised mixture) is 3 MB.
LARGEST_JSON_BYTES = 16 * 2**20
# The safetensors format allows no larger header.
_LARGEST_HEADER_BYTES = 100 * 10**6

# Bytes of one element by the name in a safetensors header (https://github.com/huggingface/safetensors, Dtype).
_ELEMENT_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 1),
}
# Types that hold several 4-bit weights in one element (GPTQ and AWQ: I32, NVFP4 and MXFP4: U8).
_PACKING = frozenset({"I32", "U32", "I64", "U8"})


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The facts of one checkpoint; null where its files do not say."""

    config: Mapping[str, object]
    quantization: Mapping[str, object] | None = None
    parameters: int | None = None
    weight_bytes: int | None = None


def read_folder(folder: Path, totals: tuple[int | None, int | None] | None = None) -> Checkpoint:
    """The checkpoint in ``folder``: config.json, hf_quant_config.json, and the weights' index or headers.

    ``totals``: parameters and bytes, if known; then no weight file is opened.
    """
    config = read_json_object(folder / "config.json")
    quantization = folder / "hf_quant_config.json"
    parameters, weight_bytes = _folder_weights(folder) if totals is None else totals
    return Checkpoint(
        config=config,
        quantization=read_json_object(quantization) if quantization.is_file() else None,
        parameters=parameters,
        weight_bytes=weight_bytes,
    )


def read_json_object(path: Path) -> dict[str, object]:
    """The JSON object in a file; InputError with file, line and key where it is not one."""
    try:
        require_file(path)
        with path.open("rb") as file:
            size = path.stat().st_size
            body = b"" if size > LARGEST_JSON_BYTES else file.read(LARGEST_JSON_BYTES + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if max(size, len(body)) > LARGEST_JSON_BYTES:
        raise InputError(
            f"{max(size, len(body)):,} bytes are too many for a model's config",
            hint="give the config.json itself, not a weight or tokenizer file",
            file=str(path),
        )
    return parse_json_object(body, str(path))


def parse_json_object(body: bytes, file: str) -> dict[str, object]:
    """The JSON object in ``body``; duplicate keys are refused, because either could be meant.

    >>> parse_json_object(b'{"num_hidden_layers": 32}', "config.json")
    {'num_hidden_layers': 32}
    """
    try:
        found = json.loads(body.decode("utf-8-sig"), object_pairs_hook=lambda pairs: _unique(pairs, file))
    except UnicodeDecodeError as error:
        raise InputError("not a JSON file: the bytes are not UTF-8 text", hint="save it as UTF-8", file=file) from error
    except json.JSONDecodeError as error:
        missing = "the file is empty" if not body.strip() else f"{error.msg} (column {error.colno})"
        raise InputError(f"not valid JSON: {missing}", hint=_CONFIG_HINT, file=file, line=error.lineno) from error
    except ValueError as error:  # Python refuses numbers of more than 4,300 digits
        raise InputError(
            "not a model's config: a number in it has thousands of digits", hint=_CONFIG_HINT, file=file
        ) from error
    except RecursionError as error:
        raise InputError("not a model's config: nested too deeply", hint=_CONFIG_HINT, file=file) from error
    if not isinstance(found, dict):
        raise InputError(f"not a model's config: a JSON {_kind_of(found)}, not an object", hint=_CONFIG_HINT, file=file)
    return found


def weight_files(names: Iterable[str]) -> tuple[str, ...]:
    """The files that an engine loads, of all in a repository's top folder.

    Repositories have the same weights several times: consolidated (the vendor's own format), half-precision variants,
    PyTorch's pickles beside safetensors. The order of preference is that of the Transformers loader.

    >>> weight_files(["consolidated.safetensors", "model-1-of-2.safetensors", "model-2-of-2.safetensors"])
    ('model-1-of-2.safetensors', 'model-2-of-2.safetensors')
    """
    top = sorted(name for name in names if "/" not in name and not name.startswith("adapter_"))
    for pattern in (
        r"model(-\d+-of-\d+)?\.safetensors",
        r"(?!consolidated).*\.safetensors",
        r".*\.safetensors",
        r"pytorch_model(-\d+-of-\d+)?\.bin",
    ):
        found = tuple(name for name in top if re.fullmatch(pattern, name))
        if found:
            return found
    return ()


def weight_totals(elements: Mapping[str, int], file_bytes: int | None) -> tuple[int | None, int | None]:
    """Parameters and bytes of weights, from the elements per stored type and the size of the files.

    ``Σ elements × element bytes`` is exact if it agrees with the size of the files, whose headers add less than 2%.
    If it does not, the publisher counted unpacked weights: the count is right for parameters, the files for bytes. If
    it agrees but an element packs several 4-bit weights, the number of parameters is unknown.

    >>> weight_totals({"BF16": 8030261248}, 16060556376)
    (8030261248, 16060522496)
    >>> weight_totals({"F16": 262410240, "I32": 809500672}, 3762900000)
    (None, 3762823168)
    """
    total = sum(elements.values())
    if not total or any(name not in _ELEMENT_BYTES for name in elements):
        return total or None, file_bytes
    counted = sum(count * _ELEMENT_BYTES[name] for name, count in elements.items())
    if file_bytes is not None and not 0.98 <= counted / file_bytes <= 1.02:
        return total, file_bytes
    packed = sum(count * _ELEMENT_BYTES[name] for name, count in elements.items() if name in _PACKING)
    return (None if packed > counted / 100 else total), counted


def _folder_weights(folder: Path) -> tuple[int | None, int | None]:
    """Parameters and bytes from the shards' headers, or bytes from the index where shards are missing."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        content = read_json_object(index)
        shard_of, metadata = content.get("weight_map"), content.get("metadata")
        if isinstance(shard_of, dict):
            files = {str(name) for name in shard_of.values()}
            if all((folder / name).is_file() for name in files):
                return _header_totals([folder / name for name in sorted(files)])
        return None, _listed_total(metadata.get("total_size") if isinstance(metadata, dict) else None, index)
    files_here = weight_files(path.name for path in folder.iterdir() if path.is_file())
    if files_here and files_here[0].endswith(".safetensors"):
        return _header_totals([folder / name for name in files_here])
    return None, sum((folder / name).stat().st_size for name in files_here) or None


def _listed_total(listed: object, index: Path) -> int | None:
    """Bytes of all weights in the index, or None. Some writers store a float (1.6e10)."""
    if listed is None:
        return None
    if isinstance(listed, int | float) and not isinstance(listed, bool) and 0 < listed < 2**63 and listed % 1 == 0:
        return int(listed)
    raise InputError(
        f"metadata.total_size is {str(listed)[:80]}, not a number of bytes",
        hint="download it again, or give the path of config.json as MODEL and the weights as --weights-bytes 16GiB",
        file=str(index),
        key="metadata.total_size",
    )


def _header_totals(paths: Iterable[Path]) -> tuple[int | None, int | None]:
    elements: dict[str, int] = {}
    for path in paths:
        for stored, count in read_safetensors_header(path).items():
            elements[stored] = elements.get(stored, 0) + count
    return weight_totals(elements, None)


def read_safetensors_header(path: Path) -> dict[str, int]:
    """Elements per stored type of one safetensors file.

    The file starts with the header's length (8 bytes, little-endian) and the header (JSON: tensor → dtype, shape);
    nothing after it is read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= _LARGEST_HEADER_BYTES:
            raise InputError(
                "not a safetensors file, or an incomplete download", hint="download it again", file=str(path)
            )
        body = file.read(length)
    if len(body) < length:
        raise InputError("an incomplete download", hint="download it again", file=str(path))
    elements: dict[str, int] = {}
    for name, tensor in parse_json_object(body, str(path)).items():
        if name != "__metadata__" and isinstance(tensor, dict):
            stored, shape = str(tensor.get("dtype")), tensor.get("shape")
            if not isinstance(shape, list) or not all(isinstance(side, int) and side >= 0 for side in shape):
                raise InputError(
                    f"the tensor {name} has no shape: {str(shape)[:80]}",
                    hint="download it again",
                    file=str(path),
                    key=name,
                )
            elements[stored] = elements.get(stored, 0) + math.prod(shape)
    return elements


def _unique(pairs: list[tuple[str, object]], file: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise InputError(f"the key {key!r} appears twice", hint="keep one of the two", file=file, key=key)
        found[key] = value
    return found


def _kind_of(value: object) -> str:
    return {list: "list", str: "text", bool: "truth value", type(None): "null"}.get(type(value), "number")
