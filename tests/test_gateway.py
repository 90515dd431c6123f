"""The gateway over real sockets, in front of a fake engine: every row of its answers; the ledger ends empty."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import uvicorn

from kvplan.admission import STRATEGIES
from kvplan.gateway.admit import Admission, OwnLedger, Promise
from kvplan.gateway.counting import EngineCounter
from kvplan.gateway.metrics import GatewayMetrics
from kvplan.gateway.middleware import AdmissionMiddleware
from kvplan.gateway.proxy import GatewayApp, UpstreamProxy
from kvplan.gateway.serve import Drain
from tests.fake_engine import FakeEngine

WINDOW_TOKENS = 1024
CHAT = "/v1/chat/completions"


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


@dataclass
class Served:
    """A running gateway, its parts, and a client."""

    url: str
    engine: FakeEngine
    ledger: OwnLedger
    drain: Drain
    client: aiohttp.ClientSession

    async def chat(self, text: str = "hi", **fields: Any) -> tuple[int, dict[str, str], bytes]:
        """Send one chat; status, headers and body."""
        body = {"model": "fake", "messages": [{"role": "user", "content": text}], **fields}
        async with self.client.post(self.url + CHAT, json=body) as response:
            return response.status, dict(response.headers), await response.read()


@asynccontextmanager
async def served(given: Promise, *, upstream: str | None = None, count: bool = False) -> AsyncIterator[Served]:
    """A gateway on uvicorn in front of a fake engine; at the end nothing may be reserved."""
    async with FakeEngine() as engine, aiohttp.ClientSession() as client:
        ledger, drain = OwnLedger(given.capacity), Drain()
        metrics = GatewayMetrics(ledger)
        proxy = UpstreamProxy(upstream or engine.url, metrics=metrics)
        counter = EngineCounter(engine.url) if count else None
        admitted = AdmissionMiddleware(
            proxy, Admission(given, ledger), count=counter, metrics=metrics, is_draining=drain, body_limit_bytes=65536
        )
        app = GatewayApp(admitted, proxy, metrics, is_draining=drain)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="on", ws="none"))
        running = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield Served(url=f"http://127.0.0.1:{port}", engine=engine, ledger=ledger, drain=drain, client=client)
        finally:
            await client.close()
            server.should_exit = True
            await running
            if counter is not None:
                await counter.close()
        assert ledger.reserved == 0
        assert ledger.holders == 0


def run(case: Callable[[Served], Awaitable[None]], given: Promise | None = None, **settings: Any) -> None:
    """Run one case against a gateway of its own."""

    async def whole() -> None:
        async with served(given or promise(), **settings) as gateway:
            await case(gateway)

    asyncio.run(asyncio.wait_for(whole(), timeout=30))


def test_a_request_that_fits_is_streamed_byte_for_byte() -> None:
    async def case(gateway: Served) -> None:
        status, headers, body = await gateway.chat(max_tokens=8, stream=True)
        assert status == 200
        assert headers["x-engine"] == "fake"
        assert int(headers["x-kvplan-reserved-tokens"]) == 64 + 16 + len("hi") + len("user") + 8
        assert body.endswith(b"data: [DONE]\n\n")
        assert body.count(b"data: ") == 5

    run(case)


def test_no_room_is_429_with_a_retry_after_and_an_openai_body() -> None:
    async def case(gateway: Served) -> None:
        slow = asyncio.create_task(gateway.chat(fake={"tokens": 10, "gap_s": 0.1}))
        slow2 = asyncio.create_task(gateway.chat(fake={"tokens": 10, "gap_s": 0.1}))
        while gateway.engine.running < 2:
            await asyncio.sleep(0.01)
        status, headers, body = await gateway.chat()
        assert status == 429
        assert int(headers["Retry-After"]) >= 1
        assert int(headers["retry-after-ms"]) >= 1000
        error = json.loads(body)["error"]
        assert error["code"] == "server_at_capacity"
        assert error["type"] == "rate_limit_error"
        assert (await slow)[0] == (await slow2)[0] == 200
        assert (await gateway.chat(max_tokens=4))[0] == 200

    run(case)


def test_what_can_never_be_served_is_400_and_never_429() -> None:
    async def case(gateway: Served) -> None:
        body = {"model": "fake", "prompt": list(range(WINDOW_TOKENS)), "max_tokens": 1}
        async with gateway.client.post(gateway.url + "/v1/completions", json=body) as response:
            assert response.status == 400
            assert response.headers["x-should-retry"] == "false"
            assert (await response.json())["error"]["code"] == "context_length_exceeded"
        status, headers, _ = await gateway.chat(n=3)
        assert status == 400
        assert "Retry-After" not in headers
        assert gateway.engine.bodies == []

    run(case)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"best_of": -3}, "best_of"),
        ({"n": 10**6}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "content"),
    ],
)
def test_a_field_that_cannot_be_priced_is_named(fields: dict[str, Any], param: str) -> None:
    async def case(gateway: Served) -> None:
        status, _, body = await gateway.chat(**fields)
        assert status == 400
        assert json.loads(body)["error"]["param"] == param
        assert gateway.engine.bodies == []

    run(case)


@pytest.mark.parametrize("raw", [b"", b"[1]", b"{", b'{"max_tokens": NaN}', b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_400(raw: bytes) -> None:
    async def case(gateway: Served) -> None:
        async with gateway.client.post(gateway.url + CHAT, data=raw) as response:
            assert response.status == (413 if len(raw) > 65536 else 400)

    run(case)


def test_the_default_cap_is_charged_and_forwarded() -> None:
    async def case(gateway: Served) -> None:
        status, headers, _ = await gateway.chat()
        assert status == 200
        assert gateway.engine.bodies[0]["max_tokens"] == 100
        assert int(headers["x-kvplan-reserved-tokens"]) == 64 + 16 + 6 + 100
        await gateway.chat(max_tokens=None)
        assert gateway.engine.bodies[1]["max_tokens"] == 100

    run(case, promise(default_max_tokens=100))


def test_sequences_multiply() -> None:
    async def case(gateway: Served) -> None:
        body = {"model": "fake", "prompt": [[1] * 10, [2] * 20], "max_tokens": 10, "n": 2, "best_of": 3}
        async with gateway.client.post(gateway.url + "/v1/completions", json=body) as response:
            assert response.status == 200
            assert int(response.headers["x-kvplan-reserved-tokens"]) == 3 * (20 + 30)

    run(case)


def test_a_key_given_twice_is_forwarded_as_it_was_priced() -> None:
    async def case(gateway: Served) -> None:
        raw = b'{"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}'
        async with gateway.client.post(gateway.url + CHAT, data=raw) as response:
            assert response.status == 200
        assert gateway.engine.bodies[0]["max_tokens"] == 5

    run(case)


def test_an_engine_that_is_down_is_503() -> None:
    async def case(gateway: Served) -> None:
        status, headers, _ = await gateway.chat()
        assert status == 503
        assert int(headers["Retry-After"]) >= 1

    run(case, upstream="http://127.0.0.1:9")


def test_an_engine_that_dies_mid_stream_never_ends_cleanly() -> None:
    async def case(gateway: Served) -> None:
        with pytest.raises(aiohttp.ClientPayloadError):
            await gateway.chat(stream=True, max_tokens=10, fake={"tokens": 10, "die_after": 3, "gap_s": 0.01})
        with pytest.raises(aiohttp.ClientPayloadError):
            await gateway.chat(max_tokens=10, fake={"tokens": 10, "die_after": 3, "gap_s": 0.01})

    run(case)


def test_a_client_that_leaves_frees_its_reservation_and_stops_the_engine() -> None:
    async def case(gateway: Served) -> None:
        for wait_s in (0.0, 0.02, 0.15):
            task = asyncio.create_task(gateway.chat(stream=True, fake={"tokens": 1000, "gap_s": 0.05}))
            await asyncio.sleep(wait_s)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        for _ in range(200):
            if gateway.ledger.reserved == 0 and gateway.engine.running == 0:
                break
            await asyncio.sleep(0.01)
        assert gateway.ledger.reserved == 0
        assert gateway.engine.running == 0

    run(case)


def test_draining_answers_503_and_lets_running_requests_finish() -> None:
    async def case(gateway: Served) -> None:
        slow = asyncio.create_task(gateway.chat(max_tokens=8, fake={"tokens": 5, "gap_s": 0.05}))
        while gateway.engine.running < 1:
            await asyncio.sleep(0.01)
        gateway.drain.is_draining = True
        status, headers, _ = await gateway.chat()
        assert status == 503
        assert headers["Connection"] == "close"
        async with gateway.client.get(gateway.url + "/readyz") as response:
            assert response.status == 503
        assert (await slow)[0] == 200

    run(case)


def test_admin_routes_stay_inside() -> None:
    async def case(gateway: Served) -> None:
        for path in ("/v1/load_lora_adapter", "/sleep", "/server_info", "/v1/unknown"):
            async with gateway.client.post(gateway.url + path, json={}) as response:
                assert response.status == 404, path
        async with gateway.client.get(gateway.url + "/v1/models") as response:
            assert (await response.json())["data"][0]["id"] == "fake"
        async with gateway.client.get(gateway.url + "/metrics") as response:
            assert "kvplan_ledger_capacity 128.0" in await response.text()
        async with gateway.client.get(gateway.url + "/healthz") as response:
            assert response.status == 200

    run(case)


def test_hop_by_hop_headers_stop_here_and_authorization_passes() -> None:
    async def case(gateway: Served) -> None:
        headers = {"Authorization": "Bearer secret", "Connection": "x-private", "X-Private": "1", "TE": "trailers"}
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        async with gateway.client.post(gateway.url + CHAT, json=body, headers=headers) as response:
            assert response.status == 200
        seen = {name.lower() for name in gateway.engine.headers[0]}
        assert gateway.engine.headers[0]["Authorization"] == "Bearer secret"
        assert not seen & {"x-private", "te"}

    run(case)


def test_a_count_shrinks_what_the_bound_overstates() -> None:
    async def case(gateway: Served) -> None:
        text = "word " * 400  # 2,000 bytes, 500 tokens: over the window as a bound, inside it as a count
        status, headers, _ = await gateway.chat(text, max_tokens=8)
        assert status == 200
        assert int(headers["x-kvplan-reserved-tokens"]) == 500 + 8
        slow = [asyncio.create_task(gateway.chat(text, max_tokens=8, fake={"tokens": 8, "gap_s": 0.1})) for _ in "abc"]
        assert [(await one)[0] for one in slow] == [200, 200, 200]

    run(case, count=True)
