"""Puts a gateway together from what the command line asks for, checks it against the engine, and runs it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kvplan.errors import InputError
from kvplan.gateway.admit import Admission, OwnLedger, WeightedLedger
from kvplan.gateway.counting import EngineCounter
from kvplan.gateway.engine_check import check_pool, fetch_reported_pool
from kvplan.gateway.metrics import GatewayMetrics
from kvplan.gateway.middleware import AdmissionMiddleware
from kvplan.gateway.plan import GatewayPlan, gateway_plan
from kvplan.gateway.proxy import GatewayApp, UpstreamProxy
from kvplan.gateway.serve import Drain, serve
from kvplan.simulation.plant import build_plant
from kvplan.traffic.load import load_traffic

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The command line of ``kvplan gateway``, parsed."""

    upstream: str
    traffic: str
    host: str
    port: int
    server: str
    ledger: str | None
    ledger_down: str
    count: bool
    media_tokens: Mapping[str, int]
    body_limit_bytes: int
    too_long_status: int
    grace_s: float
    trust_plan: bool
    overrides: Mapping[str, object]
    offline: bool
    profiles_folder: Path | None


def run(wish: Wish, say: Say) -> int:
    """Plan, check, serve until told to stop."""
    _check(wish)
    traffic = load_traffic(wish.traffic, profiles_folder=wish.profiles_folder, overrides=wish.overrides)
    plant = build_plant(traffic, offline=wish.offline, profiles_folder=wish.profiles_folder)
    plan = gateway_plan(traffic, plant, media_tokens=wish.media_tokens)
    asyncio.run(_serve(wish, plan, say))
    return 0


def _check(wish: Wish) -> None:
    parts = urlsplit(wish.upstream)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputError(
            f"--upstream {wish.upstream!r} is not an address", hint="--upstream http://127.0.0.1:8000", key="--upstream"
        )
    if wish.too_long_status not in (400, 413):
        raise InputError(f"--too-long-status {wish.too_long_status}: 400 or 413", key="--too-long-status")


async def _serve(wish: Wish, plan: GatewayPlan, say: Say) -> None:
    if not wish.trust_plan:
        reported = await fetch_reported_pool(wish.upstream)
        say(check_pool(planned_blocks=plan.blocks, block_tokens=plan.block_tokens, reported=reported))
    ledger: WeightedLedger = OwnLedger(plan.promise.capacity)
    drain = Drain()
    counter = EngineCounter(wish.upstream) if wish.count else None
    say(
        f"listening on http://{wish.host}:{wish.port}, {plan.promise.strategy.name}: "
        f"{plan.promise.capacity:,} of {plan.blocks:,} blocks may be promised"
    )
    app = build_app(wish, plan, ledger, drain, counter)
    try:
        await serve(app, ledger, drain, host=wish.host, port=wish.port, grace_s=wish.grace_s)
    finally:
        if counter is not None:
            await counter.close()


def build_app(
    wish: Wish, plan: GatewayPlan, ledger: WeightedLedger, drain: Drain, counter: EngineCounter | None
) -> GatewayApp:
    """The gateway's application: its own routes around admission around the proxy."""
    metrics = GatewayMetrics(ledger)
    proxy = UpstreamProxy(wish.upstream, metrics=metrics)
    admitted = AdmissionMiddleware(
        proxy,
        Admission(plan.promise, ledger),
        count=counter,
        metrics=metrics,
        body_limit_bytes=wish.body_limit_bytes,
        too_long_status=wish.too_long_status,
        is_draining=drain,
    )
    return GatewayApp(admitted, proxy, metrics, is_draining=drain)
