"""A whole trace as arrays: one typed array a column, sorted by arrival, narrow enough for millions of rows."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError
from kvplan.traffic.kinds import Narrow
from kvplan.traffic.prefixes import Prefixes
from kvplan.traffic.traces.formats import TraceRow
from kvplan.traffic.traces.rows import TraceNotes, read_trace, skip_text


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """A whole trace as arrays, sorted by arrival, the first at 0. ``max_tokens`` 0: the client sent none."""

    format: str
    arrival_s: NDArray[np.float64]
    prompt_tokens: Narrow
    output_tokens: Narrow
    max_tokens: Narrow
    class_index: Narrow
    client_index: Narrow
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    prefixes: Prefixes | None
    skipped: Mapping[str, int]
    notes: TraceNotes

    def __len__(self) -> int:
        return len(self.arrival_s)


def load_trace(path: str | Path, *, format: str = "auto") -> Trace:  # noqa: A002
    """The whole trace, sorted by arrival (equal stamps keep their order) and shifted to start at 0."""
    notes = TraceNotes()
    columns = _Columns()
    kind = ""
    for row in read_trace(path, format=format, notes=notes):
        columns.add(row)
        kind = kind or row.format
    if not notes.rows:
        raise InputError(f"{path} holds no request that can be replayed", hint=skip_text(notes), file=str(path))
    return columns.trace(kind, notes)


class _Columns:
    """Rows gathered into one typed array a column: 32 bytes a row while they are read."""

    def __init__(self) -> None:
        self._arrival_s = array("d")
        self._prompt, self._output, self._cap = array("i"), array("i"), array("i")
        self._class, self._client = array("i"), array("i")
        self._classes: dict[str, int] = {}
        self._clients: dict[str, int] = {}
        self._ids = array("q")
        self._id_counts = array("i")
        self._block_tokens = 512

    def add(self, row: TraceRow) -> None:
        self._arrival_s.append(row.arrival_s)
        self._prompt.append(row.prompt_tokens)
        self._output.append(row.output_tokens)
        self._cap.append(row.max_tokens)
        self._class.append(self._classes.setdefault(row.class_name, len(self._classes)))
        self._client.append(self._clients.setdefault(row.client, len(self._clients)))
        if row.hash_ids:
            self._block_tokens = row.hash_block_tokens
            self._ids.extend(row.hash_ids)
        self._id_counts.append(len(row.hash_ids))

    def trace(self, kind: str, notes: TraceNotes) -> Trace:
        """The columns, sorted by arrival where the file was not."""
        arrival_s = np.frombuffer(self._arrival_s, np.float64)
        order = np.argsort(arrival_s, kind="stable") if notes.unsorted else slice(None)
        arrival_s = arrival_s[order]
        prompt, output, caps = (np.frombuffer(one, np.int32)[order] for one in (self._prompt, self._output, self._cap))
        return Trace(
            format=kind,
            arrival_s=np.subtract(arrival_s, arrival_s[0], out=arrival_s),
            prompt_tokens=prompt,
            output_tokens=output,
            max_tokens=caps,
            class_index=_narrow(self._class, len(self._classes))[order],
            client_index=_narrow(self._client, len(self._clients))[order],
            classes=tuple(self._classes),
            clients=tuple(self._clients),
            prefixes=self._prefixes(order) if len(self._ids) else None,
            skipped=dict(notes.skipped),
            notes=notes,
        )

    def _prefixes(self, order: NDArray[np.int64] | slice) -> Prefixes:
        counts = np.frombuffer(self._id_counts, np.int32).astype(np.int64)
        ids = np.frombuffer(self._ids, np.int64)
        lengths = counts[order]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if not isinstance(order, slice):
            starts = np.cumsum(counts) - counts
            ids = ids[np.repeat(starts[order] - offsets[:-1], lengths) + np.arange(offsets[-1])]
        return Prefixes(ids=ids, offsets=offsets, block_tokens=self._block_tokens)


def _narrow(places: "array[int]", names: int) -> Narrow:
    """Places among so many names, in as few bytes as they need."""
    return np.frombuffer(places, np.int32).astype(np.min_scalar_type(-names))
