"""How each recorded trace writes a request: a reader per format, from a row's columns to a ``TraceRow``.

A reader answers with the row, or with the reason why it is none.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

Record = Mapping[str, object]
NOT_A_NUMBER = "a figure that is no number"
NO_PROMPT = "no prompt tokens"
NO_OUTPUT = "no output (a failed request)"
NEGATIVE = "a negative figure"
NO_STAMP = "a stamp beyond any clock (seconds are wanted)"
TOO_LONG = "more tokens than any model reads"
LARGEST_TOKENS = 2**31 - 1
_LATEST_S = 1e12  # 31,700 years: beyond it stand milliseconds of today, and sums of squares lose their meaning


class TraceRow(NamedTuple):
    """One recorded request. Stamps are seconds on the trace's own clock; ``max_tokens`` 0: the client sent none."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int = 0
    class_name: str = ""
    client: str = ""
    hash_ids: tuple[int, ...] = ()
    hash_block_tokens: int = 512
    format: str = "plain"


@dataclass(frozen=True, kw_only=True)
class TraceFormat:
    """A format: the columns that give it away, how it is read, and where it is described."""

    name: str
    columns: frozenset[str]
    read: Callable[[Record], TraceRow | str]
    source: str


def recognise(record: Record) -> TraceFormat | None:
    """The format whose columns ``record`` has; the one with most columns where several fit."""
    names = set(record)
    fitting = [known for known in FORMATS.values() if known.columns <= names]
    if not fitting and {"arrival_s", "input_tokens", "output_tokens"} <= names:
        return FORMATS["plain"]
    return max(fitting, key=lambda known: len(known.columns), default=None)


def _number(value: object) -> float:
    """A finite number; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(value)  # noqa: TRY004 - one reason for every figure that cannot be read
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _count(value: object) -> int:
    """A whole number of tokens, as text or number; a fraction is cut off."""
    if type(value) is str and value.isdecimal():
        return int(value)
    return value if type(value) is int else int(_number(value))


def _row(
    arrival_s: float,
    prompt: object,
    output: object,
    name: str,
    cap: object = None,
    class_name: str = "",
    client: str = "",
    hash_ids: object = None,
    hash_block_tokens: int = 512,
) -> TraceRow | str:
    if abs(arrival_s) >= _LATEST_S:
        return NO_STAMP
    prompt_tokens, output_tokens = _count(prompt), _count(output)
    max_tokens = min(_count(cap), LARGEST_TOKENS) if cap else 0  # a larger wish is cut to the window as well
    if prompt_tokens < 0 or output_tokens < 0 or max_tokens < 0:
        return NEGATIVE
    if max(prompt_tokens, output_tokens) > LARGEST_TOKENS:
        return TOO_LONG
    if not prompt_tokens:
        return NO_PROMPT
    if not output_tokens:
        return NO_OUTPUT
    ids = _ids(hash_ids) if hash_ids else ()
    return TraceRow(
        arrival_s, prompt_tokens, output_tokens, max_tokens, class_name, client, ids, hash_block_tokens, name
    )


def _ids(value: object) -> tuple[int, ...]:
    parts = value.split() if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise ValueError(value)  # noqa: TRY004 - one reason for every figure that cannot be read
    return tuple(int(part) % 2**63 for part in parts)


def _guarded(read: Callable[[Record], TraceRow | str]) -> Callable[[Record], TraceRow | str]:
    """``read``, with a missing or unreadable figure turned into a reason."""

    def guarded(record: Record) -> TraceRow | str:
        try:
            return read(record)
        except (KeyError, ValueError, TypeError, OverflowError):
            return NOT_A_NUMBER

    return guarded


def parse_stamp(text: str) -> float:
    """Seconds of a naive or zoned ISO stamp with any number of fractional digits.

    The seconds are computed as if the clock were UTC's: only differences are used.

    >>> parse_stamp("2023-11-16 18:15:50.9951690") - parse_stamp("2023-11-16 18:15:46.6805900")
    4.314579010009766
    """
    whole, dot, rest = text.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    moment = datetime.fromisoformat(whole + rest[len(digits) :])
    zone = moment.utcoffset()
    seconds = (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
    return seconds - (zone.total_seconds() if zone else 0.0) + (float(f"0.{digits}") if dot and digits else 0.0)


def _azure(record: Record) -> TraceRow | str:
    return _row(parse_stamp(str(record["TIMESTAMP"])), record["ContextTokens"], record["GeneratedTokens"], "azure")


def _burstgpt(record: Record) -> TraceRow | str:
    return _row(
        _number(record["Timestamp"]),
        record["Request tokens"],
        record["Response tokens"],
        "burstgpt",
        class_name=str(record.get("Model") or ""),
    )


def _mooncake(record: Record) -> TraceRow | str:
    return _row(
        _number(record["timestamp"]) / 1000.0,
        record["input_length"],
        record["output_length"],
        "mooncake",
        hash_ids=record.get("hash_ids"),
    )


def _bailian(record: Record) -> TraceRow | str:
    return _row(
        _number(record["timestamp"]),
        record["input_length"],
        record["output_length"],
        "bailian",
        class_name=str(record.get("type") or ""),
        hash_ids=record.get("hash_ids"),
        hash_block_tokens=16,
    )


def _plain(record: Record) -> TraceRow | str:
    prompt = record["prompt_tokens"] if "prompt_tokens" in record else record["input_tokens"]
    return _row(
        _number(record["arrival_s"]),
        prompt,
        record["output_tokens"],
        "plain",
        cap=record.get("max_tokens"),
        class_name=str(record.get("class") or ""),
        client=str(record.get("client") or ""),
        hash_ids=record.get("hash_ids"),
    )


FORMATS: dict[str, TraceFormat] = {
    name: TraceFormat(name=name, columns=frozenset(columns), read=_guarded(read), source=source)
    for name, columns, read, source in (
        (
            "plain",
            ("arrival_s", "prompt_tokens", "output_tokens"),
            _plain,
            "kvplan's own form, seconds from any origin",
        ),
        (
            "azure",
            ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
            _azure,
            "github.com/Azure/AzurePublicDataset, LLM inference traces of 2023 and 2024",
        ),
        (
            "burstgpt",
            ("Timestamp", "Request tokens", "Response tokens"),
            _burstgpt,
            "github.com/HPMLL/BurstGPT, README: seconds, failed requests have 0 response tokens",
        ),
        (
            "mooncake",
            ("timestamp", "input_length", "output_length"),
            _mooncake,
            "github.com/kvcache-ai/Mooncake, FAST25-release: milliseconds, blocks of 512 tokens",
        ),
        (
            "bailian",
            ("timestamp", "input_length", "output_length", "chat_id"),
            _bailian,
            "github.com/alibaba-edu/qwen-bailian-usagetraces-anon: seconds, blocks of 16 tokens",
        ),
    )
}
