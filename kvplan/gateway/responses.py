"""Responses that the gateway writes itself: errors as OpenAI's API words them, with headers that clients understand."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from kvplan.admission import whole_seconds

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a request is not admitted: for now (try again after ``retry_after_s``), or for good (None)."""

    reason: str
    message: str
    retry_after_s: float | None = None


class BadRequestError(Exception):
    """A request that cannot be read or priced: ``status``, the field at fault, and an OpenAI error code."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


def error_body(message: str, *, kind: str, code: str, param: str | None = None) -> bytes:
    """An error object of OpenAI's API."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


async def send_bytes(
    send: Send, status: int, body: bytes, *, content_type: bytes = b"application/json", headers: Headers | None = None
) -> None:
    """Send one complete response."""
    start: Headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def send_error(
    send: Send,
    status: int,
    message: str,
    *,
    code: str,
    param: str | None = None,
    retry_after_s: float | None = None,
    headers: Headers | None = None,
) -> None:
    """Send an error. ``retry_after_s`` tells clients when to try again; a 4xx without it tells them not to.

    ``retry-after`` is in whole seconds (RFC 9110 §10.2.3), rounded up, at least 1; ``retry-after-ms`` is exact and is
    what the SDKs of OpenAI and Anthropic read first.
    """
    kind = "server_error" if status >= 500 else ("rate_limit_error" if status == 429 else "invalid_request_error")
    extra: Headers = list(headers or [])
    if retry_after_s is not None:
        extra.append((b"retry-after", b"%d" % whole_seconds(retry_after_s)))
        extra.append((b"retry-after-ms", b"%d" % round(retry_after_s * 1000)))
        extra.append((b"x-should-retry", b"true"))
    elif status < 500:
        extra.append((b"x-should-retry", b"false"))
    await send_bytes(send, status, error_body(message, kind=kind, code=code, param=param), headers=extra)


async def send_bad_request(send: Send, error: BadRequestError) -> None:
    """Send ``error``; where the rest of the body may still arrive, the connection is closed."""
    await send_error(
        send,
        error.status,
        error.message,
        code=error.code,
        param=error.param,
        retry_after_s=1.0 if error.status == 503 else None,
        headers=[(b"connection", b"close")] if error.status in (408, 411, 413, 503) else None,
    )
