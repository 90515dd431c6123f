"""A few clients, two gateways, two made-up engines: the same traffic under two policies, side by side.

``prompt_only`` promises what a request is now and runs its engine out of KV; ``worst_case`` what it may become.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import aiohttp

from kvplan.admission import STRATEGIES
from kvplan.gateway.admit import OwnLedger, Promise, WeightedLedger
from kvplan.gateway.command import Gateway, Wish
from kvplan.gateway.demo_engine import BLOCK_TOKENS, DemoEngine
from kvplan.gateway.plan import GatewayPlan
from kvplan.gateway.serve import listen, run_on_uvicorn
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


@dataclass(kw_only=True)
class Side:
    """One policy: its engine, the ledger in front of it, and what its clients met."""

    policy: str
    engine: DemoEngine
    ledger: WeightedLedger
    refusals: int = 0
    gave_up: int = 0


Show = Callable[[float, Sequence[Side]], None]


async def run_demo(show: Show, *, seconds: float, seed: int = 7) -> None:
    """Run both sides for ``seconds``; ``show`` is told the time and the sides four times a second, and at the end."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        sides = [await stack.enter_async_context(_side(policy, seed)) for policy in POLICIES]
        start_s = loop.time()
        while (elapsed_s := loop.time() - start_s) < seconds:
            show(elapsed_s, sides)
            await asyncio.sleep(_TICK_S)
        show(elapsed_s, sides)


@contextlib.asynccontextmanager
async def _side(policy: str, seed: int) -> AsyncIterator[Side]:
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
        side = Side(policy=policy, engine=engine, ledger=OwnLedger(BLOCKS))
        wish = Wish(upstream=engine.url, traffic="", trust_plan=True, count=False)
        gateway = Gateway(wish, plan, side.ledger)
        listener, stop = listen("127.0.0.1", 0), asyncio.Event()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
        serving = loop.create_task(run_on_uvicorn(gateway, listener, stop))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            arrivals = [
                loop.create_task(_arrive(session, address, load_client(name), random.Random(f"{seed} {name}"), side))  # noqa: S311
                for name in CLIENTS
            ]
            try:
                yield side
            finally:
                for task in arrivals:
                    task.cancel()
                await asyncio.gather(*arrivals, return_exceptions=True)
                stop.set()
                await serving


async def _arrive(
    session: aiohttp.ClientSession, address: str, client: ClientProfile, generator: random.Random, side: Side
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
            group.create_task(_ask(session, address, body, client, side))


async def _ask(
    session: aiohttp.ClientSession, address: str, body: dict[str, object], client: ClientProfile, side: Side
) -> None:
    """One request with its retries, as far as ``client`` goes."""
    for _ in range(client.tries or 10**6):  # one without end tries for as long as the demo lasts
        async with session.post(address, json=body) as response:
            if response.status == 200:
                await response.read()
                return
            side.refusals += 1
            told_s = int(response.headers.get("retry-after-ms", "1000")) / 1000
        await asyncio.sleep(_NAIVE_WAIT_S if client.honours_retry_after == "no" else told_s)
    side.gave_up += 1
