"""Exact prompt lengths, asked of the engine's own ``/tokenize``: what a bound over-states, a count gives back.

A local ``tokenizer.json`` is not read: it counts a text, but most requests are chats, and their template with its own
helpers lives elsewhere, in the engine. Rendered here by other code, a count could be too small, which a bound never is.
"""

import asyncio
from collections.abc import Mapping

import aiohttp

_AT_ONCE = 32
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
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


class EngineCounter:
    """Counts through ``base_url``/tokenize, at most 32 at once. Any failure means "not known", and the bound stands.

    An engine that has no such route, or keeps it for those with a key, is asked once.
    """

    def __init__(self, base_url: str) -> None:
        self._url = base_url.rstrip("/") + "/tokenize"
        self._session: aiohttp.ClientSession | None = None
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._is_offered = True

    async def __call__(self, path: str, fields: Mapping[str, object], *, may_wait: bool) -> int | None:
        """Prompt tokens of the body ``fields`` sent to ``path``, or None.

        Without ``may_wait`` a busy counter answers None: a flood of requests that will be refused must not become a
        flood of questions to the engine.
        """
        question = _question(path, fields)
        if question is None or not self._is_offered or (self._turn.locked() and not may_wait):
            return None
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        async with self._turn:
            try:
                async with self._session.post(self._url, json=question) as response:
                    self._is_offered = response.status not in (401, 403, 404, 405, 501)
                    answer = await response.json() if response.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, ValueError):
                return None
        count = answer.get("count") if isinstance(answer, dict) else None
        return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None

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
