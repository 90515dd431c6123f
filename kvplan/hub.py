"""Fetches a model's facts; the only module of the core that uses the network.

At most three requests a model, whatever the number of shards: the repository's facts (files with sizes, elements per
stored type), config.json, and hf_quant_config.json where it is listed. No weight is read and no remote code is run.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from kvplan import hub_failures
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
class HubFacts:
    """What the Hub or its cache says of a model; ``revision`` is the commit that was read."""

    config: Mapping[str, object]
    quantization: Mapping[str, object] | None
    parameters: int | None
    weight_bytes: int | None
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
        raise hub_failures.offline(Asked(model_id=model_id, revision=revision, endpoint=endpoint, with_token=False))
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
    asked = Asked(model_id=model_id, revision=revision, endpoint=endpoint, with_token=token is not None)
    _probe(asked, timeout_s)

    from huggingface_hub import HfApi, get_token

    asked = Asked(model_id=model_id, revision=revision, endpoint=endpoint, with_token=bool(token or get_token()))
    with _translated(asked, "the repository's facts", timeout_s):
        info = HfApi(endpoint=endpoint, token=token).model_info(
            model_id, revision=revision, files_metadata=True, timeout=timeout_s
        )
    sizes = {file.rfilename: file.size for file in info.siblings or ()}
    if "config.json" not in sizes:
        raise hub_failures.no_config(asked, tuple(sizes))
    commit = info.sha or revision or "main"
    config = _download(asked, "config.json", commit, token, timeout_s)
    listed = _QUANTIZATION in sizes
    quantization = _download(asked, _QUANTIZATION, commit, token, timeout_s) if listed else None
    parts = [sizes[name] for name in weight_files(sizes)]
    file_bytes = sum(size for size in parts if size is not None) if parts and None not in parts else None
    elements = dict(info.safetensors.parameters) if info.safetensors else {}
    parameters, weight_bytes = weight_totals(elements, file_bytes)
    facts = Checkpoint(config=config, quantization=quantization, parameters=parameters, weight_bytes=weight_bytes)
    return facts, commit


def _download(asked: Asked, file: str, commit: str, token: str | None, timeout_s: float) -> dict[str, object]:
    """One small JSON file of the repository, in one request, never more than a config can be long."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(asked.model_id, file, revision=commit, endpoint=asked.endpoint)
    body = bytearray()
    with (
        _translated(asked, file, timeout_s),
        get_session().stream(
            "GET", url, headers=build_hf_headers(token=token), timeout=timeout_s, follow_redirects=True
        ) as response,
    ):
        if response.status_code != 200:
            raise hub_failures.refused(asked, response.status_code, response.headers)
        for piece in response.iter_bytes():
            body += piece
            if len(body) > LARGEST_JSON_BYTES:
                raise hub_failures.broken_off(asked, file, f"more than {LARGEST_JSON_BYTES:,} bytes")
    try:
        return parse_json_object(bytes(body), f"{asked.page}/{file}")
    except InputError as error:
        raise hub_failures.broken_off(asked, file, error.message) from error


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
    except HfHubHTTPError as error:
        raise hub_failures.refused(asked, error.response.status_code, error.response.headers) from error
    except transport as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "TimeoutException" in kinds or isinstance(error, TimeoutError):
            raise hub_failures.timed_out(asked, timeout_s) from error
        if "RemoteProtocolError" in kinds:
            raise hub_failures.broken_off(asked, what, str(error)) from error
        raise hub_failures.unreachable(asked, str(error)) from error
    except (ValueError, KeyError, TypeError) as error:  # an answer that is no JSON, or not the Hub's
        raise hub_failures.broken_off(asked, what, str(error)) from error


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
        raise hub_failures.timed_out(asked, seconds) from error
    except OSError as error:
        raise hub_failures.unreachable(asked, error.strerror or str(error)) from error
