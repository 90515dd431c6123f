"""A request that holds a reservation, and how it is ended from outside: its client left, or stopped reading."""

import asyncio
import re
from dataclasses import dataclass

from kvplan.gateway.answers import Message, Receive, Send
from kvplan.gateway.asks import Ask

STALL_S = 60.0

_TOTAL = re.compile(rb'"total_tokens"\s*:\s*(\d+)')
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d+)')
_OUTPUT = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d+)')


class AnswerCutError(Exception):
    """An answer broke off (by an engine that died, a client that reads nothing, a grace that is over): it must not end
    cleanly."""


@dataclass(slots=True, eq=False)
class Running:
    """One admitted request: its task, what it asked for and the ``events`` that it streamed, since when it waits for
    its client to read, and why it was ended.

    One that ``outlives_client`` goes on when its client leaves or stops reading, as the engine does; nothing is sent
    any more.
    """

    task: "asyncio.Task[object]"
    to_client: Send
    mark: tuple[bytes, bytes]
    ask: Ask
    outlives_client: bool = False
    events: int = 0
    usage: bytes | None = None
    ended_by: str | None = None
    is_cancelled: bool = False
    sending_since_s: float | None = None
    _gone: asyncio.Event | None = None
    _sender: "asyncio.Task[object] | None" = None

    async def gone(self) -> None:
        """Return when the request was ended; for an inner application that asks ``receive``."""
        if self.ended_by is None:
            if self._gone is None:
                self._gone = asyncio.Event()
            await self._gone.wait()

    async def send(self, message: Message) -> None:
        """The client's ``send``: adds the mark to the head, counts events, notes the piece that tells usage, and is
        watched."""
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), self.mark]}
        else:
            body = message.get("body", b"")
            self.events += body.count(b"\ndata:") + body.startswith(b"data:")
            if b'"usage"' in body:
                self.usage = body
        if self.ended_by is not None:
            return
        self.sending_since_s = self.task.get_loop().time()
        if self.outlives_client:
            await self._send_or_leave(message)
        else:
            await self.to_client(message)
        self.sending_since_s = None

    async def _send_or_leave(self, message: Message) -> None:
        """Send, until ``leave`` cancels just that."""
        self._sender = sender = asyncio.current_task()
        try:
            await self.to_client(message)
        except asyncio.CancelledError:
            if self._sender is not None or sender is None or sender.uncancel() > 0:
                raise
        finally:
            self._sender = None

    def end(self, reason: str) -> None:
        """Cancel the task, once."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self.ended_by = self.ended_by or reason
            if self._gone is not None:
                self._gone.set()
            self.task.cancel()

    def leave(self, reason: str) -> None:
        """The client is gone, or as good as gone."""
        if not self.outlives_client:
            self.end(reason)
        elif self.ended_by is None:
            self.ended_by = reason
            if self._sender is not None:
                self._sender.cancel()
                self._sender = None


async def watch(receive: Receive, running: Running) -> None:
    """The only reader of ``receive`` once the body is in: sees when the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    running.leave("client_gone")


class StallGuard:
    """Ends requests whose client has read nothing for ``longest_s``: one timer for all of them, none while idle.

    What such a client could hold otherwise is KV: the reservation lives as long as its request does.
    """

    def __init__(self, longest_s: float = STALL_S) -> None:
        self._longest_s = longest_s
        self.watched: set[Running] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, running: Running) -> None:
        """Watch ``running`` until it is discarded."""
        self.watched.add(running)
        if self._timer is None:
            self._arm(running.task.get_loop())

    def discard(self, running: Running) -> None:
        """Stop watching ``running``."""
        self.watched.discard(running)

    def end_all(self, reason: str) -> int:
        """End every request that runs; how many there were."""
        running = list(self.watched)
        for one in running:
            one.end(reason)
        return len(running)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._longest_s / 4, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        oldest_s = loop.time() - self._longest_s
        for running in list(self.watched):
            if running.sending_since_s is not None and running.sending_since_s < oldest_s:
                running.leave("client_stalled")
        if self.watched:
            self._arm(loop)


def read_usage(piece: bytes) -> int | None:
    """What an engine says that a request really used: prompt and output tokens in the last ``usage`` of ``piece``, or
    None where it gives no numbers.

    >>> read_usage(b'data: {"usage": {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3}}')
    12
    >>> read_usage(b'{"usage":{"input_tokens":9,"output_tokens":3}}'), read_usage(b'{"usage":null}')
    (12, None)
    """
    tail = piece[piece.rfind(b'"usage"') :]
    if total := _TOTAL.search(tail):
        return int(total[1])
    prompt, output = _PROMPT.search(tail), _OUTPUT.search(tail)
    return None if prompt is None or output is None else int(prompt[1]) + int(output[1])
