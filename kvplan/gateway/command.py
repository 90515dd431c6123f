"""Puts a gateway together from what the command line asks for, checks it against the engine, and runs it."""

import asyncio
import contextlib
import gc
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from kvplan.errors import InputError
from kvplan.gateway.admit import Admission, OwnLedger, Refusal, WeightedLedger
from kvplan.gateway.answers import Receive, Scope, Send, send_bytes
from kvplan.gateway.bodies import BODY_LIMIT_BYTES, BODY_MEMORY_BYTES, BODY_TIMEOUT_S, Bodies
from kvplan.gateway.counting import EngineCounter
from kvplan.gateway.engine_check import EngineWatch, check_pool, fetch_reported_pool
from kvplan.gateway.metrics import GatewayMetrics
from kvplan.gateway.middleware import DRAINING, AdmissionMiddleware
from kvplan.gateway.plan import GatewayPlan, gateway_plan
from kvplan.gateway.proxy import UpstreamProxy
from kvplan.gateway.running import STALL_S
from kvplan.gateway.serve import listen, serve
from kvplan.gateway.shared_ledger import LEAST_LEASE_S, SharedLedger
from kvplan.simulation.plant import build_plant
from kvplan.traffic.load import load_traffic

Say = Callable[[str], None]
_TEXT = b"text/plain; charset=utf-8"
_PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class Wish:
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


def run(wish: Wish, say: Say) -> int:
    """Plan, check, serve until told to stop."""
    _check(wish)
    traffic = load_traffic(wish.traffic, profiles_folder=wish.profiles_folder, overrides=wish.overrides)
    plant = build_plant(traffic, offline=wish.offline, profiles_folder=wish.profiles_folder)
    plan = gateway_plan(traffic, plant, media_tokens=wish.media_tokens)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(wish, plan, say))
    return 0


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop where it is installed, which takes less CPU a request; else the standard one."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    uvloop = importlib.import_module("uvloop")
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _check(wish: Wish) -> None:
    try:
        parts = urlsplit(wish.upstream)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_address = is_address and wish.upstream.isascii() and parts.username is None
    except ValueError:
        is_address = False
    if not is_address or parts.query or parts.fragment:
        raise InputError(
            f"--upstream {wish.upstream!r} is not the address of a server",
            hint="--upstream http://127.0.0.1:8000",
            key="--upstream",
        )
    if wish.server == "granian" and importlib.util.find_spec("granian") is None:
        raise InputError("granian is not installed", hint="pip install granian, or --server uvicorn", key="--server")
    if wish.body_memory_bytes < wish.body_limit_bytes:
        raise InputError(
            f"--body-memory ({wish.body_memory_bytes:,} bytes) is less than one body of --body-limit "
            f"({wish.body_limit_bytes:,})",
            hint=f"--body-memory {8 * wish.body_limit_bytes}",
            key="--body-memory",
        )
    if wish.too_long_status not in (400, 413):
        raise InputError(
            f"--too-long-status {wish.too_long_status} is neither",
            hint="400, as engines answer, or 413",
            key="--too-long-status",
        )
    if wish.ledger_lease_s < LEAST_LEASE_S:
        raise InputError(
            f"--ledger-lease {wish.ledger_lease_s:g}s is too short to be renewed in time",
            hint="--ledger-lease 10s",
            key="--ledger-lease",
        )


async def _serve(wish: Wish, plan: GatewayPlan, say: Say) -> None:
    if wish.trust_plan:
        say("the plan is trusted: the engine was not asked for its pool")
    else:
        reported = await fetch_reported_pool(wish.upstream)
        say(check_pool(planned_blocks=plan.blocks, block_tokens=plan.block_tokens, reported=reported))
    async with contextlib.AsyncExitStack() as stack:
        ledger: WeightedLedger = OwnLedger(plan.promise.capacity)
        if wish.ledger is not None:  # all gateways that name the same engine share it
            ledger = await SharedLedger.open(
                wish.ledger,
                plan.promise.capacity,
                name=wish.upstream.rstrip("/"),
                lease_s=wish.ledger_lease_s,
                admits_local=wish.ledger_down == "admit-local",
            )
            stack.push_async_callback(ledger.close)
        listener = stack.enter_context(listen(wish.host, wish.port))
        gateway = Gateway(wish, plan, ledger)
        stack.push_async_callback(gateway.close)
        host, port = listener.getsockname()[:2]
        where = f"[{host}]" if ":" in host else host
        gc.collect()
        gc.freeze()  # what the start made stays: it is not looked through again and again while streams run
        gc.set_threshold(50_000)
        broken = await serve(
            gateway,
            listener,
            begin_drain=gateway.begin_drain,
            running=lambda: gateway.admission.running,
            cut_off=gateway.cut_off,
            announce=lambda: say(f"{promised(plan)}\nlistening on http://{where}:{port}"),
            server=wish.server,
            grace_s=wish.grace_s,
        )
    say("stopped" if not broken else f"stopped; {broken} running requests were cut off")


def promised(plan: GatewayPlan) -> str:
    """What may be promised, in a line of at most 60 columns."""
    strategy, capacity = plan.promise.strategy, plan.promise.capacity
    units = {"blocks": f"of {plan.blocks:,} blocks", "requests": "requests"}.get(strategy.counts)
    return f"{strategy.name} {'admits everything' if units is None else f'promises {capacity:,} {units}'}"


class Gateway:
    """An ASGI application: health, readiness and metrics of its own, everything else through admission to the proxy.

    ``/healthz``: this process lives. ``/readyz``: it would also forward a request now.
    """

    def __init__(self, wish: Wish, plan: GatewayPlan, ledger: WeightedLedger) -> None:
        self.admission = Admission(plan.promise, ledger)
        self.watch = EngineWatch(
            wish.upstream, planned_blocks=None if wish.trust_plan else plan.blocks, block_tokens=plan.block_tokens
        )
        self.bodies = Bodies(
            limit_bytes=wish.body_limit_bytes,
            memory_bytes=wish.body_memory_bytes,
            timeout_s=wish.body_timeout_s,
            takes_chunks=wish.server != "granian",
        )
        self._is_draining = False
        self._ledger = ledger
        self._metrics = GatewayMetrics(ledger)
        self._counter = EngineCounter(wish.upstream) if wish.count else None
        self._proxy = UpstreamProxy(
            wish.upstream,
            self._metrics,
            bodies=self.bodies,
            read_timeout_s=wish.upstream_timeout_s,
            on_failure=self.watch.note_failure,
        )
        self._admitted = AdmissionMiddleware(
            self._proxy,
            self.admission,
            count=self._counter,
            metrics=self._metrics,
            bodies=self.bodies,
            stall_s=wish.stall_s,
            engine_aborts=wish.engine_aborts,
            too_long_status=wish.too_long_status,
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
        """From now on nothing enters; what runs goes on."""
        self._is_draining = True

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _why_closed(self) -> Refusal | None:
        return DRAINING if self._is_draining else self.watch.smaller

    async def _why_unready(self) -> str | None:
        closed = self._why_closed()
        if closed is not None:
            return closed.reason
        if isinstance(self._ledger, SharedLedger) and not self._ledger.answers():
            return "ledger_unavailable"
        return None if await self.watch.answers() else "upstream_unavailable"

    async def close(self) -> None:
        """End every connection of its own; once more does no harm, where a server was cut off without its farewell."""
        await self.watch.close()
        await self._proxy.close()
        if self._counter is not None:
            await self._counter.close()
