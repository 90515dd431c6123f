"""CUDA graphs that lie outside the engine's share of memory: whether they still fit on the card beside it."""

from kvplan.engines.base import Budget, Finding
from kvplan.units import format_bytes

_GRAPHS = ("cuda_graphs",)


def budget_findings(budget: Budget) -> tuple[Finding, ...]:
    """Findings on one rank's memory."""
    outside = sum(term.bytes for term in budget.terms if not term.inside_fraction and term.name in _GRAPHS)
    found = outside_finding(budget.total_bytes, budget.requested_bytes, outside)
    return () if found is None else (found,)


def outside_finding(total_bytes: int, requested_bytes: int, graph_bytes: int) -> Finding | None:
    """Whether graphs that lie outside the fraction still fit on the card: requested + graphs ≤ total.

    0.9 of a 4090 (24,564 MiB) and 2,464 MiB of graphs are 7.6 MiB more than the card.
    """
    over = requested_bytes + graph_bytes - total_bytes
    if graph_bytes <= 0 or over <= 0:
        return None
    most = max(0.0, (total_bytes - graph_bytes) / total_bytes)
    return Finding(
        code="graphs-do-not-fit",
        severity="warning",
        message=f"budget plus graphs exceeds the card: {format_bytes(requested_bytes)} asked for and "
        f"{format_bytes(graph_bytes)} of graphs outside of it are {format_bytes(over)} more than "
        f"{format_bytes(total_bytes)}: the server starts and runs out of memory under load",
        hint=f"--gpu-memory-utilization {int(most * 1000) / 1000:g} at most, fewer graphs, or --enforce-eager",
    )
