"""The connections to an engine, against engines that are scripted byte for byte."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kvplan.gateway.command import loop_factory
from kvplan.gateway.proxy import UpstreamProxy
from kvplan.gateway.upstream import BrokenOffError, Connection, SilentError, UnreachableError, Upstream, UpstreamError

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
async def upstream_of(engine: Engine, *, silence_s: float = 60.0) -> AsyncIterator[Upstream]:
    """Connections to ``engine`` on a free port."""
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    upstream = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base", silence_s=silence_s)
    try:
        yield upstream
    finally:
        upstream.close()
        server.close()
        await asyncio.sleep(0.01)


def run(case: Callable[[], Awaitable[None]]) -> None:
    """Run ``case`` with a limit in time, on asyncio's loop and on the one that the command takes."""

    async def limited() -> None:
        async with asyncio.timeout(30):
            await case()

    for factory in (None, loop_factory()):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(limited())


async def ask(upstream: Upstream, method: str = "POST", body: bytes = b"{}") -> tuple[int, bytes]:
    """Status and body of one answer."""
    answer = await upstream.ask(method, b"/v1/x", [(b"authorization", b"Bearer x")], body)
    try:
        return answer.status, await rest(answer)
    finally:
        answer.close()


async def rest(answer: Connection) -> bytes:
    """All that comes of an answer."""
    pieces = []
    while piece := await answer.piece():
        pieces.append(piece)
    assert answer.is_whole
    return b"".join(pieces)


@pytest.mark.parametrize("name", [*KEPT, *ENDING])
def test_an_answer_is_the_same_wherever_it_is_split(name: str) -> None:
    raw = {**KEPT, **ENDING}[name]
    scripts: list[list[bytes | float | None]] = [[raw[:at], 0.002, raw[at:]] for at in range(1, len(raw), 3)]
    if name in ENDING:
        scripts = [[*script, None] for script in scripts]
    status, body = (204, b"") if name == "empty" else (200, b"hello")

    async def case() -> None:
        engine = Engine(*scripts)
        async with upstream_of(engine) as upstream:
            for _ in scripts:
                assert await ask(upstream) == (status, body)
        assert engine.connections == (len(scripts) if name in ENDING else 1)

    run(case)


def test_a_request_is_written_once_with_one_length() -> None:
    async def case() -> None:
        engine = Engine([LENGTH], [LENGTH], [LENGTH])
        async with upstream_of(engine) as upstream:
            await ask(upstream, body=b"abc")
            await ask(upstream, body=b"")
            await ask(upstream, "GET", b"")
        host = engine.requests[0].split(b"\r\n")[1]
        assert host.startswith(b"host: 127.0.0.1:")
        start = b" /base/v1/x HTTP/1.1\r\n" + host + b"\r\nauthorization: Bearer x\r\n"
        assert engine.requests == [
            b"POST" + start + b"content-length: 3\r\n\r\nabc",
            b"POST" + start + b"content-length: 0\r\n\r\n",
            b"GET" + start + b"\r\n",
        ]

    run(case)


def test_headers_are_those_of_the_answer_in_lower_case() -> None:
    async def case() -> None:
        async with upstream_of(Engine([INTERIM], [TRAILERS])) as upstream:
            answer = await upstream.ask("POST", b"/", [], b"")
            assert answer.headers == [(b"content-length", b"5"), (b"x-engine", b"a")]
            answer.close()  # its body was not taken, but is here: the connection stays
            answer = await upstream.ask("POST", b"/", [], b"")
            assert await rest(answer) == b"hello"
            assert answer.headers == [(b"transfer-encoding", b"chunked")]
            answer.close()

    run(case)


def test_hop_by_hop_headers_of_the_engine_stop_at_the_proxy() -> None:
    inner = b"Keep-Alive: timeout=9\r\nConnection: keep-alive, X-Inner\r\nX-Inner: 1\r\nProxy-Authenticate: Basic\r\n"
    answer = LENGTH.replace(b"X-Engine", inner + b"Date: today\r\nTrailer: x\r\nX-Engine")
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def case() -> None:
        sent.clear()
        async with upstream_of(Engine([answer])) as upstream:
            proxy = UpstreamProxy("http://127.0.0.1:9")
            proxy._upstream = upstream
            scope = {"type": "http", "method": "GET", "path": "/v1/models", "query_string": b"", "headers": []}
            await proxy(scope, receive, send)
        assert sent[0]["headers"] == [(b"content-length", b"5"), (b"x-engine", b"a")]
        assert b"".join(message["body"] for message in sent[1:]) == b"hello"

    run(case)


def test_the_answer_to_head_has_no_body_whatever_its_length_says() -> None:
    async def case() -> None:
        engine = Engine([LENGTH[:-5]], [LENGTH])
        async with upstream_of(engine) as upstream:
            assert await ask(upstream, "HEAD", b"") == (200, b"")
            assert await ask(upstream) == (200, b"hello")

    run(case)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", UnreachableError),
        (LENGTH[:20], UnreachableError),
        (b"nonsense\r\n\r\n", BrokenOffError),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", UpstreamError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", BrokenOffError),
        (b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 100_000, BrokenOffError),
        (LENGTH[:-2], BrokenOffError),
        (CHUNKED[:-2], BrokenOffError),
        (CHUNKED[:-9], BrokenOffError),
    ],
)
def test_what_is_no_whole_answer_is_never_taken_for_one(raw: bytes, error: type[UpstreamError]) -> None:
    async def case() -> None:
        async with upstream_of(Engine([raw, 0.01, None])) as upstream:
            with pytest.raises(error):
                await ask(upstream)

    run(case)


def test_what_had_come_is_given_before_the_break() -> None:
    async def case() -> None:
        async with upstream_of(Engine([LENGTH[:-2], None])) as upstream:
            answer = await upstream.ask("POST", b"/", [], b"")
            await asyncio.sleep(0.05)
            assert await answer.piece() == b"hel"
            assert not answer.is_whole
            with pytest.raises(BrokenOffError):
                await answer.piece()
            answer.close()

    run(case)


def test_leaving_an_answer_that_is_not_over_closes_its_connection() -> None:
    async def case() -> None:
        engine = Engine([CHUNKED[:50], 5.0], [LENGTH])
        async with upstream_of(engine) as upstream:
            answer = await upstream.ask("POST", b"/", [], b"")
            answer.close()
            assert await ask(upstream) == (200, b"hello")
            assert engine.connections == 2

    run(case)


def test_bytes_that_nobody_asked_for_end_a_connection() -> None:
    async def case() -> None:
        engine = Engine([LENGTH + LENGTH], [LENGTH, 0.01, LENGTH], [CHUNKED])
        async with upstream_of(engine) as upstream:
            assert await ask(upstream) == (200, b"hello")
            assert await ask(upstream) == (200, b"hello")
            while engine.closed < 2:
                await asyncio.sleep(0.005)
            assert await ask(upstream) == (200, b"hello")
            assert engine.connections == 3

    run(case)


def test_a_connection_that_the_engine_closed_is_not_used_again() -> None:
    async def case() -> None:
        engine = Engine([LENGTH, None], [LENGTH])
        async with upstream_of(engine) as upstream:
            assert await ask(upstream) == (200, b"hello")
            while upstream._idle:
                await asyncio.sleep(0.005)
            assert await ask(upstream) == (200, b"hello")
            assert engine.connections == 2

    run(case)


@pytest.mark.parametrize("sent", [b"", LENGTH[:20], LENGTH[:-2]], ids=["nothing", "half a head", "half a body"])
def test_an_engine_that_falls_silent_is_given_up(sent: bytes) -> None:
    async def case() -> None:
        async with upstream_of(Engine([sent, 5.0]), silence_s=0.1) as upstream:
            with pytest.raises(SilentError):
                await ask(upstream)

    run(case)


def test_a_slow_engine_is_not_a_silent_one() -> None:
    pieces: list[bytes | float | None] = [part for at in range(len(LENGTH)) for part in (LENGTH[at : at + 1], 0.015)]

    async def case() -> None:
        async with upstream_of(Engine(pieces), silence_s=0.6) as upstream:
            assert await ask(upstream) == (200, b"hello")

    run(case)


def test_an_answer_that_is_not_taken_is_read_no_further() -> None:
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

    async def case() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        upstream = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        answer = await upstream.ask("GET", b"/", [], b"")
        await asyncio.sleep(0.2)
        assert written < size // 2, "what the sockets buffer, and 256 KiB"
        assert len(await rest(answer)) == size
        answer.close()
        upstream.close()
        server.close()
        await asyncio.sleep(0.01)

    run(case)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here to make a certificate")
def test_an_engine_behind_tls_is_asked_only_where_its_certificate_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=engine", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(["openssl", "req", *made, *names, *files], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    async def ask_at(host: str, engine: Engine) -> tuple[int, bytes]:
        server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, ssl=context)
        upstream = Upstream(f"https://{host}:{server.sockets[0].getsockname()[1]}")
        try:
            await ask(upstream)
            return await ask(upstream)
        finally:
            upstream.close()
            server.close()
            await asyncio.sleep(0.05)

    async def case() -> None:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with pytest.raises(UnreachableError, match="SSLCertVerificationError"):
            await ask_at("localhost", Engine([CHUNKED], [LENGTH]))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        with pytest.raises(UnreachableError, match="SSLCertVerificationError"):
            await ask_at("127.0.0.1", Engine([CHUNKED], [LENGTH]))
        engine = Engine([CHUNKED], [LENGTH])
        assert await ask_at("localhost", engine) == (200, b"hello")
        assert engine.connections == 1

    run(case)


@pytest.mark.parametrize("port", [9, 1])
def test_an_engine_that_is_not_there_cannot_be_reached(port: int) -> None:
    async def case() -> None:
        with pytest.raises(UnreachableError, match="ConnectionRefusedError"):
            await ask(Upstream(f"http://127.0.0.1:{port}"))

    run(case)


@pytest.mark.parametrize(
    ("target", "header"),
    [
        (b"/ HTTP/1.1\r\nx: y\r\n\r\nGET /", (b"a", b"b")),
        (b"/a b", (b"a", b"b")),
        (b"/", (b"a", b"b\r\ntransfer-encoding: chunked")),
        (b"/", (b"a\nb", b"c")),
        (b"/", (b"a", b"b\rc")),
        (b"/", (b"a", b"b\0c")),
    ],
)
def test_nothing_can_be_written_between_the_lines(target: bytes, header: tuple[bytes, bytes]) -> None:
    async def case() -> None:
        engine = Engine([LENGTH])
        async with upstream_of(engine) as upstream:
            with pytest.raises(ValueError, match="control character"):
                await upstream.ask("POST", target, [header], b"")
            assert not engine.requests

    run(case)
