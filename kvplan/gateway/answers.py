"""The answers that the gateway gives itself: OpenAI error bodies, and headers that clients understand."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from kvplan.admission import whole_seconds

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]


def error_body(message: str, *, kind: str, code: str, param: str | None = None) -> bytes:
    """An error as OpenAI's API words it."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


async def send_bytes(
    send: Send, status: int, body: bytes, *, content_type: bytes = b"application/json", headers: Headers | None = None
) -> None:
    """One whole response."""
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
    """An error response. With ``retry_after_s`` clients are told when to try again; without it, a 4xx says not to."""
    kind = "server_error" if status >= 500 else ("rate_limit_error" if status == 429 else "invalid_request_error")
    extra: Headers = list(headers or [])
    if retry_after_s is not None:
        extra.append((b"retry-after", b"%d" % whole_seconds(retry_after_s)))
        extra.append((b"retry-after-ms", b"%d" % round(retry_after_s * 1000)))
        extra.append((b"x-should-retry", b"true"))
    elif status < 500:
        extra.append((b"x-should-retry", b"false"))
    await send_bytes(send, status, error_body(message, kind=kind, code=code, param=param), headers=extra)
