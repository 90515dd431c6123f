"""Whatever ends a request, at whatever point: its reservation comes back at once, and the engine stops."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Callable, Generator
from typing import Any

import aiohttp
import pytest

from kvplan.gateway.admission import Admission, OwnLedger
from kvplan.gateway.metrics import GatewayMetrics
from kvplan.gateway.middleware import AdmissionMiddleware
from kvplan.gateway.proxy import UpstreamProxy
from kvplan.gateway.server import loop_factory
from tests.fake_engine import FakeEngine
from tests.gateway_server import CHAT, Served, against, promise, raw_post, run

SERVERS = ("uvicorn", "uvicorn-asyncio", "granian")


class Interrupted:
    """Awaits a coroutine and throws into it at its ``at``-th suspension: before the wait, or once it is over.

    ``reached`` says whether there were so many. GeneratorExit is thrown by closing the coroutine, as a collector does.
    """

    def __init__(self, coroutine: Any, at: int, error: type[BaseException], *, late: bool) -> None:
        self.reached = False
        self._coroutine = coroutine
        self._at = at
        self._error = error
        self._late = late

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            waited_for = self._coroutine.send(None)
            for count in range(10**6):
                if count == self._at:
                    self.reached = True
                    if self._late:
                        yield waited_for
                    if self._error is GeneratorExit:
                        self._coroutine.close()
                        return
                    waited_for = self._coroutine.throw(self._error())
                else:
                    yield waited_for
                    waited_for = self._coroutine.send(None)
        except StopIteration:
            return


def scope_of(body: bytes) -> dict[str, Any]:
    """The scope of one chat."""
    return {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "query_string": b"",
        "headers": [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")],
    }


@pytest.mark.parametrize("factory", [None, loop_factory()], ids=["asyncio", "the command's"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, OSError])
def test_an_exception_at_every_await_releases(
    error: type[BaseException], late: bool, factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    async def whole() -> int:
        async with FakeEngine() as engine:
            ledger = OwnLedger(128)
            proxy = UpstreamProxy(engine.url, GatewayMetrics(ledger))
            admission = Admission(promise(), ledger)
            app = AdmissionMiddleware(proxy, admission, count=_count)
            reached = 0
            for at in range(200):
                stepper = await _one(app, at, error, late=late)
                assert ledger.reserved == ledger.holders == admission.running == 0, f"suspension {at}"
                if not stepper.reached:
                    break
                reached = at
            for _ in range(500):
                if not engine.running:
                    break
                await asyncio.sleep(0.01)
            assert engine.running == 0
            await proxy.close()
        leftovers = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]
        await asyncio.sleep(0.05)
        assert not [task for task in leftovers if not task.done()]
        return reached

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(whole()) > 8


async def _count(path: str, fields: Any, *, may_wait: bool) -> int | None:
    await asyncio.sleep(0.001)
    return 10


async def _one(app: AdmissionMiddleware, at: int, error: type[BaseException], *, late: bool) -> Interrupted:
    """One chat with a client that sends its body in two pieces, and an exception at the ``at``-th suspension."""
    body = json.dumps(
        {"messages": [{"role": "user", "content": "x"}], "stream": True, "fake": {"tokens": 4, "gap_s": 0.002}}
    ).encode()
    pieces = [body[:20], body[20:]]

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        if pieces:
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(_: Any) -> None:
        await asyncio.sleep(0)

    stepper = Interrupted(app(scope_of(body), receive, send), at, error, late=late)

    async def steps() -> None:
        await stepper

    with contextlib.suppress(error, asyncio.CancelledError):
        await steps()
    return stepper


async def _cut(gateway: Served, sent: bytes, received: int, *, reset: bool) -> None:
    """Send ``sent``, read ``received`` bytes, and leave: by an orderly close, or by a reset."""
    reader, writer = await gateway.open(sent)
    await writer.drain()
    if received:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readexactly(received)
    if reset:
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def _request(fields: dict[str, Any]) -> bytes:
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 8, **fields}).encode()
    return raw_post(body, b"Connection: close")


async def _leave(gateway: Served, fields: dict[str, Any]) -> None:
    """Ask, and go once the engine has begun."""
    _, writer = await gateway.open(_request(fields))
    await gateway.until_running(1)
    assert gateway.ledger.holders == 1
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("stream", [True, False])
@against(promise(capacity=4096), servers=SERVERS)
async def test_a_client_that_leaves_after_any_byte_frees_everything(gateway: Served, stream: bool) -> None:
    request = _request({"stream": stream, "fake": {"tokens": 3, "gap_s": 0.004}})
    _, _, whole = await gateway.chat(max_tokens=8, stream=stream, fake={"tokens": 3})
    cuts = [(request[:sent], 0) for sent in range(1, len(request) + 1)]
    cuts += [(request, received) for received in range(1, len(whole) + 300)]
    for start in range(0, len(cuts), 40):
        batch = cuts[start : start + 40]
        await asyncio.gather(
            *(_cut(gateway, sent, received, reset=bool(i % 2)) for i, (sent, received) in enumerate(batch))
        )
        assert await gateway.is_idle(), f"after a cut near {batch[0][1]} bytes"
    assert (await gateway.chat(max_tokens=8))[0] == 200


@pytest.mark.parametrize("stream", [True, False])
@against(servers=SERVERS)
async def test_an_engine_that_dies_anywhere_frees_everything_and_never_ends_cleanly(
    gateway: Served, stream: bool
) -> None:
    for die_after in (-2, 0, 1, 2, 5):
        fake = {"tokens": 6, "gap_s": 0.005, "die_after": die_after}
        if die_after == -2:
            assert (await gateway.chat(stream=stream, max_tokens=8, fake=fake))[0] == 503
        else:
            with pytest.raises(aiohttp.ClientPayloadError):
                await gateway.chat(stream=stream, max_tokens=8, fake=fake)
        assert await gateway.is_idle()


@against(promise(capacity=4096), servers=SERVERS)
async def test_both_ends_leaving_together_free_everything(gateway: Served) -> None:
    for die_after in (-2, 0, 1, 2):
        request = _request({"stream": True, "fake": {"tokens": 6, "gap_s": 0.01, "die_after": die_after}})
        await asyncio.gather(*(_cut(gateway, request, 40 * i, reset=bool(i % 2)) for i in range(12)))
        assert await gateway.is_idle()


@against(servers=SERVERS)
async def test_a_release_is_seen_within_milliseconds_of_the_disconnect(gateway: Served) -> None:
    await _leave(gateway, {"stream": True, "fake": {"tokens": 1000, "wait_s": 10}})
    assert await gateway.is_idle(within_s=2.0), "a silent upstream hides no disconnect"


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    ("aborts", "stream", "is_stopped"),
    [
        ("all", False, True),
        ("streams", True, True),
        ("streams", False, False),
        ("nothing", True, False),
    ],
)
def test_a_reservation_is_held_while_the_engine_goes_on(
    server: str, aborts: str, stream: bool, is_stopped: bool
) -> None:
    async def case(gateway: Served) -> None:
        await _leave(gateway, {"stream": stream, "fake": {"tokens": 8, "gap_s": 0.05}})
        while gateway.engine.running:
            assert gateway.ledger.holders == 1 or is_stopped
            await asyncio.sleep(0.005)
        assert gateway.engine.aborted == is_stopped
        assert await gateway.is_idle()
        assert (await gateway.figures())['kvplan_ended_early_total{cause="client_gone"}'] == 1

    run(case, server=server, engine_aborts=aborts)


@against(servers=SERVERS, engine_aborts="nothing")
async def test_a_request_without_its_client_ends_with_the_grace_period(gateway: Served) -> None:
    await _leave(gateway, {"stream": False, "max_tokens": 500, "fake": {"tokens": 500, "gap_s": 0.05}})
    await asyncio.sleep(0.05)
    assert gateway.ledger.holders == 1
    assert gateway.gateway.cut_off() == 1
    assert await gateway.is_idle()
