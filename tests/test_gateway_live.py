"""The gateway in front of a real engine: llama.cpp behind llama-cpp-python's server, a small model of random weights.

Off by default, since the engine is compiled when it is installed (about 15 minutes on two cores)::

    python -m venv engine && engine/bin/pip install 'llama-cpp-python[server]==0.3.36'
    KVPLAN_ENGINE_PYTHON=engine/bin/python pytest tests/test_gateway_live.py -m live_engine -s
"""

import asyncio
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gateway_server import CHAT, Served, promise, raw_post, run
from tests.gguf_files import gguf_bytes

pytestmark = [pytest.mark.live_engine, pytest.mark.timeout(600)]
CONTEXT_TOKENS = 2048
EMBEDDING, LAYERS, FEED_FORWARD, HEADS, KV_HEADS = 512, 4, 1024, 8, 2
PRINTABLE = ["▁", *(chr(code) for code in range(33, 127))]
SPECIAL = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
LONG = 1200
"""Tokens of an answer that takes the engine many seconds."""


def write_random_model(path: Path) -> None:
    """A four-layer Llama that answers with random printable characters and never stops by itself.

    The rows of the head for all other tokens are zero, those of printable ones of size 1, so that one of these is
    always the likeliest by far.
    """
    tokens = [*SPECIAL, *PRINTABLE]
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT_TOKENS,
        "llama.embedding_length": EMBEDDING,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": EMBEDDING // HEADS,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PRINTABLE),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    random = np.random.default_rng(7)
    kv = EMBEDDING // HEADS * KV_HEADS
    arrays = {
        "token_embd.weight": random.normal(0, 0.05, (len(tokens), EMBEDDING)),
        "output_norm.weight": np.ones(EMBEDDING),
        "output.weight": random.normal(0, 1, (len(tokens), EMBEDDING)),
    }
    arrays["output.weight"][: len(SPECIAL)] = 0
    for layer in range(LAYERS):
        shapes = {
            "attn_q": (EMBEDDING, EMBEDDING),
            "attn_k": (kv, EMBEDDING),
            "attn_v": (kv, EMBEDDING),
            "attn_output": (EMBEDDING, EMBEDDING),
            "ffn_gate": (FEED_FORWARD, EMBEDDING),
            "ffn_up": (FEED_FORWARD, EMBEDDING),
            "ffn_down": (EMBEDDING, FEED_FORWARD),
        }
        for name, shape in shapes.items():
            arrays[f"blk.{layer}.{name}.weight"] = random.normal(0, 0.05, shape)
        for name in ("attn_norm", "ffn_norm"):
            arrays[f"blk.{layer}.{name}.weight"] = np.ones(EMBEDDING)
    data = {name: array.astype(np.float32).tobytes() for name, array in arrays.items()}
    described = {name: (arrays[name].shape[::-1], 0, len(data[name])) for name in arrays}
    padded = b"".join(raw + b"\0" * (-len(raw) % 32) for raw in data.values())
    path.write_bytes(gguf_bytes(metadata, described, with_data=False) + padded)


class Engine:
    """The engine's address, and how busy it is."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self._pid = pid

    async def busy_share(self, seconds: float = 1.0) -> float:
        """CPU seconds a second from now on (Linux: the clock of another process)."""
        clock = (~self._pid << 3) | 2
        before_s, start_s = time.clock_gettime(clock), time.monotonic()
        await asyncio.sleep(seconds)
        return (time.clock_gettime(clock) - before_s) / (time.monotonic() - start_s)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """llama-cpp-python's server with the random model: one answer at a time, others wait."""
    python = os.environ.get("KVPLAN_ENGINE_PYTHON")
    if python is None:
        pytest.fail("KVPLAN_ENGINE_PYTHON must name a Python with llama-cpp-python[server]")
    model = tmp_path_factory.mktemp("engine") / "random.gguf"
    write_random_model(model)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--n_ctx", str(CONTEXT_TOKENS), "--n_threads", "1", "--chat_format", "chatml"]
    options += ["--interrupt_requests", "false", "--host", "127.0.0.1", "--port", str(port)]
    with (model.parent / "log").open("wb") as log:
        command = [python, "-m", "llama_cpp.server", "--model", str(model), *options]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(300):
                assert process.poll() is None, (model.parent / "log").read_text()[-2000:]
                try:
                    urllib.request.urlopen(f"{url}/v1/models", timeout=5).close()
                    break
                except (urllib.error.URLError, ConnectionError):
                    time.sleep(0.2)
            yield Engine(url, process.pid)
        finally:
            process.kill()
            process.wait()


def plan(windows: int = 4, **changes: Any) -> Any:
    """A pool of ``windows`` times the engine's context, in blocks of 16."""
    return promise(window_tokens=CONTEXT_TOKENS, capacity=windows * CONTEXT_TOKENS // 16, **changes)


async def leave(gateway: Served, *, stream: bool) -> None:
    """Ask for a long answer and leave: at its first piece of a stream, otherwise after a second."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": LONG, "stream": stream}
    raw = raw_post(json.dumps(body).encode(), b"Content-Type: application/json")
    reader, writer = await gateway.open(raw)
    if stream:
        await reader.readuntil(b"data: ")
    else:
        await asyncio.sleep(1)
    assert gateway.ledger.holders == 1
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("server", ["uvicorn", "granian"])
def test_answers_pass_and_the_written_cap_is_obeyed(engine: Engine, server: str) -> None:
    """The client sends no cap; the engine stops at the one written into the body."""

    async def case(gateway: Served) -> None:
        status, headers, body = await gateway.chat("How much?")
        assert status == 200
        answer = json.loads(body)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 24
        assert answer["usage"]["total_tokens"] <= int(headers["x-kvplan-reserved-tokens"])
        status, headers, body = await gateway.chat("How much?", stream=True)
        assert status == 200
        assert headers["Content-Type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
        assert len(text) == 24, "a token is a character"
        assert body.rstrip().endswith(b"data: [DONE]")
        status, _, body = await gateway.chat("x" * 5000, max_tokens=8)
        assert status == 400, "the engine's own refusal of a prompt longer than its window"
        assert await gateway.is_idle()
        assert (await gateway.figures())["kvplan_observed_used_tokens_total"] > 0

    run(case, plan(default_max_tokens=24), upstream=engine.url, server=server, count=True)


def test_a_client_that_leaves_a_stream_frees_the_engine(engine: Engine) -> None:
    async def case(gateway: Served) -> None:
        await leave(gateway, stream=True)
        assert await gateway.is_idle(within_s=1)
        await asyncio.sleep(0.5)
        assert await engine.busy_share() < 0.1, "the engine stops"
        assert (await gateway.chat(max_tokens=4))[0] == 200

    run(case, plan(), upstream=engine.url, engine_aborts="streams")


def test_what_this_engine_does_not_abort_stays_reserved_until_it_is_done(engine: Engine) -> None:
    async def case(gateway: Served) -> None:
        await leave(gateway, stream=False)
        seen = []
        while gateway.ledger.holders:
            seen.append(await engine.busy_share(0.5))
        assert len(seen) > 1
        assert all(share > 0 for share in seen[:-1])
        assert await engine.busy_share() < 0.1, "no reservation, no work"

    run(case, plan(), upstream=engine.url, engine_aborts="streams", at_most_s=300)


def test_this_engine_completes_an_answer_that_nobody_waits_for(engine: Engine) -> None:
    """Why ``--engine-aborts streams`` exists: with ``all`` the ledger empties while the engine still computes."""

    async def case(gateway: Served) -> None:
        await leave(gateway, stream=False)
        assert await gateway.is_idle(within_s=1)
        assert await engine.busy_share() > 0.1
        while await engine.busy_share() > 0.02:
            pass

    run(case, plan(), upstream=engine.url, engine_aborts="all", at_most_s=300)


def test_a_full_ledger_refuses_and_admits_again(engine: Engine) -> None:
    async def case(gateway: Served) -> None:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with gateway.client.post(gateway.url + CHAT, json=body) as response:
            assert await response.content.readany()
            status, headers, refusal = await gateway.chat(max_tokens=4)
            assert status == 429
            assert int(headers["Retry-After"]) >= 1
            assert json.loads(refusal)["error"]["code"] == "server_at_capacity"
            response.close()
        assert await gateway.is_idle()
        assert (await gateway.chat(max_tokens=4))[0] == 200

    run(case, plan(1), upstream=engine.url, engine_aborts="streams")
