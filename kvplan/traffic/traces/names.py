"""How recorders name their columns: whose words, in whatever spelling, say when a request came and how long it was."""

import math
import re
from collections.abc import Iterable, Mapping
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


class Column(NamedTuple):
    """A column of a file; ``unit_s``: how long one of its units is, None where its name does not say."""

    name: str
    unit_s: float | None = None


class Columns:
    """The columns of a file, to be asked for by their usual names.

    >>> Columns({"Prompt Tokens": 1, "TTFT_ms": 5}).timed(TIME_TO_FIRST)
    Column(name='TTFT_ms', unit_s=0.001)
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._names = {re.sub("[^a-z0-9]", "", str(column).lower()): str(column) for column in record}

    def counted(self, usual: Iterable[str]) -> str:
        """The first of these names that a column has; empty where none has."""
        return next((self._names[name] for name in usual if name in self._names), "")

    def timed(self, usual: Iterable[str]) -> Column | None:
        """The same of a time, whose name may end with its unit; a stamp since 1970 shows it by its size."""
        for name in usual:
            for unit, unit_s in _UNITS_S.items():
                column = self._names.get(name + unit)
                if column is not None:
                    return Column(column, unit_s or _unit_by_size(self._record[column]))
        return None


def _unit_by_size(value: object) -> float | None:
    """The unit of a stamp since 1970 (seconds of our time have ten digits), and that of a written date; else None.

    >>> _unit_by_size("2026-11-30 07:00:00"), _unit_by_size(1.8e9), _unit_by_size(1.8e12), _unit_by_size(12.5)
    (1.0, 1.0, 0.001, None)
    """
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        return 1.0
    return {10: 1.0, 13: 1e-3, 16: 1e-6, 19: 1e-9}.get(len(str(int(abs(number))))) if math.isfinite(number) else None
