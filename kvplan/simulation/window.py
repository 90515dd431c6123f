"""The rows that the kernel has in hand: requests that anything may still happen to, and the next piece of arrivals.

Between two pieces those that are over leave the window, and the others move up: every place that names a row is told.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvplan.simulation.kernel import places
from kvplan.simulation.memory import Memory, offsets
from kvplan.simulation.types import Integers, Outcome

_LISTS = (
    (places.QUEUE_HEAD, places.LINK),
    (places.PREEMPTED, places.LINK),
    (places.DONE_HEAD, places.LINK),
    (places.LEFT_HEAD, places.LEFT_LINK),
    (places.READ_HEAD, places.READ_LINK),
)
_ENDS = (places.QUEUE_TAIL, places.DONE_TAIL, places.LEFT_TAIL, places.READ_TAIL)


class Window:
    """``serial`` names the rows by their place among all requests; those from ``fresh`` on are yet to arrive."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.serial = np.zeros(0, np.int64)
        self.fresh = 0
        self.row: Any = np.zeros((places.ROW_COLUMNS, 0), np.int32)
        self.time: Any = np.zeros((places.TIME_COLUMNS, 0))
        self.coming: tuple[Any, ...] = tuple(memory.of([], kind) for kind in (int, float, int, float, int))

    def take(self, start: int, prompt: Integers, answer: Integers, cap: Integers) -> None:
        """Requests from ``start`` on join, untouched."""
        memory, live, count = self.memory, len(self.serial), len(self.serial) + len(prompt)
        rows = np.zeros(places.ROW_COLUMNS * count, np.int32)
        times = np.full(places.TIME_COLUMNS * count, -1.0)
        row, time = rows.reshape(places.ROW_COLUMNS, count), times.reshape(places.TIME_COLUMNS, count)
        row[:, :live], time[:, :live] = self.row, self.time
        for place, values in ((places.PROMPT, prompt), (places.ANSWER, answer), (places.CAP, cap)):
            row[place, live:] = values
        row[places.SLOT_OF, live:] = -1
        self.serial = np.concatenate((self.serial, np.arange(start, start + len(prompt))))
        self.fresh = live
        self.row, self.time = memory.of(rows, np.int32), memory.of(times, np.float64)

    @property
    def rows(self) -> tuple[Any, Any, tuple[int, ...], tuple[int, ...]]:
        """The rows as the kernel reads them."""
        count = len(self.serial)
        return self.row, self.time, offsets(places.ROW_COLUMNS, count), offsets(places.TIME_COLUMNS, count)

    def rest(self) -> tuple[Integers, Any, Any]:
        """All rows, with their own and their times' table."""
        row, time = np.asarray(self.row, np.int32), np.asarray(self.time, np.float64)
        self.row = self.time = None
        return self.serial, row, time

    def leave(
        self, coming: tuple[Any, ...], states: Any, slots: Any, field: tuple[int, ...]
    ) -> tuple[Integers, Any, Any]:
        """Those that are over, with their rows and times, once a piece was played and more of them are ``coming``."""
        count = len(self.serial)
        row = np.asarray(self.row, np.int32).reshape(places.ROW_COLUMNS, count)
        time = np.asarray(self.time, np.float64).reshape(places.TIME_COLUMNS, count)
        keys, retry_s, retry, leave_s, leave = coming
        stay = row[places.OUTCOME] == Outcome.UNFINISHED
        stay[[*retry, *leave]] = True
        linked = [(link, i) for state in states for link, i in _listed(row, state)]
        stay[[i for _, i in linked]] = True  # also where their clients are gone
        for state, slot in zip(states, slots, strict=True):
            stay[[slot[field[places.WHO] + s] for s in _seated(state, slot, field)]] = True
        new = np.cumsum(stay) - 1
        new[~stay] = -1
        for state, slot in zip(states, slots, strict=True):
            for place in (*(head for head, _ in _LISTS), *_ENDS):
                state[place] = _renamed(state[place], new)
            for s in _seated(state, slot, field):
                slot[field[places.WHO] + s] = int(new[slot[field[places.WHO] + s]])
        for link, i in linked:
            row[link, i] = _renamed(int(row[link, i]), new)
        over = self.serial[~stay], row[:, ~stay].flatten(), time[:, ~stay].flatten()
        self.serial, self.row, self.time = self.serial[stay], row[:, stay], time[:, stay]
        of = self.memory.of
        self.coming = (of(keys), of(retry_s, float), of(new[retry]), of(leave_s, float), of(new[leave]))
        return over


def _listed(row: Any, state: Any) -> Iterator[tuple[int, int]]:
    """The rows of an engine's lists, each with the column that names the next one."""
    for head, link in _LISTS:
        i = int(state[head])
        while i >= 0:
            yield link, i
            i = int(row[link, i])


def _seated(state: Any, slot: Any, field: tuple[int, ...]) -> list[int]:
    """The seats of the running list, in order of admission."""
    found, s = [], int(state[places.FIRST_SLOT])
    while s >= 0:
        found.append(s)
        s = int(slot[field[places.AFTER] + s])
    return found


def _renamed(i: int, new: Integers) -> int:
    """A row's new place; −1 for none, and for one that is over."""
    return int(new[i]) if i >= 0 else i
