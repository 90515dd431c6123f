"""What each field of each route does to the price, as a table, since a client may send any of them."""

import json
from typing import Any

import pytest

from kvplan.gateway.admission import price
from kvplan.gateway.request_body import parse_body, with_cap
from kvplan.gateway.responses import BadRequestError
from kvplan.gateway.routes import PRICED_ROUTES, Demand, read_demand
from kvplan.gateway.token_bounds import TOKENS_OF_TOOLS, TOKENS_PER_CHAT, TOKENS_PER_MESSAGE, TOKENS_PER_PROMPT
from tests.gateway_server import CHAT, WINDOW_TOKENS, promise

COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS = "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"
SCORE = "/v1/score"
HI = [{"role": "user", "content": "hi"}]
HI_TOKENS = TOKENS_PER_CHAT + TOKENS_PER_MESSAGE + len("user") + len("hi")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PICTURE = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
NO_CAPS: tuple[Any, ...] = ("10", 1.5, -1, 1e300, 2**31, [], True)
MEDIA = {"image": 100, "audio": 50}


def ask_of(path: str, fields: dict[str, Any], media_tokens: dict[str, int] | None = None) -> Demand:
    """The fields as they come out of a body."""
    return read_demand(PRICED_ROUTES[path], parse_body(json.dumps(fields).encode()).fields, media_tokens or {})


def indented(value: object) -> int:
    """Bytes of ``value`` in the longest form that a template prints."""
    return len(json.dumps(value, indent=4))


@pytest.mark.parametrize(
    ("path", "fields", "prompts", "cap", "sequences"),
    [
        (CHAT, {"messages": HI}, (HI_TOKENS,), None, 1),
        (CHAT, {"messages": HI, "max_tokens": None}, (HI_TOKENS,), None, 1),
        (CHAT, {"messages": HI, "max_tokens": 10}, (HI_TOKENS,), 10, 1),
        (CHAT, {"messages": HI, "max_tokens": 10.0}, (HI_TOKENS,), 10, 1),
        (CHAT, {"messages": HI, "max_tokens": 5, "max_completion_tokens": 9}, (HI_TOKENS,), 9, 1),
        (CHAT, {"messages": HI, "max_tokens": 9, "max_completion_tokens": 5}, (HI_TOKENS,), 9, 1),
        (
            CHAT,
            {"messages": HI, "max_tokens": 5, "n": 3.0, "stream_options": {"include_usage": True}},
            (HI_TOKENS,),
            5,
            3,
        ),
        (CHAT, {"messages": HI, "max_tokens": 5, "n": None, "n_cmpl": 4}, (HI_TOKENS,), 5, 4),
        (COMPLETIONS, {"prompt": "abc", "max_tokens": 5}, (TOKENS_PER_PROMPT + 3,), 5, 1),
        (COMPLETIONS, {"prompt": "abc", "suffix": "de", "echo": True}, (TOKENS_PER_PROMPT + 5,), None, 1),
        (COMPLETIONS, {"prompt": ["a", "bc"]}, (TOKENS_PER_PROMPT + 1, TOKENS_PER_PROMPT + 2), None, 1),
        (COMPLETIONS, {"prompt": [1, 2, 3], "n": 2, "best_of": 5}, (3,), None, 5),
        (COMPLETIONS, {"prompt": [[1], [2, 3]], "suffix": "ab"}, (3, 4), None, 1),
        (RESPONSES, {"input": "abc", "max_output_tokens": 7}, (TOKENS_PER_CHAT + 3,), 7, 1),
        (RESPONSES, {"input": HI, "instructions": "abc"}, (HI_TOKENS + 3,), None, 1),
        (MESSAGES, {"messages": HI, "max_tokens": 9, "system": "abc"}, (HI_TOKENS + 3,), 9, 1),
        (EMBEDDINGS, {"messages": HI}, (HI_TOKENS,), 0, 1),
        (SCORE, {"text_1": ["a", "bcd"], "text_2": ["e", "fg"]}, (TOKENS_PER_CHAT + 4, TOKENS_PER_CHAT + 5), 0, 1),
        (SCORE, {"text_1": "a", "text_2": "b", "instruction": "cd"}, (TOKENS_PER_CHAT + 2 + indented("cd"),), 0, 1),
        (EMBEDDINGS, {"input": "abc"}, (TOKENS_PER_PROMPT + 3,), 0, 1),
        (EMBEDDINGS, {"input": ["a", "bc"], "max_tokens": 99}, (TOKENS_PER_PROMPT + 1, TOKENS_PER_PROMPT + 2), 0, 1),
    ],
)
def test_the_demand_of_a_request(
    path: str, fields: dict[str, Any], prompts: tuple[int, ...], cap: int | None, sequences: int
) -> None:
    ask = ask_of(path, fields)
    assert (ask.prompts, ask.max_output_tokens, ask.sequences) == (prompts, cap, sequences)


@pytest.mark.parametrize(
    ("path", "fields", "more"),
    [
        (CHAT, {"tools": [TOOL]}, TOKENS_OF_TOOLS + indented([TOOL])),
        (CHAT, {"functions": [TOOL["function"]]}, TOKENS_OF_TOOLS + indented([TOOL["function"]])),
        (CHAT, {"response_format": {"type": "json_object"}}, indented({"type": "json_object"})),
        (CHAT, {"tool_choice": "auto"}, indented("auto")),
        (CHAT, {"documents": [{"text": "abc"}]}, indented([{"text": "abc"}])),
        (CHAT, {"chat_template_kwargs": {"a": 1}}, indented({"a": 1})),
        (CHAT, {"chat_template": "abc"}, 3),
        (RESPONSES, {"tools": [TOOL]}, TOKENS_OF_TOOLS + indented([TOOL])),
        (RESPONSES, {"text": {"format": {"type": "text"}}}, indented({"format": {"type": "text"}})),
    ],
)
def test_what_a_template_may_print_lengthens_the_prompt(path: str, fields: dict[str, Any], more: int) -> None:
    name = "input" if path == RESPONSES else "messages"
    (longer,), (plain,) = ask_of(path, {name: HI, **fields}).prompts, ask_of(path, {name: HI}).prompts
    assert longer - plain == more


def test_tools_in_a_message_count_as_those_of_the_request() -> None:
    (longer,) = ask_of(CHAT, {"messages": [{**HI[0], "tools": [TOOL]}]}).prompts
    assert longer == HI_TOKENS + TOKENS_OF_TOOLS + indented([TOOL])


@pytest.mark.parametrize(
    ("path", "content", "tokens"),
    [
        (CHAT, [PICTURE, PICTURE], 200),
        (CHAT, [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}], 50),
        (MESSAGES, [{"type": "image", "source": {"type": "url", "url": "https://x"}}], 100),
        (RESPONSES, [{"type": "input_image", "image_url": "https://x"}], 100),
    ],
)
def test_media_are_priced_or_refused(path: str, content: list[dict[str, Any]], tokens: int) -> None:
    name = "input" if path == RESPONSES else "messages"
    fields = {name: [{"role": "user", "content": content}]}
    assert ask_of(path, fields, MEDIA).prompts == (HI_TOKENS - len("hi") + tokens,)
    with pytest.raises(BadRequestError):
        ask_of(path, fields)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "https://x"}]},
        {"role": "tool", "content": [PICTURE]},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image", "source": {}}]}]},
    ],
)
def test_a_picture_inside_a_tool_s_result_is_a_picture(item: dict[str, Any]) -> None:
    assert ask_of(RESPONSES, {"input": [item]}, MEDIA).prompts[0] > TOKENS_PER_CHAT + 100
    with pytest.raises(BadRequestError):
        ask_of(RESPONSES, {"input": [item]})


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        *((CHAT, {"messages": HI, "max_tokens": value}, "max_tokens") for value in NO_CAPS),
        (CHAT, {"messages": HI, "max_completion_tokens": 1.5}, "max_completion_tokens"),
        (CHAT, {"messages": HI, "n": "2"}, "n"),
        (CHAT, {"messages": HI, "n": 0}, "n"),
        (CHAT, {"messages": HI, "n": 10**6}, "n"),
        (CHAT, {"messages": "hello"}, "messages"),
        (CHAT, {"messages": HI, "n_predict": 9}, "n_predict"),
        (CHAT, {"messages": HI, "mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
        (COMPLETIONS, {}, "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt"),
        (COMPLETIONS, {"prompt": "", "prompt_embeds": "AAAA"}, "prompt_embeds"),
        (CHAT, {"messages": HI, "best_of": 0}, "best_of"),
        (CHAT, {"messages": HI, "input_ids": [1] * 9}, "input_ids"),
        (CHAT, {"messages": HI, "session_params": {"id": "s"}}, "session_params"),
        (CHAT, {"messages": HI, "media_io_kwargs": {"video": {"num_frames": 999}}}, "media_io_kwargs"),
        (CHAT, {"messages": HI, "max_dynamic_patch": 99}, "max_dynamic_patch"),
        (CHAT, {"messages": HI, "use_audio_in_video": True}, "use_audio_in_video"),
        (RESPONSES, {"input": HI, "previous_input_messages": HI}, "previous_input_messages"),
        (RESPONSES, {"input": HI, "previous_response_id": "r"}, "previous_response_id"),
        (RESPONSES, {"input": HI, "prompt": {"id": "p"}}, "prompt"),
        (RESPONSES, {"input": HI, "background": True}, "background"),
        (RESPONSES, {"input": HI, "conversation": "c"}, "conversation"),
        (RESPONSES, {"input": []}, "input"),
        (RESPONSES, {"input": HI, "max_output_tokens": -5}, "max_output_tokens"),
        ("/v1/rerank", {"query": "x"}, "query"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "i"}]}, "input"),
        (MESSAGES, {"messages": [], "max_tokens": 1}, "messages"),
        (
            CHAT,
            {"messages": [{"content": [{**PICTURE, "image_url": {"url": "x", "max_dynamic_patch": 99}}]}]},
            "content",
        ),
        (CHAT, {"messages": [{"content": [{"type": "file", "file": {"file_id": "f"}}]}]}, "content"),
        (EMBEDDINGS, {"input": {"data": "x"}}, "input"),
        (EMBEDDINGS, {"input": "long", "messages": HI}, "messages"),
        (SCORE, {"text_1": "a", "text_2": "b", "data_1": "a", "data_2": "long"}, "data_1"),
        (SCORE, {"queries": "a", "documents": "b"}, "text_1"),
        (EMBEDDINGS, {"input": [1, "a"]}, "input"),
    ],
)
def test_what_cannot_be_priced_is_refused_by_name(path: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        ask_of(path, fields, MEDIA)
    assert (refused.value.refusal.param, refused.value.refusal.status) == (param, 400)


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 0}, {"max_completion_tokens": 0}, {"max_tokens": 0, "max_completion_tokens": 5}]
)
def test_a_cap_of_zero_bounds_nothing(fields: dict[str, int]) -> None:
    charged = price(promise(default_max_tokens=100), ask_of(CHAT, {"messages": HI, **fields}))
    assert (charged.tokens, charged.cap_to_write) == (WINDOW_TOKENS, None)


@pytest.mark.parametrize(
    ("fields", "forwarded"),
    [
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": None, "max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": None}, {"max_tokens": 5, "max_completion_tokens": None}),
        ({"max_tokens": 5, "max_completion_tokens": 9}, {"max_tokens": 5, "max_completion_tokens": 9}),
        ({"max_completion_tokens": None}, {"max_tokens": 100}),
        ({}, {"max_tokens": 100}),
    ],
)
def test_the_cap_is_forwarded_where_every_engine_reads_it(fields: dict[str, Any], forwarded: dict[str, Any]) -> None:
    body = parse_body(json.dumps({"messages": HI, **fields}).encode())
    ask = read_demand(PRICED_ROUTES[CHAT], body.fields, {})
    charged = price(promise(default_max_tokens=100), ask)
    assert json.loads(with_cap(body, ask.cap_fields, charged.cap_to_write)) == {"messages": HI, **forwarded}


def test_a_padded_prompt_fills_the_window() -> None:
    charged = price(promise(), ask_of(EMBEDDINGS, {"input": [[1, 2], [3]], "padding": "max_length"}))
    assert charged.tokens == 2 * WINDOW_TOKENS
    assert price(promise(), ask_of(EMBEDDINGS, {"input": [[1, 2], [3]], "padding": "do_not_pad"})).tokens == 3
