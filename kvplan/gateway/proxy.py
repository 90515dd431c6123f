"""The inner application of the gateway: hands an admitted request to the engine and streams the answer back, byte for
byte. Always streamed, so that closing one side closes the other."""

import asyncio
import re
import time
from collections.abc import Callable

import aiohttp
from yarl import URL

from kvplan.gateway.answers import Headers, Receive, Scope, Send, error_body, send_error
from kvplan.gateway.asks import PRICED_ROUTES
from kvplan.gateway.bodies import BadRequestError
from kvplan.gateway.framing import ClientGoneError, whole_body
from kvplan.gateway.metrics import GatewayMetrics
from kvplan.gateway.silence import Reading, SilenceGuard

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Headers that speak of one connection only (RFC 9110 §7.6.1)."""

_WRITTEN_BY_AIOHTTP = frozenset((b"host", b"content-length", b"expect"))
_NOT_ADDED = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
"""What aiohttp would add unasked: an engine must not compress for a client that did not ask for it."""

_OPEN_ROUTES = {
    "/v1/models": ("GET", "HEAD"),
    "/version": ("GET", "HEAD"),
    "/tokenize": ("POST",),
    "/detokenize": ("POST",),
}
"""Routes that hold no KV and tell no secrets. All others (metrics, LoRA loading, sleep, profiling) stay inside."""

_ONE_MODEL = re.compile(r"/v1/models/(?!\.{1,2}(?:/|$))[\w.@:-]+(?:/(?!\.{1,2}(?:/|$))[\w.@:-]+)?", re.ASCII)
_UPSTREAM_RETRY_AFTER_S = 5.0
_KEEP_ALIVE_S = 4.0
"""Shorter than what Python engines keep an idle connection for (uvicorn: 5 s), so that none is used as it closes."""


class UpstreamDiedError(Exception):
    """The engine closed its connection in the middle of an answer; the client's must not end cleanly."""


class UpstreamProxy:
    """Forwards to ``base_url``. Open it inside a running loop, close it at the end.

    An engine that sends nothing for ``read_timeout_s`` is given up; ``on_failure`` hears of every failure.
    """

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 600.0,
        metrics: GatewayMetrics | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_timeout_s)
        self._read_timeout_s = read_timeout_s
        self._silence = SilenceGuard(read_timeout_s)
        self._metrics = metrics
        self._on_failure = on_failure
        self._session: aiohttp.ClientSession | None = None
        self._targets = {path: URL(self._base_url + path, encoded=True) for path in (*PRICED_ROUTES, *_OPEN_ROUTES)}

    async def open(self) -> None:
        """Start the connection pool: no limit of its own, since the ledger is the limit."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=self._timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NOT_ADDED,
        )

    async def close(self) -> None:
        """Close every connection to the engine."""
        self._silence.close()
        if self._session is not None:
            await self._session.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request that has been admitted, or that needs no admission."""
        path, method = scope["path"], scope["method"]
        if path in PRICED_ROUTES:
            methods: tuple[str, ...] = ("POST",)
        elif path in _OPEN_ROUTES:
            methods = _OPEN_ROUTES[path]
        elif _ONE_MODEL.fullmatch(path):
            methods = ("GET", "HEAD")
        else:
            await send_error(send, 404, "this route is not served here", code="not_found")
            return
        if method not in methods:
            allow: Headers = [(b"allow", ", ".join(methods).encode())]
            await send_error(send, 405, f"{method} is not allowed here", code="method_not_allowed", headers=allow)
            return
        if path in PRICED_ROUTES:  # admitted: the body was read, and comes in one piece
            await self._forward(scope, (await receive())["body"], send)
            return
        try:
            body = await whole_body(scope, receive)
        except BadRequestError as error:
            await send_error(send, error.status, error.message, code=error.code)
        except ClientGoneError:
            pass
        else:
            await self._forward(scope, body, send)

    def _target(self, scope: Scope) -> URL:
        path, query = scope["path"], scope["query_string"]
        if not query:
            return self._targets.get(path) or URL(self._base_url + path, encoded=True)
        return URL(f"{self._base_url}{path}?{query.decode('latin-1')}", encoded=True)

    async def _forward(self, scope: Scope, body: bytes, send: Send) -> None:
        assert self._session is not None, "the proxy was not opened"
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(self._read_timeout_s):
                response = await self._session.request(
                    scope["method"],
                    self._target(scope),
                    data=body or None,
                    headers=_forwarded_headers(scope["headers"]),
                    allow_redirects=False,
                )
        except (aiohttp.ClientError, ValueError) as error:
            self._note_failure("unreachable")
            await send_error(
                send,
                503,
                f"the engine cannot be reached ({type(error).__name__})",
                code="upstream_unavailable",
                retry_after_s=_UPSTREAM_RETRY_AFTER_S,
            )
            return
        except TimeoutError:
            self._note_failure("silent")
            await send_error(send, 504, "the engine did not answer in time", code="upstream_timeout")
            return
        try:
            if self._metrics is not None:
                self._metrics.note_first_byte(time.monotonic() - started_s)
            await self._stream(response, send)
        finally:
            # What is left unread makes this a close of the connection, by which the engine knows to stop.
            response.close()

    async def _stream(self, response: aiohttp.ClientResponse, send: Send) -> None:
        """The engine's status, headers and bytes. An answer that breaks off never ends like a whole one."""
        await send({"type": "http.response.start", "status": response.status, "headers": _returned_headers(response)})
        time_now, reading = asyncio.get_running_loop().time, Reading(response)
        self._silence.add(reading)
        read, is_eof = response.content.readany, response.content.at_eof
        try:
            is_whole = False
            while not is_whole:
                reading.since_s = time_now()
                chunk = await read()
                reading.since_s = None
                if not chunk:
                    break
                is_whole = is_eof()
                await send({"type": "http.response.body", "body": chunk, "more_body": not is_whole})
        except (aiohttp.ClientError, asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
            self._note_failure("died")
            if response.content_type == "text/event-stream":
                event = error_body(
                    "the engine broke off in the middle of this answer", kind="server_error", code="upstream_died"
                )
                await send({"type": "http.response.body", "body": b"data: " + event + b"\n\n", "more_body": True})
            raise UpstreamDiedError from error
        finally:
            self._silence.discard(reading)
        if not is_whole:
            await send({"type": "http.response.body", "body": b""})

    def _note_failure(self, kind: str) -> None:
        self._on_failure()
        if self._metrics is not None:
            self._metrics.note_failure(kind)


def _named_by_connection(headers: Headers) -> set[bytes]:
    return {
        token.strip().lower() for name, value in headers if name.lower() == b"connection" for token in value.split(b",")
    }


def _forwarded_headers(headers: Headers) -> list[tuple[str, str]]:
    """End-to-end headers of the client, Authorization among them, which is passed on and never logged.

    What the client's ``Connection`` header names is dropped too.
    """
    dropped = _HOP_BY_HOP | _WRITTEN_BY_AIOHTTP | _named_by_connection(headers)
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name not in dropped]


def _returned_headers(response: aiohttp.ClientResponse) -> Headers:
    """End-to-end headers of the engine; the date is written by the server that answers."""
    raw = [(name.lower(), value) for name, value in response.raw_headers]
    dropped = _HOP_BY_HOP | {b"date"} | _named_by_connection(raw)
    return [(name, value) for name, value in raw if name not in dropped]
