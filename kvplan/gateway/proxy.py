"""The inner application of the gateway: forwards an admitted request to the engine and streams the response back, byte
for byte, as it comes, so that closing one side closes the other."""

import asyncio
import re
import time
from collections.abc import Callable

from kvplan.gateway.connection import Connection, SilentError, UpstreamError
from kvplan.gateway.connection_pool import ConnectionPool
from kvplan.gateway.in_flight import IncompleteResponseError
from kvplan.gateway.metrics import GatewayMetrics
from kvplan.gateway.request_body import BodyReader, ClientGoneError
from kvplan.gateway.responses import BadRequestError, Headers, Receive, Refusal, Scope, Send, error_body, send_refusal
from kvplan.gateway.routes import FORWARDED_ROUTES, PRICED_ROUTES

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
"""Headers about one connection only (RFC 9110 §7.6.1)."""

_NOT_FORWARDED = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
"""The last three are for the proxy itself to write, or not."""

_NOT_RETURNED = _HOP_BY_HOP | {b"date"}
"""The date is written by the server that answers the client."""

_BODYLESS = (204, 304)
"""A Content-Length in these describes another response, and a server would wait for the body."""

_ONE_MODEL = re.compile(r"/v1/models/(?!\.{1,2}(?:/|$))[\w.@:-]+(?:/(?!\.{1,2}(?:/|$))[\w.@:-]+)?", re.ASCII)
_NOT_FOUND = Refusal(status=404, code="not_found", message="kvplan gateway does not forward this route")
_TIMEOUT = Refusal(status=504, code="upstream_timeout", message="the engine did not answer in time")
_DIED = Refusal(status=502, code="upstream_died", message="the engine broke off in the middle of this response")


class UpstreamProxy:
    """Forwards to ``base_url``; close it at the end.

    An engine that sends nothing for ``read_timeout_s`` is given up; ``on_failure`` is called at every failure.
    """

    def __init__(
        self,
        base_url: str,
        metrics: GatewayMetrics,
        *,
        read_timeout_s: float = 600.0,
        bodies: BodyReader | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._pool = ConnectionPool(base_url, silence_s=read_timeout_s)
        self._bodies = bodies or BodyReader()
        self._metrics = metrics
        self._on_failure = on_failure

    async def close(self) -> None:
        """Close every connection to the engine."""
        self._pool.close()
        await asyncio.sleep(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request that was admitted, or that needs no admission."""
        path, method = scope["path"], scope["method"]
        methods = FORWARDED_ROUTES.get(path) or (("GET", "HEAD") if _ONE_MODEL.fullmatch(path) else ())
        if not methods:
            await send_refusal(send, _NOT_FOUND)
            return
        if method not in methods:
            message, allow = f"{method} is not allowed here", (b"allow", ", ".join(methods).encode())
            refusal = Refusal(status=405, code="method_not_allowed", message=message, headers=(allow,))
            await send_refusal(send, refusal)
            return
        if path in PRICED_ROUTES:  # admitted: the body was read, and comes in one piece
            await self._forward(scope, (await receive())["body"], send)
            return
        body = b""
        try:
            body = await self._bodies.read(scope, receive)
            await self._forward(scope, body, send)
        except BadRequestError as error:
            await send_refusal(send, error.refusal)
        except ClientGoneError:
            pass
        finally:
            self._bodies.release(body)

    async def _forward(self, scope: Scope, body: bytes, send: Send) -> None:
        target = scope["path"].encode("ascii")
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        headers = _end_to_end(scope["headers"], _NOT_FORWARDED)
        started_s = time.monotonic()
        try:
            response = await self._pool.request(scope["method"], target, headers, body)
        except SilentError:
            self._note_failure("silent")
            await send_refusal(send, _TIMEOUT)
            return
        except UpstreamError as error:
            self._note_failure("unreachable")
            message = f"the engine cannot be reached ({error})"
            refusal = Refusal(status=503, code="upstream_unavailable", message=message, retry_after_s=5.0)
            await send_refusal(send, refusal)
            return
        except ValueError as error:
            await send_refusal(send, Refusal(status=400, code="invalid_framing", message=str(error)))
            return
        try:
            self._metrics.upstream_first_byte_s.observe(time.monotonic() - started_s)
            await self._stream(response, send)
        finally:
            response.close()
            self._metrics.upstream_s.observe(time.monotonic() - started_s)

    async def _stream(self, response: Connection, send: Send) -> None:
        """Send the engine's status, headers and bytes. A response that breaks off never ends like a complete one."""
        dropped = _NOT_RETURNED if response.status not in _BODYLESS else _NOT_RETURNED | {b"content-length"}
        headers = _end_to_end(response.headers, dropped)
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        is_complete = False
        try:
            while not is_complete:
                piece = await response.read()
                is_complete = response.is_complete
                await send({"type": "http.response.body", "body": piece, "more_body": not is_complete})
        except UpstreamError as error:
            self._note_failure("died")
            if any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers):
                event = b"data: " + error_body(_DIED) + b"\n\n"
                await send({"type": "http.response.body", "body": event, "more_body": True})
            raise IncompleteResponseError from error

    def _note_failure(self, kind: str) -> None:
        self._on_failure()
        self._metrics.upstream_failures.labels(kind).inc()


def _end_to_end(headers: Headers, dropped: frozenset[bytes]) -> Headers:
    """``headers`` without the ``dropped`` ones and without those that their own ``Connection`` names.

    A client's Authorization stays; it is never logged.
    """
    for name, value in headers:
        if name == b"connection":
            dropped |= {token.strip().lower() for token in value.split(b",")}
    return [pair for pair in headers if pair[0] not in dropped]
