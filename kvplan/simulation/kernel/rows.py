"""The rows of a run: those that the kernel has in hand, and what became of those that are over.

A run is played in pieces. Between two pieces, requests that are over leave the rows in hand and the others move up, so
every place that names a row is updated.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvplan.simulation.kernel import state
from kvplan.simulation.kernel.arrays import Arrays, is_constant, offsets
from kvplan.simulation.types import Counts, Floats, Integers, Outcome, RequestRows, Requests
from kvplan.traffic.on_disk import forget, zeros

_LISTS = (
    (state.QUEUE_HEAD, state.LINK),
    (state.PREEMPTED, state.LINK),
    (state.DONE_HEAD, state.LINK),
    (state.LEFT_HEAD, state.LEFT_LINK),
    (state.PREFILLED_HEAD, state.PREFILLED_LINK),
)
_TAILS = (state.QUEUE_TAIL, state.DONE_TAIL, state.LEFT_TAIL, state.PREFILLED_TAIL)


def request_table(requests: Requests, serial: Integers, max_model_len: int, arrays: Arrays) -> state.Asked:
    """What the requests ``serial`` ask, as the front door reads it."""
    count = len(serial)
    rows: Any = serial
    if count and serial[-1] - serial[0] == count - 1:
        rows = slice(int(serial[0]), int(serial[-1]) + 1)
    barred = requests.refused_for_good[rows] | (requests.prompt_tokens[rows] >= max_model_len)
    parent: Any = [] if requests.parent is None else requests.parent
    return (
        arrays.of(requests.arrival_s[rows], np.float64),
        arrays.of(requests.charge[rows]),
        arrays.of(barred, np.int8),
        arrays.read_only(requests.client[rows], np.int32),
        arrays.read_only(requests.time_out_s[rows], np.float64),
        arrays.read_only(requests.cancel_s[rows], np.float64),
        arrays.of(requests.client_draw[rows], np.float64),
        arrays.of(requests.server_draw[rows], np.float64),
        arrays.of(parent),
        arrays.of([] if requests.parent is None else np.bincount(parent, minlength=count)),
    )


class LiveRows:
    """``serial`` names the rows in hand by their place among all requests; those from ``fresh`` on have yet to arrive.
    ``pending`` is what the kernel left to do after the last piece."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.serial = np.zeros(0, np.int64)
        self.fresh = 0
        self.row: Any = np.zeros((state.ROW_COLUMNS, 0), np.int32)
        self.time: Any = np.zeros((state.TIME_COLUMNS, 0))
        self.pending: Any = tuple(arrays.of([], kind) for kind in (int, float, int, float, int))

    def take(self, start: int, prompt: Integers, answer: Integers, cap: Integers) -> None:
        """Add the requests from ``start`` on."""
        live, count = len(self.serial), len(self.serial) + len(prompt)
        rows = np.zeros(state.ROW_COLUMNS * count, np.int32)
        times = np.full(state.TIME_COLUMNS * count, -1.0)
        row, time = rows.reshape(state.ROW_COLUMNS, count), times.reshape(state.TIME_COLUMNS, count)
        row[:, :live], time[:, :live] = self.row, self.time
        for place, values in ((state.PROMPT, prompt), (state.ANSWER, answer), (state.CAP, cap)):
            row[place, live:] = values
        row[state.SLOT_OF, live:] = -1
        self.serial = np.concatenate((self.serial, np.arange(start, start + len(prompt))))
        self.fresh = live
        self.row, self.time = self.arrays.of(rows, np.int32), self.arrays.of(times, np.float64)

    @property
    def table(self) -> state.Rows:
        """The rows as the kernel reads them."""
        count = len(self.serial)
        return self.row, self.time, offsets(state.ROW_COLUMNS, count), offsets(state.TIME_COLUMNS, count)

    def take_all(self) -> tuple[Integers, Any, Any]:
        """All rows and their times, after the last piece."""
        row, time = np.asarray(self.row, np.int32), np.asarray(self.time, np.float64)
        self.row = self.time = None
        return self.serial, row, time

    def take_ended(
        self, pending: state.Pending, states: Any, slots: Any, field: state.Offsets
    ) -> tuple[Integers, Any, Any]:
        """The rows that are over and their times, after a piece that left ``pending`` to do."""
        count = len(self.serial)
        row = np.asarray(self.row, np.int32).reshape(state.ROW_COLUMNS, count)
        time = np.asarray(self.time, np.float64).reshape(state.TIME_COLUMNS, count)
        keys, retry_s, retry, leave_s, leave = pending
        stay = row[state.OUTCOME] == Outcome.UNFINISHED
        stay[[*retry, *leave]] = True
        linked = [(link, i) for engine in states for link, i in _listed(row, engine)]
        stay[[i for _, i in linked]] = True  # also where their clients are gone
        for engine, slot in zip(states, slots, strict=True):
            stay[[slot[field[state.REQUEST] + s] for s in _running(engine, slot, field)]] = True
        new = np.cumsum(stay) - 1
        new[~stay] = -1
        for engine, slot in zip(states, slots, strict=True):
            for place in (*(head for head, _ in _LISTS), *_TAILS):
                engine[place] = _renamed(engine[place], new)
            for s in _running(engine, slot, field):
                slot[field[state.REQUEST] + s] = int(new[slot[field[state.REQUEST] + s]])
        for link, i in linked:
            row[link, i] = _renamed(int(row[link, i]), new)
        ended = self.serial[~stay], row[:, ~stay].flatten(), time[:, ~stay].flatten()
        self.serial, self.row, self.time = self.serial[stay], row[:, stay], time[:, stay]
        of = self.arrays.of
        self.pending = (of(keys), of(retry_s, float), of(new[retry]), of(leave_s, float), of(new[leave]))
        return ended


def _listed(row: Any, engine: Any) -> Iterator[tuple[int, int]]:
    """The rows of an engine's lists, each with the column that names the next one."""
    for head, link in _LISTS:
        i = int(engine[head])
        while i >= 0:
            yield link, i
            i = int(row[link, i])


def _running(engine: Any, slot: Any, field: state.Offsets) -> list[int]:
    """The slots of the running list, in order of admission."""
    found, s = [], int(engine[state.FIRST_SLOT])
    while s >= 0:
        found.append(s)
        s = int(slot[field[state.NEXT_SLOT] + s])
    return found


def _renamed(i: int, new: Integers) -> int:
    """The new place of a row; −1 for none, and for one that is over."""
    return int(new[i]) if i >= 0 else i


class EndedRows:
    """What became of each of ``count`` requests, collected as they end."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.found: RequestRows | None = None

    def add(self, serial: Integers, rows: RequestRows) -> None:
        """``rows`` of the requests ``serial``; those of a run of one piece are kept as they are."""
        if len(serial) == self.count:
            self.found = rows
            return
        if self.found is None:
            self.found = RequestRows(**{name: zeros(self.count, one.dtype) for name, one in vars(rows).items()})
        for name, column in vars(self.found).items():
            column[serial] = getattr(rows, name)
        forget(self.found)


def request_rows(row: Counts, time: Floats, parent: Integers | None, stop_s: float) -> RequestRows:
    """The kernel's columns as results; what would have happened after ``stop_s`` did not happen.

    ``row`` is cut to the columns that are kept, because a copy of millions of rows takes much memory.
    """
    count = len(time) // state.TIME_COLUMNS
    outcome = row[state.OUTCOME * count : (state.OUTCOME + 1) * count].astype(np.int8)
    row.resize(state.KEPT_COLUMNS * count, refcheck=False)
    columns = row.reshape(state.KEPT_COLUMNS, count)
    moments = time.reshape(state.TIME_COLUMNS, count)
    admitted = moments[state.ADMITTED] >= 0.0
    columns[state.REPLICA][~admitted] = -1
    tried = admitted | (outcome == Outcome.REJECTED_PERMANENTLY)
    if parent is not None:
        tried &= parent == np.arange(count)
    attempts = columns[state.REFUSALS] + tried
    moments[(moments < 0.0) | (moments > stop_s)] = np.nan
    first_s, finish_s = moments[state.FIRST_TOKEN], moments[state.FINISH]
    first_s[first_s > finish_s] = np.nan  # the client had left by then
    ended = (outcome == Outcome.COMPLETED) | (outcome == Outcome.CANCELLED)
    outcome[ended & np.isnan(finish_s)] = Outcome.UNFINISHED
    columns[state.GENERATED][outcome == Outcome.UNFINISHED] = 0
    gave_up = outcome == Outcome.GAVE_UP
    gave_up_s: Floats = np.broadcast_to(np.nan, count)
    if gave_up.any():
        gave_up_s = np.where(gave_up, finish_s, np.nan)
        finish_s[gave_up] = np.nan
    return RequestRows(
        attempts=np.broadcast_to(attempts[0], count) if count and is_constant(attempts) else attempts,
        refusals=columns[state.REFUSALS],
        outcome=outcome,
        admitted_s=moments[state.ADMITTED],
        scheduled_s=moments[state.SCHEDULED],
        first_token_s=first_s,
        finish_s=finish_s,
        gave_up_s=gave_up_s,
        output_tokens=columns[state.GENERATED],
        preemptions=columns[state.PREEMPTIONS],
        recomputed_tokens=columns[state.RECOMPUTED],
        replica=columns[state.REPLICA],
    )
