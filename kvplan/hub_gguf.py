"""A GGUF file in a Hub repository, read by ranges of bytes: its header is a few MiB of many GiB."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import kvplan.hub_failures as failures
from kvplan import __version__
from kvplan.hub import _ENDPOINT, _own_token, _probe, _timeout_s, _translated
from kvplan.hub_cache import hub_cache_folder, is_offline
from kvplan.hub_failures import Asked, HubUnavailableError

_REFERENCE = re.compile(
    r"(?P<model>[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)/(?P<file>[^@]+\.gguf)(?:@(?P<revision>.+))?"
)
_PARTIAL, _WHOLE = 206, 200

RangeReader = Callable[[int, int], bytes]
"""``read(offset, length)``: bytes of the remote file from ``offset`` on; fewer where it ends."""


def split_gguf_reference(reference: str) -> tuple[str, str, str | None] | None:
    """Repository, file and revision of ``org/name/file.gguf[@revision]``; None for anything else.

    >>> split_gguf_reference("org/name-GGUF/q4/model-Q4_K_M.gguf@main")
    ('org/name-GGUF', 'q4/model-Q4_K_M.gguf', 'main')
    >>> split_gguf_reference("./model.gguf") is None
    True
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None or ".." in reference:
        return None
    return match["model"], match["file"], match["revision"]


def fetch_gguf(
    model_id: str, file: str, *, revision: str | None = None, offline: bool = False, token: str | None = None
) -> Path | RangeReader:
    """The file in the Hub's cache, or a function that reads ranges of it over the network.

    Nothing is asked for before the function is called; each call is one request. Raises HubUnavailableError, one
    message a cause, as for config.json.
    """
    cached = _cached(model_id, file, revision)
    if cached is not None:
        return cached
    endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
    if offline or is_offline():
        raise failures.offline(Asked(model_id=model_id, revision=revision, endpoint=endpoint, with_token=False))
    seconds = _timeout_s()
    _probe(Asked(model_id=model_id, revision=revision, endpoint=endpoint, with_token=token is not None), seconds)
    held = token or _own_token()
    asked = Asked(model_id=model_id, revision=revision, endpoint=endpoint, with_token=held is not None)
    url = f"{endpoint}/{model_id}/resolve/{quote(revision or 'main', safe='')}/{quote(file)}"

    def read(offset: int, length: int) -> bytes:
        return _range(asked, url, file, held, seconds, offset, length)

    return read


def _range(asked: Asked, url: str, file: str, token: str | None, seconds: float, offset: int, length: int) -> bytes:
    """One request for one range; a server that sends the whole file is cut off after the part that was asked for."""
    from huggingface_hub import get_session

    headers = {
        "user-agent": f"kvplan/{__version__}",
        "range": f"bytes={offset}-{offset + length - 1}",
        "accept-encoding": "identity",
        **({"authorization": f"Bearer {token}"} if token else {}),
    }
    body = bytearray()
    with (
        _translated(asked, file, seconds),
        get_session().stream("GET", url, headers=headers, timeout=seconds, follow_redirects=True) as response,
    ):
        if response.status_code not in (_PARTIAL, _WHOLE):
            if response.status_code == 416:  # the range begins behind the file's end
                return b""
            if response.headers.get("x-error-code") == "EntryNotFound":
                raise _no_file(asked, file)
            raise failures.refused(asked, response.status_code, response.headers)
        skip = offset if response.status_code == _WHOLE else 0
        for piece in response.iter_bytes():
            body += piece
            if len(body) >= skip + length:
                break
    return bytes(body[skip : skip + length])


def _no_file(asked: Asked, file: str) -> HubUnavailableError:
    return HubUnavailableError(
        f"{asked.name} has no file {file}",
        hint=f"see its files on {asked.page}/tree/{asked.revision or 'main'}",
        reason=None,
        catalogue_may_answer=False,
    )


def _cached(model_id: str, file: str, revision: str | None) -> Path | None:
    """The file as ``hf download`` left it, if it did. Told from the cache's folders, without the client's import."""
    repository = hub_cache_folder() / f"models--{model_id.replace('/', '--')}"
    name = revision or "main"
    reference = repository / "refs" / name
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else name
    found = repository / "snapshots" / commit / file
    return found if found.is_file() else None
