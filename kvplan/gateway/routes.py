"""The API as the gateway prices it: which routes, and in which fields of a body the prompt, the output cap and the
number of sequences stand. Reading a body is pure; nothing is reserved here."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvplan.gateway.responses import BadRequestError
from kvplan.gateway.token_bounds import (
    TOKENS_OF_TOOLS,
    TOKENS_PER_CHAT,
    TOKENS_PER_PROMPT,
    UnpricedPartError,
    content_bound,
    has_media,
    json_bound,
    messages_bound,
    text_bound,
)

_LARGEST_INTEGER = 2**31 - 1
_MAX_SEQUENCES = 1024


@dataclass(frozen=True, kw_only=True)
class Demand:
    """One request in tokens. ``prompts`` holds a bound per prompt, exact if the client sent token ids.

    ``max_output_tokens``: None if the client sends none; 0 on routes that generate nothing. ``sequences`` is the number
    of answers per prompt, max(n, best_of). ``cap_fields`` may hold the cap; it is written into the first.
    ``is_countable``: the engine's own tokenizer would see the whole prompt (media are expanded only later).
    """

    prompts: tuple[int, ...]
    is_exact: bool
    max_output_tokens: int | None
    sequences: int
    cap_fields: tuple[str, ...]
    is_countable: bool = False


@dataclass(frozen=True, kw_only=True)
class Route:
    """A priced route: the field of the prompt, and those that may hold the cap (a default is written into the first).

    ``form``: ``chat`` (messages), ``plain`` (texts or token ids), ``responses`` (text or items), ``pairs`` (a query
    read together with each document). ``rivals``: fields that an engine could read instead of ``prompt_field``.
    """

    form: str
    prompt_field: str
    cap_fields: tuple[str, ...] = ()
    query_field: str | None = None
    rivals: tuple[str, ...] = ()


_POOLING = Route(form="plain", prompt_field="input", rivals=("messages",))
_RERANK = Route(form="pairs", prompt_field="documents", query_field="query")
_SCORE = Route(
    form="pairs",
    prompt_field="text_2",
    query_field="text_1",
    rivals=("data_1", "data_2", "queries", "documents", "items"),
)

PRICED_ROUTES: dict[str, Route] = {
    "/v1/chat/completions": Route(
        form="chat", prompt_field="messages", cap_fields=("max_tokens", "max_completion_tokens")
    ),
    "/v1/completions": Route(form="plain", prompt_field="prompt", cap_fields=("max_tokens",)),
    "/v1/responses": Route(form="responses", prompt_field="input", cap_fields=("max_output_tokens",)),
    "/v1/messages": Route(form="chat", prompt_field="messages", cap_fields=("max_tokens",)),
    **dict.fromkeys(("/v1/embeddings", "/pooling", "/classify"), _POOLING),
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), _RERANK),
    **dict.fromkeys(("/v1/score", "/score"), _SCORE),
}
"""Routes that generate, then routes that only read a prompt (with the spellings that vLLM 0.33 serves)."""

FORWARDED_ROUTES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(PRICED_ROUTES, ("POST",)),
    "/v1/models": ("GET", "HEAD"),
    "/version": ("GET", "HEAD"),
    "/tokenize": ("POST",),
    "/detokenize": ("POST",),
    "/v1/messages/count_tokens": ("POST",),
}
"""Methods of the routes that reach the engine: the priced ones, and those that hold no KV cache and reveal no secrets.
All others are not found: one that generates would escape the bound, and the engine's own (metrics, LoRA loading, sleep,
profiling) are not for clients."""

_OTHER_MEDIA = "it changes how many tokens a medium takes, and the configured maximum would no longer hold"
_REFUSED_FIELDS: dict[str, str] = {
    "n_predict": "send max_tokens instead: engines disagree about which of the two counts",
    "prompt_embeds": "the length of a prompt of embeddings cannot be read",
    "mm_processor_kwargs": _OTHER_MEDIA,
    "media_io_kwargs": _OTHER_MEDIA,
    "images_config": _OTHER_MEDIA,
    "max_dynamic_patch": _OTHER_MEDIA,
    "use_audio_in_video": _OTHER_MEDIA,
    "input_ids": "an engine that reads it (SGLang) ignores the messages that are priced",
    "session_params": "a prompt that continues an engine's session cannot be priced; send the whole input",
    "previous_response_id": "a prompt that continues a stored response cannot be priced; send the whole input",
    "previous_input_messages": "send them in input, where they are priced",
    "conversation": "a prompt that continues a stored conversation cannot be priced; send the whole input",
}
"""Fields that would make a request longer than its body shows, each with the reason for its refusal."""

_SEQUENCES_FIELDS = ("n", "best_of", "n_cmpl")
"""``n_cmpl`` is llama.cpp's name for ``n``."""

_UNCOUNTABLE_FIELDS = ("documents", "functions", "reasoning_effort", "response_format", "truncate_prompt_tokens")
"""Fields that a template may print but ``/tokenize`` does not take: the bound stands."""


def read_demand(route: Route, body: Mapping[str, object], media_tokens: Mapping[str, int]) -> Demand:
    """The demand of ``body``: every field that multiplies or lengthens an answer is read, and a wrong type refused.

    Raises BadRequestError with the field named.
    """
    for name, reason in _REFUSED_FIELDS.items():
        if body.get(name) is not None:
            raise BadRequestError(f"{name} is not accepted: {reason}", param=name, code="unsupported_parameter")
    for name in route.rivals:
        if body.get(name) is not None and body.get(route.prompt_field) is not None:
            message = f"{name} and {route.prompt_field} are two prompts, and an engine reads only one of them"
            raise BadRequestError(message, param=name, code="unsupported_parameter")
    try:
        prompts, is_exact = _prompts(route, body, media_tokens)
    except UnpricedPartError as error:
        raise BadRequestError(str(error), param=error.part) from error
    except RecursionError as error:
        raise BadRequestError("the body is nested too deeply", param=route.prompt_field) from error
    if body.get("padding") not in (None, "do_not_pad"):  # vLLM's pooling models then pad each prompt to the window
        prompts, is_exact = (_LARGEST_INTEGER,) * len(prompts), False
    if not route.cap_fields:
        return Demand(prompts=prompts, is_exact=is_exact, max_output_tokens=0, sequences=1, cap_fields=())
    # A cap of 0 bounds nothing: vLLM writes one token or refuses it; llama-cpp-python's server and SGLang (as
    # max_completion_tokens) treat it as no cap.
    caps = [cap for name in route.cap_fields if (cap := _integer(body, name, least=0)) is not None]
    answers = max(_integer(body, name, least=1) or 1 for name in _SEQUENCES_FIELDS)
    if answers > _MAX_SEQUENCES:
        raise BadRequestError(f"a request may ask for at most {_MAX_SEQUENCES} sequences", param="n")
    is_countable = not is_exact and len(prompts) == 1 and not any(name in body for name in _UNCOUNTABLE_FIELDS)
    return Demand(
        prompts=prompts,
        is_exact=is_exact,
        max_output_tokens=(max(caps) if all(caps) else _LARGEST_INTEGER) if caps else None,
        sequences=answers,
        cap_fields=route.cap_fields,
        is_countable=is_countable and not has_media(body.get("messages")),
    )


def _integer(body: Mapping[str, object], name: str, *, least: int) -> int | None:
    """A whole number, written 10 or 10.0. Not a string: engines differ in what they make of one."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequestError(f"{name} must be an integer", param=name, code="invalid_type")
    if not least <= value <= _LARGEST_INTEGER:
        shown = value if abs(value) < 10**20 else "a huge number"
        raise BadRequestError(f"{name} must be between {least} and {_LARGEST_INTEGER}, not {shown}", param=name)
    return value


def _prompts(route: Route, body: Mapping[str, object], media_tokens: Mapping[str, int]) -> tuple[tuple[int, ...], bool]:
    """Bounds of the prompts in ``body``, and whether they are exact."""
    if route.form == "chat" or (not route.cap_fields and route.form == "plain" and "messages" in body):
        return (_chat_bound(body, media_tokens),), False
    if route.form == "pairs":
        return _pair_bounds(route, body), False
    if route.form == "responses":
        return (_responses_bound(body, media_tokens),), False
    extra = text_bound(suffix) if isinstance(suffix := body.get("suffix"), str) else 0
    return _plain_prompts(body.get(route.prompt_field), route.prompt_field, extra)


def _chat_bound(body: Mapping[str, object], media_tokens: Mapping[str, int]) -> int:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages must be a list with at least one message", param="messages")
    bound = TOKENS_PER_CHAT + messages_bound(messages, media_tokens)
    for name in ("tools", "functions", "documents", "chat_template_kwargs", "response_format", "tool_choice"):
        bound += json_bound(body.get(name))
    if body.get("tools") or body.get("functions"):
        bound += TOKENS_OF_TOOLS
    if (system := body.get("system")) is not None:
        bound += content_bound(system, media_tokens)
    if isinstance(template := body.get("chat_template"), str):
        bound += text_bound(template)
    return bound


def _responses_bound(body: Mapping[str, object], media_tokens: Mapping[str, int]) -> int:
    if body.get("background"):
        message = "a background response outlives its request and its reservation"
        raise BadRequestError(message, param="background", code="unsupported_parameter")
    if isinstance(body.get("prompt"), Mapping):
        raise BadRequestError("a stored prompt cannot be priced; send the whole input", param="prompt")
    tools = body.get("tools")
    if tools and not (isinstance(tools, list) and all(_is_function(tool) for tool in tools)):
        return _LARGEST_INTEGER  # the engine runs these itself, turn after turn: only the window bounds it
    bound = TOKENS_PER_CHAT + json_bound(tools) + content_bound(body.get("instructions"), media_tokens)
    for name in ("text", "tool_choice", "chat_template_kwargs"):
        bound += json_bound(body.get(name))
    if tools:
        bound += TOKENS_OF_TOOLS
    value = body.get("input")
    if isinstance(value, str):
        return bound + text_bound(value)
    if isinstance(value, list) and value:
        return bound + messages_bound(value, media_tokens)
    raise BadRequestError("input must be a string or a list of items", param="input")


def _is_function(tool: object) -> bool:
    return isinstance(tool, Mapping) and tool.get("type") == "function"


def _pair_bounds(route: Route, body: Mapping[str, object]) -> tuple[int, ...]:
    """Rerank and score: each document is read together with the longest query, by some models in a template."""
    assert route.query_field is not None
    query, documents = body.get(route.query_field), body.get(route.prompt_field)
    items = documents if isinstance(documents, list) else [documents]
    queries = query if isinstance(query, list) else [query]
    if not items or not queries or not all(isinstance(text, str) for text in (*items, *queries)):
        message = f"{route.query_field} and {route.prompt_field} must be strings or lists of strings"
        raise BadRequestError(message, param=route.query_field)
    around = TOKENS_PER_CHAT + sum(json_bound(body.get(name)) for name in ("instruction", "chat_template_kwargs"))
    around += max(text_bound(str(text)) for text in queries)
    return tuple(around + text_bound(str(text)) for text in items)


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
    raise BadRequestError(f"{name} must be a string, token ids, or a list of either", param=name, code="invalid_type")


def _are_token_ids(values: list[object]) -> bool:
    return all(type(item) is int and 0 <= item <= _LARGEST_INTEGER for item in values)
