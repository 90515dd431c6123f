"""A GGUF file in a Hub repository, read by ranges of bytes: its header is a few MiB of many GiB."""

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from kvplan.hub import failures
from kvplan.hub.cache import cached_file
from kvplan.hub.session import Session, open_session

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
    """One request for one range; a server that sends the whole file is cut off after the part that was asked for."""
    asked = session.asked
    url = f"{asked.page}/resolve/{quote(asked.revision or 'main', safe='')}/{quote(file)}"
    headers = {"range": f"bytes={offset}-{offset + length - 1}", "accept-encoding": "identity"}
    body = bytearray()
    with session.get(url, file, headers) as response:
        if response.status_code == 416:  # the range begins behind the file's end
            return b""
        if response.headers.get("x-error-code") == "EntryNotFound":
            raise failures.no_file(asked, file)
        if response.status_code not in (_PARTIAL, _WHOLE):
            raise failures.refused(asked, response.status_code, response.headers)
        skip = offset if response.status_code == _WHOLE else 0
        for piece in response.iter_bytes():
            body += piece
            if len(body) >= skip + length:
                break
    return bytes(body[skip : skip + length])
