"""A measured run of an engine: requests that it really served, with their times, as several recorders write them."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvplan.errors import InputError
from kvplan.simulation.types import Floats, Integers

# The names that known recorders give each figure: our own --requests first, then vLLM's request statistics.
_ARRIVAL = ("arrival_s", "queued_ts", "arrival_time")
_PROMPT = ("prompt_tokens", "input_tokens", "input_toks", "prompt_len")
_OUTPUT = ("output_tokens", "output_toks", "output_len")
_FIRST = ("first_token_s", "first_token_ts", "first_token_time")
_FINISH = ("finish_s", "last_token_ts", "finished_ts", "finished_time")
_COLUMNS = (_ARRIVAL, _PROMPT, _OUTPUT, _FIRST, _FINISH)
_HINT = "it needs arrival_s, prompt_tokens, output_tokens, first_token_s and finish_s, as simulate --requests writes"


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredRun:
    """Requests that an engine really served, by arrival; times in seconds since the first arrival."""

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

    Names as in ``--requests``, or as vLLM's request statistics record them. Those stamp the arrival on the wall clock
    and all else on a monotonic one, and ``queued_ts`` only when the engine has ended a step; the smallest difference of
    the two is taken for the clocks' offset, so that a request arrives when it was sent. Requests without a finish, or
    with times out of order, are skipped and counted. InputError where they are more than half.
    """
    from kvplan.traffic.traces.rows import read_records

    rows: list[tuple[float, ...]] = []
    offsets: list[float] = []
    reasons: Counter[str] = Counter()
    for number, record in enumerate(read_records(path), start=1):
        if number == 1:
            _check_columns(record, path)
        row = _row(record)
        if isinstance(row, str):
            reasons[row] += 1
            continue
        queued_s, sent_s = _number(record, ("queued_ts",)), _number(record, ("arrival_time",))
        if "arrival_s" not in record and queued_s is not None and sent_s is not None:
            offsets.append(queued_s - sent_s)
            row = (sent_s, *row[1:])
        rows.append(row)
    if not rows and not reasons:
        raise InputError(f"{path} holds no request", hint=_HINT, file=str(path))
    if len(rows) <= reasons.total():
        said = ", ".join(f"{count:,} × {reason}" for reason, count in reasons.items())
        raise InputError(f"{path} holds too few requests with their times ({said})", hint=_HINT, file=str(path))
    if offsets and len(offsets) < len(rows):
        raise InputError(
            f"{path}: some requests have arrival_time and queued_ts, some do not",
            hint="take the others out",
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


def _check_columns(record: Mapping[str, object], path: str | Path) -> None:
    for names in _COLUMNS:
        if not any(name in record for name in names):
            raise InputError(f"{path} has no column {names[0]}", hint=_HINT, file=str(path), line=1, key=names[0])


def _row(record: Mapping[str, object]) -> tuple[float, ...] | str:
    """Arrival, prompt, output, first token, finish; or why the request cannot be used."""
    found = [_number(record, names) for names in _COLUMNS]
    if any(value is None for value in found):
        return "a figure is missing"
    arrival_s, prompt, output, first_s, finish_s = (value for value in found if value is not None)
    if prompt < 1 or output < 1:
        return "no tokens"
    return (arrival_s, prompt, output, first_s, finish_s) if arrival_s <= first_s <= finish_s else "times out of order"


def _number(record: Mapping[str, object], names: tuple[str, ...]) -> float | None:
    """The first of these columns as a finite number."""
    for name in names:
        value = record.get(name)
        if isinstance(value, int | float | str) and value != "":
            try:
                number = float(value)
            except ValueError:
                return None
            return number if math.isfinite(number) else None
    return None
