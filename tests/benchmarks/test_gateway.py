"""What the gateway costs compared with a bare pass-through on the same server, measured alternately in one run.

``pytest tests/benchmarks/test_gateway.py --benchmark-enable -s`` measures and prints; without the option a few requests
run once, and nothing is timed. CPU is that of the measured process, read from the system.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import uvloop
from pytest_benchmark.fixture import BenchmarkFixture

from tests.benchmarks.comparison import compare
from tests.benchmarks.gateway_processes import CAPACITY, gateway
from tests.gateway_server import CHAT, raw_post

Result = TypeVar("Result")
MESSAGES = [{"role": "user", "content": "How much work can this model take on these GPUs? " * 8}]


class Proxies:
    """The engine, and the two proxies in front of it."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []
        self.engine = self._start("engine")
        self.bare = self._start("bare", self.engine.url)
        self.gateway = self._start("gateway", self.engine.url)

    def _start(self, kind: str, upstream: str = "") -> "Process":
        command = [sys.executable, "-m", "tests.benchmarks.gateway_processes", kind, upstream]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        self._started.append(process)
        assert process.stdout is not None
        return Process(process.pid, process.stdout.readline().strip())

    def stop(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


class Process:
    """A server: its address, and the CPU it has used."""

    def __init__(self, pid: int, url: str) -> None:
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self._pid = pid

    def cpu_s(self) -> float:
        """Seconds of CPU to the nanosecond: the clock of another process (Linux, CPUCLOCK_SCHED)."""
        return time.clock_gettime((~self._pid << 3) | 2)


def on_uvloop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run the clients on the faster loop: they share the cores with what is measured."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@pytest.fixture(scope="module")
def proxies() -> Iterator[Proxies]:
    """Three processes for all measurements."""
    found = Proxies()
    yield found
    found.stop()


def request_of(fake: dict[str, Any], **fields: Any) -> bytes:
    """One chat on a connection that is kept."""
    body = json.dumps({"messages": MESSAGES, "stream": True, "fake": fake, **fields}).encode()
    return raw_post(body, b"Content-Type: application/json")


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Status and body of one answer, chunked or not."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b"content-length: " in head.lower():
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return head[9:12], await reader.readexactly(length)
    body = b""
    while (size := int(await reader.readline(), 16)) > 0:
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return head[9:12], body


async def many(port: int, request: bytes, requests: int, connections: int) -> dict[bytes, int]:
    """Send ``request`` again and again on several connections; how often each status came."""
    seen: dict[bytes, int] = {}
    left = requests

    async def client() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while left > 0:
            left -= 1
            writer.write(request)
            status, _ = await answer(reader)
            seen[status] = seen.get(status, 0) + 1
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(client() for _ in range(connections)))
    return seen


class Flood(asyncio.Protocol):
    """Sends ``request`` again as soon as its answer, of a known length, is in: a client that costs less than what it
    measures. Ends after ``shared["left"]`` answers of all that share it."""

    def __init__(self, request: bytes, shared: dict[str, int]) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._request = request
        self._shared = shared
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, _, body = self._seen.partition(b"\r\n\r\n")
        if len(body) < int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 1):
            return
        assert head.startswith(b"HTTP/1.1 429")
        self._seen = b""
        self._shared["refused"] += 1
        if self._shared["refused"] < self._shared["wanted"]:
            self._transport.write(self._request)
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


async def flood(port: int, request: bytes, connections: int, shared: dict[str, int]) -> None:
    """Send requests that are refused until ``shared`` has as many as wanted."""
    loop = asyncio.get_running_loop()
    opened = [
        await loop.create_connection(lambda: Flood(request, shared), "127.0.0.1", port) for _ in range(connections)
    ]
    await asyncio.gather(*(protocol.ended for _, protocol in opened))


def in_turns(
    proxies: Proxies, request: bytes, requests: int, rounds: int, connections: int = 8
) -> tuple[list[float], list[float]]:
    """CPU per request of the bare pass-through and of the gateway, in milliseconds, round by round."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for process, costs in zip((proxies.bare, proxies.gateway), found, strict=True):
            before_s = process.cpu_s()
            seen = on_uvloop(many(process.port, request, requests, connections))
            assert set(seen) == {b"200"}
            costs.append((process.cpu_s() - before_s) / requests * 1000)
    return found


def _measured() -> None:
    """What pytest-benchmark times: nothing, since a ratio within one run was measured already."""


@pytest.mark.parametrize(
    ("name", "fake", "requests"),
    [("one piece", {"tokens": 1}, 1500), ("64 tokens", {"tokens": 64, "gap_s": 0.002}, 300)],
)
def test_cpu_of_a_request(
    proxies: Proxies, benchmark: BenchmarkFixture, name: str, fake: dict[str, Any], requests: int
) -> None:
    rounds, requests = (15, requests // 3) if benchmark.enabled else (1, 20)
    request = request_of(fake, max_tokens=64)
    in_turns(proxies, request, 20, 1)
    bare, ours = in_turns(proxies, request, requests, rounds)
    if benchmark.enabled:
        compare(benchmark, f"gateway, an answer of {name}", "bare pass-through", "ms of CPU", ours, bare)
    benchmark(_measured)


async def with_full_ledger(port: int, measured: Callable[[], Coroutine[Any, Any, Any]], *, spare: int = 0) -> Any:
    """Run ``measured`` while slow streams hold the whole ledger, ``spare`` windows of it excepted."""
    request = request_of({"tokens": 10**6, "gap_s": 0.5})  # no cap: each holds the whole window
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CAPACITY // 64 - spare)]
    for reader, writer in connections:
        writer.write(request)
        await reader.readuntil(b"\r\n\r\n")
    try:
        return await measured()
    finally:
        for _, writer in connections:
            writer.close()
        await asyncio.sleep(0.3)


def test_cpu_of_a_refusal(proxies: Proxies, benchmark: BenchmarkFixture) -> None:
    requests = 20_000 if benchmark.enabled else 20
    request = request_of({}, max_tokens=64)

    async def refused() -> tuple[float, float]:
        before_s, start_s = proxies.gateway.cpu_s(), time.monotonic()
        await flood(proxies.gateway.port, request, 32, {"refused": 0, "wanted": requests})
        return proxies.gateway.cpu_s() - before_s, time.monotonic() - start_s

    cpu_s, elapsed_s = on_uvloop(with_full_ledger(proxies.gateway.port, refused))
    if benchmark.enabled:
        own_ms = on_uvloop(own_share_of_a_refusal(requests)) * 1000
        print(
            f"\na refusal: {cpu_s / requests * 1000:.3f} ms of CPU with HTTP, the gateway's own part {own_ms:.3f} ms; "
            f"{requests / elapsed_s:,.0f} a second with the clients on the same cores"
        )
    benchmark(_measured)


async def own_share_of_a_refusal(requests: int) -> float:
    """CPU seconds of one refusal without a server: the application called in this process."""
    parts = gateway("http://127.0.0.1:9")
    assert await parts.admission.acquire("all", CAPACITY)
    _, _, body = request_of({}, max_tokens=64).partition(b"\r\n\r\n")
    headers = [(b"host", b"x"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": CHAT, "query_string": b"", "headers": headers}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 429) == 429

    before_s = time.process_time()
    for _ in range(requests):
        await parts(scope, receive, send)
    return (time.process_time() - before_s) / requests


async def lags_ms(port: int, streams: int, tokens: int) -> list[float]:
    """Milliseconds from a token's writing in the engine to its reading here, over paced streams."""
    found: list[float] = []

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(number * 0.0003)
        writer.write(request_of({"tokens": tokens, "gap_s": 0.03}, max_tokens=64))
        await reader.readuntil(b"\r\n\r\n")
        while (size := int(await reader.readline(), 16)) > 0:
            piece = await reader.readexactly(size + 2)
            now_s = time.monotonic()
            found.extend((now_s - float(at.split(b",")[0])) * 1000 for at in piece.split(b'"at_s": ')[1:])
        writer.close()

    await asyncio.gather(*(one(number) for number in range(streams)))
    return found


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(values, n=100)[98]


def test_lag_of_a_hundred_paced_streams(proxies: Proxies, benchmark: BenchmarkFixture) -> None:
    rounds, tokens = (5, 60) if benchmark.enabled else (1, 2)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, process in (("engine", proxies.engine), ("bare", proxies.bare), ("gateway", proxies.gateway)):
            found.setdefault(name, []).append(p99(on_uvloop(lags_ms(process.port, 100, tokens))))
    if benchmark.enabled:
        told = ", ".join(f"{name} {statistics.median(values):.2f} ms" for name, values in found.items())
        print(f"\np99 lag of 100 streams of 33 tokens a second: {told}")
        what = "gateway, p99 lag of 100 streams"
        compare(benchmark, what, "bare pass-through", "ms", found["gateway"], found["bare"])
    benchmark(_measured)


def test_refusals_do_not_starve_streams(proxies: Proxies, benchmark: BenchmarkFixture) -> None:
    tokens = 60 if benchmark.enabled else 10
    request = request_of({}, n=21)  # no cap: twenty-one windows, and twenty are free

    async def both() -> tuple[list[float], float]:
        start_s, shared = time.monotonic(), {"refused": 0, "wanted": 10**9}
        streams = asyncio.create_task(lags_ms(proxies.gateway.port, 20, tokens))
        flooding = asyncio.create_task(flood(proxies.gateway.port, request, 16, shared))
        lags = await streams
        refused_per_s = shared["refused"] / (time.monotonic() - start_s)
        shared["wanted"] = 0
        await flooding
        return lags, refused_per_s

    alone = on_uvloop(lags_ms(proxies.gateway.port, 20, tokens))
    lags, refused_per_s = on_uvloop(with_full_ledger(proxies.gateway.port, both, spare=20))
    if benchmark.enabled:
        print(
            f"\n{refused_per_s:,.0f} refusals a second beside 20 streams, "
            f"whose p99 lag is then {p99(lags):.1f} ms, without them {p99(alone):.1f}"
        )
    benchmark(_measured)
