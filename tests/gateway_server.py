"""A gateway on a real server in front of a fake engine, for tests: at the end nothing may be reserved or running."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from yarl import URL

from kvplan.admission import STRATEGIES
from kvplan.gateway.admission import GatewayPlan, OwnLedger, Promise
from kvplan.gateway.app import Gateway, GatewayOptions
from kvplan.gateway.request_body import BodyReader
from kvplan.gateway.server import listen, loop_factory, run_on_granian, run_on_uvicorn
from tests.fake_engine import FakeEngine

WINDOW_TOKENS = 1024
CHAT = "/v1/chat/completions"
CHAT_ALLOWANCE = 256 + 16
"""Tokens allowed for a template's own text, and for the markup around one message."""


def blocks_of_16(tokens: int) -> int:
    """One full-attention group with blocks of 16 tokens."""
    return -(-tokens // 16)


def promise(**changes: Any) -> Promise:
    """128 blocks: two requests of the whole window."""
    values: dict[str, Any] = {
        "window_tokens": WINDOW_TOKENS,
        "capacity": 128,
        "request_blocks": blocks_of_16,
        "strategy": STRATEGIES["worst_case"],
    }
    return Promise(**{**values, **changes})


class CheckedLedger(OwnLedger):
    """Remembers the most that was ever reserved."""

    peak = 0

    async def acquire(self, holder: Any, weight: int) -> bool:
        admitted = await super().acquire(holder, weight)
        self.peak = max(self.peak, self.reserved)
        assert self.reserved <= self.capacity
        return admitted


@dataclass
class Served:
    """A running gateway, its parts, and a client."""

    url: str
    port: int
    engine: FakeEngine
    ledger: CheckedLedger
    gateway: Gateway
    client: aiohttp.ClientSession

    @property
    def bodies(self) -> BodyReader:
        """The gateway's reader of request bodies."""
        return self.gateway.bodies

    async def request(self, method: str, path: str, **given: Any) -> tuple[int, Any, bytes]:
        """Status, headers and body of one response."""
        async with self.client.request(method, URL(self.url + path, encoded=True), **given) as response:
            return response.status, response.headers, await response.read()

    async def post(self, path: str, fields: dict[str, Any]) -> tuple[int, Any, bytes]:
        """Send ``fields`` as JSON."""
        return await self.request("POST", path, json=fields)

    async def chat(self, text: str = "hi", **fields: Any) -> tuple[int, Any, bytes]:
        """Send one chat."""
        return await self.post(CHAT, {"model": "fake", "messages": [{"role": "user", "content": text}], **fields})

    async def figures(self) -> dict[str, float]:
        """What ``/metrics`` shows."""
        lines = (await self.request("GET", "/metrics"))[2].decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    async def open(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A new connection, with ``sent`` written to it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        return reader, writer

    async def is_idle(self, within_s: float = 5.0) -> bool:
        """Whether the ledger empties and the engine stops within a short time."""
        for _ in range(int(within_s / 0.01)):
            if not self.ledger.reserved and not self.ledger.holders and not self.engine.running:
                return True
            await asyncio.sleep(0.01)
        return False

    async def until_running(self, count: int) -> None:
        """Wait until the engine writes ``count`` answers."""
        while self.engine.running < count:
            await asyncio.sleep(0.005)


@asynccontextmanager
async def served(
    given: Promise | None = None,
    *,
    upstream: str | None = None,
    count: bool = False,
    server: str = "uvicorn",
    engine_blocks: int = 1000,
    head_timeout_s: float = 30.0,
    **changes: Any,
) -> AsyncIterator[Served]:
    """A gateway in front of a fake engine."""
    given = given or promise()
    async with FakeEngine(blocks=engine_blocks) as engine, aiohttp.ClientSession() as client:
        ledger = CheckedLedger(given.capacity)
        values = {"trust_plan": True, "body_limit_bytes": 65536, **changes}
        options = GatewayOptions(upstream=upstream or engine.url, traffic="", server=server, count=count, **values)
        plan = GatewayPlan(promise=given, blocks=given.capacity, block_tokens=16)
        gateway = Gateway(options, plan, ledger)
        listener = listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        stop = asyncio.Event()
        run_on = run_on_granian if server == "granian" else run_on_uvicorn
        running = asyncio.create_task(run_on(gateway, listener, stop, head_timeout_s=head_timeout_s))
        url = f"http://127.0.0.1:{port}"
        await _until_up(client, url)
        try:
            yield Served(url=url, port=port, engine=engine, ledger=ledger, gateway=gateway, client=client)
        finally:
            await client.close()
            stop.set()
            await running
        assert ledger.reserved == 0
        assert ledger.holders == 0
        assert gateway.admission.running == 0
        assert gateway.bodies.held_bytes == 0


async def _until_up(client: aiohttp.ClientSession, url: str) -> None:
    for _ in range(500):
        try:
            async with client.get(url + "/healthz") as response:
                assert response.status == 200
                return
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.01)
    raise AssertionError("the gateway did not come up")


def run(
    case: Callable[[Served], Awaitable[None]],
    given: Promise | None = None,
    *,
    server: str = "uvicorn",
    at_most_s: float = 60,
    **settings: Any,
) -> None:
    """Run one case against its own gateway, on the event loop that the command uses; ``…-asyncio``: on asyncio's."""
    name, _, loop = server.partition("-")

    async def whole() -> None:
        async with served(given, server=name, **settings) as gateway:
            await case(gateway)

    with asyncio.Runner(loop_factory=None if loop == "asyncio" else loop_factory()) as runner:
        runner.run(asyncio.wait_for(whole(), timeout=at_most_s))


def against(
    given: Promise | None = None, *, servers: Sequence[str] = (), **settings: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Turn a coroutine whose first argument is a running gateway into a test: on uvicorn, or on each of ``servers``."""

    def decorated(case: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        wanted = dict(list(inspect.signature(case).parameters.items())[1:])
        added = {"server": inspect.Parameter("server", inspect.Parameter.KEYWORD_ONLY)} if servers else {}

        def test(**named: Any) -> None:
            server = named.get("server", "uvicorn")
            passed = {name: named[name] for name in wanted}
            run(lambda gateway: case(gateway, **passed), given, server=server, **settings)

        test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in {**added, **wanted}.values()]
        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return pytest.mark.parametrize("server", servers)(test) if servers else test

    return decorated


def raw_post(body: bytes, *lines: bytes) -> bytes:
    """The bytes of one chat request, with ``lines`` added to its head."""
    head = [b"POST " + CHAT.encode() + b" HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def error_of(body: bytes) -> dict[str, Any]:
    """The error object of an answer."""
    error: dict[str, Any] = json.loads(body)["error"]
    return error
