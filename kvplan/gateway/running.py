"""A request that holds a reservation, and how it is ended from outside: its client left, or stopped reading."""

import asyncio

from kvplan.gateway.answers import Message, Receive, Send

STALL_S = 60.0


class AnswerCutError(Exception):
    """An answer was broken off here (a client that reads nothing, a grace that is over); it must not end cleanly."""


class Running:
    """One admitted request: its task, since when it waits for its client to read, and why it was ended."""

    __slots__ = ("_gone", "_send", "_time", "ended_by", "mark", "sending_since_s", "task", "usage")

    def __init__(self, task: "asyncio.Task[object]", send: Send, mark: tuple[bytes, bytes]) -> None:
        self.task = task
        self.mark = mark
        self.ended_by: str | None = None
        self.sending_since_s: float | None = None
        self.usage: bytes | None = None
        self._send = send
        self._time = task.get_loop().time
        self._gone: asyncio.Event | None = None

    async def gone(self) -> None:
        """Return when the request was ended; for an inner application that asks ``receive``."""
        if self.ended_by is None:
            if self._gone is None:
                self._gone = asyncio.Event()
            await self._gone.wait()

    async def send(self, message: Message) -> None:
        """The client's ``send``: adds the mark to the head, notes the piece that tells usage, and is watched."""
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), self.mark]}
        elif b'"usage"' in message.get("body", b""):
            self.usage = message["body"]
        self.sending_since_s = self._time()
        await self._send(message)
        self.sending_since_s = None

    def end(self, reason: str) -> None:
        """Cancel the task, once."""
        if self.ended_by is None:
            self.ended_by = reason
            if self._gone is not None:
                self._gone.set()
            self.task.cancel()


async def watch(receive: Receive, running: Running) -> None:
    """The only reader of ``receive`` once the body is in: when the client leaves, its request is ended."""
    while (await receive())["type"] != "http.disconnect":
        pass
    running.end("client_gone")


class StallGuard:
    """Ends requests whose client has read nothing for ``longest_s``: one timer for all of them, none while idle.

    What such a client could hold otherwise is KV: the reservation lives as long as its request does.
    """

    def __init__(self, longest_s: float = STALL_S) -> None:
        self._longest_s = longest_s
        self._watched: set[Running] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, running: Running) -> None:
        """Watch ``running`` until it is discarded."""
        self._watched.add(running)
        if self._timer is None:
            self._arm(running.task.get_loop())

    def discard(self, running: Running) -> None:
        """Stop watching ``running``."""
        self._watched.discard(running)

    def end_all(self, reason: str) -> int:
        """End every request that runs; how many there were."""
        running = list(self._watched)
        for one in running:
            one.end(reason)
        return len(running)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(self._longest_s / 4, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        oldest_s = loop.time() - self._longest_s
        for running in list(self._watched):
            if running.sending_since_s is not None and running.sending_since_s < oldest_s:
                running.end("client_stalled")
        if self._watched:
            self._arm(loop)
