"""Connections to the engine: one request and its answer at a time on each, kept for the next one.

What ``aiohttp.ClientSession`` spends on an answer of one piece (two fifths of the gateway's CPU: cookies, redirects,
proxies, timers, header maps) a reverse proxy has no use for. Framing is read by the parser that aiohttp and uvicorn
use, llhttp.
"""

import asyncio
import ssl
from collections import deque
from typing import cast
from urllib.parse import urlsplit

import httptools

from kvplan.gateway.answers import Headers

_IDLE_S = 4.0
"""Shorter than what Python engines keep an idle connection for (uvicorn: 5 s), so that none is used as it closes."""

_MOST_UNREAD_BYTES = 256 * 1024
"""An answer that is not taken is read no further than that; then the engine waits, as it would for the client."""

_HEAD_LIMIT_BYTES = 64 * 1024


class UpstreamError(Exception):
    """The engine failed this request."""


class UnreachableError(UpstreamError):
    """No connection could be opened, or it closed before the head of an answer."""


class SilentError(UpstreamError):
    """Nothing came for too long."""


class BrokenOffError(UpstreamError):
    """The answer ended before it was whole."""


class Connection(asyncio.Protocol):
    """One connection, and the answer that is being read on it: ``status`` and ``headers`` (names in lower case), then
    ``piece()`` until it gives nothing. ``close()`` always: it keeps the connection only where the answer is over."""

    def __init__(self, pool: "Upstream", loop: asyncio.AbstractEventLoop) -> None:
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
        """Whether another request may be written on it."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_whole(self) -> bool:
        """Whether the answer is over, and all of it was taken."""
        return self._is_over and not self._pieces

    async def ask(self, head: bytes, body: bytes, *, has_no_body: bool) -> None:
        """Write a request and wait for the head of its answer; ``has_no_body``: whatever its length says (HEAD)."""
        assert self._transport is not None
        self.status, self.headers, self._pieces = 0, [], []
        self._head_bytes = self._unread_bytes = 0
        self._is_busy, self._is_over, self._has_no_body = True, False, has_no_body
        if body:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head)
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._event()

    async def piece(self) -> bytes:
        """What has come of the body since it was last asked for, at least a byte; empty at the end of the answer."""
        while not self._pieces:
            if self._is_over:
                return b""
            if self._error is not None:
                raise self._error
            await self._event()
        pieces, self._pieces, self._unread_bytes = self._pieces, [], 0
        if self._is_paused and self._transport is not None:
            self._transport.resume_reading()
            self._is_paused = False
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Done with this answer. One that is not over is left by closing the connection: the engine knows to stop."""
        self._is_busy = False
        is_clean = self._is_over and self.is_open and not self._is_paused
        self._pool.done(self, is_reusable=is_clean and self._is_reusable)

    def fail(self, error: UpstreamError) -> None:
        """Close the connection; whoever waits for the answer sees ``error``, after what had come of it."""
        if self._error is None:
            self._error = error
        self.abort()
        self._wake()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    async def _event(self) -> None:
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
        if not self._is_busy or self._is_over:  # nobody asked
            self._is_reusable = False
            self.abort()
            return
        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fail(BrokenOffError("the engine's answer is not HTTP/1.1"))
            return
        if self._head_bytes > _HEAD_LIMIT_BYTES and not self.status:
            self.fail(BrokenOffError("the head of the engine's answer is too long"))
        elif self._unread_bytes > _MOST_UNREAD_BYTES and not self._is_paused and self._transport is not None:
            self._transport.pause_reading()
            self._is_paused = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self._is_busy:
            self._pool.forget(self)
        elif not self._is_over:
            if self.status and self._ends_with_connection and exc is None and self._error is None:
                self._is_over = True
            elif self._error is None:
                kind = BrokenOffError if self.status else UnreachableError
                self._error = kind("the engine closed the connection")
                self._error.__cause__ = exc
        self._wake()

    def on_message_begin(self) -> None:
        """From the parser."""
        if self._is_over:  # a second answer to one request
            self._is_reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """From the parser."""
        if not self.status:  # after it: trailers, which end with this connection
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """From the parser."""
        status = self._parser.get_status_code()
        if self._is_over:
            return
        if status < 200:  # 100 Continue, 103 Early Hints: the answer is still to come
            self.headers = []
            return
        self.status = status
        names = [name for name, _ in self.headers]
        self._ends_with_connection = b"content-length" not in names and b"transfer-encoding" not in names
        self._is_reusable = self._parser.should_keep_alive()
        if self._has_no_body:  # the parser would wait for one
            self._is_over, self._is_reusable = True, False

    def on_body(self, body: bytes) -> None:
        """From the parser."""
        if not self._is_over:
            self._pieces.append(body)
            self._unread_bytes += len(body)

    def on_message_complete(self) -> None:
        """From the parser; also at the end of an interim answer."""
        if self.status:
            self._is_over = True


class Upstream:
    """The connections to the engine behind ``base_url``. No limit of its own, since the ledger is the limit."""

    def __init__(self, base_url: str, *, connect_timeout_s: float = 5.0, silence_s: float = 600.0) -> None:
        parts = urlsplit(base_url)
        assert parts.hostname is not None
        self._address = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/").encode("ascii")
        self._after_target = b" HTTP/1.1\r\nhost: %b\r\n" % parts.netloc.encode("ascii")
        self._connect_timeout_s = connect_timeout_s
        self._silence_s = silence_s
        self._idle: deque[Connection] = deque()
        self._busy: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, method: str, target: bytes, headers: Headers, body: bytes) -> Connection:
        """Send a request, on an idle connection where there is one; the connection once the head of the answer is in.

        Raises UnreachableError, SilentError, BrokenOffError; ValueError where a header or the target would be read as
        more than one line.
        """
        lines = [b"%b: %b\r\n" % pair for pair in headers]
        if body or method == "POST":
            lines.append(b"content-length: %d\r\n" % len(body))
        head = b"%b %b%b%b%b\r\n" % (method.encode(), self._path, target, self._after_target, b"".join(lines))
        if not head.count(b"\n") == head.count(b"\r") == len(lines) + 3 or b"\0" in head or b" " in target:
            raise ValueError("a header or the target holds a control character")
        connection = self._take() or await self._connect()
        self._busy.add(connection)
        if self._timer is None:
            self._arm()
        try:
            await connection.ask(head, body, has_no_body=method == "HEAD")
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close every connection."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in (*self._idle, *self._busy):
            connection.abort()

    def done(self, connection: Connection, *, is_reusable: bool) -> None:
        """A connection's answer was read, or left."""
        self._busy.discard(connection)
        if not is_reusable:
            connection.abort()
            return
        connection.idle_since_s = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """The engine closed an idle connection."""
        if connection in self._idle:
            self._idle.remove(connection)

    def _take(self) -> Connection | None:
        """The connection that was used last, if it is fresh; those that are not are closed."""
        self._drop_stale(asyncio.get_running_loop().time())
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    def _drop_stale(self, now_s: float) -> None:
        while self._idle and self._idle[0].idle_since_s < now_s - _IDLE_S:
            self._idle.popleft().abort()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        host, port = self._address
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, loop),
                    host,
                    port,
                    ssl=self._tls,
                    server_hostname=host if self._tls else None,
                )
        except OSError as error:
            raise UnreachableError(f"{type(error).__name__}") from error
        return connection

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(min(self._silence_s, 4 * _IDLE_S) / 4, self._look)

    def _look(self) -> None:
        """Close what an engine stopped writing on: one timer for all, for one each costs CPU with every token."""
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        self._drop_stale(now_s)
        for connection in list(self._busy):
            if connection.waiting_since_s is not None and connection.waiting_since_s < now_s - self._silence_s:
                connection.fail(SilentError("the engine sent nothing for too long"))
        if self._busy or self._idle:
            self._arm()
