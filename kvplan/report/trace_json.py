"""``kvplan trace`` as JSON (``kvplan.trace``)."""

from kvplan.report.json_text import document, picked
from kvplan.traffic.traces.describe import TraceDescription
from kvplan.traffic.traces.statistics import Lengths


def text(trace: TraceDescription, traffic_file: str | None) -> str:
    """The description, and the traffic file drawn like the trace (null where there is no rate)."""
    return document(
        "trace",
        {
            **picked(trace, "file format requests span_s rate_per_s interarrival_cv"),
            "dispersion": dict(trace.dispersion),
            "peak_per_s": trace.peak_per_s,
            "prompt_tokens": _lengths(trace.prompt),
            "output_tokens": _lengths(trace.output),
            "max_tokens": _lengths(trace.max_tokens),
            "classes": dict(trace.classes),
            **picked(trace, "hashed_requests shared_block_share block_tokens"),
            "skipped": dict(trace.skipped),
            "oddities": list(trace.oddities),
            "traffic_file": traffic_file,
        },
    )


def _lengths(lengths: Lengths) -> dict[str, object] | None:
    """Rows that have the column, mean and quantiles; null where no row has it."""
    if not lengths.counts:
        return None
    return {"rows": lengths.rows, "mean": lengths.mean, **lengths.quantiles()}
