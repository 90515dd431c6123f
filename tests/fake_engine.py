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

    def __init__(self, *, blocks: int = 1000, block_tokens: int = 16) -> None:
        self.running = 0
        self.most_running = 0
        self.on_write: Callable[[dict[str, Any]], Awaitable[None]] | None = None
        self.aborted = 0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.blocks = blocks
        self._block_tokens = block_tokens
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**25)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_post("/{route:pooling|classify|rerank|score}", self._answer)
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

    async def _metrics(self, _: web.Request) -> web.Response:
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
        caps = (body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"))
        asked = next(filter(None, caps), 16)
        tokens, gap_s = min(script.get("tokens", 4), asked), script.get("gap_s", 0.0)
        die_after = script.get("die_after", -1)
        streamed = bool(body.get("stream"))
        spoken = _SPOKEN.get(request.path)
        if spoken is not None:
            return await _speak(request, spoken(tokens), streamed=streamed, gap_s=gap_s)
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


Events = list[tuple[str, dict[str, Any]]]


def _as_anthropic(tokens: int) -> tuple[dict[str, Any], Events]:
    """A message of Anthropic's API, whole and as its stream."""
    usage = {"input_tokens": 9, "output_tokens": tokens}
    empty = {"id": "m", "type": "message", "role": "assistant", "model": "fake", "stop_reason": None, "usage": usage}
    text = [f"t{index} " for index in range(tokens)]
    events: Events = [
        ("message_start", {"message": {**empty, "content": []}}),
        ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        *(("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": one}}) for one in text),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": usage}),
        ("message_stop", {}),
    ]
    return {**empty, "content": [{"type": "text", "text": "".join(text)}]}, events


def _as_response(tokens: int) -> tuple[dict[str, Any], Events]:
    """A response of OpenAI's newer API, whole and as its stream."""
    text = [f"t{index} " for index in range(tokens)]
    part = {"type": "output_text", "text": "".join(text), "annotations": []}
    item = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": [part]}
    usage = {"input_tokens": 9, "output_tokens": tokens, "total_tokens": 9 + tokens}
    response = {"id": "r", "object": "response", "created_at": 0, "model": "fake", "output": [item], "usage": usage}
    where = {"item_id": "i", "output_index": 0, "content_index": 0}
    begun = {**response, "output": [{**item, "content": [{**part, "text": ""}]}]}
    events: Events = [
        ("response.created", {"response": begun}),
        *(("response.output_text.delta", {**where, "delta": one}) for one in text),
        ("response.completed", {"response": response}),
    ]
    return response, events


_SPOKEN = {"/v1/messages": _as_anthropic, "/v1/responses": _as_response}


async def _speak(
    request: web.Request, spoken: tuple[dict[str, Any], Events], *, streamed: bool, gap_s: float
) -> web.StreamResponse:
    whole, events = spoken
    if not streamed:
        return web.json_response(whole)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for kind, data in events:
        event = json.dumps({"type": kind, "sequence_number": 0, **data})
        await response.write(f"event: {kind}\ndata: {event}\n\n".encode())
        await asyncio.sleep(gap_s)
    await response.write_eof()
    return response
