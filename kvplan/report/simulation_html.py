"""``--report``: the whole answer of a simulation as one HTML file."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import PurePath

from kvplan.capacity import Fit
from kvplan.recommend.results import CapPoint
from kvplan.report import html_page as html
from kvplan.report.charts import cap_chart, pool_and_refusals
from kvplan.report.fit_text import budget_rows
from kvplan.report.over_time import over_time, scales
from kvplan.report.page import columns
from kvplan.report.simulation_text import (
    COLUMNS,
    cap_table,
    load_line,
    pool_line,
    promise_line,
    remarks,
    reservations,
    seeds_line,
    service_band_line,
    setting_line,
    strategies,
)
from kvplan.report.simulation_text import recommendation as recommendation_parts
from kvplan.simulation.results import Simulation


def text(result: Simulation, planned: Fit | None, caps: Sequence[CapPoint] = ()) -> str:
    """The document; ``planned`` brings the memory budget, where the pool was planned and not given, and ``caps`` the
    curves over the default cap."""
    return html.page(f"kvplan: {setting_line(result)}", _body(result, planned, caps))


def _body(result: Simulation, planned: Fit | None, caps: Sequence[CapPoint]) -> Iterator[str]:
    yield f"<h1>{escape(setting_line(result))}</h1>"
    yield html.paragraph(f"{pool_line(result)}, {promise_line(result)}", "quiet")
    if result.recommendation is not None:
        yield from html.parts(recommendation_parts(result.recommendation))
    yield html.paragraph(f"Load: {load_line(result)}")
    yield from _budget(planned)
    yield html.heading("Worst-case reservations")
    yield html.table(reservations(result))
    yield html.heading("Strategies")
    yield html.items(f"{strategy.name}: {strategy.summary}" for strategy in result.strategies)
    yield html.table(strategies(result))
    yield html.paragraph(f"{COLUMNS[0].upper()}{COLUMNS[1:]}.", "quiet")
    for label, remark in remarks(result):
        yield html.paragraph(f"{label}: {remark}", "warn")
    if result.band:
        yield html.paragraph(f"Band of the step time: {service_band_line(result)}")
    yield from _curves(result, caps)
    yield from _over_time(result)
    yield from _assumed(result)


def _budget(planned: Fit | None) -> Iterator[str]:
    yield html.heading("Memory of one GPU")
    if planned is None or planned.plan.budget is None:
        yield html.paragraph("The traffic file gives the KV pool, so no memory was planned.")
        return
    rows = budget_rows(planned.plan.budget, planned.plan.kv_bytes)
    yield html.table(columns(("", "GiB", "how"), rows, left={0, 2}))
    for finding in planned.findings:
        yield html.paragraph(finding.message, "quiet" if finding.severity == "info" else "warn")


def _curves(result: Simulation, caps: Sequence[CapPoint]) -> Iterator[str]:
    yield html.heading("Which default cap")
    if not caps:
        yield html.paragraph("Every client sends a max_tokens of its own: a default changes nothing.")
        return
    chosen = result.best_default_tokens
    yield html.paragraph(
        "A low cap cuts answers off (solid), a high one reserves more and so refuses more (dashed).", "quiet"
    )
    yield cap_chart(caps, chosen)
    yield html.table(cap_table(caps, chosen))


def _over_time(result: Simulation) -> Iterator[str]:
    rows = list(over_time(result))
    if not rows:
        return
    yield html.heading("The pool and the refusals over time")
    yield html.paragraph(
        f"Seed {result.inputs.seed}. Solid: KV in use. Dashed: KV reserved, where the strategy promises blocks. "
        "Refusals count every try that was refused.",
        "quiet",
    )
    top_share, most_per_min = scales(rows)
    for row in rows:
        yield html.side_by_side(pool_and_refusals(row, top_share=top_share, most_per_min=most_per_min))


def _assumed(result: Simulation) -> Iterator[str]:
    inputs = result.inputs
    yield html.heading("Assumed")
    yield html.items(
        (
            *inputs.assumptions,
            f"seeds {seeds_line(result)}",
            f"step time: {inputs.service_source}",
            f"a refusal says: try again after {inputs.retry_after}",
            f"default cap {inputs.default_max_tokens:,}: {inputs.default_max_tokens_source}",
            f"traffic × {inputs.scale:g} of {PurePath(inputs.traffic_file).name}",
        )
    )
