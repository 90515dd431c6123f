"""``kvplan trace`` as text or JSON."""

from collections.abc import Iterator

from kvplan.report.json_text import document, picked
from kvplan.report.numbers import count, percent, ratio, seconds
from kvplan.report.page import ACTION, BLANK, Part, answer, columns, labelled, paragraph
from kvplan.traffic.traces.describe import TraceDescription
from kvplan.traffic.traces.statistics import Lengths

_SHOWN = ("p5", "p50", "p90", "p95", "p99", "p100")


def text(trace: TraceDescription) -> Iterator[Part]:
    """How much, how bursty, how long."""
    yield answer(
        f"{trace.requests:,} requests in {seconds(trace.span_s)}: {ratio(trace.rate_per_s)} per second, "
        f"at most {trace.peak_per_s:,} in one second"
    )
    yield paragraph(f"{trace.file} ({trace.format})", indent=0)
    yield BLANK
    yield columns(
        ("tokens", "mean", "p5", "p50", "p90", "p95", "p99", "longest"),
        [
            (name, *_row(lengths))
            for name, lengths in (("prompt", trace.prompt), ("output", trace.output), ("max_tokens", trace.max_tokens))
        ],
    )
    yield BLANK
    yield labelled("Bursts", _bursts(trace))
    if trace.shared_block_share is not None:
        yield labelled("Prefixes", f"{percent(trace.shared_block_share)} of the prompts' blocks were seen before")
    if len(trace.classes) > 1:
        names = ", ".join(f"{name} {rows:,}" for name, rows in trace.classes.items())
        yield labelled("Classes", names)
    for oddity in trace.oddities:
        yield labelled("Note", oddity, style=ACTION)


def _row(lengths: Lengths) -> tuple[str, ...]:
    if not lengths.counts:
        return ("-",) * (len(_SHOWN) + 1)
    found = lengths.quantiles()
    return (ratio(lengths.mean, 1), *(count(found[name]) for name in _SHOWN))


def _bursts(trace: TraceDescription) -> str:
    windows = ", ".join(f"{_spread(value)} over {name.removesuffix('s')} s" for name, value in trace.dispersion.items())
    spread = f"; variance of arrivals over their mean: {windows}" if windows else ""
    return f"standard deviation of the gaps over their mean: {trace.interarrival_cv:.2f}{spread} (Poisson: 1)"


def _spread(value: float) -> str:
    """Two digits without an exponent.

    >>> _spread(0.0), _spread(1.34), _spread(56.2), _spread(163.0)
    ('0', '1.3', '56', '163')
    """
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.2g}"


def json(trace: TraceDescription, traffic_file: str | None) -> str:
    """The description, and the traffic file drawn like the trace (null if it has no rate)."""
    return document(
        "trace",
        {
            **picked(trace, "file format requests span_s rate_per_s interarrival_cv"),
            "dispersion": dict(trace.dispersion),
            "peak_per_s": trace.peak_per_s,
            "prompt_tokens": _lengths_object(trace.prompt),
            "output_tokens": _lengths_object(trace.output),
            "max_tokens": _lengths_object(trace.max_tokens),
            "classes": dict(trace.classes),
            **picked(trace, "hashed_requests shared_block_share block_tokens"),
            "skipped": dict(trace.skipped),
            "oddities": list(trace.oddities),
            "traffic_file": traffic_file,
        },
    )


def _lengths_object(lengths: Lengths) -> dict[str, object] | None:
    """Rows that have the column, mean and quantiles; null if no row has it."""
    if not lengths.counts:
        return None
    return {"rows": lengths.rows, "mean": lengths.mean, **lengths.quantiles()}
