"""What the gateway asks the engine: its pool, in each engine's own words, and the length of a prompt."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from kvplan.errors import InputError
from kvplan.gateway.engine_queries import (
    PromptCounter,
    ReportedPool,
    check_pool,
    fetch_reported_pool,
    read_vllm_metrics,
)


@asynccontextmanager
async def answering(path: str, answer: object, status: int = 200) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that answers ``path`` alone; its address, and the methods it was asked with."""
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.method)
        return web.json_response(answer, status=status)

    app = web.Application()
    app.router.add_route("*", path, handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/", asked
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        (b"", None),
        (b'vllm:cache_config_info{num_gpu_blocks="None",block_size="16"} 1.0\n', None),
        (b'vllm:cache_config_info{block_size="16"} 1.0\n', None),
        (b'# vllm:cache_config_info{block_size="16",num_gpu_blocks="7"} 1.0\n', None),
        (b'x 1\nvllm:cache_config_info{a="}\\"",block_size="16",engine="0",num_gpu_blocks="7"} 1.0\n', 7),
        (b"\n".join(b'vllm:cache_config_info{block_size="16",num_gpu_blocks="%d"} 1.0' % n for n in (90, 80)), 80),
    ],
)
def test_the_pool_is_read_from_vllm_s_metrics(text: bytes, blocks: int | None) -> None:
    pool = read_vllm_metrics(text)
    assert (pool.blocks if pool else None) == blocks


@pytest.mark.parametrize(
    ("path", "info", "tokens"),
    [
        ("/get_server_info", {"max_total_num_tokens": 2064}, 2064),
        ("/server_info", {"max_total_num_tokens": 2064}, 2064),
        ("/info", {"max_batch_total_tokens": 16000, "max_total_tokens": 4096}, 16000),
        ("/info", {"max_batch_total_tokens": None}, None),
        ("/info", {"max_batch_total_tokens": True}, None),
        ("/props", {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4}, None),
    ],
)
def test_the_pool_is_read_from_other_engines_info(path: str, info: dict[str, object], tokens: int | None) -> None:
    async def fetched() -> ReportedPool | None:
        async with answering(path, info) as (url, _):
            return await fetch_reported_pool(url)

    pool = asyncio.run(fetched())
    assert (pool.tokens if pool else None) == tokens


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        (ReportedPool(tokens=2064), "the engine has 2,064 tokens, the plan uses 2,064"),
        (ReportedPool(tokens=2063), "the plan promises 2,064 tokens; the engine has 2,063"),
        (ReportedPool(tokens=2080, blocks=65, block_tokens=32), "the engine has 2,080 tokens, the plan uses 2,064"),
        (None, "does not report the size of its KV pool"),
    ],
)
def test_the_plan_is_compared_in_tokens_if_the_blocks_differ(pool: ReportedPool | None, told: str) -> None:
    holds = told.startswith("the engine has")
    with contextlib.nullcontext() if holds else pytest.raises(InputError, match=told):
        assert check_pool(planned_blocks=129, block_tokens=16, reported=pool) == told


@pytest.mark.parametrize(("status", "times"), [(404, 1), (401, 1), (500, 3)])
def test_an_engine_without_tokenize_is_asked_once(status: int, times: int) -> None:
    async def asked() -> list[str]:
        async with answering("/tokenize", {"count": 7}, status) as (url, methods):
            counter = PromptCounter(url)
            for _ in range(3):
                assert await counter("/v1/completions", {"prompt": "x"}, may_wait=True) is None
            await counter.close()
            return methods

    assert asyncio.run(asked()) == ["POST"] * times


@pytest.mark.parametrize(
    ("answer", "count"), [({"count": 7}, 7), ({"count": -1}, None), ({"count": True}, None), ({}, None), ([7], None)]
)
def test_only_a_count_is_believed(answer: object, count: int | None) -> None:
    async def counted() -> int | None:
        async with answering("/tokenize", answer) as (url, _):
            counter = PromptCounter(url)
            try:
                return await counter("/v1/completions", {"prompt": "x"}, may_wait=False)
            finally:
                await counter.close()

    assert asyncio.run(counted()) == count
