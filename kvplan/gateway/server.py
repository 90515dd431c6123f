"""Runs the application on uvicorn or granian, with limits on request heads, and shuts down without breaking requests in
flight."""

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kvplan.errors import InputError
from kvplan.gateway.in_flight import STALL_S, IncompleteResponseError
from kvplan.gateway.responses import AsgiApp

HEAD_LIMIT_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0
_LOOK_AGAIN_S = 0.02
_CUT_OFF_S = 0.5
_KEEP_ALIVE_S = 75
_BACKLOG = 2048
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of uvloop if it is installed, which takes less CPU per request; else the standard one."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on ``host``:``port`` (0: a free port). Raises InputError if it cannot.

    The kernel drops a client that acknowledges nothing for a minute, with what was buffered for it.
    """
    if not 0 <= port < 2**16:  # getaddrinfo would keep the lowest 16 bits
        raise InputError(f"--port {port} is not a port", hint="--port 8080; ports end at 65535", key="--port")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"--host {host!r} is not an address of this machine",
            hint="--host 127.0.0.1, or 0.0.0.0 for all of them",
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
    """Serve until SIGTERM or SIGINT; then ``begin_drain``, give ``running`` requests ``grace_s`` to finish, and stop.

    ``announce`` is called once signals are handled. A second signal ends the grace period. Returns how many requests
    were ``cut_off`` at its end.
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
        broken_off = cut_off()
        await _finished(running, _CUT_OFF_S)
        stop.set()
        await serving
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return broken_off


async def _first(serving: "asyncio.Task[None]", *others: object) -> None:
    """Wait until the server ends or one of ``others`` is done; the rest of those is cancelled."""
    tasks = [asyncio.ensure_future(other) for other in others]  # type: ignore[call-overload]
    await asyncio.wait({serving, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _finished(running: Callable[[], int], grace_s: float) -> None:
    deadline_s = time.monotonic() + grace_s
    while running() and time.monotonic() < deadline_s:
        await asyncio.sleep(_LOOK_AGAIN_S)


class LimitedHeadProtocol(HttpToolsProtocol):
    """What uvicorn's fast parser lacks: refuses a request head over the limit, complete or not, and knows since when
    one is due (``head_since_s``).

    It also refuses an Upgrade, because the parser would take the request's body for the next request. Between requests
    on a connection uvicorn's own idle timeout applies.
    """

    head_since_s: float | None = None
    _head_bytes = 0
    _refusal = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection: its first head is due."""
        super().connection_made(transport)
        self.head_since_s = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a head."""
        if self.head_since_s is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        is_over = self.head_since_s is not None and self._head_bytes > HEAD_LIMIT_BYTES
        if is_over and not self.transport.is_closing():
            self.send_400_response("The head of this request is too long.")

    def on_message_begin(self) -> None:
        """Called by the parser."""
        super().on_message_begin()
        if self.head_since_s is None:
            self.head_since_s = self.loop.time()

    def on_headers_complete(self) -> None:
        """Called by the parser. Part of what was counted may be body, so a long head is measured."""
        if self._head_bytes > HEAD_LIMIT_BYTES:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > HEAD_LIMIT_BYTES:
                self._refuse("The head of this request is too long.")
        if self.parser.should_upgrade():
            self._refuse("No Upgrade is served here; send plain HTTP/1.1.")
        self.head_since_s, self._head_bytes = None, 0
        super().on_headers_complete()
        self.headers = []  # what is added later are trailers, which are not headers of the request

    def _refuse(self, reason: str) -> None:
        self._refusal = reason
        raise ValueError(reason)  # becomes the parser's error, answered with 400

    def send_400_response(self, msg: str) -> None:
        """Give the reason, if it is known."""
        super().send_400_response(self._refusal or msg)


async def close_slow_heads(server: uvicorn.Server, timeout_s: float = HEAD_TIMEOUT_S) -> None:
    """Close connections whose head is incomplete after ``timeout_s``, checked every quarter of it, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(timeout_s / 4)
        oldest_s = loop.time() - timeout_s
        for connection in list(server.server_state.connections):
            since_s = connection.head_since_s if isinstance(connection, LimitedHeadProtocol) else None
            if since_s is not None and since_s < oldest_s:
                connection.transport.close()


class _Server(uvicorn.Server):
    """uvicorn would handle the signals itself and stop at once; here the drain decides when it stops."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """A response that broke off is aborted by an exception on purpose; it is counted, not logged as a bug."""
    return record.exc_info is None or not isinstance(record.exc_info[1], IncompleteResponseError)


async def run_on_uvicorn(
    app: AsgiApp, listener: socket.socket, stop: asyncio.Event, *, head_timeout_s: float = HEAD_TIMEOUT_S
) -> None:
    """Serve on uvicorn until ``stop``."""
    log = logging.getLogger("uvicorn.error")
    log.addFilter(_is_worth_logging)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        http=LimitedHeadProtocol,
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
        log.removeFilter(_is_worth_logging)


async def run_on_granian(
    app: AsgiApp, listener: socket.socket, stop: asyncio.Event, *, head_timeout_s: float = HEAD_TIMEOUT_S
) -> None:
    """Serve on granian until ``stop``. HTTP/1.1 only: while it detects HTTP/2, no timeout applies."""
    from granian.constants import HTTPModes, Interfaces
    from granian.http import HTTP1Settings
    from granian.log import LogLevels
    from granian.server.embed import Server

    host, port = listener.getsockname()[:2]
    listener.close()  # granian binds again by itself; the address is known to be free
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
