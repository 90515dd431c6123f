"""What the gateway asks the engine on its own account: the size of its KV pool, held against the plan at the start and
after every outage; whether it is up; and the exact length of a prompt."""

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from kvplan.errors import InputError
from kvplan.gateway.responses import Refusal

_CACHE_INFO = re.compile(rb"^vllm:cache_config_info\{(?P<labels>.*)\}\s", re.MULTILINE)
_LABEL = re.compile(rb'(\w+)="((?:[^"\\]|\\.)*)"')
_POOL_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_COUNT_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_COUNTS_AT_ONCE = 32
_ASK_AGAIN_S = 1.0
_LOG = logging.getLogger("kvplan.gateway")

_POOL_FIELDS = {
    "/get_server_info": "max_total_num_tokens",
    "/server_info": "max_total_num_tokens",
    "/info": "max_batch_total_tokens",
}
"""Where else an engine reports its pool in tokens, and in which field (SGLang, which renamed its route; TGI until 2.x).
llama.cpp's ``/props`` gives the slots and a slot's context, but not whether the slots share one pool."""

_SMALLER = Refusal(status=503, code="plan_exceeds_engine", message="the engine's KV pool changed", retry_after_s=30.0)

_CHAT_FIELDS = (
    "model",
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
)


@dataclass(frozen=True, kw_only=True)
class ReportedPool:
    """A pool as the engine reports it: in tokens, and by some in blocks of ``block_tokens`` (with the reserved one)."""

    tokens: int
    blocks: int | None = None
    block_tokens: int | None = None


def read_vllm_metrics(text: bytes) -> ReportedPool | None:
    """The pool in vLLM's Prometheus text (``vllm:cache_config_info``), or None if it does not say.

    Of several data-parallel engines the smallest counts, since the gateway does not know which one a request will meet.

    >>> read_vllm_metrics(b'vllm:cache_config_info{block_size="16",num_gpu_blocks="2588"} 1.0').blocks
    2588
    """
    found = []
    for line in _CACHE_INFO.finditer(text):
        labels = dict(_LABEL.findall(line["labels"]))
        blocks, block_tokens = labels.get(b"num_gpu_blocks", b""), labels.get(b"block_size", b"")
        if blocks.isdigit() and block_tokens.isdigit():
            tokens = int(blocks) * int(block_tokens)
            found.append(ReportedPool(tokens=tokens, blocks=int(blocks), block_tokens=int(block_tokens)))
    return min(found, key=lambda pool: pool.tokens, default=None)


def read_info(path: str, info: object) -> ReportedPool | None:
    """The pool in the JSON that an engine answers on ``path``, or None if it does not say.

    >>> read_info("/info", {"max_batch_total_tokens": 16000}).tokens
    16000
    """
    tokens = info.get(_POOL_FIELDS[path]) if isinstance(info, dict) else None
    return ReportedPool(tokens=tokens) if type(tokens) is int else None


async def fetch_reported_pool(base_url: str) -> ReportedPool | None:
    """Ask the engine behind ``base_url`` for its pool; None if it answers but does not say.

    Raises InputError if nothing answers.
    """
    base = base_url.rstrip("/")
    async with aiohttp.ClientSession(timeout=_POOL_TIMEOUT) as session:
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
    """One line that says the plan holds. Raises InputError if it promises more than the engine has.

    >>> check_pool(planned_blocks=100, block_tokens=16, reported=ReportedPool(tokens=3200, blocks=200))
    'the engine has 200 blocks, the plan uses 100'
    """
    if reported is None:
        raise InputError(
            "the engine does not report the size of its KV pool",
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
    """Asks the engine behind ``base_url`` whether it is up, and only for a reason: a readiness probe, or a failure.

    After a failure it asks until the engine is back, and then for its pool again, which a restart may have changed.
    While the pool is smaller than ``planned_blocks``, nothing is admitted. With ``planned_blocks`` None the plan is
    trusted.
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
        """Whether the engine answers ``/health``, asked at most once a second."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._answered_at_s < _ASK_AGAIN_S:
            return True
        try:
            async with (
                aiohttp.ClientSession(timeout=_HEALTH_TIMEOUT) as session,
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
                self.smaller = _SMALLER
                await asyncio.sleep(_ASK_AGAIN_S)
            else:
                self.smaller = None
                return


class PromptCounter:
    """Counts prompts with the engine's own ``/tokenize``, at most 32 at once. After any failure the bound stands.

    An engine that lacks the route, or protects it with a key, is asked once. No local ``tokenizer.json`` is read: most
    requests are chats, whose template and its helpers live in the engine; a count from elsewhere could be too small,
    which a bound never is.
    """

    def __init__(self, base_url: str) -> None:
        self._url = base_url.rstrip("/") + "/tokenize"
        self._session: aiohttp.ClientSession | None = None
        self._turn = asyncio.Semaphore(_COUNTS_AT_ONCE)
        self._is_offered = True

    async def __call__(self, path: str, fields: Mapping[str, object], *, may_wait: bool) -> int | None:
        """Prompt tokens of the body ``fields`` sent to ``path``, or None.

        Without ``may_wait`` a busy counter answers None, so that a flood of requests that will be refused does not
        become a flood of questions to the engine.
        """
        question = _question(path, fields)
        if question is None or not self._is_offered or (self._turn.locked() and not may_wait):
            return None
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_COUNT_TIMEOUT)
        async with self._turn:
            try:
                async with self._session.post(self._url, json=question) as response:
                    self._is_offered = response.status not in (401, 403, 404, 405, 501)
                    answer = await response.json() if response.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, ValueError):
                return None
        count = answer.get("count") if isinstance(answer, dict) else None
        return count if type(count) is int and count >= 0 else None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def _question(path: str, fields: Mapping[str, object]) -> dict[str, object] | None:
    """The body for vLLM's ``/tokenize``: a chat's messages and what its template reads, or a plain prompt."""
    if path == "/v1/chat/completions":
        return {name: fields[name] for name in _CHAT_FIELDS if name in fields}
    if path == "/v1/completions" and isinstance(fields.get("prompt"), str) and not fields.get("suffix"):
        return {name: fields[name] for name in ("model", "prompt", "add_special_tokens") if name in fields}
    return None
