"""The gateway over real sockets in front of a fake engine: every response it gives itself; the ledger ends empty."""

import asyncio
import contextlib
import json
import logging
import threading
import time
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from kvplan.admission import STRATEGIES
from kvplan.gateway import middleware
from kvplan.gateway.admission import Admission, OwnLedger, used
from kvplan.gateway.routes import Demand
from tests.gateway_server import CHAT, CHAT_ALLOWANCE, WINDOW_TOKENS, Served, against, error_of, promise, run


@against()
async def test_a_request_that_fits_is_streamed_byte_for_byte(gateway: Served) -> None:
    status, headers, body = await gateway.chat(max_tokens=8, stream=True)
    assert status == 200
    assert headers["x-engine"] == "fake"
    assert int(headers["x-kvplan-reserved-tokens"]) == CHAT_ALLOWANCE + len("hi") + len("user") + 8
    assert body.endswith(b"data: [DONE]\n\n")
    assert body.count(b"data: ") == 5


@against()
async def test_no_room_is_429_with_a_retry_after_and_an_openai_body(gateway: Served) -> None:
    slow = asyncio.create_task(gateway.chat(fake={"tokens": 10, "gap_s": 0.1}))
    slow2 = asyncio.create_task(gateway.chat(fake={"tokens": 10, "gap_s": 0.1}))
    await gateway.until_running(2)
    status, headers, body = await gateway.chat()
    assert status == 429
    assert int(headers["Retry-After"]) >= 1
    assert int(headers["retry-after-ms"]) >= 1000
    assert (error_of(body)["code"], error_of(body)["type"]) == ("server_at_capacity", "rate_limit_error")
    assert (await slow)[0] == (await slow2)[0] == 200
    assert (await gateway.chat(max_tokens=4))[0] == 200


@against()
async def test_what_can_never_be_served_is_400_and_never_429(gateway: Served) -> None:
    body = {"model": "fake", "prompt": list(range(WINDOW_TOKENS)), "max_tokens": 1}
    status, headers, error = await gateway.post("/v1/completions", body)
    assert (status, headers["x-should-retry"], error_of(error)["code"]) == (400, "false", "context_length_exceeded")
    status, headers, _ = await gateway.chat(n=3)
    assert status == 400
    assert "Retry-After" not in headers
    assert gateway.engine.bodies == []


@against()
async def test_a_field_that_cannot_be_priced_is_named_and_nothing_is_forwarded(gateway: Served) -> None:
    """tests/test_gateway_routes.py lists all such fields."""
    chat = {"messages": [{"role": "user", "content": "x"}]}
    wrong: list[tuple[str, dict[str, Any], str]] = [
        (CHAT, {**chat, "max_tokens": -1}, "max_tokens"),
        (CHAT, {**chat, "n": 0}, "n"),
        ("/v1/completions", {"prompt": [-1]}, "prompt"),
        ("/v1/responses", {"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
    ]
    for path, fields, param in wrong:
        status, headers, body = await gateway.post(path, fields)
        assert (status, headers["x-should-retry"], error_of(body)["param"]) == (400, "false", param)
    for raw in (b"", b"[1]", b"{", b'{"max_tokens": NaN}', b"\xff\xfe", b"[" * 60_000, b"[" * 100_000):
        assert (await gateway.request("POST", CHAT, data=raw))[0] == (413 if len(raw) > 65536 else 400)
    assert gateway.engine.bodies == []


@against(promise(default_max_tokens=100))
async def test_the_default_cap_is_charged_and_forwarded(gateway: Served) -> None:
    status, headers, _ = await gateway.chat()
    assert status == 200
    assert gateway.engine.bodies[0]["max_tokens"] == 100
    assert int(headers["x-kvplan-reserved-tokens"]) == CHAT_ALLOWANCE + 6 + 100
    await gateway.chat(max_tokens=None)
    assert gateway.engine.bodies[1]["max_tokens"] == 100


@against()
async def test_sequences_multiply(gateway: Served) -> None:
    body = {"model": "fake", "prompt": [[1] * 10, [2] * 20], "max_tokens": 10, "n": 2, "best_of": 3}
    status, headers, _ = await gateway.post("/v1/completions", body)
    assert (status, headers["x-kvplan-reserved-tokens"]) == (200, str(3 * (20 + 30)))


@against()
async def test_a_key_given_twice_is_forwarded_as_it_was_priced(gateway: Served) -> None:
    raw = b'{"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}'
    assert (await gateway.request("POST", CHAT, data=raw))[0] == 200
    assert gateway.engine.bodies[0]["max_tokens"] == 5


@against(upstream="http://127.0.0.1:9")
async def test_an_engine_that_is_down_is_503(gateway: Served) -> None:
    status, headers, _ = await gateway.chat()
    assert status == 503
    assert int(headers["Retry-After"]) >= 1


@against()
async def test_draining_answers_503_and_lets_running_requests_finish(gateway: Served) -> None:
    slow = asyncio.create_task(gateway.chat(max_tokens=8, fake={"tokens": 5, "gap_s": 0.05}))
    await gateway.until_running(1)
    gateway.gateway.begin_drain()
    status, headers, _ = await gateway.chat()
    assert status == 503
    assert headers["Connection"] == "close"
    assert (await gateway.request("GET", "/readyz"))[::2] == (503, b"draining\n")
    assert (await slow)[0] == 200


@against()
async def test_only_named_routes_reach_the_engine(gateway: Served) -> None:
    for path in ("/v1/load_lora_adapter", "/sleep", "/server_info", "/v1/unknown", "/v1/chat/completions/"):
        assert (await gateway.post(path, {}))[0] == 404, path
    for path in ("/v1/models/../../sleep", "/v1/models/%2e%2e/metrics", "/v1/models/a%3Fb", "/v1/models/x/../y"):
        assert (await gateway.request("GET", path))[0] == 404, path
    assert not gateway.engine.headers
    _, _, models = await gateway.request("GET", "/v1/models")
    assert json.loads(models)["data"][0]["id"] == "fake"
    assert (await gateway.request("GET", "/healthz"))[::2] == (200, b"ok\n")
    assert (await gateway.figures())["kvplan_ledger_capacity"] == 128, "its own metrics, not the engine's"


@against()
async def test_a_route_is_served_by_its_methods_only(gateway: Served) -> None:
    for method, path, allowed in (
        ("DELETE", "/v1/models/fake", "GET, HEAD"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("GET", CHAT, "POST"),
        ("PUT", CHAT, "POST"),
        ("GET", "/tokenize", "POST"),
        ("GET", "/v1/messages/count_tokens", "POST"),
    ):
        status, headers, body = await gateway.request(method, path)
        assert (status, headers["Allow"], error_of(body)["code"]) == (405, allowed, "method_not_allowed")
    assert not gateway.engine.headers


@against()
async def test_hop_by_hop_headers_stop_here_and_authorization_passes(gateway: Served) -> None:
    headers = {"Authorization": "Bearer secret", "Connection": "x-private", "X-Private": "1", "TE": "trailers"}
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    status, returned, _ = await gateway.request("POST", CHAT, json=body, headers=headers)
    assert status == 200
    assert "x-hop" not in returned
    seen = {name.lower() for name in gateway.engine.headers[0]}
    assert gateway.engine.headers[0]["Authorization"] == "Bearer secret"
    assert not seen & {"x-private", "te"}


@against(count=True)
async def test_a_count_shrinks_what_the_bound_overstates(gateway: Served) -> None:
    text = "word " * 400  # 2,000 bytes, 500 tokens: over the window as a bound, inside it as a count
    status, headers, _ = await gateway.chat(text, max_tokens=8)
    assert status == 200
    assert int(headers["x-kvplan-reserved-tokens"]) == 500 + 8
    slow = [asyncio.create_task(gateway.chat(text, max_tokens=8, fake={"tokens": 8, "gap_s": 0.1})) for _ in "abc"]
    assert [(await one)[0] for one in slow] == [200, 200, 200]


@against()
async def test_every_route_is_priced_by_its_own_fields(gateway: Served) -> None:
    routes: list[tuple[str, dict[str, Any], int]] = [
        ("/v1/completions", {"prompt": "abcd", "max_tokens": 5, "suffix": "xy"}, 16 + 4 + 2 + 5),
        ("/v1/completions", {"prompt": ["abcd", "é"], "max_tokens": 5}, 2 * 16 + 4 + 2 + 2 * 5),
        ("/v1/responses", {"input": "abcd", "instructions": "ef", "max_output_tokens": 7}, 256 + 4 + 2 + 7),
        ("/v1/responses", {"input": "a", "max_output_tokens": 7, "tools": [{"type": "web_search"}]}, WINDOW_TOKENS),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "abc"}], "system": "de", "max_tokens": 9},
            272 + 7 + 2 + 9,
        ),
        ("/v1/embeddings", {"input": "abcd"}, 16 + 4),
        ("/v1/embeddings", {"input": [[1, 2, 3], [4]]}, 4),
        *((path, {"query": "ab", "documents": ["c", "defg"]}, 2 * (256 + 2) + 5) for path in ("/v1/rerank", "/rerank")),
        *((path, {"text_1": "ab", "text_2": "c"}, 256 + 3) for path in ("/v1/score", "/score")),
    ]
    for path, fields, tokens in routes:
        status, headers, _ = await gateway.post(path, fields)
        assert (status, headers.get("x-kvplan-reserved-tokens")) == (200, str(tokens)), path


@against(promise(media_tokens={"image": 100}))
async def test_media_are_priced_at_their_maximum(gateway: Served) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:" + "A" * 5000}}]
    message = {"role": "user", "content": parts}
    status, headers, _ = await gateway.chat(messages=[message], max_tokens=4)
    assert status == 200
    assert int(headers["x-kvplan-reserved-tokens"]) == CHAT_ALLOWANCE + 4 + 4 + 3 + 100 + 4


@against(promise(capacity=64))
async def test_a_client_is_told_whether_to_come_back(gateway: Served) -> None:
    slow = asyncio.create_task(gateway.chat(fake={"tokens": 10, "gap_s": 0.05}))
    await gateway.until_running(1)
    answers = [await gateway.chat() for _ in range(20)]
    assert [status for status, _, _ in answers[1:]] == [429] * 19
    waits_ms = {int(headers["retry-after-ms"]) for _, headers, _ in answers[1:]}
    assert len(waits_ms) > 5, "every refusal draws its own wait"
    for _, headers, _ in answers[1:]:
        assert headers["x-should-retry"] == "true"
        assert int(headers["Retry-After"]) * 1000 >= int(headers["retry-after-ms"])
    await slow


@against(body_limit_bytes=2**20)
async def test_a_large_body_is_parsed_off_the_loop(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parsing ends only after another request was answered."""
    answered = threading.Event()
    read = middleware._read

    def slow_read(raw: bytes, *rest: Any) -> Any:
        assert len(raw) < 64 * 1024 or answered.wait(10), "nobody else is answered meanwhile"
        return read(raw, *rest)

    monkeypatch.setattr(middleware, "_read", slow_read)
    large = asyncio.create_task(gateway.chat("x" * 70_000, max_tokens=4))
    while gateway.bodies.held_bytes < 70_000:
        await asyncio.sleep(0.005)
    assert (await gateway.chat(max_tokens=4))[0] == 200
    answered.set()
    assert (await large)[0] == 200, "a bound may exceed the window, and then the window holds"


@against(body_limit_bytes=2**20)
async def test_a_body_of_too_many_values_is_refused_unparsed(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "MAX_VALUES", 50_000)
    parsed: list[bytes] = []
    monkeypatch.setattr(middleware, "parse_body", parsed.append)
    raw = b'{"max_tokens": 1, "prompt": [' + b"0," * 60_000 + b"0]}"
    status, _, body = await gateway.request("POST", "/v1/completions", data=raw)
    assert (status, error_of(body)["code"]) == (413, "request_too_large")
    assert not parsed


@against(promise(capacity=64 * 6), count=True, body_limit_bytes=2**20)
async def test_huge_bodies_are_parsed_in_turn_and_dropped(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only their bytes are kept, so they cannot be counted: each is charged its bound."""
    monkeypatch.setattr(middleware, "_HUGE_BODY_BYTES", 70_000)
    turns = threading.Lock()
    read = middleware._read

    def alone(*given: Any) -> Any:
        assert turns.acquire(blocking=False), "one after another"
        try:
            time.sleep(0.02)
            return read(*given)
        finally:
            turns.release()

    monkeypatch.setattr(middleware, "_read", alone)
    answers = await asyncio.gather(*(gateway.chat("word " * 20_000, max_tokens=4) for _ in range(6)))
    assert [status for status, _, _ in answers] == [200] * 6
    assert {headers["x-kvplan-reserved-tokens"] for _, headers, _ in answers} == {str(WINDOW_TOKENS)}


@against(too_long_status=413)
async def test_413_if_configured(gateway: Served) -> None:
    assert (await gateway.chat(n=3))[0] == 413


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_policy_of_the_simulation_runs_here(strategy: str) -> None:
    async def case(gateway: Served) -> None:
        assert (await gateway.chat(max_tokens=4))[0] == 200
        assert await gateway.is_idle()

    run(case, promise(strategy=STRATEGIES[strategy], expected_output_tokens=4))


@against(upstream_timeout_s=0.2)
async def test_a_silent_engine_is_given_up(gateway: Served) -> None:
    status, _, body = await gateway.chat(fake={"tokens": 2, "wait_s": 5})
    assert status == 504
    assert error_of(body)["code"] == "upstream_timeout"
    with pytest.raises(aiohttp.ClientPayloadError):
        await gateway.chat(stream=True, fake={"tokens": 2, "gap_s": 5})
    assert await gateway.is_idle()


@against()
async def test_reported_usage_is_observed(gateway: Served) -> None:
    await gateway.chat(max_tokens=4, fake={"tokens": 4, "usage": 20})
    await gateway.chat(max_tokens=4, stream=True, fake={"tokens": 4, "usage": 30})
    await gateway.chat(max_tokens=4)
    seen = await gateway.figures()
    assert seen["kvplan_observed_used_tokens_total"] == 50
    assert seen["kvplan_observed_reserved_tokens_total"] == 2 * (CHAT_ALLOWANCE + 6 + 4)
    for name in ("kvplan_admitted_total", "kvplan_held_seconds_count", "kvplan_upstream_first_byte_seconds_count"):
        assert seen[name] == 3


@pytest.mark.parametrize("count", [False, True])
def test_metrics_show_what_requests_in_flight_use(count: bool) -> None:
    """Prompts of 272 + 400 + 4 tokens as a bound, 100 as counted; a streamed event counts as a token."""

    async def case(gateway: Served) -> None:
        fake = {"tokens": 40, "gap_s": 0.02}
        streamed = asyncio.create_task(gateway.chat("x" * 400, stream=True, max_tokens=40, fake=fake))
        whole = asyncio.create_task(gateway.chat("x" * 400, max_tokens=40, n=2, fake=fake))
        await gateway.until_running(2)
        await asyncio.sleep(0.3)
        prompt = 100 if count else CHAT_ALLOWANCE + 400 + len("user")
        seen = await gateway.figures()
        assert 3 * prompt + 5 <= seen["kvplan_used_tokens"] <= 3 * prompt + 30, "of the whole answer nothing is seen"
        few, many = (prompt + 5) // 16, -(-(prompt + 40) // 16)
        assert few <= seen["kvplan_used_blocks"] - 2 * -(-prompt // 16) <= many
        assert seen["kvplan_used_blocks"] <= seen["kvplan_ledger_reserved"]
        await asyncio.gather(streamed, whole)
        seen = await gateway.figures()
        assert (seen["kvplan_used_tokens"], seen["kvplan_used_blocks"], seen["kvplan_ledger_reserved"]) == (0, 0, 0)
        assert seen["kvplan_queue_seconds_count"] == seen["kvplan_upstream_seconds_count"] == 2
        assert seen['kvplan_upstream_seconds_bucket{le="0.5"}'] == 0, "40 tokens of 20 ms"
        assert seen['kvplan_upstream_first_byte_seconds_bucket{le="0.5"}'] == 2

    run(case, promise(capacity=200), count=count)


def test_usage_reported_before_the_end_is_used() -> None:
    """Each event may report the tokens so far (vLLM: ``continuous_usage_stats``)."""
    demand = Demand(prompts=(100,), is_exact=False, max_output_tokens=50, sequences=1, cap_fields=("max_tokens",))
    seen: list[tuple[int, int]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for body in (b"data: {}\n\ndata: {}\n\n", b'data: {"usage": {"total_tokens": 35}}\n\n'):
            await send({"type": "http.response.body", "body": body, "more_body": True})
            seen.append(gateway.used())

    body = json.dumps({"prompt": [1] * 30, "max_tokens": 50}).encode()
    given = promise(capacity=100)
    gateway = middleware.AdmissionMiddleware(app, Admission(given, OwnLedger(100)))
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "http_version": "1.1"}

    async def send(message: Any) -> None:
        pass

    async def whole() -> None:
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return messages.pop() if messages else await asyncio.sleep(60)

        await gateway(scope, receive, send)

    asyncio.run(whole())
    assert seen == [(2, 32), (3, 35)]
    assert used(given, replace(demand, prompts=(100, 20), sequences=2), 9) == (2 * (7 + 2), 2 * (103 + 23))


@against(upstream="http://127.0.0.1:9")
async def test_not_ready_if_a_request_could_not_be_forwarded(gateway: Served) -> None:
    assert (await gateway.request("GET", "/readyz"))[::2] == (503, b"upstream_unavailable\n")
    assert (await gateway.request("GET", "/healthz"))[0] == 200


@against()
async def test_ready_means_that_a_request_would_be_forwarded(gateway: Served) -> None:
    assert (await gateway.request("GET", "/readyz"))[::2] == (200, b"ready\n")


@against(trust_plan=False, engine_blocks=128)
async def test_an_engine_that_comes_back_smaller_closes_the_door(gateway: Served) -> None:
    assert (await gateway.chat(max_tokens=4))[0] == 200
    gateway.engine.blocks = 100
    with pytest.raises(aiohttp.ClientPayloadError):
        await gateway.chat(stream=True, max_tokens=4, fake={"die_after": 1})
    for _ in range(300):
        status, _, body = await gateway.chat(max_tokens=4)
        if status == 503:
            break
        await asyncio.sleep(0.01)
    assert error_of(body)["code"] == "plan_exceeds_engine"
    assert (await gateway.request("GET", "/readyz"))[::2] == (503, b"plan_exceeds_engine\n")
    gateway.engine.blocks = 128
    while (await gateway.chat(max_tokens=4))[0] != 200:
        await asyncio.sleep(0.05)


def test_prompts_and_secrets_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def case(gateway: Served) -> None:
        asyncio.get_running_loop().set_debug(True)
        headers = {"Authorization": "Bearer SECRET-KEY"}
        body = {"messages": [{"role": "user", "content": "PRIVATE-PROMPT"}], "max_tokens": 4, "stream": True}
        bodies = (body, {**body, "max_tokens": -1}, {**body, "n": 50}, {**body, "fake": {"die_after": 1}})
        for one in bodies:
            with contextlib.suppress(aiohttp.ClientPayloadError):
                assert b"PRIVATE" not in (await gateway.request("POST", CHAT, json=one, headers=headers))[2]
        cut = b'{"PRIVATE-PROMPT": '
        assert b"PRIVATE" not in (await gateway.request("POST", CHAT, data=cut, headers=headers))[2]

    run(case)
    assert "PRIVATE" not in caplog.text
    assert "SECRET" not in caplog.text
