"""``AdmissionMiddleware`` around another application, without the proxy and without a server."""

import asyncio
import doctest
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from kvplan.admission import STRATEGIES
from kvplan.gateway.admission import OwnLedger
from kvplan.gateway.responses import Receive, Scope, Send


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers with the cap it received, or waits for its client to leave."""
    message = await receive()
    body = json.loads(message["body"] or b"{}")
    if body.get("wait"):
        assert (await receive())["type"] == "http.disconnect"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(body.get("max_tokens")).encode()})


def application(ledger: OwnLedger) -> Any:
    """What the documentation shows."""
    from kvplan.gateway import Admission, AdmissionMiddleware, Promise

    promise = Promise(
        window_tokens=1024,
        capacity=ledger.capacity,
        request_blocks=lambda tokens: -(-tokens // 16),
        strategy=STRATEGIES["worst_case"],
        default_max_tokens=32,
    )
    return AdmissionMiddleware(echo, Admission(promise, ledger))


async def call(app: Any, body: Mapping[str, object], *, path: str = "/v1/completions", leaves: bool = False) -> Any:
    """Status and body of one call; a client that ``leaves`` does so once its body was read."""
    sent: list[Any] = []
    raw = json.dumps(body).encode()
    messages = [{"type": "http.request", "body": raw, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        if not leaves:
            await asyncio.Event().wait()
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-length", b"%d" % len(raw))]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    return (sent[0]["status"], json.loads(sent[1]["body"])) if sent else None


def test_another_application_receives_the_default_cap() -> None:
    async def whole() -> None:
        ledger = OwnLedger(8)
        app = application(ledger)
        assert await call(app, {"prompt": [1] * 32}) == (200, 32)
        assert await call(app, {"prompt": [1] * 32, "max_tokens": 5}) == (200, 5)
        assert await call(app, {"anything": 1}, path="/own/route") == (200, None)
        assert (await call(app, {"prompt": [1] * 999, "max_tokens": 20}))[0] == 400
        assert ledger.try_reserve("somebody else", 5)
        status, answer = await call(app, {"prompt": [1] * 32})
        assert (status, answer["error"]["code"]) == (429, "server_at_capacity")
        ledger.release("somebody else")
        assert ledger.reserved == 0

    asyncio.run(whole())


def test_the_client_that_leaves_ends_the_application() -> None:
    async def whole() -> None:
        ledger = OwnLedger(8)
        assert await call(application(ledger), {"prompt": [1] * 32, "wait": True}, leaves=True) is None
        assert ledger.reserved == 0

    asyncio.run(asyncio.wait_for(whole(), 5))


def test_only_http_is_touched() -> None:
    async def whole() -> None:
        seen = []

        async def inner(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(scope["type"])

        app = application(OwnLedger(8))
        app.app = inner
        for kind in ("lifespan", "websocket"):
            await app({"type": kind}, None, None)
        assert seen == ["lifespan", "websocket"]

    asyncio.run(whole())


def test_the_examples_of_explain_ledger_run() -> None:
    page = files("kvplan.explain").joinpath("ledger.md").read_text("utf-8")
    examples = doctest.DocTestParser().get_doctest(page, {}, "ledger.md", None, 0)
    done = doctest.DocTestRunner().run(examples)
    assert done.attempted >= 8
    assert done.failed == 0
