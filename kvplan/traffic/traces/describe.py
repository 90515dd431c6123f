"""Describes a recorded trace: counts, rate, burstiness, length quantiles, and what is odd about the file.

Rows are streamed. Lengths are counted by value and arrivals by window, so memory does not grow with the file.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvplan.errors import InputError
from kvplan.traffic.traces.prefix_reuse import Part, Repeats
from kvplan.traffic.traces.reader import TraceNotes, counted_rows, read_trace, skip_text
from kvplan.traffic.traces.statistics import WINDOWS_S, Lengths, Stamps

_TICK_S = 1e-6  # no trace has a finer clock: times closer than that are equal


@dataclass(frozen=True, kw_only=True)
class TraceDescription:
    """What a trace is like. ``interarrival_cv`` is the gaps' standard deviation over their mean, ``dispersion`` the
    variance over the mean of arrivals in windows of one length each (1 for Poisson)."""

    file: str
    format: str
    requests: int
    span_s: float
    rate_per_s: float
    interarrival_cv: float
    dispersion: Mapping[str, float]
    peak_per_s: int
    prompt: Lengths
    output: Lengths
    max_tokens: Lengths
    hashed_requests: int
    shared_block_share: float | None
    block_tokens: int | None
    classes: Mapping[str, int]
    skipped: Mapping[str, int]
    oddities: tuple[str, ...]
    parts: tuple[Part, ...] = field(repr=False)


def describe_trace(path: str | Path, *, format: str = "auto") -> TraceDescription:  # noqa: A002
    """Describes a trace of any size. Raises InputError for a file that holds no usable trace."""
    notes, arrivals = TraceNotes(), Stamps()
    prompt: Counter[int] = Counter()
    output: Counter[int] = Counter()
    caps: Counter[int] = Counter()
    classes: Counter[str] = Counter()
    repeats = Repeats()
    kind = ""
    for row in read_trace(path, format=format, notes=notes):
        kind = row.format
        arrivals.add(row.arrival_s)
        prompt[row.prompt_tokens] += 1
        output[row.output_tokens] += 1
        if row.max_tokens:
            caps[row.max_tokens] += 1
        classes[row.class_name] += 1
        repeats.add(row)
    if not notes.rows:
        raise InputError(f"{path} has no request that can be replayed", hint=skip_text(notes), file=str(path))
    span_s = arrivals.span_s
    spreads = {f"{window}s": arrivals.dispersion(window) for window in WINDOWS_S}
    return TraceDescription(
        file=str(path),
        format=kind,
        requests=notes.rows,
        span_s=span_s,
        rate_per_s=(notes.rows - 1) / span_s if span_s >= _TICK_S else 0.0,
        interarrival_cv=arrivals.interarrival_cv,
        dispersion={name: value for name, value in spreads.items() if value is not None},
        peak_per_s=arrivals.peak_per_s,
        prompt=Lengths(counts=dict(prompt)),
        output=Lengths(counts=dict(output)),
        max_tokens=Lengths(counts=dict(caps)),
        hashed_requests=repeats.requests,
        shared_block_share=repeats.shared_share,
        block_tokens=repeats.block_tokens,
        classes=dict(classes),
        skipped=dict(notes.skipped),
        oddities=_oddities(notes, output, caps, span_s),
        parts=repeats.parts(arrivals, prompt=prompt, output=output),
    )


def _oddities(notes: TraceNotes, output: Counter[int], caps: Counter[int], span_s: float) -> tuple[str, ...]:
    """What a reader of the statistics should know about the file."""
    found = list(notes.odd_rows)
    if notes.equal_stamps:
        found.append(f"{counted_rows(notes.equal_stamps)} with the time of the row above: the file's order is kept")
    if notes.ends_without_newline:
        found.append("the last line has no newline: it was read all the same")
    if span_s < _TICK_S:
        found.append("all timestamps are equal: there is no rate, only a burst")
    if not caps:
        found.append("no max_tokens is recorded: what clients ask for must be assumed")
    longest, rows = max(output), output.total()
    if output[longest] > max(5, 0.005 * rows) and longest > 1:
        found.append(f"{output[longest]:,} answers have exactly {longest:,} tokens, the longest: cut off by a cap")
    return tuple(found)
