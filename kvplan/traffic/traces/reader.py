"""Reads recorded traces row by row: Azure, BurstGPT, Mooncake, Bailian, and files whose columns have usual names.

Files are streamed, packed (gzip, bzip2, xz) or not. Rows that cannot be read are counted by reason, never dropped
silently.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, unreadable
from kvplan.files import require_file
from kvplan.traffic.traces.formats import FORMATS, NO_OUTPUT, TraceFormat, TraceRow, recognise

_BAD_SHARE = 0.5
"""Where more of the rows cannot be read, the file is another format."""
_LONGEST_LINE = 2**24
"""16 million characters: a longer line is no row, and would fill the memory."""
_SHOWN_COLUMNS = 20


@dataclass(kw_only=True)
class TraceNotes:
    """What was odd in a file, filled while its rows are read: skipped rows by reason, and unsorted or equal times."""

    skipped: Counter[str] = field(default_factory=Counter)
    first_bad_line: int | None = None
    rows: int = 0
    unsorted: int = 0
    equal_stamps: int = 0
    ends_without_newline: bool = False
    guessed_unit: str = ""

    @property
    def odd_rows(self) -> tuple[str, ...]:
        """What is not replayed exactly as the file has it, in words."""
        found = [f"{counted_rows(count)} skipped: {reason}" for reason, count in self.skipped.items()]
        found += [f"the first of these is line {self.first_bad_line:,}"] if self.first_bad_line else []
        if self.unsorted:
            found.append(f"{counted_rows(self.unsorted)} with a time before that of the row above: sorted for replay")
        if self.guessed_unit:
            name = self.guessed_unit
            found.append(f"the column {name!r} has no unit: taken as seconds (else name it {name}_ms or {name}_ns)")
        return tuple(found)


def counted_rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def read_trace(path: str | Path, *, format: str = "auto", notes: TraceNotes | None = None) -> Iterator[TraceRow]:  # noqa: A002
    """The rows of a trace in the file's order, one at a time; skipped rows are counted in ``notes``.

    Raises InputError for a folder, an empty file, an unknown format, and where more than half of the rows cannot be
    read.
    """
    notes = notes if notes is not None else TraceNotes()
    with _opened(Path(path)) as stream:
        yield from _rows(stream, str(path), format, notes)


def read_records(path: str | Path, *, notes: TraceNotes | None = None) -> Iterator[Mapping[str, object]]:
    """The rows of any CSV or JSONL file as mappings from column to value, unvalidated."""
    notes = notes if notes is not None else TraceNotes()
    with _opened(Path(path)) as stream:
        yield from (record for _, record in _records(stream, str(path), notes))


def skip_text(notes: TraceNotes) -> str | None:
    """The skipped rows by reason, as a hint; None where there are none."""
    return ", ".join(f"{count:,} × {reason}" for reason, count in notes.skipped.items()) or None


def _rows(stream: io.TextIOBase, file: str, name: str, notes: TraceNotes) -> Iterator[TraceRow]:
    if name not in ("auto", *FORMATS):
        raise InputError(f"{name!r} is not a trace format", hint=f"formats: {', '.join(FORMATS)}", key="format")
    records = _records(stream, file, notes)
    head = next(records, None)
    if head is None:
        raise InputError(f"{file} has a header and no rows", hint=_PLAIN_HINT, file=file)
    chosen = recognise(head[1], name)
    if isinstance(chosen, list):
        columns = ", ".join(map(str, list(head[1])[:_SHOWN_COLUMNS]))
        raise InputError(
            f"{file}: no {'known' if name == 'auto' else name} trace has the columns {columns}",
            hint=f"no column holds {' or '.join(chosen)}; {_PLAIN_HINT}",
            file=file,
            line=1,
        )
    if chosen.unit_s is None:
        notes.guessed_unit = chosen.stamp
    yield from _checked(head, records, chosen, file, notes)


def _records(stream: io.TextIOBase, file: str, notes: TraceNotes) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The line number and columns of every row: JSONL where the first line is an object, else CSV with a header."""
    lines = _counted(stream, notes)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise InputError(f"{file} is empty", hint=_PLAIN_HINT, file=file)
    opening = first.strip()
    if opening == "{" or opening.startswith("["):
        hint = f"one object a line: jq -c '.[]' {file}"
        if '"conversations"' in first:
            hint = "conversations have no arrival times and no token counts; a trace needs both"
        raise InputError(f"{file} is one JSON value", hint=hint, file=file, line=1)
    yield from _json_records(first, lines, file, notes) if opening.startswith("{") else _csv_records(first, lines)


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
    bad = notes.skipped.total() - notes.skipped[NO_OUTPUT]
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
            raise InputError(f"not a trace: a line has {_LONGEST_LINE:,} characters or more", hint=_PLAIN_HINT)
        last = line
        yield line
    notes.ends_without_newline = not last.endswith("\n")


def _csv_records(header: str, lines: Iterator[str]) -> Iterator[tuple[int, Mapping[str, object]]]:
    comma = max(",\t;", key=header.count)
    names = [name.strip().lstrip("\ufeff") for name in next(csv.reader([header], delimiter=comma))]
    for number, cells in enumerate(csv.reader(lines, delimiter=comma), start=2):
        if cells:
            yield number, dict(zip(names, cells, strict=False))


def _json_records(
    first: str, lines: Iterator[str], file: str, notes: TraceNotes
) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(chain((first,), lines), start=1):
        text = line.strip()
        if not text:
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and isinstance(record.get("input_lens"), list):
            yield from ((number, one) for one in _benchmark_requests(record, file, number))
        elif isinstance(record, dict):
            yield number, record
        else:
            notes.skipped["not a JSON object"] += 1
            notes.first_bad_line = notes.first_bad_line or number


_BENCHMARK = ("start_times", "input_lens", "output_lens")


def _benchmark_requests(record: Mapping[str, object], file: str, line: int) -> Iterator[Mapping[str, object]]:
    """The requests of a benchmark's result, which lists their values column by column; times are seconds.

    Source: vLLM 0.33, ``vllm bench serve --save-result --save-detailed``; other benchmarks list no start times.
    """
    found = [record.get(name) for name in _BENCHMARK]
    lists = [column for column in found if isinstance(column, list)]
    if len(lists) < len(found):
        raise InputError(
            f"{file}: a benchmark's result without {', '.join(_BENCHMARK)}",
            hint="vllm bench serve --save-result --save-detailed writes them",
            file=file,
            line=line,
        )
    ttfts, itls = record.get("ttfts"), record.get("itls")
    times: Iterable[tuple[float | None, list[float]]] = repeat((None, []))
    if isinstance(ttfts, list) and isinstance(itls, list):
        times = zip(ttfts, itls, strict=False)
    for (start_s, prompt, output), (ttft_s, gaps_s) in zip(zip(*lists, strict=False), times, strict=False):
        request = {"arrival_s": start_s, "prompt_tokens": prompt, "output_tokens": output}
        yield request if ttft_s is None else request | {"ttft_s": ttft_s, "e2e_s": ttft_s + sum(gaps_s)}


_PACKED: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_FOREIGN = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"PK\x03\x04": ("zip", "unzip"),
    b"PAR1": ("Parquet", "write it as CSV:"),
}
"""The first bytes of packed files, and what to run on those that cannot be read."""


def _unpacked(raw: io.BufferedReader, path: Path) -> Any:
    start = raw.peek(8)[:8]  # not a read, because a pipe cannot seek back
    for magic, (kind, command) in _FOREIGN.items():
        if start.startswith(magic):
            raise InputError(f"{path} is a {kind} file", hint=f"{command} {path}", file=str(path))
    return next((unpack(raw) for magic, unpack in _PACKED.items() if start.startswith(magic)), raw)


@contextmanager
def _opened(path: Path) -> Iterator[io.TextIOBase]:
    """The file as a stream of unpacked text."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a trace", hint="name a file in it", file=str(path))
    try:
        require_file(path)
        with path.open("rb") as raw, io.TextIOWrapper(_unpacked(raw, path), encoding="utf-8-sig", newline="") as stream:
            yield stream
    except FileNotFoundError as error:
        raise InputError(f"there is no trace {path}", hint="check the path", file=str(path)) from error
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{path} is truncated or damaged", hint="download it again", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text", hint=_PLAIN_HINT, file=str(path)) from error
    except csv.Error as error:
        raise InputError(f"{path} is not CSV: {error}", hint=_PLAIN_HINT, file=str(path)) from error
    except OSError as error:
        raise unreadable(path, error) from error
