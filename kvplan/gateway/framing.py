"""How a request's bytes arrive: one length, a limit in bytes, and a limit in time. Nothing is reserved meanwhile."""

import asyncio

from kvplan.gateway.answers import Headers, Receive, Scope, Send, send_error
from kvplan.gateway.bodies import BadRequestError

BODY_LIMIT_BYTES = 32 * 2**20
BODY_MEMORY_BYTES = 256 * 2**20
BODY_TIMEOUT_S = 60.0


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
