"""How a connection reads an engine's bytes: compared with aiohttp's client, and wherever a response goes wrong."""

import asyncio
import contextlib

import aiohttp
import pytest

from kvplan.gateway.connection import BrokenResponseError, UnreachableError, UpstreamError
from kvplan.gateway.connection_pool import ConnectionPool
from tests.gateway_script import (
    CHUNKED,
    ENDING,
    INTERIM,
    KEPT,
    LENGTH,
    TRAILERS,
    Engine,
    ask,
    on_both_loops,
    pool_of,
    rest,
    serving,
)

HEAD = b"HTTP/1.1 200 OK\r\n%b\r\n\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
READ_ALIKE = {
    **KEPT,
    **ENDING,
    "304 with the length of another": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
    "204 with a length": b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
    "no reason": b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
    "empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/1.0 to the end": b"HTTP/1.0 200 OK\r\n\r\nhello",
    "an error": b"HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nhello",
    "extensions of a chunk": HEAD % b"Transfer-Encoding: chunked" + CHUNKS.replace(b"5\r", b"5;a=b\r"),
    "capitals": HEAD % b"TRANSFER-ENCODING: Chunked" + CHUNKS,
}
REFUSED_ALIKE = {
    "two lengths": HEAD % b"Content-Length: 5\r\nContent-Length: 6" + b"hello",
    "a length and chunks": HEAD % b"Content-Length: 5\r\nTransfer-Encoding: chunked" + CHUNKS,
    "a signed length": HEAD % b"Content-Length: +5" + b"hello",
    "a list of lengths": HEAD % b"Content-Length: 5, 5" + b"hello",
    "a control character": HEAD % b"X: a\0b\r\nContent-Length: 5" + b"hello",
    "a chunk of no length": HEAD % b"Transfer-Encoding: chunked" + b"x\r\nhello\r\n0\r\n\r\n",
    "a chunk that is longer than it says": HEAD % b"Transfer-Encoding: chunked" + b"4\r\nhello\r\n0\r\n\r\n",
    "cut": LENGTH[:-2],
    "cut chunks": CHUNKED[:-2],
    "nothing": b"",
}
REFUSED_HERE = {
    "the same length twice": HEAD % b"Content-Length: 5\r\nContent-Length: 5" + b"hello",
    "a folded header": HEAD % b"X: a\r\n b\r\nContent-Length: 5" + b"hello",
    "a coding that is left to the client": HEAD % b"Transfer-Encoding: gzip, chunked" + CHUNKS,
    "a coding that ends with the connection": HEAD % b"Transfer-Encoding: gzip" + b"hello",
    "a coding after the chunks": HEAD % b"Transfer-Encoding: chunked, gzip" + CHUNKS,
    "a blank before the colon": HEAD % b"Content-Length : 5" + b"hello",
    "lines that end without a return": b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
    "chunked twice": HEAD % b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked" + CHUNKS,
}
"""What aiohttp's client may accept and this one does not: two parsers could disagree where such a response ends."""


async def read_by_aiohttp(port: int) -> tuple[int, bytes]:
    """Status and body of a response, as another client reads them."""
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.post(f"http://127.0.0.1:{port}/base/v1/x", data=b"{}") as response,
    ):
        return response.status, await response.read()


@pytest.mark.parametrize("name", [*READ_ALIKE, *REFUSED_ALIKE])
@on_both_loops
async def test_a_response_is_read_as_aiohttp_reads_it(name: str) -> None:
    raw = {**READ_ALIKE, **REFUSED_ALIKE}[name]
    async with serving(Engine([raw, 0.02, None], [raw, 0.02, None]).serve) as port:
        expected = ours = None
        with contextlib.suppress(aiohttp.ClientError):
            expected = await read_by_aiohttp(port)
        pool = ConnectionPool(f"http://127.0.0.1:{port}/base")
        with contextlib.suppress(UpstreamError):
            ours = await ask(pool)
        pool.close()
    assert ours == expected
    assert (ours is None) == (name in REFUSED_ALIKE)


@pytest.mark.parametrize("raw", REFUSED_HERE.values(), ids=REFUSED_HERE)
@on_both_loops
async def test_what_two_parsers_could_read_differently_is_refused(raw: bytes) -> None:
    async with pool_of(Engine([raw, 0.02, None])) as pool:
        with pytest.raises(BrokenResponseError):
            await ask(pool)


@pytest.mark.parametrize("name", [*KEPT, *ENDING])
@on_both_loops
async def test_a_response_is_the_same_wherever_it_is_split(name: str) -> None:
    raw = {**KEPT, **ENDING}[name]
    scripts: list[list[bytes | float | None]] = [[raw[:at], 0.002, raw[at:]] for at in range(1, len(raw), 3)]
    if name in ENDING:
        scripts = [[*script, None] for script in scripts]
    status, body = (204, b"") if name == "empty" else (200, b"hello")
    engine = Engine(*scripts)
    async with pool_of(engine) as pool:
        for _ in scripts:
            assert await ask(pool) == (status, body)
    assert engine.connections == (len(scripts) if name in ENDING else 1)


@on_both_loops
async def test_headers_are_the_final_response_s_in_lower_case() -> None:
    async with pool_of(Engine([INTERIM], [TRAILERS])) as pool:
        answer = await pool.request("POST", b"/", [], b"")
        assert answer.headers == [(b"content-length", b"5"), (b"x-engine", b"a")]
        answer.close()  # its body was not taken, but is here: the connection stays
        answer = await pool.request("POST", b"/", [], b"")
        assert await rest(answer) == b"hello"
        assert answer.headers == [(b"transfer-encoding", b"chunked")]
        answer.close()


@on_both_loops
async def test_the_response_to_head_has_no_body_whatever_its_length_says() -> None:
    engine = Engine([LENGTH[:-5]], [LENGTH])
    async with pool_of(engine) as pool:
        assert await ask(pool, "HEAD", b"") == (200, b"")
        assert await ask(pool) == (200, b"hello")


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", UnreachableError),
        (LENGTH[:20], UnreachableError),
        (b"nonsense\r\n\r\n", BrokenResponseError),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", UpstreamError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", BrokenResponseError),
        (b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 100_000, BrokenResponseError),
        (LENGTH[:-2], BrokenResponseError),
        (CHUNKED[:-2], BrokenResponseError),
        (CHUNKED[:-9], BrokenResponseError),
    ],
)
@on_both_loops
async def test_an_incomplete_response_is_never_taken_for_a_complete_one(raw: bytes, error: type[UpstreamError]) -> None:
    async with pool_of(Engine([raw, 0.01, None])) as pool:
        with pytest.raises(error):
            await ask(pool)


@on_both_loops
async def test_what_arrived_is_delivered_before_the_error() -> None:
    async with pool_of(Engine([LENGTH[:-2], None])) as pool:
        answer = await pool.request("POST", b"/", [], b"")
        await asyncio.sleep(0.05)
        assert await answer.read() == b"hel"
        assert not answer.is_complete
        with pytest.raises(BrokenResponseError):
            await answer.read()
        answer.close()


@on_both_loops
async def test_abandoning_a_response_closes_its_connection() -> None:
    engine = Engine([CHUNKED[:50], 5.0], [LENGTH])
    async with pool_of(engine) as pool:
        answer = await pool.request("POST", b"/", [], b"")
        answer.close()
        assert await ask(pool) == (200, b"hello")
        assert engine.connections == 2


@on_both_loops
async def test_unexpected_bytes_close_a_connection() -> None:
    closing = HEAD % b"Connection: close\r\nContent-Length: 5" + b"hello, and more"
    async with pool_of(Engine([closing], [LENGTH + b"garbage"])) as pool:
        for _ in range(2):
            assert await ask(pool) == (200, b"hello")
            assert not pool._idle
    engine = Engine([LENGTH + LENGTH], [LENGTH, 0.01, LENGTH], [CHUNKED])
    async with pool_of(engine) as pool:
        assert await ask(pool) == (200, b"hello")
        assert await ask(pool) == (200, b"hello")
        while engine.closed < 2:
            await asyncio.sleep(0.005)
        assert await ask(pool) == (200, b"hello")
        assert engine.connections == 3


@on_both_loops
async def test_a_response_that_is_not_read_exerts_backpressure() -> None:
    size = 32 * 2**20
    written = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        written = 0
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        with contextlib.suppress(ConnectionError):
            while written < size:
                writer.write(b"x" * 65536)
                await writer.drain()
                written += 65536
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = ConnectionPool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    answer = await pool.request("GET", b"/", [], b"")
    await asyncio.sleep(0.2)
    assert written < size // 2, "what the sockets buffer, and 256 KiB"
    assert len(await rest(answer)) == size
    answer.close()
    pool.close()
    server.close()
    await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
@on_both_loops
async def test_interim_responses_have_a_limit(interim: bytes) -> None:
    pieces: list[bytes | float | None] = [interim * 500, 0.001] * 20
    async with pool_of(Engine([*pieces, LENGTH])) as pool:
        with pytest.raises(BrokenResponseError, match="too long"):
            await ask(pool)


@pytest.mark.parametrize(
    ("answer", "says_no_more"),
    [
        (b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno", False),
        (b"HTTP/1.1 413 Too Large\r\n\r\nno", True),
    ],
    ids=["complete", "half-closed"],
)
@on_both_loops
async def test_a_response_before_the_whole_request_closes_the_connection(answer: bytes, says_no_more: bool) -> None:
    """The rest of the body would be read as the next request; an engine that half-closes is not waited for."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if says_no_more:
            writer.write_eof()
        try:
            await asyncio.sleep(5)
        finally:
            writer.close()

    async with serving(serve) as port:
        pool = ConnectionPool(f"http://127.0.0.1:{port}")
        start_s = asyncio.get_running_loop().time()
        assert await ask(pool, body=b"x" * 2**24) == (413, b"no")
        assert not pool._idle
        assert await ask(pool, body=b"x") == (413, b"no")
        assert asyncio.get_running_loop().time() - start_s < 4, "before the engine closes"
        assert connections == 2
        pool.close()
