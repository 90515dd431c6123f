"""Exact prompt lengths, asked of the engine's own ``/tokenize``: what a bound over-states, a count gives back."""

import asyncio
import json

import aiohttp

_AT_ONCE = 32
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_CHAT_FIELDS = ("model", "messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt")


class EngineCounter:
    """Counts through ``base_url``/tokenize. Any failure means "not known", and the bound stands."""

    def __init__(self, base_url: str) -> None:
        self._url = base_url.rstrip("/") + "/tokenize"
        self._session: aiohttp.ClientSession | None = None
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, path: str, raw: bytes) -> int | None:
        """Prompt tokens of the body ``raw`` sent to ``path``, or None."""
        question = _question(path, json.loads(raw))
        if question is None:
            return None
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        async with self._turn:
            try:
                async with self._session.post(self._url, json=question) as response:
                    answer = await response.json() if response.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, ValueError):
                return None
        count = answer.get("count") if isinstance(answer, dict) else None
        return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def _question(path: str, body: dict[str, object]) -> dict[str, object] | None:
    """The body for vLLM's ``/tokenize``: a chat's messages and what its template reads, or a plain prompt."""
    if path == "/v1/chat/completions":
        return {name: body[name] for name in _CHAT_FIELDS if name in body}
    if path == "/v1/completions" and isinstance(body.get("prompt"), str):
        return {name: body[name] for name in ("model", "prompt") if name in body}
    return None
