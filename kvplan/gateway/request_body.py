"""A request's body: received within limits of size and time, parsed strictly as JSON, and rewritten where the cap has
to be added or where two parsers could read two different requests."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvplan.gateway.responses import BadRequestError, Receive, Scope

BODY_LIMIT_BYTES = 32 * 2**20
BODY_MEMORY_BYTES = 256 * 2**20
BODY_TIMEOUT_S = 60.0

LARGE_BODY_BYTES = 64 * 1024
"""From this size on a body is parsed in a thread. JSON's decoder does not release the interpreter lock, but the Python
functions that it calls let other threads run."""

MAX_VALUES = 2**20
"""More token ids than most windows hold."""

_VALUES_PER_KEY = 8
"""What a key of an object costs to parse, in numbers of a list: 0.6 µs against 0.04–0.2 µs."""


class ClientGoneError(Exception):
    """The client closed its connection before its body was complete."""


class BodyReader:
    """Receives bodies of at most ``limit_bytes``, each within ``timeout_s``, and of at most ``memory_bytes`` together:
    otherwise two hundred clients that each send the maximum would fill a machine.

    A body counts as far as it has arrived, not as announced: a slow client takes up only what it has sent. Without
    ``takes_chunks`` a body must come with a Content-Length.
    """

    def __init__(
        self,
        *,
        limit_bytes: int = BODY_LIMIT_BYTES,
        memory_bytes: int = BODY_MEMORY_BYTES,
        timeout_s: float = BODY_TIMEOUT_S,
        takes_chunks: bool = True,
    ) -> None:
        self.held_bytes = 0
        self._takes_chunks = takes_chunks
        self._limit_bytes = limit_bytes
        self._memory_bytes = memory_bytes
        self._timeout_s = timeout_s

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """The request's whole body; ``release`` it once the request is over.

        Refuses a size over the limit, announced or real, and contradictory lengths (request smuggling).
        """
        _check_framing(scope, self._limit_bytes, takes_chunks=self._takes_chunks)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._receive_all(receive)
        except TimeoutError as error:
            raise BadRequestError(
                f"the body did not arrive within {self._timeout_s:g} s", code="request_timeout", status=408
            ) from error

    def release(self, body: bytes) -> None:
        """Stop counting a body that was read."""
        self.held_bytes -= len(body)

    async def _receive_all(self, receive: Receive) -> bytes:
        chunks: list[bytes] = []
        size, is_complete = 0, False
        try:
            while not is_complete:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                chunk = message.get("body", b"")
                chunks.append(chunk)
                size += len(chunk)
                self.held_bytes += len(chunk)
                if size > self._limit_bytes:
                    raise _too_large(self._limit_bytes)
                if self.held_bytes > self._memory_bytes:
                    raise BadRequestError("the gateway holds too many bodies now", code="server_busy", status=503)
                is_complete = not message.get("more_body", False)
        finally:
            if not is_complete:
                self.held_bytes -= size
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _check_framing(scope: Scope, limit_bytes: int, *, takes_chunks: bool) -> None:
    """Refuse a body whose length is stated twice, as far as the server shows it.

    uvicorn itself refuses a Content-Length beside Transfer-Encoding: chunked. granian (2.8.9: hyper) removes the
    Content-Length before the application sees it, so behind granian no chunked body can be trusted.
    """
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    codings = [value.lower() for name, value in scope["headers"] if name == b"transfer-encoding"]
    is_chunked = codings == [b"chunked"] and scope["http_version"] != "1.0"
    if len(lengths) > 1 or (lengths and codings) or (codings and not is_chunked):
        raise BadRequestError("the request states its length in two ways", code="invalid_framing")
    if is_chunked and not takes_chunks:
        message = (
            "send a Content-Length: --server granian hides one beside chunks; --server uvicorn accepts chunked bodies"
        )
        raise BadRequestError(message, code="length_required", status=411)
    encodings = [value for name, value in scope["headers"] if name == b"content-encoding"]
    if any(value.lower() != b"identity" for value in encodings):
        raise BadRequestError("compressed bodies are not accepted", code="unsupported_encoding", status=415)
    if lengths and (not lengths[0].isdigit() or int(lengths[0]) > limit_bytes):
        raise _too_large(limit_bytes)


def _too_large(limit_bytes: int) -> BadRequestError:
    message = f"the body exceeds the limit of {limit_bytes:,} bytes"
    return BadRequestError(message, code="request_too_large", status=413)


@dataclass(frozen=True, kw_only=True)
class Body:
    """The client's bytes and the JSON object in them. ``is_ambiguous``: some object gives a key twice."""

    raw: bytes
    fields: Mapping[str, object]
    is_ambiguous: bool


class _DuplicateKeyError(Exception):
    """An object gives a key twice."""


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _DuplicateKeyError
    return found


def _int(text: str) -> int:
    return int(text)


def _float(text: str) -> float:
    return float(text)


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
_LAST_WINS = json.JSONDecoder(parse_constant=_refuse_constant)
_STRICT_IN_THREAD = json.JSONDecoder(
    parse_constant=_refuse_constant, object_pairs_hook=_unique_keys, parse_int=_int, parse_float=_float
)
"""Reads numbers in Python, 0.06 µs more each, or a million of them would stop running streams for 0.1 to 0.6 s."""


def refuse_many_values(raw: bytes, most: int = MAX_VALUES) -> None:
    """Refuse a body that could hold more than ``most`` values, unparsed: its commas, brackets and colons are counted.

    Those inside a text count too; a text with so many of them has about as many tokens.
    """
    if len(raw) <= most // _VALUES_PER_KEY:
        return
    if sum(map(raw.count, (b",", b"[", b"{"))) > most or raw.count(b":") > most // _VALUES_PER_KEY:
        message = f"the body may hold more than {most:,} values, judging by its commas, brackets and colons"
        raise BadRequestError(message, code="request_too_large", status=413)


def parse_body(raw: bytes) -> Body:
    """The JSON object in ``raw``. Raises BadRequestError for anything else; NaN and Infinity are not JSON.

    >>> parse_body(b'{"n": 1, "n": 2}')
    Body(raw=b'{"n": 1, "n": 2}', fields={'n': 2}, is_ambiguous=True)
    """
    is_ambiguous = False
    try:
        text = raw.decode("utf-8")
        try:
            value = (_STRICT if len(raw) < LARGE_BODY_BYTES else _STRICT_IN_THREAD).decode(text)
        except _DuplicateKeyError:
            is_ambiguous, value = True, _LAST_WINS.decode(text)
    except UnicodeDecodeError as error:
        raise BadRequestError("the body is not UTF-8", code="invalid_json") from error
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at character {error.pos}"
        raise BadRequestError(message, code="invalid_json") from error
    except (ValueError, RecursionError) as error:
        raise BadRequestError("the body is not acceptable JSON", code="invalid_json") from error
    if not isinstance(value, dict):
        raise BadRequestError("the body must be a JSON object", code="invalid_json")
    return Body(raw=raw, fields=value, is_ambiguous=is_ambiguous)


def with_cap(body: Body, cap_fields: Sequence[str], cap: int | None) -> bytes:
    """The bytes to forward: the client's own, with ``cap`` inserted at the front if there is one to write.

    Any of ``cap_fields`` may hold a cap, but only the first is obeyed by every engine (llama-cpp-python's server
    ignores ``max_completion_tokens`` and would keep generating), so a client's cap in another field moves there. A body
    that gives a key twice is written anew from what was priced, so that the engine cannot read a different request.

    >>> with_cap(parse_body(b'{"n": 1}'), ("max_tokens", "max_completion_tokens"), 7)
    b'{"max_tokens": 7, "n": 1}'
    >>> with_cap(parse_body(b'{"max_tokens": null}'), ("max_tokens", "max_completion_tokens"), 7)
    b'{"max_tokens": 7}'
    >>> with_cap(parse_body(b'{"max_completion_tokens": 5}'), ("max_tokens", "max_completion_tokens"), None)
    b'{"max_tokens": 5}'
    """
    fields = body.fields
    written: object = cap
    if written is None and cap_fields and fields.get(cap_fields[0]) is None:
        written = next((fields[name] for name in cap_fields if fields.get(name) is not None), None)
    if written is None:
        return json.dumps(fields).encode() if body.is_ambiguous else body.raw
    if body.is_ambiguous or any(name in fields for name in cap_fields):
        kept = {name: value for name, value in fields.items() if name not in cap_fields}
        return json.dumps({cap_fields[0]: written, **kept}).encode()
    start = body.raw.index(b"{") + 1
    separator = b", " if fields else b""
    return body.raw[:start] + f'"{cap_fields[0]}": {cap}'.encode() + separator + body.raw[start:]
