"""``kvplan gateway`` behind its command line: check the options, plan, compare the plan with the engine, serve."""

import asyncio
import contextlib
import gc
import importlib.util
from collections.abc import Callable
from urllib.parse import urlsplit

from kvplan.errors import InputError, without_user_info
from kvplan.gateway.admission import GatewayPlan, OwnLedger, WeightedLedger, gateway_plan
from kvplan.gateway.app import Gateway, GatewayOptions
from kvplan.gateway.engine_queries import check_pool, fetch_reported_pool
from kvplan.gateway.server import listen, loop_factory, serve
from kvplan.gateway.shared_ledger import MIN_LEASE_S, SharedLedger
from kvplan.simulation.backend import build_backend
from kvplan.traffic.load import load_traffic

Say = Callable[[str], None]


def run(options: GatewayOptions, say: Say) -> int:
    """Plan, check, and serve until told to stop."""
    _check(options)
    traffic = load_traffic(options.traffic, profiles_folder=options.profiles_folder, overrides=options.overrides)
    backend = build_backend(traffic, offline=options.offline, profiles_folder=options.profiles_folder)
    plan = gateway_plan(traffic, backend, media_tokens=options.media_tokens)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(options, plan, say))
    return 0


def _check(options: GatewayOptions) -> None:
    try:
        parts = urlsplit(options.upstream)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_address = is_address and options.upstream.isascii()
    except ValueError:
        is_address = False
    if not is_address or parts.query or parts.fragment:
        raise InputError(
            f"--upstream {without_user_info(options.upstream)!r} is not the address of a server",
            hint="--upstream http://127.0.0.1:8000",
            key="--upstream",
        )
    if parts.username is not None:
        raise InputError(
            "--upstream must not contain a user name or password",
            hint=f"--upstream {without_user_info(options.upstream)}; clients' own keys are passed on",
            key="--upstream",
        )
    if options.server == "granian" and importlib.util.find_spec("granian") is None:
        raise InputError("granian is not installed", hint="pip install granian, or --server uvicorn", key="--server")
    if options.body_memory_bytes < options.body_limit_bytes:
        raise InputError(
            f"--body-memory ({options.body_memory_bytes:,} bytes) is less than one body of --body-limit "
            f"({options.body_limit_bytes:,} bytes)",
            hint=f"--body-memory {8 * options.body_limit_bytes}B",
            key="--body-memory",
        )
    if options.too_long_status not in (400, 413):
        raise InputError(
            f"--too-long-status must be 400 or 413, not {options.too_long_status}",
            hint="400, as engines answer, or 413",
            key="--too-long-status",
        )
    if options.ledger_lease_s < MIN_LEASE_S:
        raise InputError(
            f"--ledger-lease {options.ledger_lease_s:g}s is too short to be renewed in time",
            hint="--ledger-lease 10s",
            key="--ledger-lease",
        )


async def _serve(options: GatewayOptions, plan: GatewayPlan, say: Say) -> None:
    if options.trust_plan:
        say("the plan is trusted: the engine was not asked for its pool")
    else:
        reported = await fetch_reported_pool(options.upstream)
        say(check_pool(planned_blocks=plan.blocks, block_tokens=plan.block_tokens, reported=reported))
    async with contextlib.AsyncExitStack() as stack:
        ledger: WeightedLedger = OwnLedger(plan.promise.capacity)
        if options.ledger is not None:  # shared by all gateways that name the same engine
            ledger = await SharedLedger.open(
                options.ledger,
                plan.promise.capacity,
                name=options.upstream.rstrip("/"),
                lease_s=options.ledger_lease_s,
                admits_local=options.ledger_down == "admit-local",
            )
            stack.push_async_callback(ledger.close)
        listener = stack.enter_context(listen(options.host, options.port))
        gateway = Gateway(options, plan, ledger)
        stack.push_async_callback(gateway.close)
        host, port = listener.getsockname()[:2]
        where = f"[{host}]" if ":" in host else host
        gc.collect()
        gc.freeze()  # objects from the start live on; later collections need not scan them while streams run
        gc.set_threshold(50_000)
        cut_off = await serve(
            gateway,
            listener,
            begin_drain=gateway.begin_drain,
            running=lambda: gateway.admission.running,
            cut_off=gateway.cut_off,
            announce=lambda: say(f"{plan}\nlistening on http://{where}:{port}"),
            server=options.server,
            grace_s=options.grace_s,
        )
    say("stopped" if not cut_off else f"stopped; requests cut off: {cut_off}")
