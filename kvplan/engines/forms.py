"""The forms in which options of a deployment are written, on a command line, in a traffic file or in Python, and how
each is read. Which option has which form stands beside it, in ``deployment``."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Any

from kvplan.errors import InputError
from kvplan.units import GIB, parse_bytes

LEAST_BYTES = 2**20
"""No pool, GPU or checkpoint is smaller: so few bytes are a number whose unit was forgotten."""
LONGEST_DIGITS = 25
"""More digits are no count of anything."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """One way to write a value. ``read`` takes what was written and the name that it was written under; ``write`` gives
    text that is read as the same value.

    ``typed`` is what a command line reads by itself before: a switch, a whole number, or text. What ``names``
    something else (a GPU, a model, an engine) is text until that is looked up.
    """

    name: str
    typed: type
    metavar: str
    read: Callable[[Any, str], Any]
    names: bool = False
    write: Callable[[Any], str] = str


@dataclass(frozen=True, kw_only=True)
class Option:
    """How one option of a deployment is asked for.

    ``key`` is its name in a traffic file and, with dashes, on the command line: the field's own, less its unit, unless
    it is given. ``short`` are further flags, ``words`` other engines' words for it, which are keys and flags as well.
    ``rare``: an engine that has it states so (``Engine.has``); any other option all of them have.
    """

    form: Form
    help: str
    group: str = "engine"
    key: str = ""
    short: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    rare: bool = False


@dataclass(frozen=True, kw_only=True)
class MemoryPart:
    """How much of a GPU an engine may use, said otherwise than as a share of its own kind: a share of what is free
    before it starts, or bytes."""

    free_share: Fraction | None = None
    limit_bytes: int | None = None


def read_word(value: str, said: str) -> str:
    """Text as it is."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{said} {value!r} is not a name", hint=f"give {said} a word", key=said)
    return value


_LONG_TYPES = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16"}


def read_kv_type(value: str, said: str) -> str:
    """A KV type by the word that every engine takes.

    >>> read_kv_type("bf16", "--kv-dtype"), read_kv_type("fp8", "--kv-dtype")
    ('bfloat16', 'fp8')
    """
    return _LONG_TYPES.get(read_word(value, said).lower(), value)


def read_switch(value: bool, said: str) -> bool:  # noqa: FBT001
    """Yes or no."""
    if not isinstance(value, bool):
        raise InputError(f"{said} {value!r} is neither true nor false", hint=f"give {said} true or false", key=said)
    return value


def read_count(value: int, said: str) -> int:
    """A whole number from 1 on."""
    if not _is_whole(value, said) or value < 1:
        raise InputError(f"{said} {value} is not a positive number", hint=f"give {said} 1 or more", key=said)
    return value


_SHORT = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?([kKmM])")


def read_tokens(value: str | int, said: str) -> int:
    """A number of tokens from 1 on, or vLLM's short forms of one: k is 1,000 and K 1,024, as m and M are their squares.

    >>> [read_tokens(text, "--max-model-len") for text in ("32768", "32k", "32K", "25.6k")]
    [32768, 32000, 32768, 25600]
    """
    if not isinstance(value, str):
        return read_count(value, said)
    text = value.strip()
    if found := _SHORT.fullmatch(text):
        whole, part, unit = found.groups()
        tokens = Fraction(f"{whole}.{part or 0}") * (1000 if unit.islower() else 1024) ** (1 + (unit in "mM"))
        if tokens >= 1 and (unit.islower() or part is None):
            return int(tokens)
    number = text.replace("_", "")
    if not (number.removeprefix("-").isdecimal() and len(number) <= LONGEST_DIGITS):
        raise InputError(
            f"{said} {value!r} is not a whole number", hint=f"{said} 32768, which is 32K; 32k is 32,000", key=said
        )
    return read_count(int(number), said)


def read_count_or_none(value: int, said: str) -> int:
    """A whole number from 0 on."""
    if not _is_whole(value, said) or value < 0:
        raise InputError(f"{said} {value} is below zero", hint=f"give {said} 0 or more", key=said)
    return value


def read_amount_or_none(value: str | int, said: str) -> int:
    """Bytes as ``read_amount`` reads them, or 0."""
    try:
        return read_amount(value, said)
    except InputError:
        if re.fullmatch(r"0+(\.0*)?\s*\w*", str(value).strip()):
            return 0
        raise


def _is_whole(value: object, said: str) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{said} {value!r} is not a whole number", hint=f"{said} 8", key=said)
    return True


def read_counts(value: str | Sequence[int], said: str) -> tuple[int, ...]:
    """Whole numbers from 1 on, separated by commas where they are text.

    >>> read_counts("1024,8_192", "--tokens")
    (1024, 8192)
    """
    counts = []
    for word in value.split(",") if isinstance(value, str) else value:
        number = str(word).strip().replace("_", "")
        if not (number.isdecimal() and len(number) <= LONGEST_DIGITS and int(number) > 0):
            raise InputError(
                f"{said} {value!r}: {str(word)!r} is not a whole number from 1 on",
                hint="write it out in digits; commas stand between several",
                key=said,
            )
        counts.append(int(number))
    return tuple(counts)


def read_amount(value: str | int, said: str) -> int:
    """Bytes with a unit, or a plain number of bytes; so few are a number whose unit was forgotten.

    >>> read_amount("1GiB", "--kv-memory"), read_amount("2097152", "--kv-memory")
    (1073741824, 2097152)
    """
    text = str(value).strip()
    plain = text.isdecimal() and len(text) <= LONGEST_DIGITS
    try:
        amount = int(text) if plain else parse_bytes(text)
    except InputError as error:
        error.key = said
        raise
    if amount <= 0:
        raise InputError(f"{said} {text}: nothing fits in no memory", hint=f"{said} 10GiB", key=said)
    if plain and amount < LEAST_BYTES:
        raise InputError(f"{said} {text} is {text} bytes", hint=f"say its unit: {said} {text}GiB", key=said)
    return amount


def read_amounts(value: str | int | Sequence[str | int], said: str) -> tuple[int, ...]:
    """Bytes of one rank, or of each, separated by commas where they are text."""
    amounts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
    return tuple(read_amount(each, said) for each in amounts)


def read_ratio(value: str | float, said: str) -> Fraction:
    """A ratio above zero, exact as written."""
    number = _number(value)
    if number is None or not 0 < number < inf:
        raise InputError(f"{said} {value} is not above zero", hint=f"{said} 0.8", key=said)
    return Fraction(str(value))


def read_share(value: str | float, said: str) -> Fraction:
    """A share in (0, 1], exact as written: 0.92 is 92/100, not the float beside it."""
    number = _number(value)
    if number is None or not 0 < number <= 1:
        shown = value if number is None else f"{number:g}"
        raise InputError(
            f"{said} {shown} is not a share", hint=_meant(value) or "give a number above 0 and at most 1", key=said
        )
    return Fraction(str(value))


_OF_FREE = re.compile(r"(?P<share>.*?)\s*(?:of )?free", re.IGNORECASE)
_PERCENT = re.compile(r"(?P<number>[0-9]*\.?[0-9]+)\s*%?")


def read_memory_share(value: str | float, said: str) -> Fraction | MemoryPart:
    """A share as the engine means it, ``0.5free`` for one of what is free before it starts, or bytes with their unit.

    >>> read_memory_share("0.9", "--gpu-memory-utilization"), read_memory_share("0.5free", "").free_share
    (Fraction(9, 10), Fraction(1, 2))
    """
    if not isinstance(value, str):
        return read_share(value, said)
    text = value.strip()
    if free := _OF_FREE.fullmatch(text):
        return MemoryPart(free_share=read_share(free["share"], said))
    if text[-1:] in ("B", "b"):
        return MemoryPart(limit_bytes=read_amount(text, said))
    try:
        return read_share(text, said)
    except InputError as error:
        if _meant(text) is None:
            error.hint = "give a share of the memory such as 0.9, 0.5free of what is free, or bytes such as 40GiB"
        raise


def _number(value: str | float) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _meant(value: str | float) -> str | None:
    """The share that a percentage means, as a hint."""
    found = _PERCENT.fullmatch(str(value).strip())
    percent = Fraction(0) if found is None else Fraction(found["number"])
    return f"a share, not a percentage: {float(percent / 100):g}" if 2 <= percent <= 100 else None


def read_media(value: str | Mapping[str, Any], said: str) -> tuple[Any, ...]:
    """VLLM's own JSON: a number of items, or ``{"count": 10, "tokens": 16384}`` where the tokens of one are known."""
    from kvplan.engines.deployment import MediaLimit

    wrong = InputError(
        f"{said} {value!r} does not say how many items of what",
        hint="""write it like '{"image": 2, "video": 0}'""",
        key=said,
    )
    try:
        limits = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise wrong from error
    found = []
    for sort, limit in limits.items() if isinstance(limits, Mapping) else [("", None)]:
        items, tokens = (limit.get("count", 1), limit.get("tokens")) if isinstance(limit, Mapping) else (limit, None)
        if type(items) is not int or items < 0 or not (tokens is None or (type(tokens) is int and tokens > 0)):
            raise wrong
        found.append(MediaLimit(sort=sort, items=items, item_tokens=tokens))
    return tuple(found)


def read_engine(value: str, said: str) -> Any:
    """An engine's name and, after an ``@``, its release."""
    from kvplan.engines import parse_engine

    return parse_engine(read_word(value, said))


def _write_memory_share(value: Fraction | MemoryPart) -> str:
    if not isinstance(value, MemoryPart):
        return f"{float(value):g}"
    return f"{value.limit_bytes}B" if value.free_share is None else f"{float(value.free_share):g}free"


def _write_media(value: Sequence[Any]) -> str:
    return json.dumps({limit.sort: {"count": limit.items, "tokens": limit.item_tokens} for limit in value})


def _write_several(write: Callable[[int], str]) -> Callable[[Sequence[int]], str]:
    return lambda values: ",".join(map(write, values))


def _write_bytes(value: int) -> str:
    return f"{value}B" if value % GIB else f"{value // GIB}GiB"


SWITCH = Form(name="switch", typed=bool, metavar="", read=read_switch)
COUNT = Form(name="count", typed=int, metavar="N", read=read_count)
TOKENS = Form(name="tokens", typed=str, metavar="N", read=read_tokens)
COUNT_OR_NONE = Form(name="count_or_none", typed=int, metavar="N", read=read_count_or_none)
COUNTS = Form(name="counts", typed=str, metavar="N,N", read=read_counts, write=_write_several(str))
WORD = Form(name="word", typed=str, metavar="NAME", read=read_word)
KV_TYPE = Form(name="word", typed=str, metavar="TYPE", read=read_kv_type)
TYPE = Form(name="word", typed=str, metavar="TYPE", read=read_word)
AMOUNT = Form(name="amount", typed=str, metavar="BYTES", read=read_amount, write=_write_bytes)
AMOUNT_OR_NONE = Form(name="amount", typed=str, metavar="BYTES", read=read_amount_or_none, write=_write_bytes)
AMOUNTS = Form(name="amounts", typed=str, metavar="BYTES,...", read=read_amounts, write=_write_several(_write_bytes))
RATIO = Form(name="ratio", typed=str, metavar="X", read=read_ratio, write=lambda value: f"{float(value):g}")
MEMORY_SHARE = Form(name="memory_share", typed=str, metavar="SHARE", read=read_memory_share, write=_write_memory_share)
MEDIA = Form(name="media", typed=str, metavar="JSON", read=read_media, write=_write_media)
ENGINE = Form(name="engine", typed=str, metavar="NAME[@VERSION]", read=read_engine)
GPU = Form(
    name="gpu",
    typed=str,
    metavar="NAME",
    read=lambda value, _: str(value) if isinstance(value, int) else value,
    names=True,
    write=lambda gpu: str(gpu.name),
)
MODEL = Form(
    name="model", typed=str, metavar="MODEL", read=lambda value, _: value, names=True, write=lambda model: str(model.id)
)
