"""A request's body: how its bytes arrive (one length, a limit in bytes and one in time), and the JSON in them: read
strictly, and written anew where two readers could read two different requests. Nothing is reserved meanwhile."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvplan.gateway.answers import Headers, Receive, Scope, Send, send_error

BODY_LIMIT_BYTES = 32 * 2**20
BODY_MEMORY_BYTES = 256 * 2**20
BODY_TIMEOUT_S = 60.0


class BadRequestError(Exception):
    """A request that cannot be priced: ``status``, the field at fault, and an OpenAI error code."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


class ClientGoneError(Exception):
    """The client closed its connection while its body was being read."""


class Bodies:
    """Reads bodies: each of at most ``limit_bytes``, within ``timeout_s``; all that are held at once, of at most
    ``memory_bytes``, for two hundred clients that each send the most allowed would fill a machine.

    What counts is what has come, not what was announced: a slow client holds only what it has sent. Without
    ``takes_chunks`` a body must come with its length.
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
        """The request's body; ``let_go`` of it once the request is over.

        Refuses a size over the limit, announced or real, and lengths that contradict each other (a smuggled request).
        """
        _check_framing(scope, self._limit_bytes, takes_chunks=self._takes_chunks)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._joined(receive)
        except TimeoutError as error:
            raise BadRequestError(
                f"the body did not arrive within {self._timeout_s:g} s", code="request_timeout", status=408
            ) from error

    def let_go(self, body: bytes) -> None:
        """A body that was read is held no longer."""
        self.held_bytes -= len(body)

    async def _joined(self, receive: Receive) -> bytes:
        chunks: list[bytes] = []
        size, is_whole = 0, False
        try:
            while not is_whole:
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
                    raise BadRequestError("too many bodies are being held here", code="server_busy", status=503)
                is_whole = not message.get("more_body", False)
        finally:
            if not is_whole:
                self.held_bytes -= size
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def refuse_body(send: Send, error: BadRequestError) -> None:
    """Answer ``error``; where part of the body may still come, the connection ends with it."""
    headers: Headers = [(b"connection", b"close")] if error.status in (408, 411, 413, 503) else []
    retry_after_s = 1.0 if error.status == 503 else None
    await send_error(
        send,
        error.status,
        error.message,
        code=error.code,
        param=error.param,
        retry_after_s=retry_after_s,
        headers=headers,
    )


def _check_framing(scope: Scope, limit_bytes: int, *, takes_chunks: bool) -> None:
    """Refuse two lengths, as far as the server shows them.

    uvicorn refuses a Content-Length beside Transfer-Encoding: chunked itself. granian (2.8.9: hyper) removes the
    Content-Length before the application sees it, so behind it no chunked body can be trusted to have had one length.
    """
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    codings = [value.lower() for name, value in scope["headers"] if name == b"transfer-encoding"]
    is_chunked = codings == [b"chunked"] and scope["http_version"] != "1.0"
    if len(lengths) > 1 or (lengths and codings) or (codings and not is_chunked):
        raise BadRequestError("the request states its length in two ways", code="invalid_framing")
    if is_chunked and not takes_chunks:
        message = "send a Content-Length: chunked bodies are read with --server uvicorn, not granian (it hides a second"
        raise BadRequestError(f"{message} length)", code="length_required", status=411)
    encodings = [value for name, value in scope["headers"] if name == b"content-encoding"]
    if any(value.lower() != b"identity" for value in encodings):
        raise BadRequestError("a compressed body is not read here", code="unsupported_encoding", status=415)
    if lengths and (not lengths[0].isdigit() or int(lengths[0]) > limit_bytes):
        raise _too_large(limit_bytes)


def _too_large(limit_bytes: int) -> BadRequestError:
    return BadRequestError(f"the body is over the limit of {limit_bytes:,} bytes", code="request_too_large", status=413)


@dataclass(frozen=True, kw_only=True)
class Body:
    """The client's bytes and the object in them. ``is_ambiguous``: some object in it gives a key twice."""

    raw: bytes
    fields: Mapping[str, object]
    is_ambiguous: bool


class _TwiceError(Exception):
    """A key was given twice."""


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _TwiceError
    return found


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_once)
_LAST_WINS = json.JSONDecoder(parse_constant=_refuse_constant)


MOST_VALUES = 2**20
"""A list of so many token ids is beyond most windows. JSON's decoder gives the interpreter to nobody else, and running
streams stand still meanwhile: for 32 MiB of lists, many seconds."""


def refuse_many_values(raw: bytes, most: int = MOST_VALUES) -> None:
    """Refuse a body that could hold more than ``most`` values, before it is read: its commas and brackets are counted.

    Those within a text are, too; a text of so many has about as many tokens.
    """
    if len(raw) > most and sum(map(raw.count, (b",", b"[", b"{"))) > most:
        message = f"the body may hold more than {most:,} values: so many commas and brackets are in it"
        raise BadRequestError(message, code="request_too_large", status=413)


def read_body(raw: bytes) -> Body:
    """The JSON object in ``raw``; BadRequestError where it is none (NaN and Infinity are not JSON).

    >>> read_body(b'{"n": 1, "n": 2}')
    Body(raw=b'{"n": 1, "n": 2}', fields={'n': 2}, is_ambiguous=True)
    """
    is_ambiguous = False
    try:
        text = raw.decode("utf-8")
        try:
            value = _STRICT.decode(text)
        except _TwiceError:
            is_ambiguous, value = True, _LAST_WINS.decode(text)
    except UnicodeDecodeError as error:
        raise BadRequestError("the body is not UTF-8", code="invalid_json") from error
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at byte {error.pos}"
        raise BadRequestError(message, code="invalid_json") from error
    except (ValueError, RecursionError) as error:
        raise BadRequestError("the body is not JSON that can be read here", code="invalid_json") from error
    if not isinstance(value, dict):
        raise BadRequestError("the body must be a JSON object", code="invalid_json")
    return Body(raw=raw, fields=value, is_ambiguous=is_ambiguous)


def with_cap(body: Body, cap_fields: Sequence[str], cap: int | None) -> bytes:
    """The bytes to forward: the client's own, with ``cap`` written in front of them where one has to be.

    ``cap_fields`` may hold a cap; only the first of them is obeyed by every engine (llama-cpp-python's server knows no
    ``max_completion_tokens``, and would write on), so a client's cap that stands in another is moved there. A body in
    which a key stands twice is written anew from what was priced, so that the engine cannot read another request than
    the one that was admitted.

    >>> with_cap(read_body(b'{"n": 1}'), ("max_tokens", "max_completion_tokens"), 7)
    b'{"max_tokens": 7, "n": 1}'
    >>> with_cap(read_body(b'{"max_tokens": null}'), ("max_tokens", "max_completion_tokens"), 7)
    b'{"max_tokens": 7}'
    >>> with_cap(read_body(b'{"max_completion_tokens": 5}'), ("max_tokens", "max_completion_tokens"), None)
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
