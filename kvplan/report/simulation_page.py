"""A simulation as one document to keep: an HTML page with charts, or Markdown for a ticket."""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import PurePath

from kvplan.capacity import Fit
from kvplan.recommend.results import CapPoint
from kvplan.report import html_page as web
from kvplan.report.charts import cap_chart, pool_and_refusals
from kvplan.report.fit_text import budget_rows
from kvplan.report.markdown import document
from kvplan.report.numbers import count, percent, plain_seconds
from kvplan.report.over_time import over_time, scales
from kvplan.report.page import Columns, Part, columns
from kvplan.report.simulation_text import (
    COLUMNS,
    load_line,
    pool_line,
    promise_line,
    remarks,
    reservations,
    service_band_lines,
    setting_line,
    strategies,
)
from kvplan.report.simulation_text import recommendation as recommendation_parts
from kvplan.report.simulation_text import text as parts
from kvplan.simulation.results import Simulation


def html(result: Simulation, planned: Fit | None, caps: Sequence[CapPoint] = ()) -> str:
    """One file for a browser. ``planned`` brings the memory budget, if the pool was planned and not given, and ``caps``
    the curves over the default cap."""
    return web.page(f"kvplan: {setting_line(result)}", _body(result, planned, caps))


def _body(result: Simulation, planned: Fit | None, caps: Sequence[CapPoint]) -> Iterator[str]:
    yield f"<h1>{escape(setting_line(result))}</h1>"
    yield web.paragraph(f"{pool_line(result)}, {promise_line(result)}", "quiet")
    if result.recommendation is not None:
        yield from web.parts(recommendation_parts(result.recommendation))
    yield web.paragraph(f"Load: {load_line(result)}")
    yield from _budget(planned)
    yield web.heading("Worst-case reservations")
    yield web.table(reservations(result))
    yield web.heading("Strategies")
    yield web.items(f"{strategy.name}: {strategy.summary}" for strategy in result.strategies)
    yield web.table(strategies(result))
    yield web.paragraph(f"{COLUMNS[0].upper()}{COLUMNS[1:]}.", "quiet")
    for label, remark in remarks(result):
        yield web.paragraph(f"{label}: {remark}", "warn")
    for _, line in service_band_lines(result):
        yield web.paragraph(f"{result.inputs.judged}, {line}")
    yield from _curves(result, caps)
    yield from _over_time(result)
    yield from _assumed(result)


def _budget(planned: Fit | None) -> Iterator[str]:
    yield web.heading("Memory of one GPU")
    if planned is None or planned.plan.budget is None:
        yield web.paragraph("The traffic file gives the KV pool, so no memory was planned.")
        return
    rows = budget_rows(planned.plan.budget, planned.plan.kv_bytes)
    yield web.table(columns(("", "GiB", "how"), rows, left={0, 2}))
    for finding in planned.findings:
        yield web.paragraph(finding.message, "quiet" if finding.severity == "info" else "warn")


def _curves(result: Simulation, caps: Sequence[CapPoint]) -> Iterator[str]:
    yield web.heading("Which default cap")
    if not caps:
        yield web.paragraph("Every client sends a max_tokens of its own: a default changes nothing.")
        return
    chosen = result.best_default_tokens
    seeds = caps[0].played.seeds
    fewer = f" Played on {seeds} seeds, so figures differ a little from those above." * (seeds < result.inputs.seeds)
    yield web.paragraph(
        f"A low cap cuts answers off (solid), a high one reserves more and so refuses more (dashed).{fewer}", "quiet"
    )
    yield cap_chart(caps, chosen)
    yield web.table(_cap_table(caps, chosen))


def _cap_table(caps: Sequence[CapPoint], chosen: int) -> Columns:
    """A row per default cap."""
    rows = [
        (
            count(point.default_max_tokens),
            percent(point.truncated_share),
            percent(point.played.refused_share),
            " to ".join(percent(end) for end in point.played.refused_interval),
            percent(point.played.gave_up_share),
            plain_seconds(point.played.e2e_p99_s),
        )
        for point in caps
    ]
    marked = [place for place, point in enumerate(caps) if point.default_max_tokens == chosen]
    return columns(("default cap", "cuts off", "refused", "95% interval", "gave up", "p99 s"), rows, marked=marked)


def _over_time(result: Simulation) -> Iterator[str]:
    rows = list(over_time(result))
    if not rows:
        return
    yield web.heading("The pool and the refusals over time")
    yield web.paragraph(
        f"Seed {result.inputs.seed}. Solid: KV in use. Dashed: KV reserved, where the strategy promises blocks. "
        "Refusals count every try that was refused.",
        "quiet",
    )
    top_share, most_per_min = scales(rows)
    for row in rows:
        yield web.side_by_side(pool_and_refusals(row, top_share=top_share, most_per_min=most_per_min))


def _assumed(result: Simulation) -> Iterator[str]:
    inputs = result.inputs
    yield web.heading("Assumed")
    yield web.items(
        (
            *inputs.assumptions,
            f"step time: {inputs.service_source}",
            f"a refusal says: try again after {inputs.retry_after}",
            f"default cap {inputs.default_max_tokens:,}: {inputs.default_max_tokens_source}",
            f"traffic × {inputs.scale:g} of {PurePath(inputs.traffic_file).name}",
        )
    )


def markdown(result: Simulation, planned: Fit | None = None, caps: Sequence[CapPoint] = ()) -> str:
    """The text report for a ticket, with the budget and the caps if they were asked for."""
    shown: list[Part] = list(parts(result))
    if planned is not None and planned.plan.budget is not None:
        rows = [(name.strip(), *rest) for name, *rest in budget_rows(planned.plan.budget, planned.plan.kv_bytes)]
        shown.append(columns(("memory of one GPU", "GiB", "how"), rows, left={0, 2}))
    if caps:
        shown.append(_cap_table(caps, result.best_default_tokens))
    return document("kvplan simulate", shown)
