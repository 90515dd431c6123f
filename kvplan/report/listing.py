"""``kvplan list`` as text, and as JSON with every field of every profile."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from kvplan.catalogue import EngineRow, Listing, Row, TrafficRow
from kvplan.profiles.kinds import BundledModel, ClientProfile, GpuProfile
from kvplan.report.json_text import document
from kvplan.report.numbers import format_bytes, parameters
from kvplan.report.page import BLANK, Part, answer, columns, labelled, next_steps

_HEADINGS = {
    "gpus": ("name", "memory", "GB/s", "TFLOP/s", "also called"),
    "models": ("model", "parameters", "checked"),
    "clients": ("client", "tries", "Retry-After", "at most", "checked"),
    "engines": ("engine", ""),
    "traffic": ("mix", ""),
}
_TEXT_COLUMNS = {"gpus": {0, 4}, "models": {0, 2}, "clients": {0, 2, 4}, "engines": {0, 1}, "traffic": {0, 1}}
_NEXT = {
    "gpus": "kvplan fit meta-llama/Llama-3.1-8B-Instruct --gpu {}",
    "models": "kvplan model {}",
    "clients": "kvplan init --output traffic.yaml",
    "engines": "kvplan fit meta-llama/Llama-3.1-8B-Instruct --gpu h100 --engine {}",
    "traffic": "kvplan simulate {}",
}


_LONGEST_ALIAS = 24
"""What eighty columns have room for; the longer ones are known all the same, and JSON lists them."""
_COLUMNS = {
    "gpus": "memory: what the driver reports; GB/s: its bandwidth; TFLOP/s: dense, 16 bits",
    "models": "parameters: - where the number is not known",
    "clients": "tries: in all; at most: the longest Retry-After it honours. A traffic class names one as its client",
}


def text(listing: Listing) -> Iterator[Part]:
    """How many, then one row each."""
    of = f" of {listing.known}" if len(listing.rows) != listing.known else ""
    matching = f" matching {listing.search!r}" if listing.search else ""
    named = {"gpus": "GPUs", "traffic": "traffic mixes"}.get(listing.catalogue, listing.catalogue)
    yield answer(f"{len(listing.rows)}{of} {named}{matching}")
    if not listing.rows:
        yield from next_steps(f"kvplan list {listing.catalogue}")
        return
    yield BLANK
    headings = _HEADINGS[listing.catalogue]
    yield columns(
        headings,
        [_cells(row) for row in listing.rows],
        left=frozenset(_TEXT_COLUMNS[listing.catalogue]),
        wrap=len(headings) - 1,
    )
    yield BLANK
    if listing.catalogue in _COLUMNS:
        yield labelled("Columns", _COLUMNS[listing.catalogue])
    yield from next_steps(_NEXT[listing.catalogue].format(_example(listing)))


def _example(listing: Listing) -> str:
    """What to try next: the name or alias that was searched for, or the first row."""
    wanted = listing.search.strip().lower()
    if any(isinstance(row, GpuProfile) and wanted in (row.name, *row.aliases) for row in listing.rows):
        return wanted
    first = listing.rows[0]
    return first.id if isinstance(first, BundledModel) else first.name


def _cells(row: Row) -> tuple[str, ...]:
    match row:
        case GpuProfile():
            dense = row.flops_per_s.get("bfloat16", row.flops_per_s.get("float16"))
            return (
                row.name,
                format_bytes(row.memory_bytes),
                f"{row.bandwidth_bytes_per_s / 10**9:,.0f}",
                "-" if dense is None else f"{dense / 10**12:,.0f}",
                ", ".join(alias for alias in row.aliases if " " not in alias and len(alias) <= _LONGEST_ALIAS),
            )
        case BundledModel():
            return (row.id, (parameters(row.parameters) or "-").removesuffix(" parameters"), row.checked)
        case ClientProfile():
            longest = "-" if row.longest_honoured_s is None else f"{row.longest_honoured_s:g} s"
            tries = "no end" if row.tries is None else str(row.tries)
            return (row.name, tries, row.honours_retry_after.replace("_", " "), longest, row.checked)
        case EngineRow():
            return (row.name, row.about)
        case TrafficRow():
            return (row.name, row.summary)


def json(listing: Listing) -> str:
    """The document."""
    return document(
        "list",
        {
            "catalogue": listing.catalogue,
            "search": listing.search or None,
            "known": listing.known,
            "rows": [_json_safe(asdict(row)) for row in listing.rows],
        },
    )


def _json_safe(value: object) -> object:
    """``value`` with infinities (a published config may have one as a limit) as words, because JSON has none."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Mapping():
            return {key: _json_safe(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_json_safe(inner) for inner in value]
    return value
