"""The processes that the gateway's benchmark measures: an engine, a bare pass-through, and the gateway itself.

``python -m tests.benchmarks.gateway_processes engine|bare|gateway [UPSTREAM]`` prints its address and serves.
"""

import asyncio
import json
import sys
import time

import aiohttp
import uvloop

from kvplan.gateway.admission import GatewayPlan, OwnLedger
from kvplan.gateway.app import Gateway, GatewayOptions
from kvplan.gateway.responses import AsgiApp, Message, Receive, Scope, Send
from kvplan.gateway.server import listen, run_on_uvicorn
from tests.gateway_server import promise

CAPACITY = 6400
"""Blocks: a hundred requests of the whole window of 1,024 tokens."""


async def engine(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers at once, or a token every ``gap_s``; each token tells when it was written."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    fake = json.loads(await _body(receive)).get("fake", {})
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for _ in range(fake.get("tokens", 1)):
        if "gap_s" in fake:
            await asyncio.sleep(fake["gap_s"])
        event = json.dumps({"at_s": time.monotonic(), "choices": [{"delta": {"content": "word "}}]})
        await send({"type": "http.response.body", "body": f"data: {event}\n\n".encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


class Bare:
    """The least that a pass-through does: read the body, ask the engine with aiohttp, stream the answer back."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
            )
            await _lifespan(receive, send)
            await self._session.close()
            return
        assert self._session is not None
        body = await _body(receive)
        headers = [(n.decode(), v.decode()) for n, v in scope["headers"] if n not in (b"host", b"content-length")]
        target = self._upstream + scope["path"]
        async with self._session.request(scope["method"], target, data=body, headers=headers) as response:
            kept = [(n.lower(), v) for n, v in response.raw_headers if n.lower() != b"transfer-encoding"]
            await send({"type": "http.response.start", "status": response.status, "headers": kept})
            async for chunk in response.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _body(receive: Receive) -> bytes:
    body, is_complete = b"", False
    while not is_complete:
        message = await receive()
        body += message.get("body", b"")
        is_complete = not message.get("more_body")
    return body


async def _lifespan(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    message: Message = await receive()
    await send({"type": f"{message['type']}.complete"})


def gateway(upstream: str) -> Gateway:
    """A gateway as the command builds it, with the plan given."""
    given = promise(capacity=CAPACITY)
    options = GatewayOptions(upstream=upstream, traffic="", count=False, trust_plan=True, body_limit_bytes=2**20)
    plan = GatewayPlan(promise=given, blocks=CAPACITY, block_tokens=16)
    return Gateway(options, plan, OwnLedger(CAPACITY))


async def _serve(kind: str, upstream: str) -> None:
    app: AsgiApp = engine
    if kind == "bare":
        app = Bare(upstream)
    elif kind == "gateway":
        app = gateway(upstream)
    listener = listen("127.0.0.1", 0)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    await run_on_uvicorn(app, listener, asyncio.Event())


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
