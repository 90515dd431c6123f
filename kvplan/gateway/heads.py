"""What uvicorn's fast parser lacks: limits for the head of a request, in bytes and in time, and for what it may say."""

import asyncio

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0


class LimitedHeads(HttpToolsProtocol):
    """Refuses a head over the limit, complete or not; ``head_since_s``: since when one is being waited for.

    Also one that asks for another protocol, because the parser would take its body for the next request. Between two
    requests on one connection uvicorn's own limit of idle time holds.
    """

    head_since_s: float | None = None
    _head_bytes = 0
    _refusal = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new connection: its first head is due."""
        super().connection_made(transport)
        self.head_since_s = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Count what comes of a head."""
        if self.head_since_s is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        is_over = self.head_since_s is not None and self._head_bytes > HEAD_LIMIT_BYTES
        if is_over and not self.transport.is_closing():
            self.send_400_response("The head of this request is too long.")

    def on_message_begin(self) -> None:
        """From the parser."""
        super().on_message_begin()
        if self.head_since_s is None:
            self.head_since_s = self.loop.time()

    def on_headers_complete(self) -> None:
        """From the parser. What came with the head may be its body, so a long one is measured."""
        if self._head_bytes > HEAD_LIMIT_BYTES:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > HEAD_LIMIT_BYTES:
                self._refuse("The head of this request is too long.")
        if self.parser.should_upgrade():
            self._refuse("No Upgrade is served here (a client of plain HTTP, version 1.1, sends none).")
        self.head_since_s, self._head_bytes = None, 0
        super().on_headers_complete()
        self.headers = []  # what is still added are trailers, and those are no headers of the request

    def _refuse(self, reason: str) -> None:
        self._refusal = reason
        raise ValueError(reason)  # the parser's error, which is answered with 400

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong, where that is known."""
        super().send_400_response(self._refusal or msg)


async def close_slow_heads(server: uvicorn.Server, timeout_s: float = HEAD_TIMEOUT_S) -> None:
    """Close connections whose head is not in after ``timeout_s``, looking four times as often, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(timeout_s / 4)
        oldest_s = loop.time() - timeout_s
        for connection in list(server.server_state.connections):
            since_s = connection.head_since_s if isinstance(connection, LimitedHeads) else None
            if since_s is not None and since_s < oldest_s:
                connection.transport.close()
