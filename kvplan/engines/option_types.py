"""The types of option values: how a value is written on a command line, in a traffic file or in Python, and read.

``deployment`` says which option has which type.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import inf
from typing import Any

from kvplan.errors import InputError
from kvplan.units import GIB, parse_bytes

MIN_BYTES = 2**20
"""No pool, GPU or checkpoint is smaller: a plain number below it is taken for one whose unit was forgotten."""
LONGEST_DIGITS = 25
"""A longer number is not a count of anything."""


@dataclass(frozen=True, kw_only=True)
class OptionType:
    """How values of one type are written. ``read`` takes the value as written and the option's name for errors;
    ``write`` returns text that ``read`` turns back into the value.

    ``cli_type`` is what the command line itself parses: bool, int or str. The value of a type that ``is_reference``
    (a GPU, a model) stays a name until it is looked up.
    """

    name: str
    cli_type: type
    metavar: str
    read: Callable[[Any, str], Any]
    is_reference: bool = False
    write: Callable[[Any], str] = str


@dataclass(frozen=True, kw_only=True)
class MemoryPart:
    """How much of a GPU an engine may use, where that is not given as the engine's own kind of share: either a share
    of the memory that is free before the engine starts, or bytes."""

    free_share: Fraction | None = None
    limit_bytes: int | None = None


def read_word(value: str, name: str) -> str:
    """Text, unchanged."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{name} {value!r} is not a name", hint=f"give {name} a word", key=name)
    return value


_LONG_TYPES = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16"}


def read_kv_type(value: str, name: str) -> str:
    """A KV type; common abbreviations become the name that every engine knows.

    >>> read_kv_type("bf16", "--kv-dtype"), read_kv_type("fp8", "--kv-dtype")
    ('bfloat16', 'fp8')
    """
    return _LONG_TYPES.get(read_word(value, name).lower(), value)


def read_switch(value: bool, name: str) -> bool:  # noqa: FBT001
    """A boolean."""
    if not isinstance(value, bool):
        raise InputError(f"{name} {value!r} is neither true nor false", hint=f"give {name} true or false", key=name)
    return value


def read_count(value: int, name: str, minimum: int = 1) -> int:
    """A whole number of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} {value!r} is not a whole number", hint=f"{name} 8", key=name)
    if value < minimum:
        raise InputError(f"{name} {value} is less than {minimum}", hint=f"give {name} {minimum} or more", key=name)
    return value


_SHORT = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?([kKmM])")


def read_tokens(value: str | int, name: str) -> int:
    """A number of tokens of at least 1, also in vLLM's short forms: k is 1,000 and K 1,024; m and M are their squares.

    >>> [read_tokens(text, "--max-model-len") for text in ("32768", "32k", "32K", "25.6k")]
    [32768, 32000, 32768, 25600]
    """
    if not isinstance(value, str):
        return read_count(value, name)
    text = value.strip()
    if found := _SHORT.fullmatch(text):
        whole, part, unit = found.groups()
        tokens = Fraction(f"{whole}.{part or 0}") * (1000 if unit.islower() else 1024) ** (1 + (unit in "mM"))
        if tokens >= 1 and (unit.islower() or part is None):
            return int(tokens)
    number = text.replace("_", "")
    if not (number.removeprefix("-").isdecimal() and len(number) <= LONGEST_DIGITS):
        raise InputError(
            f"{name} {value!r} is not a whole number", hint=f"{name} 32768, which is 32K; 32k is 32,000", key=name
        )
    return read_count(int(number), name)


def read_counts(value: str | Sequence[int], name: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, in text separated by commas.

    >>> read_counts("1024,8_192", "--tokens")
    (1024, 8192)
    """
    counts = []
    for word in value.split(",") if isinstance(value, str) else value:
        number = str(word).strip().replace("_", "")
        if not (number.isdecimal() and len(number) <= LONGEST_DIGITS and int(number) > 0):
            raise InputError(
                f"{name} {value!r}: {str(word)!r} is not a whole number of at least 1",
                hint="write numbers in digits, separated by commas",
                key=name,
            )
        counts.append(int(number))
    return tuple(counts)


def read_amount(value: str | int, name: str) -> int:
    """Bytes: a number with a unit, or a plain number of at least ``MIN_BYTES``.

    >>> read_amount("1GiB", "--kv-memory"), read_amount("2097152", "--kv-memory")
    (1073741824, 2097152)
    """
    text = str(value).strip()
    plain = text.isdecimal() and len(text) <= LONGEST_DIGITS
    try:
        amount = int(text) if plain else parse_bytes(text)
    except InputError as error:
        error.key = name
        raise
    if amount <= 0:
        raise InputError(f"{name} {text} is not above zero", hint=f"{name} 10GiB", key=name)
    if plain and amount < MIN_BYTES:
        raise InputError(f"{name} {text} is {text} bytes", hint=f"add the unit: {name} {text}GiB", key=name)
    return amount


def read_amount_or_none(value: str | int, name: str) -> int:
    """Bytes as ``read_amount`` reads them, or 0."""
    is_zero = re.fullmatch(r"0+(\.0*)?\s*[A-Za-z]*", str(value).strip())
    return 0 if is_zero else read_amount(value, name)


def read_amounts(value: str | int | Sequence[str | int], name: str) -> tuple[int, ...]:
    """Bytes of one rank, or of each, in text separated by commas."""
    amounts = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
    return tuple(read_amount(each, name) for each in amounts)


def read_ratio(value: str | float, name: str) -> Fraction:
    """A ratio above zero, exact as written."""
    number = _number(value)
    if number is None or not 0 < number < inf:
        raise InputError(f"{name} {value} is not above zero", hint=f"{name} 0.8", key=name)
    return Fraction(str(value))


def read_share(value: str | float, name: str) -> Fraction:
    """A share in (0, 1], exact as written: 0.92 is 92/100, not the nearest float."""
    number = _number(value)
    if number is None or not 0 < number <= 1:
        shown = value if number is None else f"{number:g}"
        hint = _percent_hint(value) or "give a number above 0 and at most 1"
        raise InputError(f"{name} {shown} is not a share", hint=hint, key=name)
    return Fraction(str(value))


_OF_FREE = re.compile(r"(?P<share>.*?)\s*(?:of )?free", re.IGNORECASE)
_PERCENT = re.compile(r"(?P<number>[0-9]*\.?[0-9]+)\s*%?")


def read_memory_share(value: str | float, name: str) -> Fraction | MemoryPart:
    """A share as the engine defines it, ``0.5free`` for a share of what is free before it starts, or bytes with a unit.

    >>> read_memory_share("0.9", "--gpu-memory-utilization"), read_memory_share("0.5free", "").free_share
    (Fraction(9, 10), Fraction(1, 2))
    """
    if not isinstance(value, str):
        return read_share(value, name)
    text = value.strip()
    if free := _OF_FREE.fullmatch(text):
        return MemoryPart(free_share=read_share(free["share"], name))
    if text[-1:] in ("B", "b"):
        return MemoryPart(limit_bytes=read_amount(text, name))
    try:
        return read_share(text, name)
    except InputError as error:
        if _percent_hint(text) is None:
            error.hint = "give a share of the memory such as 0.9, 0.5free of what is free, or bytes such as 40GiB"
        raise


def _number(value: str | float) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _percent_hint(value: str | float) -> str | None:
    """A hint with the share that a percentage stands for."""
    found = _PERCENT.fullmatch(str(value).strip())
    percent = Fraction(0) if found is None else Fraction(found["number"])
    return f"a share, not a percentage: {float(percent / 100):g}" if 2 <= percent <= 100 else None


def read_media(value: str | Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """The JSON of vLLM's flag: items by modality, as a number or as
    ``{"count": 10, "tokens": 16384}``, with the tokens of an item."""
    from kvplan.engines.deployment import MediaLimit

    wrong = InputError(
        f"{name} {value!r} does not say how many items of what",
        hint="""write it like '{"image": 2, "video": 0}'""",
        key=name,
    )
    try:
        limits = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise wrong from error
    found = []
    for modality, limit in limits.items() if isinstance(limits, Mapping) else [("", None)]:
        items, tokens = (limit.get("count", 1), limit.get("tokens")) if isinstance(limit, Mapping) else (limit, None)
        if type(items) is not int or items < 0 or not (tokens is None or (type(tokens) is int and tokens > 0)):
            raise wrong
        found.append(MediaLimit(modality=modality, items=items, item_tokens=tokens))
    return tuple(found)


def read_engine(value: str, name: str) -> Any:
    """An engine's name and, after ``@``, its release."""
    from kvplan.engines import parse_engine

    return parse_engine(read_word(value, name))


def _write_memory_share(value: Fraction | MemoryPart) -> str:
    if not isinstance(value, MemoryPart):
        return f"{float(value):g}"
    return f"{value.limit_bytes}B" if value.free_share is None else f"{float(value.free_share):g}free"


def _write_media(value: Sequence[Any]) -> str:
    return json.dumps({limit.modality: {"count": limit.items, "tokens": limit.item_tokens} for limit in value})


def _write_several(write: Callable[[int], str]) -> Callable[[Sequence[int]], str]:
    return lambda values: ",".join(map(write, values))


def _write_bytes(value: int) -> str:
    return f"{value}B" if value % GIB else f"{value // GIB}GiB"


SWITCH = OptionType(name="switch", cli_type=bool, metavar="", read=read_switch)
COUNT = OptionType(name="count", cli_type=int, metavar="N", read=read_count)
COUNT_OR_NONE = OptionType(name="count_or_none", cli_type=int, metavar="N", read=partial(read_count, minimum=0))
TOKENS = OptionType(name="tokens", cli_type=str, metavar="N", read=read_tokens)
COUNTS = OptionType(name="counts", cli_type=str, metavar="N,N", read=read_counts, write=_write_several(str))
WORD = OptionType(name="word", cli_type=str, metavar="NAME", read=read_word)
KV_TYPE = replace(WORD, metavar="TYPE", read=read_kv_type)
TYPE = replace(WORD, metavar="TYPE")
AMOUNT = OptionType(name="amount", cli_type=str, metavar="BYTES", read=read_amount, write=_write_bytes)
AMOUNT_OR_NONE = replace(AMOUNT, read=read_amount_or_none)
AMOUNTS = OptionType(
    name="amounts", cli_type=str, metavar="BYTES,...", read=read_amounts, write=_write_several(_write_bytes)
)
RATIO = OptionType(name="ratio", cli_type=str, metavar="X", read=read_ratio, write=lambda value: f"{float(value):g}")
MEMORY_SHARE = OptionType(
    name="memory_share", cli_type=str, metavar="SHARE", read=read_memory_share, write=_write_memory_share
)
MEDIA = OptionType(name="media", cli_type=str, metavar="JSON", read=read_media, write=_write_media)
ENGINE = OptionType(name="engine", cli_type=str, metavar="NAME[@VERSION]", read=read_engine)
GPU = OptionType(
    name="gpu",
    cli_type=str,
    metavar="NAME",
    read=lambda value, _: str(value) if isinstance(value, int) else value,  # 4090 is a number to YAML
    is_reference=True,
    write=lambda gpu: str(gpu.name),
)
MODEL = OptionType(
    name="model",
    cli_type=str,
    metavar="MODEL",
    read=lambda value, _: value,
    is_reference=True,
    write=lambda model: str(model.id),
)
