"""Runs a gateway application on uvicorn or granian, and takes it down without breaking what is running."""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator

import uvicorn

from kvplan.errors import InputError
from kvplan.gateway.answers import AsgiApp
from kvplan.gateway.heads import HEAD_LIMIT_BYTES, HEAD_TIMEOUT_S, LimitedHeads, close_slow_heads
from kvplan.gateway.running import STALL_S, AnswerCutError

_LOOK_AGAIN_S = 0.02
_CUT_OFF_S = 0.5
_KEEP_ALIVE_S = 75
_BACKLOG = 2048
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _QuietAboutPeers(logging.Filter):
    """An answer that broke off is aborted by an exception on purpose; it is counted, not logged as a bug."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.exc_info is None or not isinstance(record.exc_info[1], AnswerCutError)


class _Server(uvicorn.Server):
    """uvicorn would take the signals for itself and stop at once; here the drain decides when it stops."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to ``host``:``port`` (0: a free one). Raises InputError where that cannot be.

    A client that acknowledges nothing for a minute is dropped by the kernel, with what was buffered for it.
    """
    if not 0 <= port < 2**16:  # getaddrinfo would keep the lowest 16 bits
        raise InputError(f"--port {port} is no port", hint="--port 8080; ports end at 65535", key="--port")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"--host {host!r} is no address of this machine",
            hint="--host 127.0.0.1, or 0.0.0.0 for all of its addresses",
            key="--host",
        ) from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALL_S * 1000))
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another --port or --host", key="--port"
        ) from error
    listener.setblocking(False)  # noqa: FBT003 - its signature
    return listener


async def serve(
    app: AsgiApp,
    listener: socket.socket,
    *,
    begin_drain: Callable[[], None],
    running: Callable[[], int],
    cut_off: Callable[[], int],
    announce: Callable[[], None],
    server: str = "uvicorn",
    grace_s: float = 30.0,
) -> int:
    """Serve until SIGTERM or SIGINT; then ``begin_drain``, let the ``running`` requests finish for ``grace_s``, stop.

    ``announce`` is called once a signal would be heeded. A second signal ends the grace. Returns how many requests were
    ``cut_off`` at its end.
    """
    loop = asyncio.get_running_loop()
    signals = asyncio.Semaphore(0)
    for number in _SIGNALS:
        loop.add_signal_handler(number, signals.release)
    announce()
    run = run_on_granian if server == "granian" else run_on_uvicorn
    stop = asyncio.Event()
    serving = loop.create_task(run(app, listener, stop))
    try:
        await _first(serving, signals.acquire())
        begin_drain()
        if not serving.done():
            await _first(serving, _finished(running, grace_s), signals.acquire())
        broken = cut_off()
        await _finished(running, _CUT_OFF_S)
        stop.set()
        await serving
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return broken


async def _first(serving: "asyncio.Task[None]", *others: object) -> None:
    """Wait until the server ends or one of ``others`` is done; what is left of those is cancelled."""
    tasks = [asyncio.ensure_future(other) for other in others]  # type: ignore[call-overload]
    await asyncio.wait({serving, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _finished(running: Callable[[], int], grace_s: float) -> None:
    deadline_s = time.monotonic() + grace_s
    while running() and time.monotonic() < deadline_s:
        await asyncio.sleep(_LOOK_AGAIN_S)


async def run_on_uvicorn(
    app: AsgiApp, listener: socket.socket, stop: asyncio.Event, *, head_timeout_s: float = HEAD_TIMEOUT_S
) -> None:
    """Serve on uvicorn until ``stop``."""
    quiet = _QuietAboutPeers()
    log = logging.getLogger("uvicorn.error")
    log.addFilter(quiet)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        http=LimitedHeads,
        lifespan="on",
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE_S,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    serving = loop.create_task(server.serve(sockets=[listener]))
    closing = loop.create_task(close_slow_heads(server, head_timeout_s))
    try:
        await _first(serving, stop.wait())
        server.should_exit = True
        await serving
    finally:
        closing.cancel()
        log.removeFilter(quiet)


async def run_on_granian(
    app: AsgiApp, listener: socket.socket, stop: asyncio.Event, *, head_timeout_s: float = HEAD_TIMEOUT_S
) -> None:
    """Serve on granian until ``stop``. Only HTTP/1.1: while it looks for HTTP/2, no limit of time would hold."""
    from granian.constants import HTTPModes, Interfaces
    from granian.http import HTTP1Settings
    from granian.log import LogLevels
    from granian.server.embed import Server

    host, port = listener.getsockname()[:2]
    listener.close()  # granian binds for itself; that the address is free has been seen
    server = Server(
        app,
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        http=HTTPModes.http1,
        websockets=False,
        log_level=LogLevels.critical,
        backlog=_BACKLOG,
        http1_settings=HTTP1Settings(header_read_timeout=int(head_timeout_s * 1000), max_buffer_size=HEAD_LIMIT_BYTES),
    )
    serving = asyncio.get_running_loop().create_task(server.serve())
    await _first(serving, stop.wait())
    if not serving.done():
        server.stop()  # type: ignore[no-untyped-call]
    await serving
