"""One HTTP/1.1 connection to the engine, one request and response at a time, parsed by the parser that uvicorn uses."""

import asyncio
from typing import TYPE_CHECKING, cast

import httptools

from kvplan.gateway.responses import Headers

if TYPE_CHECKING:
    from kvplan.gateway.connection_pool import ConnectionPool

_MAX_UNREAD_BYTES = 256 * 1024
"""A response that the client does not take is read no further than this; then the engine waits, as it would for the
client."""

_HEAD_LIMIT_BYTES = 64 * 1024


class UpstreamError(Exception):
    """The engine failed this request."""


class UnreachableError(UpstreamError):
    """No connection could be opened, or it closed before the head of a response."""


class SilentError(UpstreamError):
    """The engine sent nothing for too long."""


class BrokenResponseError(UpstreamError):
    """The response ended early, or is not HTTP/1.1 that can be trusted."""


class Connection(asyncio.Protocol):
    """One connection and the response being read from it: ``status`` and ``headers`` (names in lower case), then
    ``read()`` until it gives nothing. Always ``close()``: it keeps the connection only if the response is over."""

    def __init__(self, pool: "ConnectionPool", loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.headers: Headers = []
        self.waiting_since_s: float | None = None
        self.idle_since_s = 0.0
        self._pool = pool
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: UpstreamError | None = None
        self._pieces: list[bytes] = []
        self._unread_bytes = 0
        self._head_bytes = 0
        self._is_paused = False
        self._is_busy = False
        self._is_over = False
        self._has_no_body = False
        self._ends_with_connection = True
        self._is_reusable = False

    @property
    def is_open(self) -> bool:
        """Whether another request may be written to it."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_begun(self) -> bool:
        """Whether any byte of the response has arrived."""
        return self._head_bytes > 0

    @property
    def is_complete(self) -> bool:
        """Whether the response is over and was read to its end."""
        return self._is_over and not self._pieces

    async def request(self, head: bytes, body: bytes, *, has_no_body: bool) -> None:
        """Write a request and wait for the head of its response; ``has_no_body``: whatever its length says (HEAD)."""
        assert self._transport is not None
        self.status, self.headers, self._pieces = 0, [], []
        self._head_bytes = self._unread_bytes = 0
        self._is_busy, self._is_over, self._has_no_body = True, False, has_no_body
        if body:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head)
        while not self.status:
            await self._event()

    async def read(self) -> bytes:
        """What has arrived of the body since the last call, at least a byte; empty at the end of the response."""
        while not self._pieces:
            if self._is_over:
                return b""
            await self._event()
        pieces, self._pieces, self._unread_bytes = self._pieces, [], 0
        if self._is_paused and self._transport is not None:
            self._transport.resume_reading()
            self._is_paused = False
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Done with this response. One that is not over ends with the connection, which tells the engine to stop.

        So does one that came before its request was fully written: the rest of that must not be read as the next one.
        """
        self._is_busy = False
        self.idle_since_s = self._loop.time()
        is_clean = self._is_over and self._is_reusable and not self._is_paused
        is_written = self._transport is not None and not self._transport.get_write_buffer_size()
        self._pool.done(self, is_reusable=is_clean and is_written and self.is_open)

    def fail(self, error: UpstreamError) -> None:
        """Close the connection; the reader gets what had arrived of the response, then ``error``."""
        if self._error is None:
            self._error = error
        self.abort()
        self._wake()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    async def _event(self) -> None:
        """Wait until something arrives. Raises the error that ended the response."""
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        self.waiting_since_s = self._loop.time()
        try:
            await self._waiter
        finally:
            self._waiter = self.waiting_since_s = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's only has its methods

    def data_received(self, data: bytes) -> None:
        if not self._is_busy or self._is_over:  # bytes that nobody asked for
            self._is_reusable = False
            self.abort()
            return
        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fail(BrokenResponseError("the engine's response is not acceptable HTTP/1.1"))
            return
        if self._head_bytes > _HEAD_LIMIT_BYTES and not self.status:
            self.fail(BrokenResponseError("the head of the engine's response is too long"))
        elif self._unread_bytes > _MAX_UNREAD_BYTES and not self._is_paused and self._transport is not None:
            self._transport.pause_reading()
            self._is_paused = True
        self._wake()

    def eof_received(self) -> None:
        """The engine sends no more, and so reads no more, either."""
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self._is_busy:
            self._pool.forget(self)
        elif not self._is_over:
            if self.status and self._ends_with_connection and exc is None and self._error is None:
                self._is_over = True
            elif self._error is None:
                kind = BrokenResponseError if self.status else UnreachableError
                self._error = kind("the engine closed the connection")
                self._error.__cause__ = exc
        self._wake()

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if self._is_over:  # a second response to one request
            self._is_reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if not self.status:  # later ones are trailers, which end with this connection
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        status = self._parser.get_status_code()
        if self._is_over:
            return
        if status < 200:  # 100 Continue, 103 Early Hints: the response is still to come
            self.headers = []
            return
        self.status = status
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and [coding.lower() for coding in codings] != [b"chunked"]:
            raise ValueError("a coding that is not decoded here")  # becomes the parser's error
        self._ends_with_connection = not codings and all(name != b"content-length" for name, _ in self.headers)
        self._is_reusable = self._parser.should_keep_alive()
        if self._has_no_body:  # the parser would wait for one
            self._is_over, self._is_reusable = True, False

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        if not self._is_over:
            self._pieces.append(body)
            self._unread_bytes += len(body)

    def on_message_complete(self) -> None:
        """Called by the parser, also at the end of an interim response."""
        if self.status:
            self._is_over = True
