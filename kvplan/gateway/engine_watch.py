"""Whether the engine answers, and whether it still has the pool that was promised: after a restart it may not."""

import asyncio
import logging

import aiohttp

from kvplan.errors import InputError
from kvplan.gateway.admit import Refusal
from kvplan.gateway.engine_check import check_pool, fetch_reported_pool

_LOG = logging.getLogger("kvplan.gateway")
_ASK_AGAIN_S = 1.0
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


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
                aiohttp.ClientSession(timeout=_TIMEOUT) as session,
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
