"""``--report``: the whole answer of a simulation as one HTML file."""

from collections.abc import Iterator
from html import escape

from kvplan.capacity import Fit
from kvplan.report import html_page as html
from kvplan.report.fit_text import budget_rows
from kvplan.report.numbers import seconds
from kvplan.report.page import Columns, Headline, Labelled, Part, Prose, Verbatim
from kvplan.report.simulation_text import (
    RESERVATIONS,
    STRATEGIES,
    pool_line,
    reservation_rows,
    setting_line,
    strategy_row,
)
from kvplan.report.simulation_text import recommendation as recommendation_parts
from kvplan.report.svg import Curve, line_chart
from kvplan.simulation.results import Simulation, StrategyResult


def text(result: Simulation, planned: Fit | None) -> str:
    """The document; ``planned`` brings the memory budget, where the pool was planned and not given."""
    return html.page(f"kvplan: {setting_line(result)}", _body(result, planned))


def _body(result: Simulation, planned: Fit | None) -> Iterator[str]:
    inputs = result.inputs
    yield f"<h1>{escape(setting_line(result))}</h1>"
    yield html.paragraph(pool_line(result), "quiet")
    if result.recommendation is not None:
        for part in recommendation_parts(result.recommendation):
            yield from _prose(part)
    if planned is not None and planned.plan.budget is not None:
        yield html.heading("Memory of one GPU, GiB")
        yield html.table(
            ("", "GiB", ""), list(budget_rows(planned.plan.budget, planned.plan.kv_bytes)), texts=frozenset({0, 2})
        )
    yield html.heading("Worst-case reservations")
    yield html.table(
        (RESERVATIONS[0], f"prompt p{inputs.reservation_quantile * 100:g}", *RESERVATIONS[2:]),
        list(reservation_rows(result)),
    )
    yield html.heading("Strategies")
    names = [strategy.name for strategy in result.strategies]
    yield html.table(
        STRATEGIES,
        [strategy_row(strategy, inputs.concurrency) for strategy in result.strategies],
        marked=names.index(inputs.judged) if inputs.judged in names else None,
    )
    for strategy in result.strategies:
        if not strategy.steady:
            yield html.paragraph(f"{strategy.name}: {strategy.steady_reason}", "warn")
    yield html.heading("The pool over time")
    yield html.paragraph(
        "First seed. Solid: blocks in use. Dashed: blocks reserved, where the strategy counts blocks.", "quiet"
    )
    for strategy in result.strategies:
        yield from _chart(strategy, result)
    yield html.heading("Assumed")
    for line in (
        *inputs.assumptions,
        f"seeds {inputs.seed} to {inputs.seed + inputs.seeds - 1}",
        f"step time: {inputs.service_source}",
    ):
        yield html.paragraph(line)


def _prose(part: Part) -> Iterator[str]:
    match part:
        case Prose():
            yield html.paragraph(part.text, "answer" if part.hanging else "")
        case Labelled():
            yield html.paragraph(f"{part.label}: {part.text}")
        case Headline() | Verbatim() | Columns():
            return


def _chart(strategy: StrategyResult, result: Simulation) -> Iterator[str]:
    samples = strategy.samples
    if samples is None or len(samples.time_s) < 2:
        return
    pool = result.plant.usable * result.plant.replicas
    curves = [Curve(kind="used", values=[float(blocks) for blocks in samples.used_blocks])]
    if strategy.ledger_capacity is not None and strategy.ledger_capacity <= pool and samples.reserved.any():
        curves.append(Curve(kind="reserved", values=[float(blocks) for blocks in samples.reserved]))
    yield line_chart(
        [float(time_s) for time_s in samples.time_s],
        curves,
        top=float(pool),
        caption=strategy.name,
        x_labels=("0", seconds(float(samples.time_s[-1]))),
        y_label=f"{pool:,}",
    )
