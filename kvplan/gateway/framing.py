"""How a request's bytes arrive: one length, a limit in bytes, and a limit in time. Nothing is reserved meanwhile."""

import asyncio

from kvplan.gateway.answers import Receive, Scope
from kvplan.gateway.bodies import BadRequestError

BODY_LIMIT_BYTES = 32 * 2**20
BODY_TIMEOUT_S = 60.0


class ClientGoneError(Exception):
    """The client closed its connection while its body was being read."""


async def whole_body(
    scope: Scope, receive: Receive, *, limit_bytes: int = BODY_LIMIT_BYTES, timeout_s: float = BODY_TIMEOUT_S
) -> bytes:
    """The request's body, within ``timeout_s`` from now.

    Refuses a size over the limit, announced or real, and lengths that contradict each other (a smuggled request).
    """
    _check_framing(scope, limit_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _joined(receive, limit_bytes)
    except TimeoutError as error:
        raise BadRequestError(
            f"the body did not arrive within {timeout_s:g} s", code="request_timeout", status=408
        ) from error


def _check_framing(scope: Scope, limit_bytes: int) -> None:
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    codings = [value for name, value in scope["headers"] if name == b"transfer-encoding"]
    if len(lengths) > 1 or (lengths and codings) or codings not in ([], [b"chunked"]):
        raise BadRequestError("the request states its length in two ways", code="invalid_framing")
    encodings = [value for name, value in scope["headers"] if name == b"content-encoding"]
    if any(value.lower() != b"identity" for value in encodings):
        raise BadRequestError("a compressed body is not read here", code="unsupported_encoding", status=415)
    if lengths and (not lengths[0].isdigit() or int(lengths[0]) > limit_bytes):
        raise _too_large(limit_bytes)


async def _joined(receive: Receive, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large(limit_bytes: int) -> BadRequestError:
    return BadRequestError(f"the body is over the limit of {limit_bytes:,} bytes", code="request_too_large", status=413)
