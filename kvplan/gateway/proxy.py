"""The inner application of the gateway: hands an admitted request to the engine and streams the answer back, byte for
byte. Always streamed, so that closing one side closes the other."""

import asyncio
import time
from collections.abc import Callable

import aiohttp

from kvplan.gateway.answers import AsgiApp, Headers, Receive, Scope, Send, error_body, send_bytes, send_error
from kvplan.gateway.asks import PRICED_ROUTES
from kvplan.gateway.metrics import GatewayMetrics

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

_ANSWERED_BY_AIOHTTP = frozenset((b"host", b"content-length", b"expect"))
OPEN_ROUTES = frozenset(("/v1/models", "/tokenize", "/detokenize", "/version"))
"""Routes that hold no KV and tell no secrets. All others (metrics, LoRA loading, sleep, profiling) stay inside."""

_UPSTREAM_RETRY_AFTER_S = 5.0


class UpstreamDiedError(Exception):
    """The engine closed its connection in the middle of an answer; the client's must not end cleanly."""


class UpstreamProxy:
    """Forwards to ``base_url``. Open it inside a running loop, close it at the end."""

    def __init__(self, base_url: str, *, connect_timeout_s: float = 5.0, metrics: GatewayMetrics | None = None) -> None:
        self._base_url = base_url.rstrip("/")
        self._connect_timeout_s = connect_timeout_s
        self._metrics = metrics
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Start the connection pool: no limit of its own, since the ledger is the limit."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout_s),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close every connection to the engine."""
        if self._session is not None:
            await self._session.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request that has been admitted, or that needs no admission."""
        path = scope["path"]
        is_open = path in OPEN_ROUTES or path.startswith("/v1/models/")
        if not is_open and path not in PRICED_ROUTES:
            await send_error(send, 404, f"{path} is not served here", code="not_found")
            return
        message = await receive()
        body = message.get("body", b"")
        if message.get("more_body", False):
            await send_error(send, 413, "the body is over the limit of one chunk", code="request_too_large")
            return
        await self._forward(scope, body, send)

    async def _forward(self, scope: Scope, body: bytes, send: Send) -> None:
        assert self._session is not None, "the proxy was not opened"
        query = scope["query_string"].decode("latin-1")
        target = self._base_url + scope["path"] + (f"?{query}" if query else "")
        headers = _forwarded_headers(scope["headers"])
        started_s = time.monotonic()
        try:
            response = await self._session.request(
                scope["method"], target, data=body or None, headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            self._note_failure("unreachable")
            await send_error(
                send,
                503,
                f"the engine cannot be reached ({type(error).__name__})",
                code="upstream_unavailable",
                retry_after_s=_UPSTREAM_RETRY_AFTER_S,
            )
            return
        try:
            if self._metrics is not None:
                self._metrics.upstream_first_byte_s.observe(time.monotonic() - started_s)
            await self._stream(response, send)
        finally:
            response.close()

    async def _stream(self, response: aiohttp.ClientResponse, send: Send) -> None:
        """The engine's status, headers and bytes. An answer that breaks off never ends like a whole one."""
        await send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": [
                    (name.lower(), value) for name, value in response.raw_headers if name.lower() not in _HOP_BY_HOP
                ],
            }
        )
        try:
            async for chunk in response.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except (aiohttp.ClientError, asyncio.IncompleteReadError, ConnectionError) as error:
            self._note_failure("died")
            if response.content_type == "text/event-stream":
                event = error_body(
                    "the engine broke off in the middle of this answer", kind="server_error", code="upstream_died"
                )
                await send({"type": "http.response.body", "body": b"data: " + event + b"\n\n", "more_body": True})
            raise UpstreamDiedError from error
        await send({"type": "http.response.body", "body": b""})

    def _note_failure(self, kind: str) -> None:
        if self._metrics is not None:
            self._metrics.upstream_failures.labels(kind).inc()


def _forwarded_headers(headers: Headers) -> list[tuple[str, str]]:
    """End-to-end headers of the client, Authorization among them, which is passed on and never logged.

    What the client's ``Connection`` header names is dropped too.
    """
    named = {token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")}
    dropped = _HOP_BY_HOP | _ANSWERED_BY_AIOHTTP | named
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name not in dropped]


class GatewayApp:
    """What the server runs: health, readiness and metrics of its own, everything else through ``admitted``."""

    def __init__(
        self,
        admitted: AsgiApp,
        proxy: UpstreamProxy,
        metrics: GatewayMetrics,
        *,
        is_draining: Callable[[], bool],
    ) -> None:
        self._admitted = admitted
        self._proxy = proxy
        self._metrics = metrics
        self._is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection, the server's lifespan included."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["path"] == "/healthz":
            await send_bytes(send, 200, b"ok\n", content_type=b"text/plain")
        elif scope["path"] == "/readyz":
            ready = not self._is_draining()
            await send_bytes(
                send, 200 if ready else 503, b"ready\n" if ready else b"draining\n", content_type=b"text/plain"
            )
        elif scope["path"] == "/metrics":
            await send_bytes(send, 200, self._metrics.text(), content_type=b"text/plain; version=0.0.4; charset=utf-8")
        else:
            await self._admitted(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._proxy.open()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self._proxy.close()
                await send({"type": "lifespan.shutdown.complete"})
                return
