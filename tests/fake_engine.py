"""A small OpenAI-compatible server with scripted faults: what a test's upstream is told to do stands in the body.

``fake`` in a request's body: ``tokens`` to write, ``wait_s`` before the head, ``gap_s`` between tokens, ``die_after``
tokens (the connection is cut; -2: before the head), ``pad`` bytes in each, ``usage`` to report, ``status`` instead. It
counts requests that are running and those whose client left.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web


class FakeEngine:
    """Serves on a free port of the loopback; ``running`` is how many answers are being written now."""

    def __init__(self, *, blocks: int = 1000, block_tokens: int = 16, sglang_tokens: int | None = None) -> None:
        self.running = 0
        self.most_running = 0
        self.on_write: Callable[[dict[str, Any]], Awaitable[None]] | None = None
        self.aborted = 0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.blocks = blocks
        self.sglang_tokens = sglang_tokens
        self._block_tokens = block_tokens
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**25)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/get_server_info", self._sglang_info)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_post("/{route:pooling|classify}", self._answer)
        app.router.add_post("/v1/{route:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _sglang_info(self, _: web.Request) -> web.Response:
        return web.json_response({} if self.sglang_tokens is None else {"max_total_num_tokens": self.sglang_tokens})

    async def _metrics(self, _: web.Request) -> web.Response:
        if not self.blocks:
            return web.Response(text="# no pool here\n")
        labels = f'block_size="{self._block_tokens}",enable_prefix_caching="True",num_gpu_blocks="{self.blocks}"'
        return web.Response(text=f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n")

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        text = body["prompt"] if "prompt" in body else "".join(str(one.get("content")) for one in body["messages"])
        return web.json_response({"count": max(1, len(text) // 4), "max_model_len": 4096})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        script = body.get("fake", {})
        if "status" in script:
            return web.json_response({"error": {"message": "scripted"}}, status=script["status"])
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._write(request, body, script)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        except ConnectionError:
            self.aborted += 1
            return web.Response()
        finally:
            self.running -= 1

    async def _write(self, request: web.Request, body: dict[str, Any], script: dict[str, Any]) -> web.StreamResponse:
        asked = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        tokens, gap_s = min(script.get("tokens", 4), asked), script.get("gap_s", 0.0)
        die_after = script.get("die_after", -1)
        streamed = bool(body.get("stream"))
        if "wait_s" in script:
            await asyncio.sleep(script["wait_s"])
        if die_after == -2:
            assert request.transport is not None
            request.transport.abort()
            return web.StreamResponse()
        pad = "x" * script.get("pad", 0)
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream" if streamed else "application/json", "x-engine": "fake"}
        )
        await response.prepare(request)
        if not streamed:
            await response.write(
                b'{"id": "x", "object": "chat.completion", "model": "fake", "created": 0, "choices": ['
            )
        for index in range(tokens):
            if index == die_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            if streamed:
                await response.write(b"data: " + json.dumps(_chunk(f"t{index} {pad}")).encode() + b"\n\n")
            if self.on_write is not None:
                await self.on_write({"bytes": len(pad)})
            if gap_s:
                await asyncio.sleep(gap_s)
        usage = {"usage": {"total_tokens": script["usage"]}} if "usage" in script else {}
        if streamed:
            if usage:
                await response.write(b"data: " + json.dumps({**_chunk(""), **usage}).encode() + b"\n\n")
            await response.write(b"data: [DONE]\n\n")
        else:
            text = "".join(f"t{index} {pad}" for index in range(tokens))
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            end = b"]" + (b", " + json.dumps(usage)[1:-1].encode() if usage else b"") + b"}"
            await response.write(json.dumps(choice).encode() + end)
        await response.write_eof()
        return response


def _chunk(text: str) -> dict[str, Any]:
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "model": "fake",
        "created": 0,
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}],
    }
