"""A measured run of a real engine: the requests it served and their times, in the formats of several recorders."""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvplan.errors import InputError
from kvplan.simulation.types import Floats, Integers
from kvplan.traffic.traces.formats import (
    ARRIVAL,
    FIRST_TOKEN,
    LAST_TOKEN,
    OUTPUT,
    PROMPT,
    TIME_TO_FIRST,
    TIME_TO_LAST,
    Column,
    Columns,
    Record,
    stamp_s,
)

_HINT = "it needs arrival_s, prompt_tokens, output_tokens, first_token_s and finish_s, as simulate --requests writes"


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredRun:
    """Requests that an engine served, by arrival; times in seconds since the first arrival."""

    arrival_s: Floats
    prompt_tokens: Integers
    output_tokens: Integers
    first_token_s: Floats
    finish_s: Floats
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.arrival_s)


def read_measured_run(path: str | Path) -> MeasuredRun:
    """A CSV or JSONL file with arrival, tokens, first-token and finish time of every request (gzip or not).

    Columns may be named as in ``--requests``, as in vLLM's request statistics, or in other common ways; the two tokens'
    times may count from the arrival (``ttft_ms``). vLLM stamps the arrival on the wall clock, everything else on a
    monotonic one, and ``queued_ts`` only at the end of a step; so the smallest difference of the two is taken as the
    offset of the clocks, and a request arrives when it was sent. Requests without a finish or with times out of order
    are skipped and counted; InputError where they are more than half.
    """
    from kvplan.traffic.traces.reader import read_records

    rows: list[tuple[float, ...]] = []
    offsets: list[float] = []
    reasons: Counter[str] = Counter()
    runs: set[tuple[object, object]] = set()
    read: _Reader | None = None
    for record in read_records(path):
        read = read or _reader(record, path)
        runs.add((record.get("strategy"), record.get("seed")))
        row = read.row(record)
        if isinstance(row, str):
            reasons[row] += 1
            continue
        queued_s = read.queued_s(record)
        if queued_s is not None:
            offsets.append(queued_s - row[0])
        rows.append(row)
    if len(runs) > 1:
        raise InputError(
            f"{path} holds {len(runs)} simulated runs, by strategy and seed",
            hint="keep one of them: kvplan simulate TRAFFIC --strategy none --seeds 1 --requests FILE.csv",
            file=str(path),
        )
    if not rows and not reasons:
        raise InputError(f"{path} holds no request", hint=_HINT, file=str(path))
    if len(rows) <= reasons.total():
        said = ", ".join(f"{count:,} × {reason}" for reason, count in reasons.items())
        raise InputError(f"{path} holds too few requests with their times ({said})", hint=_HINT, file=str(path))
    if offsets and len(offsets) < len(rows):
        raise InputError(
            f"{path}: some requests have arrival_time and queued_ts, some do not",
            hint="remove the others",
            file=str(path),
        )
    table = np.array(sorted(rows), np.float64)
    table[:, 0] += min(offsets, default=0.0)
    start_s = table[0, 0]
    return MeasuredRun(
        arrival_s=table[:, 0] - start_s,
        prompt_tokens=table[:, 1].astype(np.int64),
        output_tokens=table[:, 2].astype(np.int64),
        first_token_s=table[:, 3] - start_s,
        finish_s=table[:, 4] - start_s,
        skipped=reasons.total(),
    )


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """The columns of a file. First and last token may be times ``from_arrival`` instead of a clock's."""

    arrival: Column
    prompt: str
    output: str
    first: Column
    finish: Column
    from_arrival: tuple[bool, bool]

    def row(self, record: Record) -> tuple[float, ...] | str:
        """Arrival, prompt, output, first token, finish; or why the request cannot be used."""
        times = [_moment(record, column) for column in (self.arrival, self.first, self.finish)]
        prompt, output = _number(record.get(self.prompt)), _number(record.get(self.output))
        arrival_s, first_s, finish_s = times
        if arrival_s is None or first_s is None or finish_s is None or prompt is None or output is None:
            return "a figure is missing"
        first_s += arrival_s if self.from_arrival[0] else 0.0
        finish_s += arrival_s if self.from_arrival[1] else 0.0
        if prompt < 1 or output < 1:
            return "no tokens"
        begins_s = self.queued_s(record) or arrival_s
        in_order = begins_s <= first_s <= finish_s
        return (arrival_s, prompt, output, first_s, finish_s) if in_order else "times out of order"

    def queued_s(self, record: Record) -> float | None:
        """When the request was queued by the clock of its tokens, where the arrival is on another clock."""
        has_two = self.arrival.name == "arrival_time" and not any(self.from_arrival)
        return _number(record.get("queued_ts")) if has_two else None


def _reader(record: Record, path: str | Path) -> _Reader:
    """The columns of a file whose first row is ``record``; InputError for one that is missing."""
    columns = Columns(record)
    prompt, output = columns.counted(PROMPT), columns.counted(OUTPUT)
    arrival = columns.timed(ARRIVAL) or columns.timed(("queued", "queuedts"))
    first, finish = columns.timed(FIRST_TOKEN), columns.timed(LAST_TOKEN)
    to_first, to_last = first or columns.timed(TIME_TO_FIRST), finish or columns.timed(TIME_TO_LAST)
    found = {"arrival_s": arrival, "prompt_tokens": prompt, "output_tokens": output}
    for name, column in {**found, "first_token_s": to_first, "finish_s": to_last}.items():
        if not column:
            raise InputError(f"{path} has no column {name}", hint=_HINT, file=str(path), line=1, key=name)
    assert arrival is not None
    assert to_first is not None
    assert to_last is not None
    counted = (first is None, finish is None)
    return _Reader(arrival=arrival, prompt=prompt, output=output, first=to_first, finish=to_last, from_arrival=counted)


def _moment(record: Record, column: Column) -> float | None:
    value = record.get(column.name)
    try:
        return None if value is None else stamp_s(value, column.unit_s or 1.0)
    except ValueError:
        return None


def _number(value: object) -> float | None:
    """A finite number; None for anything else."""
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
