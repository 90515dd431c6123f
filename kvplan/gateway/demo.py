"""A few clients, two gateways, two made-up engines: the same traffic under two policies, side by side.

``prompt_only`` promises what a request is now and runs its engine out of KV; ``worst_case`` what it may become.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

import aiohttp

from kvplan.admission import STRATEGIES
from kvplan.gateway.admit import OwnLedger, Promise
from kvplan.gateway.command import Gateway, Wish
from kvplan.gateway.demo_engine import BLOCK_TOKENS, DemoEngine
from kvplan.gateway.plan import GatewayPlan
from kvplan.gateway.serve import Drain, listen, run_on_uvicorn
from kvplan.profiles.kinds import ClientProfile
from kvplan.profiles.loader import load_client

POLICIES = ("prompt_only", "worst_case")
CLIENTS = ("openai-python", "litellm-router", "naive")
BLOCKS = 240
WINDOW_TOKENS = 1024
_PROMPT_TOKENS = (60, 240)
_MAX_TOKENS = (128, 192, 256)
RATE_PER_S = 1.2
_TICK_S = 0.25
_NAIVE_WAIT_S = 0.2


@dataclass(frozen=True, kw_only=True)
class SideFigures:
    """One policy's figures at one moment."""

    policy: str
    elapsed_s: float
    capacity_blocks: int
    reserved_blocks: int
    used_blocks: int
    running: int
    waiting: int
    refusals: int
    gave_up: int
    completed: int
    preemptions: int
    recomputed_tokens: int


class _Tally:
    """What the clients of one side met."""

    def __init__(self) -> None:
        self.refusals = 0
        self.gave_up = 0


async def run_demo(show: Callable[[Sequence[SideFigures]], None], *, seconds: float, seed: int = 7) -> None:
    """Run both sides for ``seconds``; ``show`` is told four times a second, and once at the end."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        sides = [await stack.enter_async_context(_side(policy, seed)) for policy in POLICIES]
        start_s = loop.time()
        while (elapsed_s := loop.time() - start_s) < seconds:
            show([look(elapsed_s) for look in sides])
            await asyncio.sleep(_TICK_S)
        show([look(elapsed_s) for look in sides])


@contextlib.asynccontextmanager
async def _side(policy: str, seed: int) -> AsyncIterator[Callable[[float], SideFigures]]:
    """One policy: an engine, a gateway in front of it, and three kinds of clients."""
    loop = asyncio.get_running_loop()
    async with DemoEngine(BLOCKS, seed) as engine:
        promise = Promise(
            window_tokens=WINDOW_TOKENS,
            capacity=BLOCKS,
            request_blocks=lambda tokens: -(-tokens // BLOCK_TOKENS),
            strategy=STRATEGIES[policy],
        )
        plan = GatewayPlan(promise=promise, blocks=BLOCKS, block_tokens=BLOCK_TOKENS)
        wish = Wish(
            upstream=engine.url,
            traffic="",
            trust_plan=True,
            count=False,
            media_tokens={},
            body_limit_bytes=2**20,
            overrides={},
        )
        gateway = Gateway(wish, plan, OwnLedger(promise.capacity), Drain())
        listener = listen("127.0.0.1", 0)
        stop, tally = asyncio.Event(), _Tally()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
        serving = loop.create_task(run_on_uvicorn(gateway.app, listener, stop))
        async with _served(serving, stop), aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            arrivals = [
                loop.create_task(_arrive(session, address, load_client(name), random.Random(f"{seed} {name}"), tally))  # noqa: S311
                for name in CLIENTS
            ]

            def look(elapsed_s: float) -> SideFigures:
                return SideFigures(
                    policy=policy,
                    elapsed_s=elapsed_s,
                    capacity_blocks=BLOCKS,
                    reserved_blocks=gateway.admission.ledger.reserved,
                    used_blocks=engine.used_blocks,
                    running=engine.running,
                    waiting=engine.waiting,
                    refusals=tally.refusals,
                    gave_up=tally.gave_up,
                    completed=engine.completed,
                    preemptions=engine.preemptions,
                    recomputed_tokens=engine.recomputed_tokens,
                )

            try:
                yield look
            finally:
                for task in arrivals:
                    task.cancel()
                await asyncio.gather(*arrivals, return_exceptions=True)


@contextlib.asynccontextmanager
async def _served(serving: "asyncio.Task[None]", stop: asyncio.Event) -> AsyncIterator[None]:
    try:
        yield
    finally:
        stop.set()
        await serving


async def _arrive(
    session: aiohttp.ClientSession, address: str, client: ClientProfile, generator: random.Random, tally: _Tally
) -> None:
    """Poisson arrivals of one kind of client; each request runs beside the others."""
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(generator.expovariate(RATE_PER_S))
            body = {
                "prompt": [1] * generator.randint(*_PROMPT_TOKENS),
                "max_tokens": generator.choice(_MAX_TOKENS),
                "stream": True,
            }
            group.create_task(_ask(session, address, body, client, tally))


async def _ask(
    session: aiohttp.ClientSession, address: str, body: dict[str, object], client: ClientProfile, tally: _Tally
) -> None:
    """One request with its retries, as far as ``client`` goes."""
    for _ in _tries(client):
        async with session.post(address, json=body) as response:
            if response.status == 200:
                await response.read()
                return
            tally.refusals += 1
            told_s = int(response.headers.get("retry-after-ms", "1000")) / 1000
        await asyncio.sleep(_NAIVE_WAIT_S if client.honours_retry_after == "no" else told_s)
    tally.gave_up += 1


def _tries(client: ClientProfile) -> Iterator[int]:
    """As many as the client makes; one without end tries for as long as the demo lasts."""
    yield from range(client.tries or 10**6)
