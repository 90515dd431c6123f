"""``kvplan simulate`` as Markdown, for a ticket."""

from collections.abc import Iterator, Sequence

from kvplan.capacity import Fit
from kvplan.recommend.results import CapPoint
from kvplan.report.fit_text import budget_rows
from kvplan.report.markdown import plain, table
from kvplan.report.simulation_text import (
    CAPS,
    COLUMNS,
    RESERVATIONS,
    STRATEGIES,
    cap_rows,
    load_line,
    pool_line,
    promise_line,
    remarks,
    reservation_rows,
    seeds_line,
    service_band_line,
    setting_line,
    strategy_rows,
)
from kvplan.simulation.results import Recommendation, Simulation


def text(result: Simulation, planned: Fit | None = None, caps: Sequence[CapPoint] = ()) -> str:
    """The document; ``planned`` brings the memory budget and ``caps`` the curves, where they were asked for."""
    return "\n".join(_lines(result, planned, caps)).rstrip("\n") + "\n"


def _lines(result: Simulation, planned: Fit | None, caps: Sequence[CapPoint]) -> Iterator[str]:
    inputs = result.inputs
    yield f"### kvplan simulate: {plain(setting_line(result))}"
    yield ""
    yield plain(f"{pool_line(result)}, {promise_line(result)}")
    yield ""
    if result.recommendation is not None:
        yield from _recommended(result.recommendation)
    if planned is not None and planned.plan.budget is not None:
        yield from table(
            ("memory of one GPU", "GiB", "how"),
            [(name.strip(), *rest) for name, *rest in budget_rows(planned.plan.budget, planned.plan.kv_bytes)],
        )
    yield from table(
        (RESERVATIONS[0], f"prompt p{inputs.reservation_quantile * 100:g}", *RESERVATIONS[2:]), reservation_rows(result)
    )
    yield from table(STRATEGIES, (row for one in result.strategies for row in strategy_rows(one, inputs)))
    if caps:
        yield from table(CAPS, cap_rows(caps))
    for label, remark in remarks(result):
        yield f"- **{label.lower()}**: {plain(remark)}"
    yield f"- load: {plain(load_line(result))}"
    if result.band:
        yield f"- band: {plain(service_band_line(result))}"
    for assumption in inputs.assumptions:
        yield f"- assumed: {plain(assumption)}"
    yield f"- seeds: {plain(seeds_line(result))}"
    yield f"- columns: {plain(COLUMNS)}"


def _recommended(advice: Recommendation) -> Iterator[str]:
    yield (
        f"**Recommended**: safety fraction {advice.safety_fraction:.2f}, max_tokens default "
        f"{advice.default_max_tokens:,}"
    )
    yield ""
    yield f"- fraction: {plain(advice.binds)}"
    yield f"- default: {plain(advice.reason)}"
    if len(advice.per_class) > 1:
        caps = ", ".join(f"{each.name} {each.default_max_tokens:,}" for each in advice.per_class)
        yield f"- by class: {plain(caps)}"
    yield ""
