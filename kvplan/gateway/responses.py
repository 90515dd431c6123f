"""ASGI's types, and the responses that the gateway writes itself: errors as OpenAI's API words them, with headers that
clients understand."""

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvplan.admission import whole_seconds

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]
CLOSE = ((b"connection", b"close"),)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An error that the gateway answers, and the ``reason`` under which the metrics count it (None: the ``code``).

    ``retry_after_s`` tells clients when to try again; a 4xx without it tells them not to.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    reason: str | None = None
    retry_after_s: float | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()


class BadRequestError(Exception):
    """A request that cannot be read or priced: ``param`` is the field at fault, ``code`` an OpenAI error code."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(message)
        self.refusal = Refusal(
            status=status,
            code=code,
            message=message,
            param=param,
            reason="malformed" if status < 500 else None,
            retry_after_s=1.0 if status == 503 else None,
            headers=CLOSE if status in (408, 411, 413, 503) else (),  # the rest of the body may still arrive
        )


def error_body(refusal: Refusal) -> bytes:
    """The error object of OpenAI's API."""
    kind = "rate_limit_error" if refusal.status == 429 else "invalid_request_error"
    if refusal.status >= 500:
        kind = "server_error"
    error = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}
    return json.dumps({"error": error}).encode()


async def send_bytes(
    send: Send,
    status: int,
    body: bytes,
    *,
    content_type: bytes = b"application/json",
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """Send one complete response."""
    start: Headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def send_refusal(send: Send, refusal: Refusal) -> None:
    """Send an error response.

    ``retry-after`` is in whole seconds (RFC 9110 §10.2.3), rounded up, at least 1; ``retry-after-ms`` is exact and is
    what the SDKs of OpenAI and Anthropic read first.
    """
    headers = list(refusal.headers)
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % whole_seconds(refusal.retry_after_s)))
        headers.append((b"retry-after-ms", b"%d" % round(refusal.retry_after_s * 1000)))
        headers.append((b"x-should-retry", b"true"))
    elif refusal.status < 500:
        headers.append((b"x-should-retry", b"false"))
    await send_bytes(send, refusal.status, error_body(refusal), headers=headers)
