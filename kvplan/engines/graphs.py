"""CUDA graphs and the engine's share of memory: whether those outside of it still fit on the card, and which share
leaves the same pool where they count inside."""

from fractions import Fraction

from kvplan.engines.base import Budget, Finding
from kvplan.units import format_bytes

_GRAPHS = ("cuda_graphs",)
GRAPHS_DO_NOT_FIT = "graphs-do-not-fit"


def budget_findings(budget: Budget) -> tuple[Finding, ...]:
    """Findings on one rank's memory."""
    outside = sum(term.bytes for term in budget.terms if not term.inside_fraction and term.name in _GRAPHS)
    found = outside_finding(budget.total_bytes, budget.requested_bytes, outside)
    return () if found is None else (found,)


def share_for_same_pool(total_bytes: int, share: Fraction, graph_bytes: int) -> Fraction:
    """The share of memory that leaves with graphs inside what ``share`` left without: share + graphs / total.

    0.935 of 23.56 GiB and 0.58 GiB of graphs: 0.9596.
    """
    return share + Fraction(graph_bytes, total_bytes)


def inside_finding(budget: Budget, share: Fraction) -> Finding | None:
    """What a share chosen for a release that did not count graphs costs, and the one that costs nothing."""
    graphs = sum(term.bytes for term in budget.terms if term.inside_fraction and term.name in _GRAPHS)
    same = share_for_same_pool(budget.total_bytes, share, graphs)
    if graphs <= 0 or same > 1:
        return None
    return Finding(
        code="graphs-inside-share",
        severity="info",
        message=f"{format_bytes(graphs)} of graphs count inside the share asked for; a release that did not count them "
        f"had that much more for KV. The same pool: a share of {float(same):.4f}",
        hint="counting them can be turned off, but then they lie beside the share and can run out of memory under load",
    )


def outside_finding(total_bytes: int, requested_bytes: int, graph_bytes: int) -> Finding | None:
    """Whether graphs that lie outside the fraction still fit on the card: requested + graphs ≤ total.

    0.9 of a 4090 (24,564 MiB) and 2,464 MiB of graphs are 7.6 MiB more than the card.
    """
    over = requested_bytes + graph_bytes - total_bytes
    if graph_bytes <= 0 or over <= 0:
        return None
    most = max(0.0, (total_bytes - graph_bytes) / total_bytes)
    return Finding(
        code=GRAPHS_DO_NOT_FIT,
        severity="warning",
        message=f"budget plus graphs exceeds the card: {format_bytes(requested_bytes)} asked for and "
        f"{format_bytes(graph_bytes)} of graphs outside of it are {format_bytes(over)} more than "
        f"{format_bytes(total_bytes)}: the server starts and runs out of memory under load",
        hint=f"--gpu-memory-utilization {int(most * 1000) / 1000:g} at most, fewer graphs, or --enforce-eager",
    )
