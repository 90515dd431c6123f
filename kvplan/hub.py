"""Fetches a model's facts; the only module of the core that uses the network.

At most three requests a model, whatever the number of shards: the repository's facts (files with sizes, elements per
stored type), config.json, and hf_quant_config.json where it is listed. No weight is read and no remote code is run.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import kvplan.hub_failures as failures
from kvplan import __version__
from kvplan.checkpoint import LARGEST_JSON_BYTES, Checkpoint, parse_json_object, weight_files, weight_totals
from kvplan.errors import InputError
from kvplan.hub_cache import cached_facts, is_offline, keep_facts
from kvplan.hub_failures import Asked, HubUnavailableError
from kvplan.model import Source

__all__ = ["HubFacts", "HubUnavailableError", "fetch_facts"]

_ENDPOINT = "https://huggingface.co"
_QUANTIZATION = "hf_quant_config.json"
_TIMEOUT_S = 10.0  # the Hub client's own default
_LONGEST_PROBE_S = 5.0
_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


@dataclass(frozen=True, kw_only=True)
class HubFacts(Checkpoint):
    """What the Hub or its cache says of a model; ``revision`` is the commit that was read."""

    revision: str
    source: Source


def fetch_facts(
    model_id: str, *, revision: str | None = None, offline: bool = False, token: str | None = None
) -> HubFacts:
    """The facts of ``model_id`` at ``revision`` (main, if None): from the cache, else from the Hub.

    ``HF_ENDPOINT``, ``HF_HOME``, ``HF_TOKEN``, ``HF_HUB_OFFLINE`` and the proxies' variables are obeyed; ``token`` wins
    over the environment's. Raises HubUnavailableError, one message a cause.
    """
    found = cached_facts(model_id, revision)
    if found is not None:
        return _facts(*found, name="Hub cache")
    endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
    if offline or is_offline():
        raise failures.offline(Asked(model_id=model_id, revision=revision, endpoint=endpoint, with_token=False))
    facts, commit = _ask(model_id, revision, endpoint, token)
    keep_facts(model_id, revision, facts, commit)
    return _facts(facts, commit, name="Hub" if endpoint == _ENDPOINT else f"Hub at {endpoint}")


def _facts(found: Checkpoint, commit: str, *, name: str) -> HubFacts:
    return HubFacts(
        config=found.config,
        quantization=found.quantization,
        parameters=found.parameters,
        weight_bytes=found.weight_bytes,
        revision=commit,
        source=Source(name=name, revision=commit),
    )


def _ask(model_id: str, revision: str | None, endpoint: str, token: str | None) -> tuple[Checkpoint, str]:
    """The three requests."""
    timeout_s = _timeout_s()
    _probe(Asked(model_id=model_id, revision=revision, endpoint=endpoint, with_token=token is not None), timeout_s)
    held = token or _own_token()
    asked = Asked(model_id=model_id, revision=revision, endpoint=endpoint, with_token=held is not None)
    at = f"/revision/{quote(revision, safe='')}" if revision else ""
    info = _get(asked, f"{endpoint}/api/models/{model_id}{at}?blobs=true", held, timeout_s)
    sizes = _file_sizes(info)
    if "config.json" not in sizes:
        raise failures.no_config(asked, tuple(sizes))
    commit = str(info.get("sha") or revision or "main")
    folder = f"{endpoint}/{model_id}/resolve/{quote(commit, safe='')}"
    config = _get(asked, f"{folder}/config.json", held, timeout_s)
    quantization = _get(asked, f"{folder}/{_QUANTIZATION}", held, timeout_s) if _QUANTIZATION in sizes else None
    parts = [sizes[name] for name in weight_files(sizes)]
    known = [size for size in parts if size is not None]
    parameters, weight_bytes = weight_totals(
        _elements(info), sum(known) if known and len(known) == len(parts) else None
    )
    facts = Checkpoint(config=config, quantization=quantization, parameters=parameters, weight_bytes=weight_bytes)
    return facts, commit


def _file_sizes(info: Mapping[str, object]) -> dict[str, int | None]:
    """The repository's files and their sizes, where the Hub tells them."""
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


def _own_token() -> str | None:
    """The token of ``HF_TOKEN`` or of ``hf auth login``, unless the user forbade to send it unasked."""
    from huggingface_hub import get_token

    forbidden = os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in {"1", "ON", "YES", "TRUE"}
    return None if forbidden else get_token()


def _get(asked: Asked, url: str, token: str | None, timeout_s: float) -> dict[str, object]:
    """One JSON object in one request, never more of it than a config can be long.

    The session is the Hub client's (proxies, certificates, whatever the user configured); the headers are not, because
    building them asks the Hub for a list of coding agents, which would be a fourth request.
    """
    from huggingface_hub import get_session

    headers = {"user-agent": f"kvplan/{__version__}", **({"authorization": f"Bearer {token}"} if token else {})}
    file = url.rpartition("/")[2] if "/resolve/" in url else "the list of files"
    body = bytearray()
    with (
        _translated(asked, file, timeout_s),
        get_session().stream("GET", url, headers=headers, timeout=timeout_s, follow_redirects=True) as response,
    ):
        if response.status_code != 200:
            raise failures.refused(asked, response.status_code, response.headers)
        for piece in response.iter_bytes():
            body += piece
            if len(body) > LARGEST_JSON_BYTES:
                raise failures.broken_off(asked, file, f"more than {LARGEST_JSON_BYTES:,} bytes")
    try:
        return parse_json_object(bytes(body), url)
    except InputError as error:
        raise failures.broken_off(asked, file, error.message) from error


@contextmanager
def _translated(asked: Asked, what: str, timeout_s: float) -> Iterator[None]:
    """Turns the client's exceptions into kvplan's.

    The client's HTTP library has changed its name with the client's major versions, so its base exception is taken
    from the client's own: ``HfHubHTTPError`` derives from it and from OSError.
    """
    from huggingface_hub.errors import HfHubHTTPError

    transport: tuple[type[BaseException], ...] = HfHubHTTPError.__bases__  # the HTTP library's base, and OSError
    try:
        yield
    except ImportError as error:  # a SOCKS proxy needs a package of its own
        raise failures.unreachable(asked, str(error)) from error
    except transport as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "TimeoutException" in kinds or isinstance(error, TimeoutError):
            raise failures.timed_out(asked, timeout_s) from error
        if "RemoteProtocolError" in kinds:
            raise failures.broken_off(asked, what, str(error)) from error
        raise failures.unreachable(asked, str(error)) from error


def _timeout_s() -> float:
    """The Hub client's own variable, so that a user sets it once."""
    text = os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT")
    try:
        seconds = float(text) if text else _TIMEOUT_S
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 86400:
        raise InputError(
            f"HF_HUB_DOWNLOAD_TIMEOUT is {text!r}, not a number of seconds", hint="such as HF_HUB_DOWNLOAD_TIMEOUT=30"
        )
    return seconds


def _probe(asked: Asked, timeout_s: float) -> None:
    """Fails at once where nothing can be reached, before the client's import is paid for (half a second, cold).

    Not where a proxy is set: then the Hub's own name need not resolve here.
    """
    if any(os.environ.get(name) for name in _PROXIES):
        return
    parts = urlsplit(asked.endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InputError(
            f"HF_ENDPOINT is {asked.endpoint!r}, not an address", hint="such as HF_ENDPOINT=https://hub.example.org"
        )
    port = parts.port or (443 if parts.scheme == "https" else 80)
    seconds = min(timeout_s, _LONGEST_PROBE_S)
    try:
        socket.create_connection((parts.hostname, port), timeout=seconds).close()
    except TimeoutError as error:
        raise failures.timed_out(asked, seconds) from error
    except OSError as error:
        raise failures.unreachable(asked, error.strerror or str(error)) from error
