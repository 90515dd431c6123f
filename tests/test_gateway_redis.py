"""One ledger for several gateways, with a real Redis server that the tests start, stop and restart."""

import asyncio
import contextlib
import functools
import itertools
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from kvplan.errors import InputError
from kvplan.gateway.admission import LedgerDownError
from kvplan.gateway.shared_ledger import SharedLedger
from tests.fake_engine import FakeEngine
from tests.test_gateway_command import TRAFFIC, started

pytest.importorskip("redis", reason="redis is not installed (pip install redis)")
pytestmark = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="no Redis server here (apt-get install redis-server)"
)

LEASE_S = 1.2


class RedisServer:
    """A Redis server on a free port; ``stop`` and ``start`` lose its memory, as a restart without files does."""

    def __init__(self, folder: Path) -> None:
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        fixed = ["--port", str(self.port), "--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        self._process = subprocess.Popen(["redis-server", *fixed, *options], stdout=subprocess.DEVNULL)
        for _ in range(200):
            with contextlib.suppress(OSError), contextlib.closing(socket.create_connection(("127.0.0.1", self.port))):
                return
            time.sleep(0.02)
        raise AssertionError("redis-server did not start")

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP: it hangs with its connections open; SIGCONT: it continues."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running server."""
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


def _run(case: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(case(), timeout=60))


@asynccontextmanager
async def ledger(
    server: RedisServer, capacity: int = 100, *, admits_local: bool = False
) -> AsyncIterator[SharedLedger]:
    """A shared ledger that is open for reservations."""
    found = await SharedLedger.open(server.url, capacity, lease_s=LEASE_S, admits_local=admits_local)
    try:
        while not found.answers():
            await asyncio.sleep(0.02)
        yield found
    finally:
        await found.close()


def test_weights_are_shared_and_come_back_once(redis_server: RedisServer) -> None:
    async def case() -> None:
        async with ledger(redis_server) as one, ledger(redis_server) as two:
            assert await one.acquire(1, 60)
            assert not await two.acquire(1, 41)
            assert await two.acquire(1, 40)
            assert (two.reserved, two.free, two.weight_of(1)) == (100, 0, 40)
            assert one.shrink(1, 50)
            assert not one.shrink(1, 60)
            await _until(lambda: two.acquire(2, 10))
            assert one.release(1)
            assert not one.release(1)
            await _until(lambda: two.acquire(3, 50))
            assert not await one.acquire(2, 1)

    _run(case)


async def _until(attempt: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(5):
        while not await attempt():
            await asyncio.sleep(0.01)


def test_a_lease_is_renewed_while_its_gateway_lives_and_ends_with_it(redis_server: RedisServer) -> None:
    async def case() -> None:
        async with ledger(redis_server) as one, ledger(redis_server) as two:
            assert await one.acquire(1, 100)
            start_s = time.monotonic()
            while time.monotonic() - start_s < 2 * LEASE_S:
                assert not await two.acquire(1, 1)
                await asyncio.sleep(0.05)
            assert one._keeper is not None
            one._keeper.cancel()
            died_s = time.monotonic()
            await _until(lambda: two.acquire(1, 100))
            assert LEASE_S / 2 < time.monotonic() - died_s < LEASE_S + 1
            two.release(1)

    _run(case)


def test_a_caller_that_is_cancelled_while_asking_holds_nothing(redis_server: RedisServer) -> None:
    async def case() -> None:
        async with ledger(redis_server) as one:
            for number in range(200):
                asking = asyncio.create_task(one.acquire(number, 1))
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asking
                    one.release(number)
            await _until(lambda: one.acquire("all", 100))

    _run(case)


def test_a_new_ledger_waits_a_lease_before_it_admits(redis_server: RedisServer) -> None:
    """With its memory lost nobody knows what still runs; after one lease every running gateway has reported."""

    async def case() -> None:
        async with ledger(redis_server) as one:
            assert await one.acquire(1, 70)
            redis_server.stop()
            with pytest.raises(LedgerDownError):
                await one.acquire(2, 10)
            assert not one.answers()
            redis_server.start()
            two = await SharedLedger.open(redis_server.url, 100, lease_s=LEASE_S)
            with pytest.raises(LedgerDownError):
                await two.acquire(1, 10)
            while not two.answers():
                await asyncio.sleep(0.02)
            assert not await two.acquire(1, 31), "what the first holds was said again"
            assert await two.acquire(1, 30)
            await two.close()

    _run(case)


def test_admit_local_keeps_to_an_even_share(redis_server: RedisServer) -> None:
    async def case() -> None:
        async with ledger(redis_server, admits_local=True) as one, ledger(redis_server, admits_local=True) as two:
            assert await one.acquire(1, 20)
            await asyncio.sleep(LEASE_S / 2)
            redis_server.stop()
            assert await one.acquire(2, 30)
            assert not await one.acquire(3, 1)
            assert await two.acquire(1, 50)
            assert not await two.acquire(2, 1)
            redis_server.start()
            one.release(2)
            await asyncio.sleep(2.5 * LEASE_S)
            assert not await one.acquire(4, 31)
            assert await one.acquire(4, 30)

    _run(case)


@pytest.mark.parametrize("admits_local", [False, True])
def test_a_redis_that_hangs_counts_as_down(redis_server: RedisServer, *, admits_local: bool) -> None:
    """For longer than a lease: no reservation may have ended meanwhile, and what was asked is not held twice."""

    async def case() -> None:
        async with ledger(redis_server, admits_local=admits_local) as one, ledger(redis_server) as two:
            assert await one.acquire(1, 60)
            redis_server.signal(signal.SIGSTOP)
            start_s = time.monotonic()
            if admits_local:
                assert not await one.acquire(2, 1), "60 is above its share"
            else:
                with pytest.raises(LedgerDownError):
                    await one.acquire(2, 1)
            assert time.monotonic() - start_s < 2, "asked for a second"
            await asyncio.sleep(1.5 * LEASE_S)
            redis_server.signal(signal.SIGCONT)
            async with asyncio.timeout(5):
                while not (one.answers() and two.answers()):
                    await asyncio.sleep(0.02)
            assert not await two.acquire(1, 41), "what was held is held"
            await _until(lambda: two.acquire(1, 40))
            one.release(1)
            two.release(1)
            await _until(lambda: one.acquire("all", 100))

    _run(case)


def test_a_flushed_script_and_a_changed_clock_do_no_harm(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script is sent again; leases expire by Redis's clock, not the gateways'."""
    hours = itertools.cycle((-3600, 0, 3600))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(hours))

    async def case() -> None:
        async with ledger(redis_server) as one, ledger(redis_server) as two:
            assert await one.acquire(1, 60)
            for _ in range(int(2 * LEASE_S / 0.1)):
                await one._client.script_flush()
                assert not await two.acquire(1, 41)
                assert await two.acquire(2, 40)
                two.release(2)
                await asyncio.sleep(0.1)
                assert one.answers()

    _run(case)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("redis://127.0.0.1:{}/0", "another user or password"),
        ("redis://:wrong@127.0.0.1:{}/0", "another user or password"),
        ("redis://:sesame@127.0.0.1:{}/99", "DB index is out of range"),
        ("rediss://:sesame@127.0.0.1:{}/0", "does not answer as expected"),
    ],
)
def test_a_redis_that_refuses_is_reported_in_one_sentence(tmp_path: Path, address: str, told: str) -> None:
    server = RedisServer(tmp_path)
    server.start("--requirepass", "sesame")
    try:
        with pytest.raises(InputError, match=told) as refused:
            asyncio.run(SharedLedger.open(address.format(server.port), 100))
    finally:
        server.stop()
    assert refused.value.hint is not None
    assert "sesame" not in str(refused.value)
    assert "wrong" not in str(refused.value)


def test_it_closes_at_once_whatever_it_is_doing(redis_server: RedisServer) -> None:
    """A cancellation can coincide with a timeout; then the keeper would wait for ever."""

    async def case() -> None:
        for number in range(40):
            one = await SharedLedger.open(redis_server.url, 100, lease_s=LEASE_S)
            one._due_s = 0.0
            one._wake.set()
            for _ in range(number):
                await asyncio.sleep(0)
            async with asyncio.timeout(3):
                await one.close()

    _run(case)


REQUEST = {"prompt": [1] * 16, "max_tokens": 16, "stream": True, "fake": {"tokens": 6, "gap_s": 0.05}}
"""Two blocks of 16: the plan's 128 blocks hold 64 of them."""


async def _flood(client: aiohttp.ClientSession, urls: list[str], seconds: float) -> dict[int, int]:
    """Thirty clients per gateway that repeat after 50 ms; how often each status was answered (0: no answer)."""
    seen: dict[int, int] = {}
    end_s = time.monotonic() + seconds

    async def ask(url: str) -> None:
        while time.monotonic() < end_s:
            status = 0
            try:
                async with client.post(url + "/v1/completions", json=REQUEST) as response:
                    await response.read()
                    status = response.status
            except aiohttp.ClientError:
                pass
            seen[status] = seen.get(status, 0) + 1
            await asyncio.sleep(0.05)

    await asyncio.gather(*(ask(url) for url in urls for _ in range(30)))
    return seen


def test_four_gateways_keep_one_promise_when_one_is_killed(redis_server: RedisServer, tmp_path: Path) -> None:
    """Then Redis dies and comes back with its memory lost: meanwhile one refuses, two admit their shares."""
    traffic = tmp_path / "traffic.yaml"
    traffic.write_text(TRAFFIC)
    lease_s = 2

    async def case() -> None:
        async with contextlib.AsyncExitStack() as stack:
            engine = await stack.enter_async_context(FakeEngine(blocks=129))
            client = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            shared = ("--ledger", redis_server.url, "--ledger-lease", f"{lease_s}s")
            command = ("--upstream", engine.url, "--traffic", str(traffic), *shared, "--ledger-down")
            policies = ("refuse", "refuse", "admit-local", "admit-local")
            gateways = await asyncio.gather(*(stack.enter_async_context(started(*command, one)) for one in policies))
            urls = [url for _, url, _ in gateways]
            for url in urls:
                await _until(functools.partial(_is_ready, client, url))
            flooding = asyncio.create_task(_flood(client, urls, 2))
            await asyncio.sleep(1)
            gateways[0][0].kill()
            seen = await flooding
            assert seen[200] > 0
            assert seen[429] > 0
            assert 48 <= engine.most_running <= 64, "the pool is used, and never beyond"
            await asyncio.sleep(lease_s + 0.5)
            engine.most_running = 0
            await _flood(client, urls[1:], 1)
            assert 48 <= engine.most_running <= 64, "what the killed one held is free again"

            redis_server.stop()
            engine.most_running = 0
            closed, local = await asyncio.gather(_flood(client, urls[1:2], 1), _flood(client, urls[2:], 1))
            assert set(closed) <= {503}, "fail closed"
            assert local[200] > 0
            assert local.get(503, 0) == 0
            assert 28 <= engine.most_running <= 42, "two of three shares of 42 blocks"
            redis_server.start()
            for url in urls[1:]:
                await _until(functools.partial(_is_ready, client, url))
            engine.most_running = 0
            await _flood(client, urls[1:], 1)
            assert 48 <= engine.most_running <= 64
            for process, _, _ in gateways[1:]:
                process.terminate()

    asyncio.run(asyncio.wait_for(case(), timeout=100))


async def _is_ready(client: aiohttp.ClientSession, url: str) -> bool:
    async with client.get(url + "/readyz") as response:
        return response.status == 200
