"""What is fetched from the Hub: a model's facts in at most three requests, and ranges of a GGUF file.

The three are the repository's facts (files with their sizes, elements per stored type), config.json, and
hf_quant_config.json where it is listed, whatever the number of shards. No weight is read and no remote code is run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from kvplan.checkpoint import LARGEST_JSON_BYTES, Checkpoint, parse_json_object, weight_files, weight_totals
from kvplan.errors import InputError
from kvplan.files import RangeReader
from kvplan.hub import failures
from kvplan.hub.cache import cached_facts, cached_file, keep_facts
from kvplan.hub.session import Session, open_session
from kvplan.model import Source

_QUANTIZATION = "hf_quant_config.json"
_PARTIAL, _WHOLE = 206, 200


@dataclass(frozen=True, kw_only=True)
class HubFacts(Checkpoint):
    """What the Hub or its cache says of a model; the source's revision is the commit that was read."""

    source: Source


def fetch_facts(
    model_id: str, *, revision: str | None = None, offline: bool = False, token: str | None = None
) -> HubFacts:
    """The facts of ``model_id`` at ``revision`` (None: main): from the cache, else from the Hub.

    ``token`` wins over the environment's. Raises HubUnavailableError, with its own message for every cause.
    """
    found = cached_facts(model_id, revision)
    if found is not None:
        return _facts(*found, name="Hub cache")
    session = open_session(model_id, revision, offline=offline, token=token)
    facts, commit = _ask(session)
    keep_facts(model_id, revision, facts, commit)
    return _facts(facts, commit, name=session.hub_name)


def _facts(found: Checkpoint, commit: str, *, name: str) -> HubFacts:
    return HubFacts(**vars(found), source=Source(name=name, revision=commit))


def _ask(session: Session) -> tuple[Checkpoint, str]:
    """The three requests: the checkpoint and its commit."""
    target = session.target
    at = f"/revision/{quote(target.revision, safe='')}" if target.revision else ""
    info = _read_json(session, f"{target.endpoint}/api/models/{target.model_id}{at}?blobs=true")
    sizes = _file_sizes(info)
    if "config.json" not in sizes:
        raise failures.no_config(target, tuple(sizes))
    commit = str(info.get("sha") or target.revision or "main")
    folder = f"{target.page}/resolve/{quote(commit, safe='')}"
    config = _read_json(session, f"{folder}/config.json")
    quantization = _read_json(session, f"{folder}/{_QUANTIZATION}") if _QUANTIZATION in sizes else None
    parts = [sizes[name] for name in weight_files(sizes)]
    known = [size for size in parts if size is not None]
    parameters, weight_bytes = weight_totals(
        _elements(info), sum(known) if known and len(known) == len(parts) else None
    )
    facts = Checkpoint(config=config, quantization=quantization, parameters=parameters, weight_bytes=weight_bytes)
    return facts, commit


def _file_sizes(info: Mapping[str, object]) -> dict[str, int | None]:
    """The repository's files and their sizes, where the Hub lists them."""
    files = info.get("siblings")
    sizes: dict[str, int | None] = {}
    for file in files if isinstance(files, list) else ():
        if isinstance(file, dict) and isinstance(file.get("rfilename"), str):
            size = file.get("size")
            sizes[file["rfilename"]] = size if isinstance(size, int) else None
    return sizes


def _elements(info: Mapping[str, object]) -> dict[str, int]:
    """Elements per stored type, which the Hub reads from the safetensors headers itself."""
    safetensors = info.get("safetensors")
    elements = safetensors.get("parameters") if isinstance(safetensors, dict) else None
    if not isinstance(elements, dict):
        return {}
    return {str(name): count for name, count in elements.items() if isinstance(count, int)}


def _read_json(session: Session, url: str) -> dict[str, object]:
    """One JSON object in one request, of at most the size of a config."""
    file = url.rpartition("/")[2] if "/resolve/" in url else "list of files"
    body = bytearray()
    with session.get(url, file) as response:
        if response.status_code != 200:
            raise failures.refused(session.target, response.status_code, response.headers)
        for piece in response.iter_bytes():
            body += piece
            if len(body) > LARGEST_JSON_BYTES:
                raise failures.broken_off(session.target, file, f"more than {LARGEST_JSON_BYTES:,} bytes")
    try:
        return parse_json_object(bytes(body), url)
    except InputError as error:
        raise failures.broken_off(session.target, file, error.message) from error


def fetch_gguf(
    model_id: str, file: str, *, revision: str | None = None, offline: bool = False, token: str | None = None
) -> Path | RangeReader:
    """The file in the Hub's cache, or a function that reads ranges of it over the network.

    Each call of that function is one request. Raises HubUnavailableError, as for config.json.
    """
    cached = cached_file(model_id, file, revision)
    if cached is not None:
        return cached
    session = open_session(model_id, revision, offline=offline, token=token)

    def read(offset: int, length: int) -> bytes:
        return _range(session, file, offset, length)

    return read


def _range(session: Session, file: str, offset: int, length: int) -> bytes:
    """One request for one range; a server that sends the whole file is cut off after the requested part."""
    target = session.target
    url = f"{target.page}/resolve/{quote(target.revision or 'main', safe='')}/{quote(file)}"
    headers = {"range": f"bytes={offset}-{offset + length - 1}", "accept-encoding": "identity"}
    body = bytearray()
    with session.get(url, file, headers) as response:
        if response.status_code == 416:  # the range starts past the end of the file
            return b""
        if response.headers.get("x-error-code") == "EntryNotFound":
            raise failures.no_file(target, file)
        if response.status_code not in (_PARTIAL, _WHOLE):
            raise failures.refused(target, response.status_code, response.headers)
        skip = offset if response.status_code == _WHOLE else 0
        for piece in response.iter_bytes():
            body += piece
            if len(body) >= skip + length:
                break
    return bytes(body[skip : skip + length])
