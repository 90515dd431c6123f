"""The gateway as one ASGI application: it answers health, readiness and metrics itself, and passes everything else
through admission to the proxy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvplan.gateway.admission import Admission, GatewayPlan, WeightedLedger
from kvplan.gateway.engine_queries import EngineWatch, PromptCounter
from kvplan.gateway.in_flight import STALL_S
from kvplan.gateway.metrics import GatewayMetrics
from kvplan.gateway.middleware import DRAINING, AdmissionMiddleware
from kvplan.gateway.proxy import UpstreamProxy
from kvplan.gateway.request_body import BODY_LIMIT_BYTES, BODY_MEMORY_BYTES, BODY_TIMEOUT_S, BodyReader
from kvplan.gateway.responses import Receive, Refusal, Scope, Send, send_bytes
from kvplan.gateway.shared_ledger import SharedLedger

_TEXT = b"text/plain; charset=utf-8"
_PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class GatewayOptions:
    """The command line of ``kvplan gateway``, parsed."""

    upstream: str
    traffic: str
    host: str = "127.0.0.1"
    port: int = 8080
    server: str = "uvicorn"
    ledger: str | None = None
    ledger_down: str = "refuse"
    ledger_lease_s: float = 10.0
    count: bool = True
    media_tokens: Mapping[str, int] = field(default_factory=dict)
    body_limit_bytes: int = BODY_LIMIT_BYTES
    body_memory_bytes: int = BODY_MEMORY_BYTES
    too_long_status: int = 400
    grace_s: float = 30.0
    upstream_timeout_s: float = 600.0
    body_timeout_s: float = BODY_TIMEOUT_S
    stall_s: float = STALL_S
    engine_aborts: str = "all"
    trust_plan: bool = False
    overrides: Mapping[str, object] = field(default_factory=dict)
    offline: bool = False
    profiles_folder: Path | None = None


class Gateway:
    """``/healthz``: this process lives. ``/readyz``: it would also forward a request now. ``/metrics``: its figures.
    All other paths go through ``AdmissionMiddleware`` to ``UpstreamProxy``."""

    def __init__(self, options: GatewayOptions, plan: GatewayPlan, ledger: WeightedLedger) -> None:
        self.admission = Admission(plan.promise, ledger)
        self.bodies = BodyReader(
            limit_bytes=options.body_limit_bytes,
            memory_bytes=options.body_memory_bytes,
            timeout_s=options.body_timeout_s,
            takes_chunks=options.server != "granian",
        )
        self._watch = EngineWatch(
            options.upstream,
            planned_blocks=None if options.trust_plan else plan.blocks,
            block_tokens=plan.block_tokens,
        )
        self._is_draining = False
        self._ledger = ledger
        self._metrics = GatewayMetrics(ledger)
        self._counter = PromptCounter(options.upstream) if options.count else None
        self._proxy = UpstreamProxy(
            options.upstream,
            self._metrics,
            bodies=self.bodies,
            read_timeout_s=options.upstream_timeout_s,
            on_failure=self._watch.note_failure,
        )
        self._admitted = AdmissionMiddleware(
            self._proxy,
            self.admission,
            count=self._counter,
            metrics=self._metrics,
            bodies=self.bodies,
            stall_s=options.stall_s,
            engine_aborts=options.engine_aborts,
            too_long_status=options.too_long_status,
            why_closed=self._why_closed,
        )
        self.cut_off = self._admitted.cut_off

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection, the server's lifespan included."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
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

    def begin_drain(self) -> None:
        """From now on nothing is admitted; requests in flight go on."""
        self._is_draining = True

    async def close(self) -> None:
        """Close the gateway's own connections. Safe to call twice: a server that was cut off skips the lifespan."""
        await self._watch.close()
        await self._proxy.close()
        if self._counter is not None:
            await self._counter.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _why_closed(self) -> Refusal | None:
        return DRAINING if self._is_draining else self._watch.smaller

    async def _why_unready(self) -> str | None:
        closed = self._why_closed()
        if closed is not None:
            return closed.code
        if isinstance(self._ledger, SharedLedger) and not self._ledger.answers():
            return "ledger_unavailable"
        return None if await self._watch.answers() else "upstream_unavailable"
