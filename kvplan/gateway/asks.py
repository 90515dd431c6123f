"""What a request's body asks for: a bound of its prompts, a cap, and how many sequences. Pure; nothing is reserved."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from kvplan.gateway.bounds import (
    TOKENS_PER_PROMPT,
    UnpricedPartError,
    content_bound,
    json_bound,
    messages_bound,
    text_bound,
)

_LARGEST_INTEGER = 2**31 - 1
_MOST_SEQUENCES = 1024


class BadRequestError(Exception):
    """A body that cannot be priced: ``status``, the field at fault, and an OpenAI error code."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_value", status: int = 400
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request in tokens. ``prompts`` holds a bound per prompt, exact where the client sent token ids.

    ``max_output_tokens``: null where the client sends none; 0 on routes that generate nothing. ``sequences`` is the
    number of answers per prompt, max(n, best_of). ``cap_field`` is where a default cap is to be written.
    """

    prompts: tuple[int, ...]
    is_exact: bool
    max_output_tokens: int | None
    sequences: int
    cap_field: str | None


@dataclass(frozen=True, kw_only=True)
class Route:
    """A route that is priced: which fields hold the cap, the first present one's name is used to write a default."""

    cap_fields: tuple[str, ...]
    prompt_field: str


PRICED_ROUTES: dict[str, Route] = {
    "/v1/chat/completions": Route(cap_fields=("max_tokens", "max_completion_tokens"), prompt_field="messages"),
    "/v1/completions": Route(cap_fields=("max_tokens",), prompt_field="prompt"),
    "/v1/responses": Route(cap_fields=("max_output_tokens",), prompt_field="input"),
    "/v1/messages": Route(cap_fields=("max_tokens",), prompt_field="messages"),
    "/v1/embeddings": Route(cap_fields=(), prompt_field="input"),
    "/v1/rerank": Route(cap_fields=(), prompt_field="documents"),
    "/v1/score": Route(cap_fields=(), prompt_field="text_2"),
    "/pooling": Route(cap_fields=(), prompt_field="input"),
    "/classify": Route(cap_fields=(), prompt_field="input"),
}
"""Generating routes, then routes that only read a prompt."""

_PRICE_FIELDS = (
    b"max_tokens",
    b"max_completion_tokens",
    b"max_output_tokens",
    b"best_of",
    b"n",
    b"prompt",
    b"messages",
)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def read_body(body: bytes) -> dict[str, object]:
    """The JSON object in ``body``; BadRequestError where it is none (NaN and Infinity are not JSON)."""
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise BadRequestError("the body must be a JSON object", code="invalid_json")
    return value


def read_ask(route: Route, body: Mapping[str, object], media_tokens: Mapping[str, int]) -> Ask:
    """Price the fields of ``body``: every field that multiplies or lengthens an answer is read, a wrong type refused.

    Raises BadRequestError with the field named.
    """
    try:
        prompts, is_exact = _prompts(route, body, media_tokens)
    except UnpricedPartError as error:
        raise BadRequestError(str(error), param=error.part) from error
    if not route.cap_fields:
        return Ask(prompts=prompts, is_exact=is_exact, max_output_tokens=0, sequences=1, cap_field=None)
    caps = [cap for name in route.cap_fields if (cap := _integer(body, name, least=0)) is not None]
    answers = max(_integer(body, name, least=1) or 1 for name in ("n", "best_of"))
    if answers > _MOST_SEQUENCES:
        raise BadRequestError(f"at most {_MOST_SEQUENCES} sequences a request", param="n")
    return Ask(
        prompts=prompts,
        is_exact=is_exact,
        max_output_tokens=max(caps) if caps else None,
        sequences=answers,
        cap_field=route.cap_fields[0],
    )


def _integer(body: Mapping[str, object], name: str, *, least: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequestError(f"{name} must be an integer", param=name, code="invalid_type")
    if not least <= value <= _LARGEST_INTEGER:
        raise BadRequestError(f"{name} must be between {least} and {_LARGEST_INTEGER}, not {value}", param=name)
    return value


def _prompts(route: Route, body: Mapping[str, object], media_tokens: Mapping[str, int]) -> tuple[tuple[int, ...], bool]:
    """Bounds of the prompts that ``body`` holds, and whether they are exact."""
    if route.prompt_field == "messages":
        return (_chat_bound(body, media_tokens),), False
    if route.prompt_field in ("documents", "text_2"):
        return _pair_bounds(route, body), False
    if "messages" in body and route.prompt_field != "prompt":
        return (_chat_bound(body, media_tokens),), False
    value = body.get(route.prompt_field)
    if route.cap_fields == ("max_output_tokens",):
        return (_responses_bound(value, body, media_tokens),), False
    extra = text_bound(suffix) if isinstance(suffix := body.get("suffix"), str) else 0
    return _plain_prompts(value, route.prompt_field, extra)


def _chat_bound(body: Mapping[str, object], media_tokens: Mapping[str, int]) -> int:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages must be a list with at least one message", param="messages")
    bound = messages_bound(messages, media_tokens)
    for name in ("tools", "functions", "documents", "chat_template_kwargs", "response_format", "tool_choice"):
        bound += json_bound(body.get(name))
    if (system := body.get("system")) is not None:
        bound += content_bound(system, media_tokens)
    if isinstance(template := body.get("chat_template"), str):
        bound += text_bound(template)
    return bound


def _responses_bound(value: object, body: Mapping[str, object], media_tokens: Mapping[str, int]) -> int:
    if body.get("previous_response_id") is not None:
        raise BadRequestError(
            "a prompt that continues a stored response cannot be priced here; send the whole input",
            param="previous_response_id",
        )
    bound = json_bound(body.get("tools")) + content_bound(body.get("instructions"), media_tokens)
    if isinstance(value, str):
        return bound + TOKENS_PER_PROMPT + text_bound(value)
    if isinstance(value, list) and value:
        return bound + messages_bound(value, media_tokens)
    raise BadRequestError("input must be a string or a list of items", param="input")


def _pair_bounds(route: Route, body: Mapping[str, object]) -> tuple[int, ...]:
    """Rerank and score: every document is read together with the query."""
    query_name = "query" if route.prompt_field == "documents" else "text_1"
    query, documents = body.get(query_name), body.get(route.prompt_field)
    items = documents if isinstance(documents, list) else [documents]
    queries = query if isinstance(query, list) else [query]
    if not items or not queries or not all(isinstance(text, str) for text in (*items, *queries)):
        raise BadRequestError(
            f"{query_name} and {route.prompt_field} must be strings or lists of strings", param=query_name
        )
    longest_query = max(text_bound(str(text)) for text in queries)
    return tuple(TOKENS_PER_PROMPT + longest_query + text_bound(str(text)) for text in items)


def _plain_prompts(value: object, name: str, extra: int) -> tuple[tuple[int, ...], bool]:
    """A text, a list of texts, a list of token ids, or a list of lists of them."""
    if isinstance(value, str):
        return (TOKENS_PER_PROMPT + extra + text_bound(value),), False
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return tuple(TOKENS_PER_PROMPT + extra + text_bound(item) for item in value), False
        if _are_token_ids(value):
            return (len(value) + extra,), extra == 0
        if all(isinstance(item, list) and item and _are_token_ids(item) for item in value):
            return tuple(len(item) + extra for item in value), extra == 0
    raise BadRequestError(f"{name} must be a text, token ids, or a list of either", param=name, code="invalid_type")


def _are_token_ids(values: list[object]) -> bool:
    return all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= _LARGEST_INTEGER for item in values
    )


def with_cap(raw: bytes, body: dict[str, object], cap_field: str | None, cap: int | None) -> bytes:
    """The body to forward: the client's own bytes, with ``cap`` written into it where one has to be.

    A body in which a priced field could be read in two ways (a key given twice, an escaped key) is written anew from
    what was priced, so that the engine cannot read another request than the one that was admitted.
    """
    if cap is not None and cap_field is not None:
        if cap_field not in body and not _is_ambiguous(raw):
            start = raw.index(b"{") + 1
            separator = b", " if body else b""
            return raw[:start] + f'"{cap_field}": {cap}'.encode() + separator + raw[start:]
        return json.dumps({**body, cap_field: cap}).encode()
    return json.dumps(body).encode() if _is_ambiguous(raw) else raw


def _is_ambiguous(raw: bytes) -> bool:
    return b"\\u" in raw or any(raw.count(b'"' + name + b'"') > 1 for name in _PRICE_FIELDS)
