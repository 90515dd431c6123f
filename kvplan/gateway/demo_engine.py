"""A made-up engine with a real block pool: a token a step, and preemption when the pool runs out, as in vLLM."""

import asyncio
import json
import random
from collections import deque
from typing import Any, Self

from aiohttp import web

BLOCK_TOKENS = 16
STEP_S = 0.02
PREFILL_TOKEN_S = 0.0003
"""Slow enough to watch; computing a preempted request again takes this time once more."""


class _Sequence:
    """One request inside the engine. A preempted one computes its prompt and what it had written again."""

    def __init__(self, prompt_tokens: int, output_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.written = 0
        self.blocks = 0
        self.ready: asyncio.Queue[bool] = asyncio.Queue()

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.written


class DemoEngine:
    """Serves ``/v1/completions`` on a free port of the loopback, from ``blocks`` blocks of 16 tokens.

    How long an answer would be by itself is drawn per request; the client's ``max_tokens`` cuts it.
    """

    def __init__(self, blocks: int, seed: int) -> None:
        self.blocks = blocks
        self.used_blocks = 0
        self.preemptions = 0
        self.recomputed_tokens = 0
        self.completed = 0
        self.url = ""
        self._random = random.Random(seed)  # noqa: S311 - a made-up engine
        self._running: list[_Sequence] = []
        self._waiting: deque[_Sequence] = deque()
        self._runner: web.AppRunner | None = None
        self._steps: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for blocks."""
        return len(self._waiting)

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        self._steps = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        assert self._steps is not None
        self._steps.cancel()
        await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        usual = max(8, round(self._random.lognormvariate(5.1, 0.45)))
        sequence = _Sequence(len(body["prompt"]), min(int(body["max_tokens"]), usual))
        self._waiting.append(sequence)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        try:
            await response.prepare(request)
            while await sequence.ready.get():
                await response.write(b"data: " + json.dumps({"choices": [{"text": "word "}]}).encode() + b"\n\n")
            total = {"total_tokens": sequence.tokens}
            await response.write(b"data: " + json.dumps({"choices": [], "usage": total}).encode() + b"\n\n")
            await response.write_eof(b"data: [DONE]\n\n")
        finally:
            self._forget(sequence)
        return response

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(STEP_S + PREFILL_TOKEN_S * self._step())

    def _step(self) -> int:
        """Let waiting sequences in while their tokens find blocks, then write one token for each that runs.

        Returns the tokens that had to be computed before that.
        """
        prefilled = 0
        while self._waiting and self._grow(self._waiting[0], self._waiting[0].tokens + 1):
            self._running.append(self._waiting.popleft())
            prefilled += self._running[-1].tokens
        for sequence in list(self._running):
            while sequence in self._running and not self._grow(sequence, sequence.tokens + 1):
                self._preempt(self._running[-1])
            if sequence not in self._running:
                continue
            sequence.written += 1
            sequence.ready.put_nowait(True)  # noqa: FBT003 - one more token
            if sequence.written >= sequence.output_tokens:
                self.completed += 1
                sequence.ready.put_nowait(False)  # noqa: FBT003 - no more
                self._forget(sequence)
        return prefilled

    def _grow(self, sequence: _Sequence, tokens: int) -> bool:
        more = -(-tokens // BLOCK_TOKENS) - sequence.blocks
        if more > self.blocks - self.used_blocks:
            return False
        sequence.blocks += max(more, 0)
        self.used_blocks += max(more, 0)
        return True

    def _preempt(self, sequence: _Sequence) -> None:
        """The newest gives its blocks back and starts over: everything it had computed is computed again."""
        self.preemptions += 1
        self.recomputed_tokens += sequence.tokens
        self._forget(sequence)
        self._waiting.appendleft(sequence)

    def _forget(self, sequence: _Sequence) -> None:
        self.used_blocks -= sequence.blocks
        sequence.blocks = 0
        if sequence in self._running:
            self._running.remove(sequence)
        if sequence in self._waiting:
            self._waiting.remove(sequence)
