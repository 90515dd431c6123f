"""The connections to the engine: kept for the next request, and given up when the engine falls silent.

They are the gateway's own because ``aiohttp.ClientSession``, with everything switched off that can be, makes a request
cost 1.42 to 1.46 times the CPU of a bare pass-through (tests/benchmarks/test_gateway.py), and these 0.95 to 0.99 times;
the bar is 1.15. aiohttp spends it on cookies, redirects, URLs, timers and header maps, and none of its public parts
does without.
"""

import asyncio
import ssl
from collections import deque
from urllib.parse import urlsplit

from kvplan.gateway.connection import Connection, SilentError, UnreachableError
from kvplan.gateway.responses import Headers

_IDLE_S = 4.0
"""Shorter than Python engines keep an idle connection (uvicorn: 5 s), so that none is used while it is being closed."""

_SAFE_METHODS = ("GET", "HEAD")


class ConnectionPool:
    """The connections to the engine behind ``base_url``. It has no limit of its own, since the ledger is the limit."""

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

    async def request(self, method: str, target: bytes, headers: Headers, body: bytes) -> Connection:
        """Send a request, over an idle connection if there is one. The connection, once the response's head is in.

        A kept connection may close just as it is used. A request that changes nothing is then sent once more, over a
        new one; one that the engine may have begun to compute is not. Proxies named in the environment are ignored.

        Raises UnreachableError, SilentError, BrokenResponseError; ValueError if a header or the target would be read
        as more than one line.
        """
        lines = [b"%b: %b\r\n" % pair for pair in headers]
        if body or method == "POST":
            lines.append(b"content-length: %d\r\n" % len(body))
        head = b"%b %b%b%b%b\r\n" % (method.encode(), self._path, target, self._after_target, b"".join(lines))
        if not head.count(b"\n") == head.count(b"\r") == len(lines) + 3 or b"\0" in head or b" " in target:
            raise ValueError("a header or the target contains a control character")
        kept = self._take_idle()
        if kept is not None:
            try:
                return await self._request_on(kept, method, head, body)
            except UnreachableError:
                if method not in _SAFE_METHODS or kept.has_begun:
                    raise
        return await self._request_on(await self._connect(), method, head, body)

    async def _request_on(self, connection: Connection, method: str, head: bytes, body: bytes) -> Connection:
        self._busy.add(connection)
        if self._timer is None:
            self._arm()
        try:
            await connection.request(head, body, has_no_body=method == "HEAD")
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
        """Its response was read, or abandoned: keep the connection, or close it."""
        self._busy.discard(connection)
        if is_reusable:
            self._idle.append(connection)
        else:
            connection.abort()

    def forget(self, connection: Connection) -> None:
        """The engine closed it while it was idle."""
        if connection in self._idle:
            self._idle.remove(connection)

    def _take_idle(self) -> Connection | None:
        """The connection that was used last, if it is fresh; stale ones are closed."""
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
        name = host if self._tls else None
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, loop), host, port, ssl=self._tls, server_hostname=name
                )
        except (OSError, UnicodeError) as error:  # the latter: not a valid host name
            raise UnreachableError(type(error).__name__) from error
        return connection

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(min(self._silence_s, 4 * _IDLE_S) / 4, self._look)

    def _look(self) -> None:
        """Close connections on which the engine fell silent: one timer for all, since one each costs CPU per token."""
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        self._drop_stale(now_s)
        for connection in list(self._busy):
            if connection.waiting_since_s is not None and connection.waiting_since_s < now_s - self._silence_s:
                connection.fail(SilentError("the engine sent nothing for too long"))
        if self._busy or self._idle:
            self._arm()
