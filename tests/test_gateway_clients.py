"""Clients in wide use, and clients that misbehave, on both servers."""

import asyncio
import contextlib
import json
import shutil
import socket
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from kvplan.gateway.server import LimitedHeadProtocol
from tests.gateway_server import CHAT, Served, against, promise, raw_post

SERVERS = ("uvicorn", "granian")
MESSAGES: Any = [{"role": "user", "content": "hi"}]


@against(promise(capacity=80, retry_after_constant_s=1.0), servers=SERVERS)
async def test_openai_python_streams_retries_and_gives_up(gateway: Served) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed (pip install openai)")
    base = gateway.url + "/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key="k") as client:
        answer = await client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=4)
        assert answer.choices[0].message.content == "t0 t1 t2 t3 "
        stream = await client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=4, stream=True)
        assert "".join([part.choices[0].delta.content async for part in stream]) == "t0 t1 t2 t3 "
        assert gateway.engine.headers[-1]["Authorization"] == "Bearer k"

        before = len(gateway.engine.bodies)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=4, n=500)
        assert refused.value.code == "context_length_exceeded"
        assert len(gateway.engine.bodies) == before

        slow = asyncio.create_task(gateway.chat(fake={"tokens": 8, "gap_s": 0.1}))
        await gateway.until_running(1)
        with pytest.raises(openai.RateLimitError) as full:
            await client.with_options(max_retries=0).chat.completions.create(model="fake", messages=MESSAGES)
        assert full.value.code == "server_at_capacity"
        retried = await client.chat.completions.with_raw_response.create(model="fake", messages=MESSAGES)
        assert retried.retries_taken >= 1, "it came back after Retry-After"
        assert (await slow)[0] == 200

        broken = await client.chat.completions.create(
            model="fake", messages=MESSAGES, stream=True, extra_body={"fake": {"tokens": 9, "die_after": 2}}
        )
        with pytest.raises(openai.APIError):
            [part async for part in broken]
    text = await asyncio.to_thread(_sync_openai, openai, base)
    assert text == ("t0 t1 t2 t3 ", "t0 t1 ")
    assert await gateway.is_idle()


def _sync_openai(openai: Any, base: str) -> tuple[str, str]:
    """A whole answer, and a stream left early."""
    with openai.OpenAI(base_url=base, api_key="k") as client:
        whole = client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=4)
        parts = []
        with client.chat.completions.create(
            model="fake", messages=MESSAGES, stream=True, extra_body={"fake": {"tokens": 900, "gap_s": 0.01}}
        ) as stream:
            for part in stream:
                parts.append(part.choices[0].delta.content)
                if len(parts) == 2:
                    break
        return whole.choices[0].message.content, "".join(parts)


@against(promise(capacity=80), servers=SERVERS)
async def test_openai_python_reads_responses_and_raw_refusals(gateway: Served) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed (pip install openai)")

    def synchronous(base: str) -> tuple[str, str]:
        with openai.OpenAI(base_url=base, api_key="k") as client:
            whole = client.responses.create(model="fake", input="hi", max_output_tokens=3)
            parts = client.responses.create(model="fake", input="hi", max_output_tokens=3, stream=True)
            text = "".join(part.delta for part in parts if part.type == "response.output_text.delta")
            return whole.output_text, text

    base = gateway.url + "/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key="k", max_retries=0) as client:
        answer = await client.responses.create(model="fake", input="hi", max_output_tokens=3)
        assert answer.output_text == "t0 t1 t2 "
        raw = await client.responses.with_raw_response.create(model="fake", input="hi", max_output_tokens=3)
        assert int(raw.headers["x-kvplan-reserved-tokens"]) == 256 + 2 + 3
        async with client.responses.stream(model="fake", input="hi", max_output_tokens=3) as stream:
            assert "".join([e.delta async for e in stream if e.type == "response.output_text.delta"]) == "t0 t1 t2 "
        slow = asyncio.create_task(gateway.chat(fake={"tokens": 8, "gap_s": 0.1}))
        await gateway.until_running(1)
        with pytest.raises(openai.RateLimitError) as full:
            await client.responses.with_raw_response.create(model="fake", input="hi")
        headers = full.value.response.headers
        assert 1000 <= int(headers["retry-after-ms"]) <= 1000 * int(headers["retry-after"])
        assert headers["x-should-retry"] == "true"
        assert (await slow)[0] == 200
    assert await asyncio.to_thread(synchronous, base) == ("t0 t1 t2 ", "t0 t1 t2 ")
    assert await gateway.is_idle()


@against(promise(capacity=80), servers=SERVERS)
async def test_anthropic_python_is_served_on_messages(gateway: Served) -> None:
    anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed (pip install anthropic)")

    def synchronous(base: str) -> str:
        with (
            anthropic.Anthropic(base_url=base, api_key="k") as client,
            client.messages.stream(model="fake", messages=MESSAGES, max_tokens=3) as stream,
        ):
            return "".join(stream.text_stream)

    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="k", max_retries=0) as client:
        raw = await client.messages.with_raw_response.create(model="fake", messages=MESSAGES, max_tokens=4)
        assert int(raw.headers["x-kvplan-reserved-tokens"]) > 4
        assert gateway.engine.headers[-1]["anthropic-version"]
        async with client.messages.stream(model="fake", messages=MESSAGES, max_tokens=3) as stream:
            assert "".join([text async for text in stream.text_stream]) == "t0 t1 t2 "
            assert (await stream.get_final_message()).usage.output_tokens == 3
        async with client.messages.stream(
            model="fake", messages=MESSAGES, max_tokens=900, extra_body={"fake": {"tokens": 900, "gap_s": 0.01}}
        ) as stream:
            assert await anext(aiter(stream.text_stream)) == "t0 "
        assert await gateway.is_idle(), "left early"
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(model="fake", messages=MESSAGES, max_tokens=-4)
        slow = asyncio.create_task(gateway.chat(fake={"tokens": 8, "gap_s": 0.1}))
        await gateway.until_running(1)
        with pytest.raises(anthropic.RateLimitError) as full:
            await client.messages.create(model="fake", messages=MESSAGES, max_tokens=900)
        assert int(full.value.response.headers["retry-after"]) >= 1
        assert (await slow)[0] == 200
    assert await asyncio.to_thread(synchronous, gateway.url) == "t0 t1 t2 "
    assert (await gateway.figures())["kvplan_observed_used_tokens_total"] == 37, "three answers reported usage"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@against(servers=SERVERS)
async def test_curl(gateway: Served, server: str) -> None:
    async def curl(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            "curl", "-sS", "--max-time", "10", *arguments, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        return out.decode()

    body = json.dumps({"messages": MESSAGES, "max_tokens": 4, "stream": True})
    told = await curl("-i", "-H", "content-type: application/json", "-d", body, gateway.url + CHAT)
    assert "x-kvplan-reserved-tokens" in told
    assert "data: [DONE]" in told
    large = json.dumps({"messages": [{"role": "user", "content": "y" * 100_000}]})
    told = await curl("-i", "-H", "Expect: 100-continue", "-d", large, gateway.url + CHAT)
    assert " 413" in told
    chunked = await curl("-i", "-H", "Transfer-Encoding: chunked", "-d", body, gateway.url + CHAT)
    assert (" 411" if server == "granian" else " 200") in chunked
    zipped = await curl("-i", "-H", "Content-Encoding: gzip", "-d", body, gateway.url + CHAT)
    assert " 415" in zipped


@against(servers=SERVERS)
async def test_a_client_that_stops_reading_stops_the_engine_too(gateway: Served) -> None:
    """64 MiB are requested and none is read: the gateway buffers little, because it stops reading upstream."""
    written = 0

    async def count(fields: dict[str, Any]) -> None:
        nonlocal written
        written += fields["bytes"]

    gateway.engine.on_write = count
    body = json.dumps(
        {"messages": MESSAGES, "max_tokens": 1000, "stream": True, "fake": {"tokens": 1000, "pad": 65536}}
    )
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", gateway.port))
    await asyncio.get_running_loop().sock_sendall(raw, raw_post(body.encode()))
    last = -1
    while written != last:
        last = written
        await asyncio.sleep(0.4)
    assert 0 < written < 32 * 2**20, "kernel buffers and a few chunks, not the whole answer"
    assert gateway.ledger.holders == 1
    raw.close()
    assert await gateway.is_idle()


@against(stall_s=0.5)
async def test_a_client_that_reads_nothing_loses_its_reservation(gateway: Served) -> None:
    body = json.dumps(
        {"messages": MESSAGES, "max_tokens": 1000, "stream": True, "fake": {"tokens": 1000, "pad": 65536}}
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
    writer.write(raw_post(body.encode()))
    assert await reader.read(100)
    await gateway.until_running(1)
    assert await gateway.is_idle(within_s=5)
    assert (await gateway.figures())['kvplan_ended_early_total{cause="client_stalled"}'] == 1
    writer.transport.abort()


@against(servers=["uvicorn", "uvicorn-asyncio"], stall_s=0.3, engine_aborts="nothing")
async def test_a_client_that_reads_nothing_keeps_the_reservation_while_the_engine_goes_on(gateway: Served) -> None:
    fake = {"tokens": 150, "pad": 65536, "gap_s": 0.01}
    body = json.dumps({"messages": MESSAGES, "max_tokens": 150, "stream": True, "fake": fake})
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
    writer.write(raw_post(body.encode()))
    assert await reader.read(100)
    await gateway.until_running(1)
    while gateway.engine.running:
        assert gateway.ledger.holders == 1
        await asyncio.sleep(0.005)
    assert gateway.engine.aborted == 0, "it wrote to its end"
    assert await gateway.is_idle()
    assert (await gateway.figures())['kvplan_ended_early_total{cause="client_stalled"}'] == 1
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(2**20):
            assert not piece.endswith(b"\r\n0\r\n\r\n"), "never ended like a whole answer"
    writer.transport.abort()


@against(servers=SERVERS, body_timeout_s=0.4)
async def test_a_body_a_byte_at_a_time_holds_no_reservation_and_is_cut_off(gateway: Served) -> None:
    reader, writer = await gateway.open()
    request = raw_post(json.dumps({"messages": MESSAGES, "max_tokens": 4}).encode())
    writer.write(request[:-30])
    told = asyncio.create_task(reader.readline())
    for byte in request[-30:]:
        if told.done():
            break
        assert gateway.ledger.holders == 0
        writer.write(bytes([byte]))
        await asyncio.sleep(0.03)
    assert b" 408 " in await told
    writer.close()


@against(servers=SERVERS, body_memory_bytes=125_000)
async def test_all_bodies_together_have_a_limit(gateway: Served) -> None:
    """Slow clients, each within the limit of one body, together reach the limit of all; then new bodies are refused."""
    piece = b" " * 30_000
    slow = [await gateway.open() for _ in range(3)]
    for _, writer in slow:
        writer.write(raw_post(piece + piece)[:-20_000])
    while gateway.bodies.held_bytes < 120_000:
        await asyncio.sleep(0.01)
    status, headers, body = await gateway.chat("x" * 10_000, max_tokens=4)
    assert status == 503
    assert json.loads(body)["error"]["code"] == "server_busy"
    assert headers["Retry-After"] == "1"
    assert gateway.ledger.holders == 0
    assert gateway.bodies.held_bytes <= 125_000
    assert (await gateway.chat(max_tokens=4))[0] == 200, "a small one still finds room"
    slow[0][1].close()
    while gateway.bodies.held_bytes > 80_000:
        await asyncio.sleep(0.01)
    assert (await gateway.chat("x" * 10_000, max_tokens=4))[0] == 200
    for _, writer in slow[1:]:
        writer.close()
    while gateway.bodies.held_bytes:
        await asyncio.sleep(0.01)


@against(servers=SERVERS)
async def test_keep_alive_and_pipelining(gateway: Served) -> None:
    reader, writer = await gateway.open()
    bodies = [json.dumps({"messages": MESSAGES, "max_tokens": n, "fake": {"tokens": n}}).encode() for n in (1, 2, 3)]
    writer.write(b"".join(raw_post(body) for body in bodies[:-1]) + raw_post(bodies[-1], b"Connection: close"))
    answers = (await reader.read()).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200"] * 3
    assert [answer.count(b"t0") + answer.count(b"t1 ") + answer.count(b"t2 ") for answer in answers] == [1, 2, 3]
    writer.close()
    assert await gateway.is_idle()


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["complete", "endless"])
@pytest.mark.parametrize("shape", ["one long", "many short"])
@against(servers=SERVERS)
async def test_a_long_head_is_refused(gateway: Served, end: bytes, shape: str) -> None:
    long = b"X-Long: " + b"x" * 300_000 if shape == "one long" else b"\r\n".join([b"X: " + b"x" * 100] * 3000)
    reader, writer = await gateway.open()
    with contextlib.suppress(ConnectionError):
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + long + end)
        await writer.drain()
    answer = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(5):
            answer = await reader.read()
    assert answer[9:12] in (b"", b"400", b"431"), "and the connection is closed"
    writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"Content-Length: 65537\r\n\r\n",
        b"Content-Length: 9999999999999999999\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n10001\r\n" + b" " * 65537 + b"\r\n",
    ],
    ids=["announced", "absurd", "unannounced"],
)
@against(servers=SERVERS, body_limit_bytes=65536)
async def test_a_body_over_the_limit_is_refused_before_all_of_it_arrived(
    gateway: Served, server: str, sent: bytes
) -> None:
    reader, writer = await gateway.open(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: x\r\n" + sent)
    async with asyncio.timeout(5):
        told = b" 411 " if server == "granian" and b"chunked" in sent else b" 413 "
        assert told in await reader.readline()
    writer.close()
    assert not gateway.engine.headers


@pytest.mark.parametrize(("size", "is_refused"), [(60_000, False), (100_000, True)])
def test_a_long_head_in_one_piece_is_refused_before_it_is_a_request(size: int, is_refused: bool) -> None:
    """An event loop may read more than the limit at once, so that a head is complete before it was counted."""
    written: list[bytes] = []
    transport = Mock(is_closing=lambda: bool(written), write=written.append, get_extra_info=lambda *_: None)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def feed() -> None:
        config = uvicorn.Config(app, log_level="critical", ws="none")
        config.load()
        protocol = LimitedHeadProtocol(config, ServerState(), {}, asyncio.get_running_loop())
        protocol.connection_made(transport)
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * size + b"\r\n\r\n")
        await asyncio.sleep(0.01)

    asyncio.run(feed())
    assert written[0].startswith(b"HTTP/1.1 400" if is_refused else b"HTTP/1.1 200")


@against(count=True, body_limit_bytes=2**20)
async def test_a_long_body_beside_its_head_is_not_a_long_head(gateway: Served) -> None:
    status, _, body = await gateway.chat("x" * 200_000, max_tokens=4)
    assert (status, json.loads(body)["error"]["code"]) == (400, "context_length_exceeded")


@against(servers=SERVERS, head_timeout_s=1.0)
async def test_a_slow_head_is_closed(gateway: Served, server: str) -> None:
    opened = [await gateway.open() for _ in range(3)]
    opened[1][1].write(b"POST /v1/ch")
    opened[2][1].write(raw_post(INNER))
    assert (await opened[2][0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
    for reader, writer in opened[:2]:
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()
    if server == "uvicorn":  # granian closes an idle connection after the same time
        opened[2][1].write(raw_post(INNER))
        assert (await opened[2][0].readuntil(b"HTTP/1.1 200")).endswith(b"200"), "one that had its answer stays"
    opened[2][1].close()


SMUGGLED = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
INNER = b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}'
LENGTH = b"Content-Length: %d\r\n" % len(INNER)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n" % len(INNER) + INNER + b"\r\n0\r\n\r\n"

TWO_LENGTHS: dict[str, tuple[bytes, bytes]] = {
    "cl-te": (b"Content-Length: 4\r\n" + CHUNKED, CHUNKS),
    "te-cl": (CHUNKED + b"Content-Length: %d\r\n" % len(CHUNKS), CHUNKS),
    "two-cl": (b"Content-Length: 4\r\n" + LENGTH, INNER),
    "two-cl-te": (b"Content-Length: 4\r\n" + LENGTH + CHUNKED, CHUNKS),
    "list-cl": (b"Content-Length: 4, 66\r\n", INNER),
    "plus-cl": (b"Content-Length: +66\r\n", INNER),
    "hex-cl": (b"Content-Length: 0x42\r\n", INNER),
    "negative-cl": (b"Content-Length: -1\r\n", INNER),
    "space-cl": (b"Content-Length : 66\r\n", INNER),
    "obs-fold": (LENGTH + b" X-Folded: 1\r\n", INNER),
    "folded-te": (b"Transfer-Encoding:\r\n chunked\r\n", CHUNKS),
    "identity": (b"Transfer-Encoding: identity\r\n", CHUNKS),
    "identity-cl": (b"Transfer-Encoding: identity\r\n" + LENGTH, INNER),
    "odd-te": (b"Transfer-Encoding: xchunked\r\n", CHUNKS),
    "odd-te-cl": (b"Transfer-Encoding: xchunked\r\n" + LENGTH, INNER),
    "te-list": (b"Transfer-Encoding: gzip, chunked\r\n", CHUNKS),
    "te-list-end": (b"Transfer-Encoding: chunked, identity\r\n", CHUNKS),
    "two-te": (CHUNKED + CHUNKED, CHUNKS),
    "identity-te": (b"Transfer-Encoding: identity\r\n" + CHUNKED, CHUNKS),
    "space-te": (b"Transfer-Encoding : chunked\r\n", CHUNKS),
    "tab-te": (b"Transfer-Encoding: \x0bchunked\r\n", CHUNKS),
    "nul": (LENGTH + b"X: a\x00b\r\n", INNER),
    "bare-cr": (b"X: a\r" + LENGTH, INNER),
    "chunk-lf": (CHUNKED, CHUNKS.replace(b"\r\n", b"\n")),
    "chunk-0x": (CHUNKED, b"0x" + CHUNKS),
    "chunk-negative": (CHUNKED, b"-" + CHUNKS),
    "chunk-overflow": (CHUNKED, b"1" + b"0" * 16 + CHUNKS),
    "chunk-no-end": (CHUNKED, CHUNKS.replace(b"}\r\n0", b"}XX0")),
    "chunk-extension-lf": (CHUNKED, CHUNKS.replace(b"\r\n{", b";a\n{")),
    "trailer-length": (CHUNKED, CHUNKS[:-2] + b"Content-Length: 4\r\n\r\n"),
}
"""Heads and bodies that two parsers could take for different requests."""


async def _exchange(gateway: Served, request: bytes, within_s: float = 1.0) -> tuple[list[bytes], bytes]:
    """The statuses of all responses until the connection ends or ``within_s`` is over, and their text."""
    reader, writer = await gateway.open(request)
    answer = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(within_s):
            while piece := await reader.read(65536):
                answer += piece
    writer.close()
    return [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]], answer


def _request(head: bytes, body: bytes, version: bytes = b"1.1") -> bytes:
    return b"POST " + CHAT.encode() + b" HTTP/" + version + b"\r\nHost: x\r\n" + head + b"\r\n" + body


@against(servers=SERVERS)
async def test_a_request_with_two_lengths_reaches_no_engine(gateway: Served, server: str) -> None:
    """It is refused, and the connection is closed if what follows could be its body. granian hides a Content-Length
    beside chunks, so behind granian all chunked bodies are refused (411)."""

    async def one(gateway: Served, name: str) -> None:
        head, body = TWO_LENGTHS[name]
        statuses, _ = await _exchange(gateway, _request(head, body + SMUGGLED))
        is_chunked = CHUNKED in head and server == "granian"
        assert statuses[0] in ((b"411", b"400") if is_chunked else (b"400",)), name
        assert not is_chunked or b"411" not in statuses or len(statuses) == 1, name

    await asyncio.gather(*(one(gateway, name) for name in TWO_LENGTHS))
    assert not gateway.engine.headers


@against(servers=SERVERS)
async def test_chunked_bodies_are_read_if_their_length_can_be_trusted(gateway: Served, server: str) -> None:
    extended = CHUNKS.replace(b"\r\n{", b";name=value\r\n{")
    trailers = CHUNKS[:-2] + b"Authorization: Bearer late\r\nContent-Encoding: gzip\r\n\r\n"
    heads = (CHUNKED, CHUNKED.replace(b"chunked", b"CHUNKED"), CHUNKED + b"Trailer: Authorization\r\n")
    for head, body in zip(heads, (extended, CHUNKS, trailers), strict=True):
        statuses, answer = await _exchange(gateway, _request(head + b"Connection: close\r\n", body))
        if server == "granian":
            assert statuses == [b"411"]
            assert b"--server uvicorn" in answer
        else:
            assert statuses == [b"200"]
            assert {"Content-Length", "Host"} <= set(gateway.engine.headers[-1])
            assert not {"Authorization", "Content-Encoding", "Transfer-Encoding"} & set(gateway.engine.headers[-1])
    statuses, _ = await _exchange(gateway, _request(CHUNKED, CHUNKS, version=b"1.0"))
    assert statuses == [b"400"], "HTTP/1.0 knows no chunks"


@against(servers=SERVERS)
async def test_a_body_behind_an_upgrade_is_not_another_request(gateway: Served, server: str) -> None:
    """Java's client asks for h2c by default. uvicorn's parser would lose the body, so the request is refused."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    statuses, answer = await _exchange(gateway, _request(upgrade + b"Content-Length: %d\r\n" % len(SMUGGLED), SMUGGLED))
    assert statuses == [b"400"]
    assert b"kvplan_" not in answer
    statuses, answer = await _exchange(gateway, _request(upgrade + LENGTH, INNER))
    assert statuses == [b"200" if server == "granian" else b"400"]
    assert server == "granian" or b"No Upgrade" in answer
    statuses, _ = await _exchange(gateway, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9)
    assert statuses in ([], [b"400"])


@against(servers=SERVERS)
async def test_no_spelling_of_a_path_reaches_an_admin_route(gateway: Served) -> None:
    """Paths are not normalised: only the exact names are served, and everything else is not found."""
    paths = ["//v1/models", "/v1//models", "/./v1/models", "/v1/models/.", "/v1/models/a/..", "/v1/models/..;/sleep"]
    paths += ["/v1/models/a/..%2f..%2fsleep", "/v1/models/%2e%2e/%2e%2e/metrics", "/%2f/sleep", "/sleep%00", "*"]
    paths += ["/v1/models/a%0d%0aX:y", "/tokenize/../sleep", "http://x/sleep", "/v1/models;/sleep", "/V1/models"]
    head = " HTTP/1.1\r\nHost: x\r\nX-Original-URL: /sleep\r\nConnection: close\r\n\r\n"
    asked = [f"{method} {path}" for path in paths for method in ("GET", "OPTIONS")]
    asked += ["CONNECT x:80", "TRACE /sleep", "PUT /sleep", "DELETE /sleep"]
    answers = await asyncio.gather(*(_exchange(gateway, (one + head).encode(), within_s=5) for one in asked))
    for one, (statuses, _) in zip(asked, answers, strict=True):
        assert statuses in ([b"404"], [b"400"]), one
    assert not gateway.engine.headers
