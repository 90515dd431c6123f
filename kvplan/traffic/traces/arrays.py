"""A whole trace as typed arrays, one for each column, sorted by arrival; those of a long trace are kept on disk."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError
from kvplan.traffic.arrivals import Narrow
from kvplan.traffic.on_disk import Growing, filled, is_long
from kvplan.traffic.prefixes import Prefixes
from kvplan.traffic.traces.formats import TraceRow
from kvplan.traffic.traces.reader import TraceNotes, read_trace, skip_text


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """A whole trace, sorted by arrival, the first at 0. ``max_tokens`` is 0 where the client sent none."""

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
    """The whole trace, sorted by arrival (equal times keep their order) and shifted to start at 0."""
    notes = TraceNotes()
    columns = _Columns()
    kind = ""
    for row in read_trace(path, format=format, notes=notes):
        columns.add(row)
        kind = kind or row.format
    if not notes.rows:
        raise InputError(f"{path} has no request that can be replayed", hint=skip_text(notes), file=str(path))
    return columns.trace(kind, notes)


class _Columns:
    """Collects rows into one typed array for each column: 32 bytes a row, of which memory holds the last piece."""

    def __init__(self) -> None:
        self._arrival_s = Growing("d")
        self._prompt, self._output, self._cap, self._class, self._client = (Growing("i") for _ in range(5))
        self._classes: dict[str, int] = {}
        self._clients: dict[str, int] = {}
        self._ids, self._id_counts = Growing("q"), Growing("i")
        self._block_tokens: int | None = None

    def add(self, row: TraceRow) -> None:
        self._arrival_s.rest.append(row.arrival_s)
        self._prompt.rest.append(row.prompt_tokens)
        self._output.rest.append(row.output_tokens)
        self._cap.rest.append(row.max_tokens)
        self._class.rest.append(self._classes.setdefault(row.class_name, len(self._classes)))
        self._client.rest.append(self._clients.setdefault(row.client, len(self._clients)))
        if row.hash_ids:
            self._block_tokens = row.hash_block_tokens
            self._ids.rest.extend(row.hash_ids)
        self._id_counts.rest.append(len(row.hash_ids))
        if is_long(len(self._arrival_s.rest)):
            for column in vars(self).values():
                if isinstance(column, Growing) and column.rest:
                    column.move_to_disk()

    def trace(self, kind: str, notes: TraceNotes) -> Trace:
        """The columns, sorted by arrival where the file was not."""
        count, stamps = notes.rows, self._arrival_s.whole()
        order = np.argsort(stamps, kind="stable") if notes.unsorted else None
        first_s = float(stamps.min())

        def in_order(growing: Growing, dtype: Any, first: float = 0) -> Any:
            values = growing.whole()

            def part(piece: slice) -> NDArray[Any]:
                chosen = values[piece if order is None else order[piece]]
                return (chosen - first).astype(dtype) if first else chosen.astype(dtype, copy=False)

            return filled(count, part, dtype=dtype, uses=(values,))

        def narrow(names: Mapping[str, int]) -> Any:
            return np.min_scalar_type(-len(names))

        return Trace(
            format=kind,
            arrival_s=in_order(self._arrival_s, np.float64, first_s),
            prompt_tokens=in_order(self._prompt, np.int32),
            output_tokens=in_order(self._output, np.int32),
            max_tokens=in_order(self._cap, np.int32),
            class_index=in_order(self._class, narrow(self._classes)),
            client_index=in_order(self._client, narrow(self._clients)),
            classes=tuple(self._classes),
            clients=tuple(self._clients),
            prefixes=self._prefixes(order) if self._block_tokens is not None else None,
            skipped=dict(notes.skipped),
            notes=notes,
        )

    def _prefixes(self, order: NDArray[np.int64] | None) -> Prefixes:
        assert self._block_tokens is not None
        counts = self._id_counts.whole().astype(np.int64)
        ids = self._ids.whole()
        lengths = counts if order is None else counts[order]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        if order is not None:
            starts = np.cumsum(counts) - counts
            ids = ids[np.repeat(starts[order] - offsets[:-1], lengths) + np.arange(offsets[-1])]
        return Prefixes(ids=ids, offsets=offsets, block_tokens=self._block_tokens)
