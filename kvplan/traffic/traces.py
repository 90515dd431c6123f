"""Recorded traces, row by row or as arrays: Azure, BurstGPT, Mooncake, Bailian and kvplan's plain form.

Files are streamed (gzip or not); rows that cannot be read are counted by reason, never silently dropped.
"""

import csv
import gzip
import io
import json
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvplan.checkpoint import require_file
from kvplan.errors import InputError
from kvplan.traffic.kinds import Narrow
from kvplan.traffic.prefixes import Prefixes
from kvplan.traffic.trace_formats import FORMATS, TraceFormat, TraceRow, recognise

_BAD_SHARE = 0.5
_LONGEST_LINE = 2**24


@dataclass(kw_only=True)
class TraceNotes:
    """What was odd in a file: rows skipped by reason, and how the stamps lie. Filled while the rows go by."""

    skipped: Counter[str] = field(default_factory=Counter)
    first_bad_line: int | None = None
    rows: int = 0
    unsorted: int = 0
    equal_stamps: int = 0
    ends_without_newline: bool = False


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


def read_trace(path: str | Path, *, format: str = "auto", notes: TraceNotes | None = None) -> Iterator[TraceRow]:  # noqa: A002
    """The rows of a trace in the file's order, one at a time; what was skipped is counted in ``notes``.

    Raises InputError for a folder, an unknown or empty file, and for a file of which more than half cannot be read.
    """
    notes = notes if notes is not None else TraceNotes()
    with _opened(Path(path)) as stream:
        yield from _rows(stream, str(path), format, notes)


def read_records(path: str | Path, *, notes: TraceNotes | None = None) -> Iterator[Mapping[str, object]]:
    """The rows of any CSV or JSONL file as mappings from column to value, unjudged."""
    notes = notes if notes is not None else TraceNotes()
    with _opened(Path(path)) as stream:
        yield from (record for _, record in _records(stream, str(path), notes))


def load_trace(path: str | Path, *, format: str = "auto") -> Trace:  # noqa: A002
    """The whole trace, sorted by arrival (equal stamps keep their order) and shifted to start at 0."""
    notes = TraceNotes()
    columns = _Columns()
    kind = ""
    with _opened(Path(path)) as stream:
        for row in _rows(stream, str(path), format, notes):
            columns.add(row)
            kind = kind or row.format
    if not notes.rows:
        raise InputError(f"{path} holds no request that can be replayed", hint=skip_text(notes), file=str(path))
    return columns.trace(kind, notes)


def skip_text(notes: TraceNotes) -> str | None:
    """What was skipped and why, as a hint; None where nothing was."""
    return ", ".join(f"{count:,} × {reason}" for reason, count in notes.skipped.items()) or None


def _rows(stream: io.TextIOBase, file: str, name: str, notes: TraceNotes) -> Iterator[TraceRow]:
    if name not in ("auto", *FORMATS):
        raise InputError(f"{name!r} is no trace format", hint=f"formats: {', '.join(FORMATS)}", key="format")
    records = _records(stream, file, notes)
    head = next(records, None)
    if head is None:
        raise InputError(f"{file} has a header and no rows", file=file)
    chosen = recognise(head[1]) if name == "auto" else FORMATS[name]
    if chosen is None:
        raise InputError(
            f"{file}: no known trace has the columns {', '.join(map(str, head[1]))}",
            hint=_PLAIN_HINT,
            file=file,
            line=1,
        )
    yield from _checked(head, records, chosen, file, notes)


def _records(stream: io.TextIOBase, file: str, notes: TraceNotes) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Line number and columns of every row; JSONL where the first line is an object, else CSV with a header."""
    lines = _counted(stream, notes)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise InputError(f"{file} is empty", hint=_PLAIN_HINT, file=file)
    yield from _json_records(first, lines, notes) if first.lstrip().startswith("{") else _csv_records(first, lines)


_PLAIN_HINT = "the plain form is arrival_s,prompt_tokens,output_tokens[,max_tokens][,class][,client][,hash_ids]"


def _checked(
    head: tuple[int, Mapping[str, object]],
    records: Iterator[tuple[int, Mapping[str, object]]],
    chosen: TraceFormat,
    file: str,
    notes: TraceNotes,
) -> Iterator[TraceRow]:
    last_s = -np.inf
    for line, record in chain((head,), records):
        row = chosen.read(record)
        if isinstance(row, str):
            notes.skipped[row] += 1
            notes.first_bad_line = notes.first_bad_line or line
            continue
        notes.rows += 1
        notes.unsorted += row.arrival_s < last_s
        notes.equal_stamps += row.arrival_s == last_s
        last_s = row.arrival_s
        yield row
    bad = notes.skipped.total() - notes.skipped["no output (a failed request)"]
    seen = notes.rows + notes.skipped.total()
    if bad > _BAD_SHARE * seen:
        raise InputError(
            f"{file}: {bad:,} of {seen:,} rows cannot be read as {chosen.name}",
            hint=skip_text(notes),
            file=file,
            line=notes.first_bad_line,
        )


def _counted(stream: io.TextIOBase, notes: TraceNotes) -> Iterator[str]:
    last = "\n"
    while line := stream.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise InputError(f"a line has {_LONGEST_LINE:,} characters and more: that is no trace")
        last = line
        yield line
    notes.ends_without_newline = not last.endswith("\n")


def _csv_records(header: str, lines: Iterator[str]) -> Iterator[tuple[int, Mapping[str, object]]]:
    names = [name.strip().lstrip("\ufeff") for name in next(csv.reader([header]))]
    for number, cells in enumerate(csv.reader(lines), start=2):
        if cells:
            yield number, dict(zip(names, cells, strict=False))


def _json_records(first: str, lines: Iterator[str], notes: TraceNotes) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(chain((first,), lines), start=1):
        text = line.strip()
        if not text:
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            yield number, record
        else:
            notes.skipped["not a JSON object"] += 1
            notes.first_bad_line = notes.first_bad_line or number


@contextmanager
def _opened(path: Path) -> Iterator[io.TextIOBase]:
    """A text stream of the file, unpacked where it starts with gzip's magic number."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a trace", file=str(path))
    try:
        require_file(path)
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"  # a look ahead, not a read: the shell's pipes cannot go back
            unpacked = gzip.GzipFile(fileobj=raw) if packed else raw
            with io.TextIOWrapper(unpacked, encoding="utf-8-sig", newline="") as stream:
                yield stream
    except FileNotFoundError as error:
        raise InputError(f"there is no trace {path}", hint="check the path", file=str(path)) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is a truncated or damaged gzip file", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text", file=str(path)) from error
    except csv.Error as error:
        raise InputError(f"{path} is not CSV: {error}", file=str(path)) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", file=str(path)) from error


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
