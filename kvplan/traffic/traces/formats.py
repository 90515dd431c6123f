"""How recorded traces write a request: which column holds what, and how a row becomes a ``TraceRow``.

A format is recognised by its exact columns, or by the usual names of columns in any spelling.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

Record = Mapping[str, object]

_UNITS_S = {"": None, "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SIZES = [f"{num}{{}}{size}" for size in ("tokens", "length", "len", "lens", "size", "toks") for num in ("", "num")]
_OF_OUTPUT = ("output", "completion", "generated", "response", "decode", "generation")
_ARRIVALS = ("arrival", "arrivaltime", "arrivaltimestamp", "arrivedat", "requesttime", "requesttimestamp")
_STAMPS = ("timestamp", "datetime", "createdat", "created", "time", "ts")

ARRIVAL = (*_ARRIVALS, "sendtime", "sentat", "starttime", "start", *_STAMPS)
PROMPT = (*(size.format(of) for size in _SIZES for of in ("prompt", "input", "context", "request", "prefill")), "isl")
OUTPUT = (*(size.format(of) for size in _SIZES for of in _OF_OUTPUT), "tokensize", "osl")
CAP = ("maxtokens", "maxcompletiontokens", "maxoutputtokens", "maxnewtokens")
FIRST_TOKEN = ("firsttoken", "firsttokentime", "firsttokents", "firsttokentimestamp", "firsttokenat")
_ENDS = ("finish", "finishtime", "finished", "finishedtime", "finishedts")
LAST_TOKEN = (*_ENDS, "lasttoken", "lasttokents", "lasttokentime", "end", "endtime", "endtimestamp", "completedat")
TIME_TO_FIRST = ("ttft", "timetofirsttoken", "firsttokenlatency")
TIME_TO_LAST = ("e2e", "e2el", "e2elatency", "latency", "requestlatency", "totaltime", "duration")

NOT_A_NUMBER = "a value that is not a number"
LATER_TURN = "a later turn of a session, with a delay instead of a timestamp"
NO_PROMPT = "no prompt tokens"
NO_OUTPUT = "no output (a failed request)"
NEGATIVE = "a negative value"
NO_STAMP = "a timestamp out of range (seconds are expected)"
TOO_LONG = "more tokens than any model reads"
LARGEST_TOKENS = 2**31 - 1
_LATEST_S = 1e12  # 31,700 years: later ones are milliseconds of today, and sums of squares lose their precision


class TraceRow(NamedTuple):
    """One recorded request, its time in seconds of the trace's own clock. ``max_tokens`` 0: the client sent none."""

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
    """Which column of a file holds what. ``unit_s`` is the unit of its timestamps in seconds, None where unknown."""

    name: str
    stamp: str
    prompt: str
    output: str
    unit_s: float | None = 1.0
    mark: str = ""
    cap: str = "max_tokens"
    class_name: str = "class"
    client: str = "client"
    hash_ids: str = "hash_ids"
    hash_block_tokens: int = 512
    source: str

    @property
    def columns(self) -> frozenset[str]:
        """The columns that identify the format."""
        return frozenset(filter(None, (self.stamp, self.prompt, self.output, self.mark)))

    def read(self, record: Record) -> TraceRow | str:
        """A row of the file, or the reason why it is skipped."""
        try:
            return self._row(record)
        except (KeyError, ValueError, TypeError, OverflowError):
            return LATER_TURN if self.stamp not in record and "delay" in record else NOT_A_NUMBER

    def _row(self, record: Record) -> TraceRow | str:
        arrival_s = stamp_s(record[self.stamp], self.unit_s or 1.0)
        if abs(arrival_s) >= _LATEST_S:
            return NO_STAMP
        cap, ids = record.get(self.cap), record.get(self.hash_ids)
        prompt_tokens, output_tokens = _count(record[self.prompt]), _count(record[self.output])
        max_tokens = min(_count(cap), LARGEST_TOKENS) if cap else 0  # the window cuts a larger one anyway
        if prompt_tokens < 0 or output_tokens < 0 or max_tokens < 0:
            return NEGATIVE
        if max(prompt_tokens, output_tokens) > LARGEST_TOKENS:
            return TOO_LONG
        if not prompt_tokens:
            return NO_PROMPT
        if not output_tokens:
            return NO_OUTPUT
        return TraceRow(
            arrival_s,
            prompt_tokens,
            output_tokens,
            max_tokens,
            str(record.get(self.class_name) or ""),
            str(record.get(self.client) or ""),
            _ids(ids) if ids else (),
            self.hash_block_tokens,
            self.name,
        )


FORMATS: dict[str, TraceFormat] = {
    known.name: known
    for known in (
        TraceFormat(
            name="plain",
            stamp="arrival_s",
            prompt="prompt_tokens",
            output="output_tokens",
            source="kvplan's own form, seconds from any origin; also any file whose columns have usual names",
        ),
        TraceFormat(
            name="azure",
            stamp="TIMESTAMP",
            prompt="ContextTokens",
            output="GeneratedTokens",
            source="github.com/Azure/AzurePublicDataset, LLM inference traces of 2023 and 2024",
        ),
        TraceFormat(
            name="burstgpt",
            stamp="Timestamp",
            prompt="Request tokens",
            output="Response tokens",
            class_name="Model",
            source="github.com/HPMLL/BurstGPT, README: seconds, failed requests have 0 response tokens",
        ),
        TraceFormat(
            name="mooncake",
            stamp="timestamp",
            prompt="input_length",
            output="output_length",
            unit_s=1e-3,
            source="github.com/kvcache-ai/Mooncake, FAST25-release: milliseconds, blocks of 512 tokens",
        ),
        TraceFormat(
            name="bailian",
            stamp="timestamp",
            prompt="input_length",
            output="output_length",
            mark="chat_id",
            class_name="type",
            hash_block_tokens=16,
            source="github.com/alibaba-edu/qwen-bailian-usagetraces-anon: seconds, blocks of 16 tokens",
        ),
    )
}


class Column(NamedTuple):
    """A column of a file; ``unit_s`` is its unit in seconds, None where its name does not state one."""

    name: str
    unit_s: float | None = None


class Columns:
    """The columns of a file, looked up by their usual names.

    >>> Columns({"Prompt Tokens": 1, "TTFT_ms": 5}).timed(TIME_TO_FIRST)
    Column(name='TTFT_ms', unit_s=0.001)
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._names = {re.sub("[^a-z0-9]", "", str(column).lower()): str(column) for column in record}

    def counted(self, usual: Iterable[str]) -> str:
        """The column with the first of these names that the file has; empty where it has none."""
        return next((self._names[name] for name in usual if name in self._names), "")

    def timed(self, usual: Iterable[str]) -> Column | None:
        """The same for a time: its unit may end its name, and the size of a time since 1970 shows it too."""
        for name in usual:
            for unit, unit_s in _UNITS_S.items():
                column = self._names.get(name + unit)
                if column is not None:
                    return Column(column, unit_s or _unit_by_size(self._record[column]))
        return None


def _unit_by_size(value: object) -> float | None:
    """The unit of a time since 1970 (today's seconds have ten digits) or of a written date; else None.

    >>> _unit_by_size("2026-11-30 07:00:00"), _unit_by_size(1.8e9), _unit_by_size(1.8e12), _unit_by_size(12.5)
    (1.0, 1.0, 0.001, None)
    """
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        return 1.0
    return {10: 1.0, 13: 1e-3, 16: 1e-6, 19: 1e-9}.get(len(str(int(abs(number))))) if math.isfinite(number) else None


def recognise(record: Record, name: str = "auto") -> TraceFormat | list[str]:
    """The format of a file whose first row is ``record``, or what no column holds. ``name`` is the format asked for."""
    names = set(record)
    fitting = [known for known in FORMATS.values() if known.columns <= names and name in ("auto", known.name)]
    if name == "auto":  # Mooncake's milliseconds are whole; a fraction is of another unit
        fitting = [known for known in fitting if known.unit_s == 1.0 or "." not in str(record[known.stamp])]
    if fitting:
        return max(fitting, key=lambda known: len(known.columns))
    if name not in ("auto", "plain"):
        return sorted(FORMATS[name].columns - names)
    columns, plain = Columns(record), FORMATS["plain"]
    stamp, prompt, output = columns.timed(ARRIVAL), columns.counted(PROMPT), columns.counted(OUTPUT)
    if stamp is None or not prompt or not output:
        found = {"the arrival time": stamp, "the prompt tokens": prompt, "the output tokens": output}
        return [what for what, column in found.items() if not column]
    cap = columns.counted(CAP) or plain.cap
    return replace(plain, stamp=stamp.name, unit_s=stamp.unit_s, prompt=prompt, output=output, cap=cap)


def stamp_s(value: object, unit_s: float) -> float:
    """Seconds of a timestamp: a number of units, or a date that begins with its year."""
    if type(value) is str and value.strip()[4:5] == "-" and value.strip()[:4].isdecimal():  # not 8.4e-05
        return parse_stamp(value)
    return _number(value) * unit_s


def _number(value: object) -> float:
    """A finite number; ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(value)  # noqa: TRY004 - one reason for every value that cannot be read
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _count(value: object) -> int:
    """A whole number of tokens, from text or a number; a fraction is cut off."""
    if type(value) is str and value.isdecimal():
        return int(value)
    return value if type(value) is int else int(_number(value))


def _ids(value: object) -> tuple[int, ...]:
    parts = value.split() if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise ValueError(value)  # noqa: TRY004 - one reason for every value that cannot be read
    return tuple(int(part) % 2**63 for part in parts)


def parse_stamp(text: str) -> float:
    """Seconds of an ISO timestamp with any number of fractional digits, with or without a time zone.

    A time without a zone is taken as UTC, because only differences are used.

    >>> parse_stamp("2023-11-16 18:15:50.9951690") - parse_stamp("2023-11-16 18:15:46.6805900")
    4.314579010009766
    """
    whole, dot, rest = text.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    moment = datetime.fromisoformat(whole + rest[len(digits) :])
    zone = moment.utcoffset()
    seconds = (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
    return seconds - (zone.total_seconds() if zone else 0.0) + (float(f"0.{digits}") if dot and digits else 0.0)
