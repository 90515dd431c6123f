"""Recorded traces row by row: Azure, BurstGPT, Mooncake, Bailian and kvplan's plain form.

Files are streamed (gzip or not); rows that cannot be read are counted by reason, never silently dropped.
"""

import csv
import gzip
import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from kvplan.checkpoint import require_file
from kvplan.errors import InputError, unreadable
from kvplan.traffic.traces.formats import FORMATS, TraceFormat, TraceRow, recognise

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

    @property
    def odd_rows(self) -> tuple[str, ...]:
        """What was not replayed as it stands in the file, in words."""
        found = [f"{count:,} rows skipped: {reason}" for reason, count in self.skipped.items()]
        if self.unsorted:
            found.append(f"{self.unsorted:,} rows come before the row above them: sorted for replay")
        return tuple(found)


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


def skip_text(notes: TraceNotes) -> str | None:
    """What was skipped and why, as a hint; None where nothing was."""
    return ", ".join(f"{count:,} × {reason}" for reason, count in notes.skipped.items()) or None


def _rows(stream: io.TextIOBase, file: str, name: str, notes: TraceNotes) -> Iterator[TraceRow]:
    if name not in ("auto", *FORMATS):
        raise InputError(f"{name!r} is no trace format", hint=f"formats: {', '.join(FORMATS)}", key="format")
    records = _records(stream, file, notes)
    head = next(records, None)
    if head is None:
        raise InputError(f"{file} has a header and no rows", hint=_PLAIN_HINT, file=file)
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


_PLAIN_HINT = (
    "the plain form is arrival_s,prompt_tokens,output_tokens[,max_tokens][,class][,client][,hash_ids], as CSV or as "
    "one JSON object a line"
)


def _checked(
    head: tuple[int, Mapping[str, object]],
    records: Iterator[tuple[int, Mapping[str, object]]],
    chosen: TraceFormat,
    file: str,
    notes: TraceNotes,
) -> Iterator[TraceRow]:
    last_s = -math.inf
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
            raise InputError(f"a line has {_LONGEST_LINE:,} characters and more: that is no trace", hint=_PLAIN_HINT)
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
        raise InputError(f"{path} is a folder, not a trace", hint="name a file in it", file=str(path))
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
        raise InputError(f"{path} is a truncated or damaged gzip file", hint="fetch it anew", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text", hint=_PLAIN_HINT, file=str(path)) from error
    except csv.Error as error:
        raise InputError(f"{path} is not CSV: {error}", hint=_PLAIN_HINT, file=str(path)) from error
    except OSError as error:
        raise unreadable(path, error) from error
