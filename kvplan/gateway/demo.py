"""``kvplan gateway --demo``: two made-up engines under the same traffic, a gateway in front of each.

``prompt_only`` promises what a request is now and runs its engine out of KV cache; ``worst_case`` what it may become.
"""

import asyncio
import contextlib
import json
import random
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
from aiohttp import web

from kvplan.admission import STRATEGIES
from kvplan.gateway.admission import GatewayPlan, OwnLedger, Promise, WeightedLedger
from kvplan.gateway.app import Gateway, GatewayOptions
from kvplan.gateway.server import listen, run_on_uvicorn
from kvplan.profiles.kinds import ClientProfile
from kvplan.profiles.loader import load_client

POLICIES = ("prompt_only", "worst_case")
CLIENTS = ("openai-python", "litellm-router", "naive")
RATE_PER_S = 1.2
"""Requests per second of each kind of client."""

BLOCKS = 240
BLOCK_TOKENS = 16
_WINDOW_TOKENS = 1024
_PROMPT_TOKENS = (60, 240)
_MAX_TOKENS = (128, 192, 256)
_STEP_S = 0.02
_PREFILL_TOKEN_S = 0.0003
"""Slow enough to watch; a preempted request takes this time once more."""

_TICK_S = 0.25
_NAIVE_WAIT_S = 0.2


class _Sequence:
    """One request inside the engine. Once preempted, it computes its prompt and what it had written again."""

    def __init__(self, prompt_tokens: int, output_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.written = 0
        self.blocks = 0
        self.ready: asyncio.Queue[bool] = asyncio.Queue()

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.written


class DemoEngine:
    """A made-up engine with a real block pool: a token a step, and preemption when the pool runs out, as in vLLM.

    Serves ``/v1/completions`` on a free loopback port, from ``blocks`` blocks of 16 tokens. The natural length of an
    answer is drawn per request; the client's ``max_tokens`` cuts it.
    """

    def __init__(self, blocks: int, seed: int) -> None:
        self.blocks = blocks
        self.used_blocks = 0
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.completed = 0
        self.url = ""
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._running: list[_Sequence] = []
        self._waiting: deque[_Sequence] = deque()
        self._runner: web.AppRunner | None = None
        self._steps: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences waiting for blocks."""
        return len(self._waiting)

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        self._steps = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        assert self._steps is not None
        self._steps.cancel()
        await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        usual = max(8, round(self._random.lognormvariate(5.1, 0.45)))
        sequence = _Sequence(len(body["prompt"]), min(int(body["max_tokens"]), usual))
        self._waiting.append(sequence)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        try:
            await response.prepare(request)
            while await sequence.ready.get():
                await response.write(b"data: " + json.dumps({"choices": [{"text": "word "}]}).encode() + b"\n\n")
            total = {"total_tokens": sequence.tokens}
            await response.write(b"data: " + json.dumps({"choices": [], "usage": total}).encode() + b"\n\n")
            await response.write_eof(b"data: [DONE]\n\n")
        finally:
            self._forget(sequence)
        return response

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_STEP_S + _PREFILL_TOKEN_S * self._step())

    def _step(self) -> int:
        """Admit waiting sequences while there are blocks for their tokens, then write one token for each running one.

        Returns the tokens that had to be computed first.
        """
        prefilled = 0
        while self._waiting and self._grow(self._waiting[0], self._waiting[0].tokens + 1):
            self._running.append(self._waiting.popleft())
            prefilled += self._running[-1].tokens
        for sequence in list(self._running):
            while sequence in self._running and not self._grow(sequence, sequence.tokens + 1):
                self._preempt(self._running[-1])
            if sequence not in self._running:
                continue
            sequence.written += 1
            sequence.ready.put_nowait(True)  # noqa: FBT003 - one more token
            if sequence.written >= sequence.output_tokens:
                self.completed += 1
                sequence.ready.put_nowait(False)  # noqa: FBT003 - no more
                self._forget(sequence)
        return prefilled

    def _grow(self, sequence: _Sequence, tokens: int) -> bool:
        more = -(-tokens // BLOCK_TOKENS) - sequence.blocks
        if more > self.blocks - self.used_blocks:
            return False
        sequence.blocks += max(more, 0)
        self.used_blocks += max(more, 0)
        return True

    def _preempt(self, sequence: _Sequence) -> None:
        """The newest sequence gives its blocks back and starts over: everything it had computed is computed again."""
        self.preemptions += 1
        self.recomputed_tokens += sequence.tokens
        self._forget(sequence)
        self._waiting.appendleft(sequence)

    def _forget(self, sequence: _Sequence) -> None:
        self.used_blocks -= sequence.blocks
        sequence.blocks = 0
        if sequence in self._running:
            self._running.remove(sequence)
        if sequence in self._waiting:
            self._waiting.remove(sequence)


@dataclass(kw_only=True)
class Side:
    """One policy: its engine, the ledger in front of it, and what became of its clients."""

    policy: str
    engine: DemoEngine
    ledger: WeightedLedger
    refusals: int = 0
    gave_up: int = 0


async def run_demo(seconds: float, *, seed: int = 7) -> AsyncIterator[tuple[float, list[Side]]]:
    """Run both sides for ``seconds``; yields the time and the sides four times a second and at the end."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        sides = [await stack.enter_async_context(_side(policy, seed)) for policy in POLICIES]
        start_s = loop.time()
        while (elapsed_s := loop.time() - start_s) < seconds:
            yield elapsed_s, sides
            await asyncio.sleep(_TICK_S)
        yield elapsed_s, sides


@contextlib.asynccontextmanager
async def _side(policy: str, seed: int) -> AsyncIterator[Side]:
    """An engine, a gateway in front of it, and three kinds of clients."""
    loop = asyncio.get_running_loop()
    async with DemoEngine(BLOCKS, seed) as engine:
        promise = Promise(
            window_tokens=_WINDOW_TOKENS,
            capacity=BLOCKS,
            request_blocks=lambda tokens: -(-tokens // BLOCK_TOKENS),
            strategy=STRATEGIES[policy],
        )
        plan = GatewayPlan(promise=promise, blocks=BLOCKS, block_tokens=BLOCK_TOKENS)
        side = Side(policy=policy, engine=engine, ledger=OwnLedger(BLOCKS))
        options = GatewayOptions(upstream=engine.url, traffic="", trust_plan=True, count=False)
        gateway = Gateway(options, plan, side.ledger)
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
    """Poisson arrivals of one kind of client; requests run concurrently."""
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
    """One request, retried as ``client`` does."""
    for _ in range(client.tries or 10**6):  # None: without end
        async with session.post(address, json=body) as response:
            if response.status == 200:
                await response.read()
                return
            side.refusals += 1
            told_s = int(response.headers.get("retry-after-ms", "1000")) / 1000
        await asyncio.sleep(_NAIVE_WAIT_S if client.honours_retry_after == "no" else told_s)
    side.gave_up += 1
