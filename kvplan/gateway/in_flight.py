"""Requests in flight: each holds a reservation, and may be ended from outside because its client left, or stopped
reading, or the gateway shuts down."""

import asyncio
import re
from dataclasses import dataclass

from kvplan.gateway.responses import Message, Receive, Send
from kvplan.gateway.routes import Demand

STALL_S = 60.0

_TOTAL = re.compile(rb'"total_tokens"\s*:\s*(\d+)')
_PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d+)')
_OUTPUT = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d+)')


class IncompleteResponseError(Exception):
    """A response broke off (the engine died, the client stopped reading, the grace period ended): the server must not
    end it as if it were complete."""


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One admitted request: its task, its demand and the ``events`` streamed so far, since when it waits for its client
    to read, and why it was ended.

    One that ``outlives_client`` goes on when its client leaves or stops reading, as the engine does; nothing more is
    sent.
    """

    task: "asyncio.Task[object]"
    to_client: Send
    mark: tuple[bytes, bytes]
    demand: Demand
    outlives_client: bool = False
    events: int = 0
    usage: bytes = b""
    ended_by: str | None = None
    is_cancelled: bool = False
    sending_since_s: float | None = None
    _gone: asyncio.Event | None = None
    _sender: "asyncio.Task[object] | None" = None

    async def gone(self) -> None:
        """Return once the request was ended; for an inner application that waits on ``receive``."""
        if self.ended_by is None:
            if self._gone is None:
                self._gone = asyncio.Event()
            await self._gone.wait()

    async def send(self, message: Message) -> None:
        """The client's ``send``, watched: adds the mark to the head, counts events, keeps the last usage."""
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
            await self._send_unless_left(message)
        else:
            await self.to_client(message)
        self.sending_since_s = None

    async def _send_unless_left(self, message: Message) -> None:
        """Send; ``leave`` cancels the sending alone."""
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
        """The client left, or stopped reading."""
        if not self.outlives_client:
            self.end(reason)
        elif self.ended_by is None:
            self.ended_by = reason
            if self._sender is not None:
                self._sender.cancel()
                self._sender = None

    async def watch(self, receive: Receive) -> None:
        """The only reader of ``receive`` once the body is in: notices when the client leaves."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.leave("client_gone")


class InFlightRequests:
    """All requests in flight. Ends those whose client has read nothing for ``stall_s``, which would hold KV cache for
    ever: one timer for all of them, none while idle."""

    def __init__(self, stall_s: float = STALL_S) -> None:
        self.requests: set[InFlightRequest] = set()
        self._stall_s = stall_s
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: InFlightRequest) -> None:
        """Watch ``request`` until it is discarded."""
        self.requests.add(request)
        if self._timer is None:
            self._arm(request.task.get_loop())

    def discard(self, request: InFlightRequest) -> None:
        """Stop watching ``request``."""
        self.requests.discard(request)

    def end_all(self, reason: str) -> int:
        """End every request in flight; how many there were."""
        ended = list(self.requests)
        for request in ended:
            request.end(reason)
        return len(ended)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._stall_s / 4, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        oldest_s = loop.time() - self._stall_s
        for request in list(self.requests):
            if request.sending_since_s is not None and request.sending_since_s < oldest_s:
                request.leave("client_stalled")
        if self.requests:
            self._arm(loop)


def read_usage(piece: bytes) -> int | None:
    """Prompt and output tokens that the engine reports in the last ``usage`` of ``piece``; None if it gives no numbers.

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
