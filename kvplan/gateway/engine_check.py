"""What the running engine says of its own pool, held against the plan: before the first request is admitted, and once
the engine was away, for after a restart it may have another."""

import asyncio
import logging
import re
from dataclasses import dataclass

import aiohttp

from kvplan.errors import InputError
from kvplan.gateway.admit import Refusal

_CACHE_INFO = re.compile(rb"^vllm:cache_config_info\{(?P<labels>.*)\}\s", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="((?:[^"\\]|\\.)*)"')
_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_PROBE_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_ASK_AGAIN_S = 1.0
_LOG = logging.getLogger("kvplan.gateway")


@dataclass(frozen=True, kw_only=True)
class ReportedPool:
    """A pool as the engine reports it: blocks of ``block_tokens``, the reserved one included; or tokens."""

    tokens: int
    blocks: int | None = None
    block_tokens: int | None = None


def read_vllm_metrics(text: bytes) -> ReportedPool | None:
    """The pool in vLLM's Prometheus text (``vllm:cache_config_info``), or None where it does not say.

    Of several data-parallel engines the smallest counts: nobody here says which of them a request will meet.

    >>> read_vllm_metrics(b'vllm:cache_config_info{block_size="16",num_gpu_blocks="2588"} 1.0').blocks
    2588
    """
    found = []
    for line in _CACHE_INFO.finditer(text):
        labels = dict(_LABEL.findall(line["labels"]))
        blocks, block_tokens = _whole(labels.get(b"num_gpu_blocks")), _whole(labels.get(b"block_size"))
        if blocks is not None and block_tokens is not None:
            found.append(ReportedPool(tokens=blocks * block_tokens, blocks=blocks, block_tokens=block_tokens))
    return min(found, key=lambda pool: pool.tokens, default=None)


def _whole(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() else None


_POOL_FIELDS = {
    "/get_server_info": "max_total_num_tokens",
    "/server_info": "max_total_num_tokens",
    "/info": "max_batch_total_tokens",
}
"""Where else an engine tells tokens, and in which field (SGLang, which renamed its route; TGI until 2.x). llama.cpp's
``/props`` gives a slot's context and the slots, but not whether they share one pool: that is no answer."""


def read_info(path: str, info: object) -> ReportedPool | None:
    """The pool in the JSON that an engine answers on ``path``, or None where it does not say.

    >>> read_info("/info", {"max_batch_total_tokens": 16000}).tokens
    16000
    """
    tokens = info.get(_POOL_FIELDS[path]) if isinstance(info, dict) else None
    return ReportedPool(tokens=tokens) if type(tokens) is int else None


async def fetch_reported_pool(base_url: str) -> ReportedPool | None:
    """Ask the engine behind ``base_url`` for its pool; None where it answers but does not say.

    Raises InputError when nobody answers.
    """
    base = base_url.rstrip("/")
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        try:
            async with session.get(f"{base}/metrics") as response:
                pool = read_vllm_metrics(await response.read()) if response.status == 200 else None
            for path in _POOL_FIELDS if pool is None else ():
                async with session.get(base + path) as response:
                    is_json = response.status == 200 and response.content_type == "application/json"
                    pool = read_info(path, await response.json()) if is_json else None
                if pool is not None:
                    break
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            raise InputError(
                f"the engine at {base} does not answer ({type(error).__name__})",
                hint="start the engine first, or correct --upstream",
            ) from error
        except (aiohttp.ClientError, ValueError):
            return None
    return pool


def check_pool(*, planned_blocks: int, block_tokens: int, reported: ReportedPool | None) -> str:
    """One line that says the plan holds; InputError where it promises more than the engine has.

    >>> check_pool(planned_blocks=100, block_tokens=16, reported=ReportedPool(tokens=3200, blocks=200))
    'the engine has 200 blocks, the plan uses 100'
    """
    if reported is None:
        raise InputError(
            "the engine does not say how large its KV pool is",
            hint="check that --upstream is the engine itself and exports metrics, or accept the plan with --trust-plan",
        )
    if reported.blocks is not None and reported.block_tokens in (None, block_tokens):
        has, plans, unit = reported.blocks, planned_blocks, "blocks"
    else:
        has, plans, unit = reported.tokens, planned_blocks * block_tokens, "tokens"
    if plans > has:
        raise InputError(
            f"the plan promises {plans:,} {unit}; the engine has {has:,}",
            hint="plan with kv_pool: {blocks: …} from the engine's own log, or accept the plan with --trust-plan",
            key="kv_pool",
        )
    return f"the engine has {has:,} {unit}, the plan uses {plans:,}"


class EngineWatch:
    """Asks the engine behind ``base_url`` only when there is a reason: a readiness probe, or a failure.

    After a failure it asks until the engine is back, and then for its pool again. While the pool is smaller than the
    ``planned_blocks``, nothing may enter. With ``planned_blocks`` None the plan is trusted.
    """

    def __init__(self, base_url: str, *, planned_blocks: int | None, block_tokens: int) -> None:
        self._base_url = base_url.rstrip("/")
        self._planned_blocks = planned_blocks
        self._block_tokens = block_tokens
        self._asking: asyncio.Task[None] | None = None
        self._answered_at_s = float("-inf")
        self.smaller: Refusal | None = None

    def note_failure(self) -> None:
        """The engine failed a request: find out when it is back."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._until_back())

    async def answers(self) -> bool:
        """Whether the engine answered ``/health`` in the last second; asks where nobody has."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._answered_at_s < _ASK_AGAIN_S:
            return True
        try:
            async with (
                aiohttp.ClientSession(timeout=_PROBE_TIMEOUT) as session,
                session.get(f"{self._base_url}/health") as response,
            ):
                is_up = response.status < 500
        except (aiohttp.ClientError, TimeoutError):
            return False
        if is_up:
            self._answered_at_s = now_s
        return is_up

    async def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()

    async def _until_back(self) -> None:
        self._answered_at_s = float("-inf")
        while not await self.answers():
            await asyncio.sleep(_ASK_AGAIN_S)
        if self._planned_blocks is None:
            return
        while True:
            try:
                reported = await fetch_reported_pool(self._base_url)
                check_pool(planned_blocks=self._planned_blocks, block_tokens=self._block_tokens, reported=reported)
            except InputError as error:
                if self.smaller is None:
                    _LOG.error("nothing is admitted: %s", error.message)
                self.smaller = Refusal(
                    reason="plan_exceeds_engine", message="the engine's KV pool changed", retry_after_s=30.0
                )
                await asyncio.sleep(_ASK_AGAIN_S)
            else:
                self.smaller = None
                return
