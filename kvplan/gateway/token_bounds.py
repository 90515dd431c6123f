"""An upper bound on the tokens of a text, without a tokenizer.

A byte-level or byte-fallback tokenizer never makes more tokens than the text has UTF-8 bytes; if it normalises first
(NFKC), the normalised text counts. "characters ÷ 4" is an average, not a bound.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence

TOKENS_PER_MESSAGE = 16
"""Allowance for a chat template's markup around one message (role header, separators; Llama 3 uses 5, ChatML 5)."""

TOKENS_PER_PROMPT = 16
"""Allowance for what a tokenizer adds to a plain prompt: begin and end of sequence, a leading space, separators."""

TOKENS_PER_CHAT = 256
"""Allowance for a template's own text besides the messages: a default system prompt (Qwen 2.5: 20 tokens), dates and
channels (gpt-oss: about 90), the generation prompt with an opened reasoning block."""

TOKENS_OF_TOOLS = 512
"""Allowance for a template's own instructions on calling tools (Hermes form about 150, Llama 3.1 about 130)."""

_TEXT_PARTS = ("text", "input_text", "output_text", "summary_text", "refusal")
_PRINTED_PARTS = ("tool_use", "tool_result", "thinking", "redacted_thinking", "reasoning")
_MEDIA_PARTS = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "image_embeds": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
    "video_url": "video",
    "video": "video",
    "input_video": "video",
}

_ESCAPED = json.JSONEncoder(indent=4)
_PLAIN = json.JSONEncoder(indent=4, ensure_ascii=False)


class UnpricedPartError(Exception):
    """A part of a prompt that cannot be priced: an unknown type, or a medium without a configured maximum."""

    def __init__(self, part: str, message: str) -> None:
        super().__init__(message)
        self.part = part


_SLICE_CHARACTERS = 8192
"""Normalised in one go: a few milliseconds at most before another thread may run, and little memory, although one
character can become eighteen (U+FDFA)."""

_ACROSS_SLICES_BYTES = 16
"""Bytes that a cut between a letter and its combining marks can hide: marks reordered together compose differently."""


def text_bound(text: str) -> int:
    """The most tokens that ``text`` can become: its UTF-8 bytes, or those of its NFKC form if that is longer.

    >>> text_bound("hello"), text_bound("é"), text_bound("ﷺ")
    (5, 2, 33)
    """
    if text.isascii():
        return len(text)
    plain = normal = 0
    for start in range(0, len(text), _SLICE_CHARACTERS):
        part = text[start : start + _SLICE_CHARACTERS]
        plain += len(part.encode("utf-8", "surrogatepass"))
        normal += len(unicodedata.normalize("NFKC", part).encode("utf-8", "surrogatepass"))
        normal += _ACROSS_SLICES_BYTES if start else 0
    return max(plain, normal)


def json_bound(value: object) -> int:
    """The most tokens that ``value`` can become as JSON in a template, at worst indented by four and escaped.

    Counted piece by piece, because a list of zeros is several times longer when printed that way.
    """
    if value is None:
        return 0
    escaped, is_escaped = 0, False
    for piece in _ESCAPED.iterencode(value):
        escaped += len(piece)
        is_escaped = is_escaped or "\\u" in piece
    return max(escaped, sum(map(text_bound, _PLAIN.iterencode(value)))) if is_escaped else escaped


def content_bound(content: object, media_tokens: Mapping[str, int]) -> int:
    """Bound of one message's ``content``: a text, a list of typed parts, or nothing.

    Media are priced at ``media_tokens[medium]``, the engine's maximum per item; without one, UnpricedPartError.
    """
    if content is None:
        return 0
    if isinstance(content, str):
        return text_bound(content)
    if not isinstance(content, Sequence):
        raise UnpricedPartError("content", "content must be a string or a list of parts")
    return sum(text_bound(part) if isinstance(part, str) else _part_bound(part, media_tokens) for part in content)


def _part_bound(part: object, media_tokens: Mapping[str, int]) -> int:
    """Bound of one typed part: the JSON of what a template prints, the configured maximum of a medium."""
    if not isinstance(part, Mapping):
        raise UnpricedPartError("content", "a content part must be an object")
    kind = part.get("type", "text")
    if kind in _TEXT_PARTS:
        return sum(text_bound(value) if isinstance(value, str) else json_bound(value) for value in part.values())
    if kind in _PRINTED_PARTS:
        nested = part.get("content")
        rest = {name: value for name, value in part.items() if name != "content"}
        return json_bound(rest) + content_bound(nested, media_tokens)
    medium = _MEDIA_PARTS.get(kind) if isinstance(kind, str) else None
    if medium is None or medium not in media_tokens:
        message = f"a content part of type {kind!r} cannot be priced: no maximum is configured for it"
        raise UnpricedPartError("content", message)
    if any("max_dynamic_patch" in inner for inner in (part, *part.values()) if isinstance(inner, Mapping)):
        raise UnpricedPartError("content", "max_dynamic_patch changes how many tokens an image takes")
    return media_tokens[medium]


def has_media(messages: object) -> bool:
    """Whether any message holds a part that is not text."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return False
    contents = (message.get("content") for message in messages if isinstance(message, Mapping))
    return any(
        isinstance(part, Mapping) and part.get("type", "text") not in _TEXT_PARTS
        for content in contents
        if isinstance(content, list)
        for part in content
    )


def messages_bound(messages: Sequence[object], media_tokens: Mapping[str, int]) -> int:
    """Bound of a rendered chat without its preamble: each message's content, and every other value in it as JSON."""
    total = 0
    for message in messages:
        if not isinstance(message, Mapping):
            raise UnpricedPartError("messages", "each message must be an object")
        if message.get("type") == "item_reference":
            raise UnpricedPartError("input", "a reference to a stored item cannot be priced; send the item itself")
        total += TOKENS_PER_MESSAGE + content_bound(message.get("content"), media_tokens)
        total += TOKENS_OF_TOOLS if message.get("tools") else 0
        for name, value in message.items():
            if name == "output" and isinstance(value, list):  # a tool's result, which may hold media
                total += content_bound(value, media_tokens)
            elif name != "content" and value is not None:
                total += text_bound(value) if isinstance(value, str) else json_bound(value)
        total += _reprinted_calls(message.get("tool_calls"))
    return total


def _reprinted_calls(calls: object) -> int:
    """Bound of tool calls' arguments: JSON in a string, which templates parse and print with their own whitespace."""
    total = 0
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if isinstance(arguments, str):
            try:
                total += json_bound(json.loads(arguments))
            except (ValueError, RecursionError):
                total += text_bound(arguments)
    return total
