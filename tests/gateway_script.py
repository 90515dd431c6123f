"""A fake engine scripted byte for byte, and connections to it."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import ParamSpec

from kvplan.gateway.connection import Connection
from kvplan.gateway.connection_pool import ConnectionPool
from kvplan.gateway.server import loop_factory

Given = ParamSpec("Given")

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Engine: a\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
TRAILERS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Late: 1\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + LENGTH
CLOSING = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
TO_THE_END = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
KEPT = {"length": LENGTH, "chunked": CHUNKED, "trailers": TRAILERS, "interim": INTERIM, "empty": EMPTY}
ENDING = {"closing": CLOSING, "to the end": TO_THE_END}


class Engine:
    """Answers the n-th request with the n-th script, a list of pieces: bytes, or seconds to wait. ``None``: cut."""

    def __init__(self, *scripts: list[bytes | float | None]) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.closed = 0
        self._scripts = list(scripts)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self._scripts:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.split(b"\r\n") if line.startswith(b"content-length: ")]
                body = await reader.readexactly(int(length[0][16:])) if length else b""
                self.requests.append(head + body)
                for piece in self._scripts.pop(0):
                    if piece is None:
                        return
                    if isinstance(piece, bytes):
                        writer.write(piece)
                        await writer.drain()
                    else:
                        await asyncio.sleep(piece)
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.closed += 1
            writer.close()


@asynccontextmanager
async def serving(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncIterator[int]:
    """The port on which ``serve`` answers every connection."""
    server = await asyncio.start_server(serve, host, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def pool_of(engine: Engine, *, silence_s: float = 60.0) -> AsyncIterator[ConnectionPool]:
    """Connections to ``engine`` on a free port."""
    async with serving(engine.serve) as port:
        pool = ConnectionPool(f"http://127.0.0.1:{port}/base", silence_s=silence_s)
        try:
            yield pool
        finally:
            pool.close()


def on_both_loops(case: Callable[Given, Coroutine[None, None, None]]) -> Callable[Given, None]:
    """Turn a coroutine into a test that runs on asyncio's event loop and on the command's, with a time limit."""

    @functools.wraps(case)
    def test(*args: Given.args, **named: Given.kwargs) -> None:
        for factory in (None, loop_factory()):
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(asyncio.wait_for(case(*args, **named), 30))

    return test


async def ask(pool: ConnectionPool, method: str = "POST", body: bytes = b"{}") -> tuple[int, bytes]:
    """Status and body of one response."""
    answer = await pool.request(method, b"/v1/x", [(b"authorization", b"Bearer x")], body)
    try:
        return answer.status, await rest(answer)
    finally:
        answer.close()


async def rest(answer: Connection) -> bytes:
    """The rest of a response's body."""
    pieces = []
    while piece := await answer.read():
        pieces.append(piece)
    assert answer.is_complete
    return b"".join(pieces)
