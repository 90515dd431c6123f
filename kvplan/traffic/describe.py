"""What a recorded trace is like: counts, rate, burstiness, length quantiles, and what is odd about the file.

The rows stream by. Lengths are counted per value and arrivals per window, so memory does not grow with the file.
"""

import json
import math
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvplan.errors import InputError
from kvplan.traffic.burstiness import arrivals_text, fitted_arrivals, plain
from kvplan.traffic.stamps import WINDOWS_S, Stamps
from kvplan.traffic.traces import TraceNotes, read_trace, skip_text

_TICK_S = 1e-6  # no trace has a finer clock: stamps closer than that are equal
PERCENTS = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)
_FINE = (*range(99), 98.5, 99, 99.5, 99.9, 100)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Token counts of one column: ``counts`` maps a length to how many rows have it."""

    counts: Mapping[int, int] = field(repr=False)

    @property
    def rows(self) -> int:
        """Rows that have this column."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """The average length; 0 of none."""
        return sum(length * count for length, count in self.counts.items()) / self.rows if self.counts else 0.0

    def quantile(self, probability: float) -> int:
        """Value number ceil(probability × n) of the sorted lengths.

        >>> Lengths(counts={1: 1, 5: 1, 9: 2}).quantile(0.5)
        5
        """
        wanted, below = max(1, math.ceil(probability * self.rows - 1e-9)), 0
        for length in sorted(self.counts):
            below += self.counts[length]
            if below >= wanted:
                return length
        return 0

    def quantiles(self, percents: tuple[float, ...] = PERCENTS) -> dict[str, int]:
        """Several of them, named ``p50`` and so on."""
        ordered, below, place, found = sorted(self.counts), 0, -1, {}
        for percent in percents:
            wanted = max(1, math.ceil(percent / 100 * self.rows - 1e-9))
            while below < wanted:
                place += 1
                below += self.counts[ordered[place]]
            found[f"p{percent:g}"] = ordered[place]
        return found


@dataclass(frozen=True, kw_only=True)
class TraceDescription:
    """What a trace is like. ``interarrival_cv`` is the gaps' standard deviation over their mean; ``dispersion`` the
    variance over the mean of arrivals per window of so many seconds (1 for Poisson)."""

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


def describe_trace(path: str | Path, *, format: str = "auto") -> TraceDescription:  # noqa: A002
    """The description of a trace of any size. Raises InputError for files that hold no usable trace."""
    notes, arrivals = TraceNotes(), Stamps()
    prompt: Counter[int] = Counter()
    output: Counter[int] = Counter()
    caps: Counter[int] = Counter()
    classes: Counter[str] = Counter()
    prefixes = _PrefixCounts()
    kind = ""
    for row in read_trace(path, format=format, notes=notes):
        kind = row.format
        arrivals.add(row.arrival_s)
        prompt[row.prompt_tokens] += 1
        output[row.output_tokens] += 1
        if row.max_tokens:
            caps[row.max_tokens] += 1
        classes[row.class_name] += 1
        if row.hash_ids:
            prefixes.add(row.hash_ids, row.hash_block_tokens)
    if not notes.rows:
        raise InputError(f"{path} holds no request that can be replayed", hint=skip_text(notes), file=str(path))
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
        hashed_requests=prefixes.requests,
        shared_block_share=prefixes.shared_share,
        block_tokens=prefixes.block_tokens,
        classes=dict(classes),
        skipped=dict(notes.skipped),
        oddities=_oddities(notes, output, caps, span_s),
    )


class _PrefixCounts:
    """How many prompt blocks had been seen before. Remembers a set of ids: it grows with distinct blocks only."""

    def __init__(self) -> None:
        self.requests = 0
        self.block_tokens: int | None = None
        self._seen: set[int] = set()
        self._blocks = 0
        self._shared = 0

    def add(self, ids: tuple[int, ...], block_tokens: int) -> None:
        self.requests += 1
        self.block_tokens = block_tokens
        self._blocks += len(ids)
        self._shared += sum(block in self._seen for block in ids)
        self._seen.update(ids)

    @property
    def shared_share(self) -> float | None:
        return self._shared / self._blocks if self._blocks else None


def _oddities(notes: TraceNotes, output: Counter[int], caps: Counter[int], span_s: float) -> tuple[str, ...]:
    """What a reader of the figures should know about the file."""
    found = [f"{count:,} rows skipped: {reason}" for reason, count in notes.skipped.items()]
    if notes.unsorted:
        found.append(f"{notes.unsorted:,} rows come before the row above them: sorted for replay")
    if notes.equal_stamps:
        found.append(f"{notes.equal_stamps:,} rows have the stamp of the row above: they keep the file's order")
    if notes.ends_without_newline:
        found.append("the last line has no newline: read all the same")
    if span_s < _TICK_S:
        found.append("all stamps are equal: there is no rate, only a burst")
    if not caps:
        found.append("no max_tokens is recorded: what clients ask for must be assumed")
    longest, rows = max(output), output.total()
    if output[longest] > max(5, 0.005 * rows) and longest > 1:
        found.append(f"{output[longest]:,} answers have exactly {longest:,} tokens, the longest: cut off by a cap")
    return tuple(found)


def traffic_text(description: TraceDescription, *, name: str = "recorded") -> str:
    """A traffic file whose drawn requests have the trace's rate, burstiness and length quantiles.

    Arrivals cluster as ``fitted_arrivals`` finds; lengths follow the recorded quantiles, prompt and answer
    independently of each other. A class that replays the trace itself is there to swap in.
    """
    if description.rate_per_s <= 0:
        raise InputError(
            f"{description.file}: all stamps are equal, so there is no rate to write", file=description.file
        )
    arrivals = fitted_arrivals(
        rate_per_s=description.rate_per_s, cv=description.interarrival_cv, dispersion=description.dispersion
    )
    model, window, remark = _model_and_window(description)
    caps = " {unset: true}" if not description.max_tokens.counts else _caps_text(description)
    duration_s = max(600, min(3600, round(description.span_s)))
    return f"""\
# Drawn like {Path(description.file).name}: {description.requests:,} requests in {description.span_s:,.0f} s,
# prompt mean {description.prompt.mean:,.1f}, output mean {description.output.mean:,.1f} tokens.
# Prompt and output lengths are drawn independently of each other.
{_prefix_remark(description)}model: {model}   # assumed: no trace says which
deployment:
  gpu: h100
  max_model_len: {window}{remark}
admission:
  policy: worst_case_default_cap
traffic:
  duration: {duration_s}s
  classes:
    - name: {json.dumps(name, ensure_ascii=False) if set(name) & _NOT_PLAIN else name}
      rate: {plain(description.rate_per_s, 6)}/s
      arrivals: {arrivals_text(arrivals)}
      prompt_tokens: {_quantiles_text(description.prompt)}
      output_tokens: {_quantiles_text(description.output)}
      max_tokens:{caps}
    # To replay the trace itself, put these two keys in place of rate, arrivals
    # and the two lengths:
    #   trace: {description.file}
    #   scale: 1.0
"""


_NOT_PLAIN = frozenset(":#{}[],&*!|>'\"%@`?-~ \\\n\t")
"""Signs that may mean something to YAML."""
_MODELS = (("meta-llama/Llama-3.1-8B-Instruct", 131_072), ("Qwen/Qwen3-4B-Instruct-2507", 262_144))
"""Bundled models that one H100 serves at their whole window."""


def _model_and_window(description: TraceDescription) -> tuple[str, int, str]:
    """A model whose window holds the longest recorded request, the least power of two that does (at least 8,192), and
    a remark where no model's does."""
    longest = max(description.prompt.counts) + max(description.output.counts)
    window = max(8192, 1 << longest.bit_length())
    for name, context in _MODELS:
        if window <= context:
            return name, window, ""
    name, context = _MODELS[-1]
    return name, context, "   # requests beyond it are refused for good"


def _prefix_remark(description: TraceDescription) -> str:
    """Drawn prompts share nothing: where recorded ones do, a cache makes the replay lighter than the drawing."""
    if not description.shared_block_share:
        return ""
    return (
        f"# {description.shared_block_share:.0%} of the recorded prompts' blocks repeat earlier ones; drawn prompts\n"
        "# share nothing. Where prefix caching matters, replay the trace (below).\n"
    )


def _quantiles_text(lengths: Lengths) -> str:
    """The recorded quantiles, every percent, with runs of equal values thinned to their ends."""
    points = list(lengths.quantiles(_FINE).items())
    kept = [
        (name, value)
        for place, (name, value) in enumerate(points)
        if place in (0, len(points) - 1) or not points[place - 1][1] == value == points[place + 1][1]
    ]
    text = ", ".join(f"{name}:_{value}" for name, value in kept)  # the underscore keeps a pair on one line
    lines = textwrap.wrap(text, 70, break_long_words=False, break_on_hyphens=False)
    return "{quantiles: {\n          " + "\n          ".join(lines).replace("_", " ") + "\n        }}"


def _caps_text(description: TraceDescription) -> str:
    """The recorded caps: a few as choices, many as quantiles of those sent."""
    sent = description.max_tokens
    unset = description.requests - sent.rows
    if len(sent.counts) > 8:
        return " " + _quantiles_text(sent)
    shares = [(f"value: {cap}", count) for cap, count in sorted(sent.counts.items())]
    if unset:
        shares.append(("unset: true", unset))
    whole = [round(count / description.requests, 6) for _, count in shares]
    whole[0] += round(1.0 - sum(whole), 6)
    lines = (f"\n          - {{{what}, share: {share:g}}}" for (what, _), share in zip(shares, whole, strict=True))
    return "\n        choices:" + "".join(lines)
