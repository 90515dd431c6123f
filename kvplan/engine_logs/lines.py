"""A raw log file → clean numbered lines: streamed, without escape codes and the prefixes of containers."""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvplan.errors import InputError, unreadable
from kvplan.files import require_file

_CHUNK_BYTES = 1 << 20
_LONGEST_LINE = 1 << 16

# ANSI escape codes, also colours whose first byte was lost, and control characters; the same in bytes.
_ESCAPES = re.compile(r"\x1b?\[[0-9;]+m|\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f]")
_RAW_ESCAPES = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f](?:(?<=\x1b)(?:\[[0-9;?]*[ -/]*[@-~]|[@-Z\\-_]))?")
_RAW_COLOURS = re.compile(rb"\[[0-9;]+m")
# What most lines contain: see ``Wanted.places``.
_COMMON = b"0123456789 .,:;-+/()\"'=%"
_PREFIXES = re.compile(
    r"^(?:"
    r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d) +(?:std(?:out|err) [FP] )?"  # Kubernetes CRI, --timestamps
    r"|[^\W\d]{3,5}\.? [ \d]\d [\d:]{8} \S+ [^\s\[\]:]+(?:\[\d+\])?: "  # journald, syslog, in any language
    r"|\d{4}-\d\d-\d\d [\d:.,]+ \| "  # docker desktop
    r"|\[pod/\S+\] "  # kubectl logs --prefix
    r"|[A-Za-z0-9_.-]+\s+\| "  # docker compose
    r")"
)
_PARALLEL_RANK = re.compile(r"\b(?:[A-Za-z]*_)?((?:DP|PP|TP|EP)\d+)(?=[_ \])])")
_OTHER_RANKS = (
    re.compile(r"\brank[=: ]+(\d+)\b", re.IGNORECASE),
    re.compile(r"\((?:VllmWorker(?:Process)?|RayWorkerWrapper|Worker)[^)]*?pid=(\d+(?:, ip=[\d.]+)?)"),
)
_RANK_ZONE = 160
"""Characters at the head of a line in which its rank stands."""


class _Stream(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line without escapes and prefixes; ``number`` counts from 1, as in an editor."""

    number: int
    text: str

    @property
    def rank(self) -> str | None:
        """The rank that wrote the line, where its head says so."""
        return find_rank(self.text)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The lines worth cleaning: those that may contain one of ``words``, and every line while ``all_now``."""

    words: Collection[bytes]
    all_now: Callable[[], bool]

    def places(self, block: bytes) -> Iterator[int]:
        r"""The lines of ``block``, counted from 0, that may contain a word once they are clean.

        Escape codes are removed first, because a word may have one inside; JSON can hide a word only behind a \u.
        Characters that most lines contain are removed from words and block alike, which loses no word and halves the
        search.
        """
        text = _RAW_COLOURS.sub(b"", _RAW_ESCAPES.sub(b"", block)).translate(None, _COMMON)
        found = set()
        for word in {word.translate(None, _COMMON) for word in (*self.words, b"\\u")}:
            at = text.find(word)
            while at >= 0:
                found.add(text.rfind(b"\n", 0, at) + 1)
                end = text.find(b"\n", at)
                at = -1 if end < 0 else text.find(word, end)
        line, last = 0, 0
        for start in sorted(found):
            line, last = line + text.count(b"\n", last, start), start
            yield line


def read_lines(path: Path, wanted: Wanted | None = None) -> Iterator[LogLine]:
    """The clean lines of a file, or those that are ``wanted``; gzip is unpacked.

    Memory stays at a few MiB: the file is read in chunks, and a line is cut at 64 KiB. A carriage return ends a line,
    so a progress bar becomes many short lines with one number.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a log", hint="name the file in it", file=str(path))
    try:
        require_file(path)
        with path.open("rb") as raw:
            if raw.peek(2)[:2] == b"\x1f\x8b":  # a look ahead, not a read: the shell's pipes cannot go back
                with gzip.open(raw) as unpacked:
                    yield from clean_lines(unpacked, wanted)
            else:
                yield from clean_lines(raw, wanted)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error


def clean_lines(stream: _Stream, wanted: Wanted | None = None) -> Iterator[LogLine]:
    """Like ``read_lines``, from an open binary stream."""
    number, rest = 1, b""
    while chunk := stream.read(_CHUNK_BYTES):
        block, newline, rest = (rest + chunk).rpartition(b"\n")
        whole = block.split(b"\n") if newline else []
        places = iter(range(len(whole)) if wanted is None else wanted.places(block))
        place = next(places, len(whole))
        for at, raw in enumerate(whole):
            if at == place:
                place = next(places, len(whole))
            elif wanted is not None and not wanted.all_now():
                continue
            yield from _pieces(raw, number + at)
        number += len(whole)
        if len(rest) > _CHUNK_BYTES:
            rest = rest[:_LONGEST_LINE]
    if rest:
        yield from _pieces(rest, number)


def _pieces(raw: bytes, number: int) -> Iterator[LogLine]:
    """The parts of one physical line between carriage returns, each cleaned."""
    for piece in raw.split(b"\r"):
        text = clean_text(piece[:_LONGEST_LINE].decode("utf-8", errors="replace"))
        if text:
            yield LogLine(number=number, text=text)


def clean_text(text: str) -> str:
    r"""``text`` without escape codes and container prefixes; the message of a JSON line.

    >>> clean_text('{"log":"\\u001b[32mINFO\\u001b[0m ready\\n","stream":"stdout","time":"2026-01-01T00:00:00Z"}')
    'INFO ready'
    >>> clean_text("2026-01-01T00:00:00.0Z stderr F llama_kv_cache: size = 1.00 MiB")
    'llama_kv_cache: size = 1.00 MiB'
    >>> clean_text("vllm-1  | INFO 01-01 Available KV cache memory: 1.00 GiB")
    'INFO 01-01 Available KV cache memory: 1.00 GiB'
    """
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        text = _message(text)  # before the escapes go: JSON writes the first byte of one as letters
    text = _ESCAPES.sub("", text).strip()
    for _ in range(3):
        shorter = _PREFIXES.sub("", text, count=1)
        if shorter == text:
            break
        text = shorter
    return text


def _message(text: str) -> str:
    """The text inside a JSON log line (docker's json-file, TGI's --json-output); any other ``text`` as it is."""
    try:
        record = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text
    if not isinstance(record, dict):
        return text
    for key in ("log", "message", "msg", "MESSAGE", "textPayload", "line"):
        value = record.get(key)
        if isinstance(value, str):
            return value
    return text


def find_rank(text: str) -> str | None:
    """The rank or worker process that wrote a line, where its head says so.

    >>> find_rank("(VllmWorker rank=1 pid=77) INFO Model loading took 1.0 GiB"), find_rank("[2026 DP1 TP3] Load weight")
    ('1', 'DP1 TP3')
    """
    head = text[:_RANK_ZONE]
    parallel = _PARALLEL_RANK.findall(head)
    if parallel:
        return " ".join(dict.fromkeys(parallel))
    for pattern in _OTHER_RANKS:
        match = pattern.search(head)
        if match:
            return str(match[1])
    return None
