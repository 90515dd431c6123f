"""The life of a request: read, price, reserve, run, release. A pure ASGI application around another one.

Only one task reads ``receive``; the reservation belongs to this call alone; its release is synchronous, in the
innermost ``finally``, and counts once.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from kvplan.gateway.admission import Admission, LedgerDownError, Price, price, refusal_for_good, used
from kvplan.gateway.in_flight import STALL_S, IncompleteResponseError, InFlightRequest, InFlightRequests, read_usage
from kvplan.gateway.request_body import (
    LARGE_BODY_BYTES,
    MAX_VALUES,
    Body,
    BodyReader,
    ClientGoneError,
    parse_body,
    refuse_many_values,
    with_cap,
)
from kvplan.gateway.responses import (
    CLOSE,
    AsgiApp,
    BadRequestError,
    Message,
    Receive,
    Refusal,
    Scope,
    Send,
    send_refusal,
)
from kvplan.gateway.routes import PRICED_ROUTES, Demand, Route, read_demand

if TYPE_CHECKING:
    from kvplan.gateway.metrics import GatewayMetrics

Result = TypeVar("Result")


class Counter(Protocol):
    """Counts the tokens of prompts exactly, if it can."""

    async def __call__(self, path: str, fields: Mapping[str, object], *, may_wait: bool) -> int | None:
        """Tokens of the prompt in the body ``fields`` sent to ``path``, or None; without ``may_wait``, now or never."""
        ...


_HUGE_BODY_BYTES = 4 * 2**20
"""From this size on bodies are parsed one after another and kept as bytes only: as objects they can be twenty times as
large."""

DRAINING = Refusal(
    status=503, code="draining", message="this server is shutting down", retry_after_s=1.0, headers=CLOSE
)
_LEDGER_DOWN = Refusal(
    status=503,
    code="ledger_unavailable",
    message="the shared ledger of reservations cannot be reached",
    retry_after_s=2.0,
)


@dataclass(frozen=True, kw_only=True)
class _Priced:
    """A request that was read and priced; nothing is reserved yet. ``countable`` keeps its fields if they will be
    counted; otherwise they are dropped, because token ids take many times more memory as objects than as text."""

    forwarded: bytes
    is_stream: bool
    countable: Mapping[str, object] | None
    demand: Demand
    price: Price


class AdmissionMiddleware:
    """Admits a request to ``app`` only while its worst case fits in the ledger of ``admission``.

    ``count`` gives exact prompt lengths if the engine offers them; a reservation only ever shrinks to them.
    ``why_closed`` gives the reason why nothing is admitted now (the server is shutting down), or None.
    ``engine_aborts`` says what the engine stops generating when its client leaves; anything else keeps its reservation
    until the engine is done. ``all``: vLLM (0.33: ``with_cancellation``, and its streams). ``streams``:
    llama-cpp-python's server (0.3.36) stops a stream within a token but completes other answers, as measured.
    ``nothing``: some builds of llama.cpp's own server. (Requesting a stream instead and joining its pieces here would
    change what a client gets: tool calls, logprobs, engine-specific fields.)

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
        bodies: BodyReader | None = None,
        stall_s: float = STALL_S,
        too_long_status: int = 400,
        engine_aborts: str = "all",
        why_closed: Callable[[], Refusal | None] = lambda: None,
    ) -> None:
        self.app = app
        self.admission = admission
        self._count = count
        self._metrics = metrics
        self._bodies = bodies or BodyReader()
        self._too_long_status = too_long_status
        self._engine_aborts = engine_aborts
        self._why_closed = why_closed
        self._in_flight = InFlightRequests(stall_s)
        self._huge = asyncio.Lock()
        self._serial = itertools.count()
        if metrics is not None:
            metrics.show_used(self.used)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        route = PRICED_ROUTES.get(scope["path"]) if scope["type"] == "http" else None
        if route is None or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        head_at_s = time.monotonic()
        closed = self._why_closed()
        if closed is not None:
            await self._refuse(send, closed)
            return
        raw = b""
        try:
            raw = await self._bodies.read(scope, receive)
            priced = await self._price(scope, route, raw)
        except BadRequestError as error:
            await self._refuse(send, error.refusal)
        except ClientGoneError:
            pass
        else:
            refusal = refusal_for_good(self.admission.promise, priced.demand, priced.price)
            if refusal is not None:
                await self._refuse(send, replace(refusal, status=self._too_long_status))
            else:
                await self._run(scope, receive, send, priced, head_at_s)
        finally:
            self._bodies.release(raw)

    def cut_off(self) -> int:
        """Break off every response in flight, at the end of the grace period; how many there were."""
        return self._in_flight.end_all("cut_off")

    def used(self) -> tuple[int, int]:
        """Blocks and tokens that the requests in flight fill by now, as far as the gateway sees.

        A prompt counts as it was priced, or counted since; a streamed event counts as a token, unless the engine
        reports usage. Of an answer that comes in one piece only the prompt is seen.
        """
        blocks = tokens = 0
        for request in self._in_flight.requests:
            demand, written = request.demand, request.events
            reported = read_usage(request.usage)
            if reported is not None and len(demand.prompts) * demand.sequences == 1:
                demand, written = replace(demand, prompts=(reported,)), 0
            more_blocks, more_tokens = used(self.admission.promise, demand, written)
            blocks, tokens = blocks + more_blocks, tokens + more_tokens
        return blocks, tokens

    async def _price(self, scope: Scope, route: Route, raw: bytes) -> _Priced:
        """Parse and price a body; the prompt is counted first if the bound alone would refuse the request."""
        promise = self.admission.promise
        body, demand = await self._off_loop(
            len(raw), lambda: _read(raw, route, promise.window_tokens, promise.media_tokens)
        )
        if len(raw) >= _HUGE_BODY_BYTES:
            demand = replace(demand, is_countable=False)
        charged = price(promise, demand)
        fits = demand.prompts[0] < promise.window_tokens and charged.weight <= self.admission.ledger.free
        if self._count is not None and demand.is_countable and not fits:
            exact = await self._count(scope["path"], body.fields, may_wait=False)
            if exact is not None and exact <= demand.prompts[0]:
                demand = replace(demand, prompts=(exact,), is_exact=True, is_countable=False)
                charged = price(promise, demand)
        return _Priced(
            forwarded=await self._off_loop(len(raw), lambda: with_cap(body, demand.cap_fields, charged.cap_to_write)),
            is_stream=body.fields.get("stream") is True,
            countable=body.fields if self._count is not None and demand.is_countable else None,
            demand=demand,
            price=charged,
        )

    async def _off_loop(self, size: int, work: Callable[[], Result]) -> Result:
        """Do ``work`` on a body of ``size`` bytes: at once, in a thread, or in a thread after all others."""
        if size < LARGE_BODY_BYTES:
            return work()
        if size < _HUGE_BODY_BYTES:
            return await asyncio.to_thread(work)
        async with self._huge:
            return await asyncio.to_thread(work)

    async def _shrink(self, holder: int, path: str, priced: _Priced, request: InFlightRequest) -> None:
        """Lower a reservation to the exact count while its request runs."""
        assert self._count is not None
        assert priced.countable is not None
        exact = await self._count(path, priced.countable, may_wait=True)
        if exact is not None and exact < priced.demand.prompts[0]:
            request.demand = counted = replace(priced.demand, prompts=(exact,), is_exact=True)
            if priced.price.cap_to_write is not None:
                counted = replace(counted, max_output_tokens=priced.price.cap_to_write)
            self.admission.ledger.shrink(holder, price(self.admission.promise, counted).weight)

    async def _run(self, scope: Scope, receive: Receive, send: Send, priced: _Priced, head_at_s: float) -> None:
        """Reserve, call the application, and release whatever happens."""
        task = asyncio.current_task()
        assert task is not None
        holder, charged, admission = next(self._serial), priced.price, self.admission
        is_aborted = self._engine_aborts == "all" or (self._engine_aborts == "streams" and priced.is_stream)
        mark = (b"x-kvplan-reserved-tokens", b"%d" % charged.tokens)
        request = InFlightRequest(task, send, mark, priced.demand, outlives_client=not is_aborted)
        side_tasks: list[asyncio.Task[None]] = []
        try:
            if not await admission.acquire(holder, charged.weight):
                await self._refuse(send, admission.no_room(charged))
                return
            if self._metrics is not None:
                self._metrics.note_admission(charged.tokens, time.monotonic() - head_at_s)
            self._in_flight.add(request)
            side_tasks.append(asyncio.create_task(request.watch(receive)))
            if priced.countable is not None:
                side_tasks.append(asyncio.create_task(self._shrink(holder, scope["path"], priced, request)))
            await self.app(_with_length(scope, priced.forwarded), _replay(priced.forwarded, request), request.send)
            if request.ended_by == "client_stalled":  # and the engine went on to its end
                raise IncompleteResponseError
        except LedgerDownError:
            await self._refuse(send, _LEDGER_DOWN)
        except asyncio.CancelledError:
            if not request.is_cancelled or task.uncancel() > 0:
                raise
            if request.ended_by != "client_gone":
                raise IncompleteResponseError from None
        finally:
            for side_task in side_tasks:
                side_task.cancel()
            self._in_flight.discard(request)
            held_s = admission.release(holder)
            if held_s is not None and self._metrics is not None:
                reported = None if request.ended_by else read_usage(request.usage)  # partial before the end
                self._metrics.note_release(held_s, charged.tokens, reported, request.ended_by)

    async def _refuse(self, send: Send, refusal: Refusal) -> None:
        if self._metrics is not None:
            self._metrics.note_refusal(refusal.reason or refusal.code)
        await send_refusal(send, refusal)


def _read(raw: bytes, route: Route, window_tokens: int, media_tokens: Mapping[str, int]) -> tuple[Body, Demand]:
    refuse_many_values(raw, MAX_VALUES + window_tokens)
    body = parse_body(raw)
    return body, read_demand(route, body.fields, media_tokens)


def _replay(body: bytes, request: InFlightRequest) -> Receive:
    """A ``receive`` for the inner application: the whole body once, then the disconnect when it happens."""
    pending = [body]

    async def receive() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        await request.gone()
        return {"type": "http.disconnect"}

    return receive


def _with_length(scope: Scope, body: bytes) -> Scope:
    """``scope`` with the length of the forwarded body."""
    kept = [pair for pair in scope["headers"] if pair[0] not in (b"content-length", b"transfer-encoding")]
    return {**scope, "headers": [*kept, (b"content-length", b"%d" % len(body))]}
