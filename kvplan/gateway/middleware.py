"""The life of a request: read, price, reserve, run, release. A pure ASGI application around another one.

What goes wrong elsewhere and is avoided here: only one task reads ``receive``; the reservation is owned by this call
and nobody else; release is synchronous, in the innermost ``finally``, and counts once.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace

from kvplan.gateway.admit import Admission, Price, Refusal, price, refused_for_good
from kvplan.gateway.answers import AsgiApp, Headers, Message, Receive, Scope, Send, send_error
from kvplan.gateway.asks import PRICED_ROUTES, Ask, BadRequestError, read_ask, read_body, with_cap
from kvplan.gateway.metrics import GatewayMetrics

Counter = Callable[[str, bytes], Awaitable[int | None]]
"""Given a path and a body, the exact number of prompt tokens, or None where it cannot be told."""

_BODY_LIMIT_BYTES = 32 * 2**20


_DRAINING = Refusal(reason="draining", message="this server is shutting down", retry_after_s=1.0)


class ClientGoneError(Exception):
    """The client closed its connection while its body was being read."""


class AdmissionMiddleware:
    """Admits a request to ``app`` only while its worst case fits in the ledger of ``admission``.

    ``count`` gives exact prompt lengths where a tokenizer is at hand; a reservation is only ever shrunk to them.
    ``is_draining`` says whether the server is going down: then every priced request is answered 503.
    """

    def __init__(
        self,
        app: AsgiApp,
        admission: Admission,
        *,
        count: Counter | None = None,
        metrics: GatewayMetrics | None = None,
        body_limit_bytes: int = _BODY_LIMIT_BYTES,
        too_long_status: int = 400,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self.app = app
        self.admission = admission
        self._count = count
        self._metrics = metrics
        self._body_limit_bytes = body_limit_bytes
        self._too_long_status = too_long_status
        self._is_draining = is_draining
        self._serial = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        route = PRICED_ROUTES.get(scope["path"]) if scope["type"] == "http" else None
        if route is None or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        if self._is_draining():
            await self._refuse(send, 503, _DRAINING)
            return
        try:
            raw = await _whole_body(scope, receive, self._body_limit_bytes)
            body = read_body(raw)
            ask = read_ask(route, body, self.admission.promise.media_tokens)
            ask = await self._exact_where_needed(scope["path"], raw, ask)
        except BadRequestError as error:
            self._note_refusal("malformed")
            await send_error(send, error.status, error.message, code=error.code, param=error.param)
            return
        except ClientGoneError:
            return
        charged = price(self.admission.promise, ask)
        refusal = refused_for_good(self.admission.promise, ask, charged)
        if refusal is not None:
            await self._refuse(send, self._too_long_status, refusal)
            return
        forwarded = with_cap(raw, body, ask.cap_field, charged.cap_to_write)
        count = None if self._count is None or ask.is_exact else self._shrinking(scope["path"], raw, ask)
        await self._run(scope, receive, send, forwarded, charged, count)

    async def _exact_where_needed(self, path: str, raw: bytes, ask: Ask) -> Ask:
        """``ask`` with its exact prompt where the bound alone would refuse it, and a counter can tell better."""
        if self._count is None or ask.is_exact or len(ask.prompts) != 1:
            return ask
        promise, ledger = self.admission.promise, self.admission.ledger
        if ask.prompts[0] < promise.window_tokens and price(promise, ask).weight <= ledger.free:
            return ask
        exact = await self._count(path, raw)
        if exact is None or exact > ask.prompts[0]:
            return ask
        return replace(ask, prompts=(exact,), is_exact=True)

    def _shrinking(self, path: str, raw: bytes, ask: Ask) -> Callable[[int], Coroutine[None, None, None]]:
        """What lowers a living reservation to the exact count, beside the running request."""

        async def shrink(holder: int) -> None:
            assert self._count is not None
            exact = await self._count(path, raw)
            if exact is not None and len(ask.prompts) == 1 and exact < ask.prompts[0]:
                counted = replace(ask, prompts=(exact,), is_exact=True)
                self.admission.shrink(holder, price(self.admission.promise, counted).weight)

        return shrink

    async def _run(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        body: bytes,
        charged: Price,
        shrink: Callable[[int], Coroutine[None, None, None]] | None,
    ) -> None:
        """Reserve, hand over to the application with ``body``, and release whatever happens."""
        holder = next(self._serial)
        admission = self.admission
        gone = asyncio.Event()
        helpers: list[asyncio.Task[None]] = []
        current = asyncio.current_task()
        assert current is not None
        admitted_at_s = time.monotonic()
        try:
            if not await admission.ledger.acquire(holder, charged.weight):
                await self._refuse(send, 429, admission.no_room(charged))
                return
            self._note_admission(charged)
            helpers.append(asyncio.create_task(_watch(receive, gone, current)))
            if shrink is not None:
                helpers.append(asyncio.create_task(shrink(holder)))
            await self.app(_with_length(scope, body), _replay(body, gone), _marked(send, charged))
        except asyncio.CancelledError:
            if not gone.is_set() or current.uncancel() > 0:
                raise
        finally:
            for helper in helpers:
                helper.cancel()
            if admission.release(holder):
                self._note_release(admitted_at_s)

    async def _refuse(self, send: Send, status: int, refusal: Refusal) -> None:
        self._note_refusal(refusal.reason)
        code = refusal.reason if refusal.retry_after_s is not None else "context_length_exceeded"
        headers: Headers = [(b"connection", b"close")] if refusal.reason == "draining" else []
        await send_error(send, status, refusal.message, code=code, retry_after_s=refusal.retry_after_s, headers=headers)

    def _note_refusal(self, reason: str) -> None:
        if self._metrics is not None:
            self._metrics.refused.labels(reason).inc()

    def _note_admission(self, charged: Price) -> None:
        if self._metrics is not None:
            self._metrics.admitted.inc()
            self._metrics.reserved_tokens.inc(charged.tokens)

    def _note_release(self, admitted_at_s: float) -> None:
        if self._metrics is not None:
            self._metrics.held_s.observe(time.monotonic() - admitted_at_s)


async def _whole_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """The request's body; refuses a size over the limit, announced or real, and lengths that contradict each other."""
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    chunked = any(name == b"transfer-encoding" for name, _ in scope["headers"])
    if len(lengths) > 1 or (lengths and chunked):
        raise BadRequestError("the request states its length in two ways", code="invalid_framing")
    if lengths and (not lengths[0].isdigit() or int(lengths[0]) > limit_bytes):
        raise BadRequestError(
            f"the body is over the limit of {limit_bytes} bytes", code="request_too_large", status=413
        )
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise BadRequestError(
                f"the body is over the limit of {limit_bytes} bytes", code="request_too_large", status=413
            )
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _watch(receive: Receive, gone: asyncio.Event, running: "asyncio.Task[object]") -> None:
    """The only reader of ``receive`` once the body is in: when the client leaves, its request is cancelled."""
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()
    running.cancel()


def _replay(body: bytes, gone: asyncio.Event) -> Receive:
    """A ``receive`` for the inner application: the whole body once, then the disconnect when it happens."""
    pending = [body]

    async def receive() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


def _with_length(scope: Scope, body: bytes) -> Scope:
    """``scope`` with the length of the body that is handed on."""
    kept = [pair for pair in scope["headers"] if pair[0] not in (b"content-length", b"transfer-encoding")]
    return {**scope, "headers": [*kept, (b"content-length", str(len(body)).encode())]}


def _marked(send: Send, charged: Price) -> Send:
    """``send`` that says in the response's headers how much was reserved."""
    mark = (b"x-kvplan-reserved-tokens", str(charged.tokens).encode())

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), mark]}
        await send(message)

    return marked
