"""What the server runs: health, readiness and metrics of the gateway's own, everything else through admission."""

from collections.abc import Awaitable, Callable

from kvplan.gateway.answers import AsgiApp, Receive, Scope, Send, send_bytes
from kvplan.gateway.metrics import GatewayMetrics

_TEXT = b"text/plain; charset=utf-8"
_PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class GatewayApp:
    """An ASGI application. ``why_unready`` says why no work should be sent here, or None.

    ``/healthz``: this process lives. ``/readyz``: it would also forward a request now. ``close_all`` runs at the
    server's end.
    """

    def __init__(
        self,
        admitted: AsgiApp,
        metrics: GatewayMetrics,
        *,
        why_unready: Callable[[], Awaitable[str | None]],
        close_all: Callable[[], Awaitable[None]],
    ) -> None:
        self._admitted = admitted
        self._metrics = metrics
        self._why_unready = why_unready
        self._close_all = close_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection, the server's lifespan included."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["path"] == "/healthz":
            await send_bytes(send, 200, b"ok\n", content_type=_TEXT)
        elif scope["path"] == "/readyz":
            reason = await self._why_unready()
            status, text = (200, "ready") if reason is None else (503, reason)
            await send_bytes(send, status, f"{text}\n".encode(), content_type=_TEXT)
        elif scope["path"] == "/metrics":
            await send_bytes(send, 200, self._metrics.text(), content_type=_PROMETHEUS)
        else:
            await self._admitted(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self._close_all()
                await send({"type": "lifespan.shutdown.complete"})
                return
