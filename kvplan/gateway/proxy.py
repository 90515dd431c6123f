"""The inner application of the gateway: hands an admitted request to the engine and streams the answer back, byte for
byte. Always read as it comes, so that closing one side closes the other."""

import asyncio
import re
import time
from collections.abc import Callable

from kvplan.gateway.answers import Headers, Receive, Scope, Send, error_body, send_error
from kvplan.gateway.asks import PRICED_ROUTES
from kvplan.gateway.bodies import BadRequestError, Bodies, ClientGoneError, refuse_body
from kvplan.gateway.connection import Connection, SilentError, UpstreamError
from kvplan.gateway.metrics import GatewayMetrics
from kvplan.gateway.running import AnswerCutError
from kvplan.gateway.upstream import Upstream

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

_NOT_FORWARDED = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
"""The last three are the proxy's own to write, or not."""

_NOT_RETURNED = _HOP_BY_HOP | {b"date"}
"""The date is written by the server that answers."""

_BODYLESS = (204, 304)
"""A length in these is that of another answer, and a server would wait for it."""

_ROUTES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(PRICED_ROUTES, ("POST",)),
    "/v1/models": ("GET", "HEAD"),
    "/version": ("GET", "HEAD"),
    "/tokenize": ("POST",),
    "/detokenize": ("POST",),
    "/v1/messages/count_tokens": ("POST",),
}
"""Besides the priced ones those that hold no KV and tell no secrets. All others (metrics, LoRA loading, sleep,
profiling) stay inside."""

_ONE_MODEL = re.compile(r"/v1/models/(?!\.{1,2}(?:/|$))[\w.@:-]+(?:/(?!\.{1,2}(?:/|$))[\w.@:-]+)?", re.ASCII)
_UPSTREAM_RETRY_AFTER_S = 5.0


class UpstreamProxy:
    """Forwards to ``base_url``; close it at the end.

    An engine that sends nothing for ``read_timeout_s`` is given up; ``on_failure`` hears of every failure.
    """

    def __init__(
        self,
        base_url: str,
        metrics: GatewayMetrics,
        *,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 600.0,
        bodies: Bodies | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._upstream = Upstream(base_url, connect_timeout_s=connect_timeout_s, silence_s=read_timeout_s)
        self._bodies = bodies or Bodies()
        self._metrics = metrics
        self._on_failure = on_failure

    async def close(self) -> None:
        """Close every connection to the engine."""
        self._upstream.close()
        await asyncio.sleep(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request that has been admitted, or that needs no admission."""
        path, method = scope["path"], scope["method"]
        methods = _ROUTES.get(path) or (("GET", "HEAD") if _ONE_MODEL.fullmatch(path) else ())
        if not methods:
            await send_error(send, 404, "this route is not served here", code="not_found")
            return
        if method not in methods:
            allow: Headers = [(b"allow", ", ".join(methods).encode())]
            await send_error(send, 405, f"{method} is not allowed here", code="method_not_allowed", headers=allow)
            return
        if path in PRICED_ROUTES:  # admitted: the body was read, and comes in one piece
            await self._forward(scope, (await receive())["body"], send)
            return
        body = b""
        try:
            body = await self._bodies.read(scope, receive)
        except BadRequestError as error:
            await refuse_body(send, error)
        except ClientGoneError:
            pass
        else:
            await self._forward(scope, body, send)
        finally:
            self._bodies.let_go(body)

    async def _forward(self, scope: Scope, body: bytes, send: Send) -> None:
        target = scope["path"].encode("ascii")
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        started_s = time.monotonic()
        try:
            answer = await self._upstream.ask(
                scope["method"], target, _end_to_end(scope["headers"], _NOT_FORWARDED), body
            )
        except SilentError:
            self._note_failure("silent")
            await send_error(send, 504, "the engine did not answer in time", code="upstream_timeout")
            return
        except UpstreamError as error:
            self._note_failure("unreachable")
            await send_error(
                send,
                503,
                f"the engine cannot be reached ({error})",
                code="upstream_unavailable",
                retry_after_s=_UPSTREAM_RETRY_AFTER_S,
            )
            return
        except ValueError as error:
            await send_error(send, 400, str(error), code="invalid_framing")
            return
        try:
            self._metrics.upstream_first_byte_s.observe(time.monotonic() - started_s)
            await self._stream(answer, send)
        finally:
            answer.close()
            self._metrics.upstream_s.observe(time.monotonic() - started_s)

    async def _stream(self, answer: Connection, send: Send) -> None:
        """The engine's status, headers and bytes. An answer that breaks off never ends like a whole one."""
        dropped = _NOT_RETURNED if answer.status not in _BODYLESS else _NOT_RETURNED | {b"content-length"}
        headers = _end_to_end(answer.headers, dropped)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        is_whole = False
        try:
            while not is_whole:
                piece = await answer.piece()
                is_whole = answer.is_whole
                await send({"type": "http.response.body", "body": piece, "more_body": not is_whole})
        except UpstreamError as error:
            self._note_failure("died")
            if any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers):
                event = error_body(
                    "the engine broke off in the middle of this answer", kind="server_error", code="upstream_died"
                )
                await send({"type": "http.response.body", "body": b"data: " + event + b"\n\n", "more_body": True})
            raise AnswerCutError from error

    def _note_failure(self, kind: str) -> None:
        self._on_failure()
        self._metrics.upstream_failures.labels(kind).inc()


def _end_to_end(headers: Headers, dropped: frozenset[bytes]) -> Headers:
    """``headers`` without the ``dropped``, and without what their own ``Connection`` names.

    A client's Authorization is among what stays; it is never logged.
    """
    for name, value in headers:
        if name == b"connection":
            dropped |= {token.strip().lower() for token in value.split(b",")}
    return [pair for pair in headers if pair[0] not in dropped]
