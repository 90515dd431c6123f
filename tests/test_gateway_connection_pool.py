"""The connections to an engine: which are kept, which are opened, and which requests are sent again."""

import asyncio
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvplan.gateway import connection_pool
from kvplan.gateway.admission import OwnLedger
from kvplan.gateway.connection import SilentError, UnreachableError, UpstreamError
from kvplan.gateway.connection_pool import ConnectionPool
from kvplan.gateway.metrics import GatewayMetrics
from kvplan.gateway.proxy import UpstreamProxy
from tests.gateway_script import CHUNKED, LENGTH, TO_THE_END, Engine, ask, on_both_loops, pool_of, serving


@on_both_loops
async def test_a_request_is_written_once_with_one_length() -> None:
    engine = Engine([LENGTH], [LENGTH], [LENGTH])
    async with pool_of(engine) as pool:
        await ask(pool, body=b"abc")
        await ask(pool, body=b"")
        await ask(pool, "GET", b"")
    host = engine.requests[0].split(b"\r\n")[1]
    assert host.startswith(b"host: 127.0.0.1:")
    start = b" /base/v1/x HTTP/1.1\r\n" + host + b"\r\nauthorization: Bearer x\r\n"
    assert engine.requests == [
        b"POST" + start + b"content-length: 3\r\n\r\nabc",
        b"POST" + start + b"content-length: 0\r\n\r\n",
        b"GET" + start + b"\r\n",
    ]


async def proxied(pool: ConnectionPool) -> list[Any]:
    """The ASGI messages of one response that came through the proxy."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    proxy = UpstreamProxy("http://127.0.0.1:9", GatewayMetrics(OwnLedger(1)))
    proxy._pool = pool
    await proxy(
        {"type": "http", "method": "GET", "path": "/v1/models", "query_string": b"", "headers": []}, receive, send
    )
    return sent


@on_both_loops
async def test_hop_by_hop_headers_of_the_engine_stop_at_the_proxy() -> None:
    inner = b"Keep-Alive: timeout=9\r\nConnection: keep-alive, X-Inner\r\nX-Inner: 1\r\nProxy-Authenticate: Basic\r\n"
    answer = LENGTH.replace(b"X-Engine", inner + b"Date: today\r\nTrailer: x\r\nX-Engine")
    async with pool_of(Engine([answer])) as pool:
        sent = await proxied(pool)
    assert sent[0]["headers"] == [(b"content-length", b"5"), (b"x-engine", b"a")]
    assert b"".join(message["body"] for message in sent[1:]) == b"hello"


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
@on_both_loops
async def test_no_length_is_announced_without_a_body(status: bytes) -> None:
    answer = b"HTTP/1.1 %b\r\nContent-Length: 5\r\nEtag: x\r\n\r\n" % status
    async with pool_of(Engine([answer])) as pool:
        sent = await proxied(pool)
    assert sent[0]["headers"] == [(b"etag", b"x")]
    assert [message["body"] for message in sent[1:]] == [b""]


@on_both_loops
async def test_a_connection_that_the_engine_closed_is_not_reused() -> None:
    engine = Engine([LENGTH, None], [LENGTH])
    async with pool_of(engine) as pool:
        assert await ask(pool) == (200, b"hello")
        while pool._idle:
            await asyncio.sleep(0.005)
        assert await ask(pool) == (200, b"hello")
        assert engine.connections == 2


@pytest.mark.parametrize("sent", [b"", LENGTH[:20], LENGTH[:-2]], ids=["nothing", "half a head", "half a body"])
@on_both_loops
async def test_a_silent_engine_is_given_up(sent: bytes) -> None:
    async with pool_of(Engine([sent, 5.0]), silence_s=0.1) as pool:
        with pytest.raises(SilentError):
            await ask(pool)


@on_both_loops
async def test_a_slow_engine_is_not_a_silent_one() -> None:
    pieces: list[bytes | float | None] = [part for at in range(len(LENGTH)) for part in (LENGTH[at : at + 1], 0.015)]
    async with pool_of(Engine(pieces), silence_s=0.6) as pool:
        assert await ask(pool) == (200, b"hello")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here to make a certificate")
@on_both_loops
async def test_an_engine_behind_tls_must_have_a_trusted_certificate(
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
        pool = ConnectionPool(f"https://{host}:{server.sockets[0].getsockname()[1]}")
        try:
            await ask(pool)
            return await ask(pool)
        finally:
            pool.close()
            server.close()
            await asyncio.sleep(0.05)

    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(UnreachableError, match="SSLCertVerificationError"):
        await ask_at("localhost", Engine([CHUNKED], [LENGTH]))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    with pytest.raises(UnreachableError, match="SSLCertVerificationError"):
        await ask_at("127.0.0.1", Engine([CHUNKED], [LENGTH]))
    for last in ([LENGTH], [TO_THE_END, None]):
        engine = Engine([CHUNKED], list(last))
        assert await ask_at("localhost", engine) == (200, b"hello")
        assert engine.connections == 1


@pytest.mark.parametrize("port", [9, 1])
@on_both_loops
async def test_a_refused_connection_is_unreachable(port: int) -> None:
    with pytest.raises(UnreachableError, match="ConnectionRefusedError"):
        await ask(ConnectionPool(f"http://127.0.0.1:{port}"))


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
@on_both_loops
async def test_headers_cannot_inject_lines(target: bytes, header: tuple[bytes, bytes]) -> None:
    engine = Engine([LENGTH])
    async with pool_of(engine) as pool:
        with pytest.raises(ValueError, match="control character"):
            await pool.request("POST", target, [header], b"")
        assert not engine.requests


@pytest.mark.parametrize(("method", "is_sent_again"), [("GET", True), ("HEAD", True), ("POST", False)])
@on_both_loops
async def test_a_kept_connection_may_close_as_it_is_used(method: str, is_sent_again: bool) -> None:
    """The engine closes it on the second request without a byte: it may have begun to compute a POST."""
    answer = LENGTH[:-5] if method == "HEAD" else LENGTH
    engine = Engine([LENGTH], [None], [answer])
    async with pool_of(engine) as pool:
        await ask(pool)
        if is_sent_again:
            assert (await ask(pool, method, b""))[0] == 200
        else:
            with pytest.raises(UnreachableError):
                await ask(pool, method)
        assert len(engine.requests) == 2 + is_sent_again
        assert not pool._busy


@on_both_loops
async def test_what_is_sent_again_is_asked_once_and_only_where_nothing_came() -> None:
    engine = Engine([LENGTH], [LENGTH[:9], None], [None], [LENGTH], [None], [None])
    async with pool_of(engine) as pool:
        await ask(pool, "GET", b"")
        with pytest.raises(UpstreamError):  # on a kept connection, after a byte
            await ask(pool, "GET", b"")
        with pytest.raises(UpstreamError):  # on a new one
            await ask(pool, "GET", b"")
        await ask(pool, "GET", b"")
        with pytest.raises(UpstreamError):  # on a kept one, and on a new one
            await ask(pool, "GET", b"")
        assert len(engine.requests) == 6


@on_both_loops
async def test_there_is_a_connection_for_each_concurrent_request() -> None:
    scripts: list[list[bytes | float | None]] = [[0.02, LENGTH] for _ in range(10)]
    engine = Engine(*scripts)
    async with pool_of(engine) as pool:
        for _ in range(2):
            await asyncio.gather(*(ask(pool) for _ in range(5)))
            assert (len(pool._idle), len(pool._busy)) == (5, 0)
        assert engine.connections == 5


@on_both_loops
async def test_an_idle_connection_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "_IDLE_S", 0.05)
    engine = Engine([LENGTH], [LENGTH])
    async with pool_of(engine) as pool:
        await ask(pool)
        while not engine.closed:
            await asyncio.sleep(0.005)
        assert not pool._idle
        await ask(pool)
        assert engine.connections == 2


@on_both_loops
async def test_a_restarted_engine_is_reached_again() -> None:
    async with serving(Engine([LENGTH, None]).serve) as port:
        pool = ConnectionPool(f"http://127.0.0.1:{port}")
        await ask(pool)
    with pytest.raises(UnreachableError):
        await ask(pool)
    async with serving(Engine([LENGTH]).serve, port=port):
        assert await ask(pool) == (200, b"hello")
    pool.close()


@on_both_loops
async def test_an_ipv6_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):  # nor does a proxy of the environment come between
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    engine = Engine([LENGTH])
    try:
        serving_6 = serving(engine.serve, host="::1")
        port = await serving_6.__aenter__()
    except OSError as error:
        pytest.skip(f"no IPv6 on this loopback: {error}")
    pool = ConnectionPool(f"http://[::1]:{port}")
    assert await ask(pool) == (200, b"hello")
    assert b"\r\nhost: [::1]:%d\r\n" % port in engine.requests[0]
    pool.close()
    await serving_6.__aexit__(None, None, None)


@pytest.mark.parametrize("host", ["no-such-engine.invalid", "a..b", "x" * 64 + ".example"])
@on_both_loops
async def test_a_name_that_does_not_resolve(host: str) -> None:
    with pytest.raises(UnreachableError):
        await ask(ConnectionPool(f"http://{host}:9", connect_timeout_s=2.0))


@on_both_loops
async def test_connecting_times_out() -> None:
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filling in (first, second):
            filling.setblocking(False)
            filling.connect_ex(full.getsockname())
        with pytest.raises(UnreachableError, match="TimeoutError"):
            await ask(ConnectionPool(f"http://127.0.0.1:{full.getsockname()[1]}", connect_timeout_s=0.1))


@pytest.mark.parametrize("sent", [b"", LENGTH[:20], LENGTH[:-2]], ids=["nothing", "half a head", "half a body"])
@on_both_loops
async def test_a_cancelled_request_leaves_no_connection(sent: bytes) -> None:
    engine = Engine([sent, 5.0], [LENGTH])
    async with pool_of(engine) as pool:
        asking = asyncio.create_task(ask(pool))
        for _ in range(2):  # in the name's look-up or the connection's opening
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not pool._busy
        asking = asyncio.create_task(ask(pool))
        while not engine.requests:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not pool._busy
        assert not pool._idle
        assert await ask(pool) == (200, b"hello")
