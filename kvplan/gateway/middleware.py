"""The life of a request: read, price, reserve, run, release. A pure ASGI application around another one.

What goes wrong elsewhere and is avoided here: only one task reads ``receive``; the reservation is owned by this call
and nobody else; release is synchronous, in the innermost ``finally``, and counts once.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from kvplan.gateway.admit import Admission, LedgerDownError, Price, Refusal, filled, price, refused_for_good
from kvplan.gateway.answers import AsgiApp, Headers, Message, Receive, Scope, Send, send_error
from kvplan.gateway.asks import PRICED_ROUTES, Ask, Route, read_ask
from kvplan.gateway.bodies import (
    MOST_VALUES,
    BadRequestError,
    Bodies,
    Body,
    ClientGoneError,
    read_body,
    refuse_body,
    refuse_many_values,
    with_cap,
)
from kvplan.gateway.running import STALL_S, AnswerCutError, Running, StallGuard, read_usage, watch

if TYPE_CHECKING:
    from kvplan.gateway.metrics import GatewayMetrics


Given = ParamSpec("Given")
Result = TypeVar("Result")


class Counter(Protocol):
    """Counts prompts exactly where it can."""

    async def __call__(self, path: str, fields: Mapping[str, object], *, may_wait: bool) -> int | None:
        """Tokens of the prompt in the body ``fields`` sent to ``path``, or None; now or never without ``may_wait``."""
        ...


_LARGE_BODY_BYTES = 64 * 1024
"""From here on a body is read and bounded beside the loop: running streams wait for no more than JSON's decoder, which
gives the interpreter to nobody else (a millisecond a MiB of text, 9 of token ids)."""

_HUGE_BODY_BYTES = 4 * 2**20
"""From here on bodies are read one after another and kept as bytes only: their objects can be twenty times as large."""

DRAINING = Refusal(reason="draining", message="this server is shutting down", retry_after_s=1.0)
_LEDGER_DOWN = Refusal(
    reason="ledger_unavailable", message="the shared ledger of reservations cannot be reached", retry_after_s=2.0
)


@dataclass(frozen=True, kw_only=True)
class _Priced:
    """A request that has been read: nothing is reserved yet. ``countable`` holds its fields where they will be counted;
    others are let go, for token ids are many times longer as objects than as text."""

    path: str
    forwarded: bytes
    is_stream: bool
    countable: Mapping[str, object] | None
    ask: Ask
    price: Price


class AdmissionMiddleware:
    """Admits a request to ``app`` only while its worst case fits in the ledger of ``admission``.

    ``count`` gives exact prompt lengths where a tokenizer is at hand; a reservation is only ever shrunk to them.
    ``why_closed`` says why nothing may enter now (a server that goes down), or None.
    ``engine_aborts``: what the engine stops writing when its client leaves; the rest keeps its reservation until it is
    done. ``all``: vLLM (0.33: ``with_cancellation``, and its streams). ``streams``: llama-cpp-python's server (0.3.36)
    stops a stream within a token and writes whole answers to their end, measured. ``nothing``: some builds of
    llama.cpp's own. (To ask for a stream instead and to put the pieces together here would change what a client gets:
    tool calls, logprobs, fields that only one engine writes.)

    Around a Python server's own ASGI application, with nothing but the standard library:

    >>> from kvplan.admission import STRATEGIES
    >>> from kvplan.gateway import Admission, OwnLedger, Promise
    >>> promise = Promise(
    ...     window_tokens=32768,
    ...     capacity=23911,
    ...     request_blocks=lambda tokens: -(-tokens // 16),
    ...     strategy=STRATEGIES["worst_case"],
    ... )
    >>> async def my_server(scope, receive, send): ...
    >>> app = AdmissionMiddleware(my_server, Admission(promise, OwnLedger(promise.capacity)))
    >>> app.admission.ledger.free
    23911
    """

    def __init__(
        self,
        app: AsgiApp,
        admission: Admission,
        *,
        count: Counter | None = None,
        metrics: "GatewayMetrics | None" = None,
        routes: Mapping[str, Route] = PRICED_ROUTES,
        bodies: Bodies | None = None,
        stall_s: float = STALL_S,
        too_long_status: int = 400,
        engine_aborts: str = "all",
        why_closed: Callable[[], Refusal | None] = lambda: None,
    ) -> None:
        self.app = app
        self.admission = admission
        self._count = count
        self._metrics = metrics
        self._routes = routes
        self._bodies = bodies or Bodies()
        self._too_long_status = too_long_status
        self._engine_aborts = engine_aborts
        self._why_closed = why_closed
        self._stalls = StallGuard(stall_s)
        self._huge = asyncio.Lock()
        self._serial = itertools.count()
        if metrics is not None:
            metrics.show_used(self.used)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if route is None or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        head_at_s = time.monotonic()
        closed = self._why_closed()
        if closed is not None:
            await self._refuse(send, 503, closed)
            return
        raw = b""
        try:
            raw = await self._bodies.read(scope, receive)
            priced = await self._price(scope, route, raw)
        except BadRequestError as error:
            self._note_refusal("malformed" if error.status < 500 else error.code)
            await refuse_body(send, error)
        except ClientGoneError:
            pass
        else:
            refusal = refused_for_good(self.admission.promise, priced.ask, priced.price)
            if refusal is not None:
                await self._refuse(send, self._too_long_status, refusal)
            else:
                await self._run(scope, receive, send, priced, head_at_s)
        finally:
            self._bodies.let_go(raw)

    def cut_off(self) -> int:
        """Break off every running answer, at the end of a grace; how many there were."""
        return self._stalls.end_all("cut_off")

    def used(self) -> tuple[int, int]:
        """Blocks and tokens that the running requests fill by now, as far as it is seen here.

        Prompts count as they were priced, or counted since; an event that was streamed is taken for a token, until the
        engine itself tells. Of an answer that comes in one piece only the prompt is seen.
        """
        blocks = tokens = 0
        for running in self._stalls.watched:
            ask, written = running.ask, running.events
            told = None if running.usage is None else read_usage(running.usage)
            if told is not None and len(ask.prompts) * ask.sequences == 1:
                ask, written = replace(ask, prompts=(told,)), 0
            more_blocks, more_tokens = filled(self.admission.promise, ask, written)
            blocks, tokens = blocks + more_blocks, tokens + more_tokens
        return blocks, tokens

    async def _price(self, scope: Scope, route: Route, raw: bytes) -> _Priced:
        """Fields and price; the exact prompt where its bound alone would refuse it and a counter can tell."""
        promise = self.admission.promise
        most = MOST_VALUES + promise.window_tokens
        body, ask = await self._beside(len(raw), _read, raw, most, route, promise.media_tokens)
        if len(raw) >= _HUGE_BODY_BYTES:
            ask = replace(ask, is_countable=False)
        charged = price(promise, ask)
        fits = ask.prompts[0] < promise.window_tokens and charged.weight <= self.admission.ledger.free
        if self._count is not None and ask.is_countable and not fits:
            exact = await self._count(scope["path"], body.fields, may_wait=False)
            if exact is not None and exact <= ask.prompts[0]:
                ask = replace(ask, prompts=(exact,), is_exact=True, is_countable=False)
                charged = price(promise, ask)
        return _Priced(
            path=scope["path"],
            forwarded=await self._beside(len(raw), with_cap, body, ask.cap_fields, charged.cap_to_write),
            is_stream=body.fields.get("stream") is True,
            countable=body.fields if self._count is not None and ask.is_countable else None,
            ask=ask,
            price=charged,
        )

    async def _beside(
        self, size: int, function: Callable[Given, Result], *given: Given.args, **named: Given.kwargs
    ) -> Result:
        """Call ``function`` on a body of ``size`` bytes: at once, in a thread, or in a thread after all others."""
        if size < _LARGE_BODY_BYTES:
            return function(*given, **named)
        if size < _HUGE_BODY_BYTES:
            return await asyncio.to_thread(function, *given, **named)
        async with self._huge:
            return await asyncio.to_thread(function, *given, **named)

    async def _shrink(self, holder: int, priced: _Priced, running: Running) -> None:
        """Lower a living reservation to the exact count, beside the running request."""
        assert self._count is not None
        assert priced.countable is not None
        exact = await self._count(priced.path, priced.countable, may_wait=True)
        if exact is not None and exact < priced.ask.prompts[0]:
            counted = replace(priced.ask, prompts=(exact,), is_exact=True)
            running.ask = counted
            cap = priced.price.cap_to_write
            if cap is not None:
                counted = replace(counted, max_output_tokens=cap)
            self.admission.shrink(holder, price(self.admission.promise, counted).weight)

    async def _run(self, scope: Scope, receive: Receive, send: Send, priced: _Priced, head_at_s: float) -> None:
        """Reserve, hand over to the application, and release whatever happens."""
        task = asyncio.current_task()
        assert task is not None
        holder, charged, admission = next(self._serial), priced.price, self.admission
        is_stopped = self._engine_aborts == "all" or (self._engine_aborts == "streams" and priced.is_stream)
        mark = (b"x-kvplan-reserved-tokens", b"%d" % charged.tokens)
        running = Running(task, send, mark, priced.ask, outlives_client=not is_stopped)
        beside: list[asyncio.Task[None]] = []
        try:
            if not await admission.acquire(holder, charged.weight):
                await self._refuse(send, 429, admission.no_room(charged))
                return
            if self._metrics is not None:
                self._metrics.note_admission(charged.tokens, time.monotonic() - head_at_s)
            self._stalls.add(running)
            beside.append(_start(watch(receive, running)))
            if priced.countable is not None:
                beside.append(_start(self._shrink(holder, priced, running)))
            await self.app(_with_length(scope, priced.forwarded), _replay(priced.forwarded, running), running.send)
            if running.ended_by == "client_stalled":  # and the engine went on to its end
                raise AnswerCutError
        except LedgerDownError:
            await self._refuse(send, 503, _LEDGER_DOWN)
        except asyncio.CancelledError:
            if not running.is_cancelled or task.uncancel() > 0:
                raise
            if running.ended_by != "client_gone":
                raise AnswerCutError from None
        finally:
            for other in beside:
                other.cancel()
            self._stalls.discard(running)
            held_s = admission.release(holder)
            if held_s is not None and self._metrics is not None:
                is_told = running.usage is not None and running.ended_by is None  # before the end it is not all
                used = read_usage(running.usage or b"") if is_told else None
                self._metrics.note_release(held_s, charged.tokens, used, running.ended_by)

    async def _refuse(self, send: Send, status: int, refusal: Refusal) -> None:
        self._note_refusal(refusal.reason)
        code = refusal.reason if refusal.retry_after_s is not None else "context_length_exceeded"
        headers: Headers = [(b"connection", b"close")] if refusal.reason == "draining" else []
        await send_error(send, status, refusal.message, code=code, retry_after_s=refusal.retry_after_s, headers=headers)

    def _note_refusal(self, reason: str) -> None:
        if self._metrics is not None:
            self._metrics.note_refusal(reason)


def _read(raw: bytes, most_values: int, route: Route, media_tokens: Mapping[str, int]) -> tuple[Body, Ask]:
    refuse_many_values(raw, most_values)
    body = read_body(raw)
    return body, read_ask(route, body.fields, media_tokens)


def _start(work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
    return asyncio.get_running_loop().create_task(work)


def _replay(body: bytes, running: Running) -> Receive:
    """A ``receive`` for the inner application: the whole body once, then the disconnect when it happens."""
    pending = [body]

    async def receive() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        await running.gone()
        return {"type": "http.disconnect"}

    return receive


def _with_length(scope: Scope, body: bytes) -> Scope:
    """``scope`` with the length of the body that is handed on."""
    kept = [pair for pair in scope["headers"] if pair[0] not in (b"content-length", b"transfer-encoding")]
    return {**scope, "headers": [*kept, (b"content-length", b"%d" % len(body))]}
