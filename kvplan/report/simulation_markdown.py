"""``kvplan simulate`` as Markdown, for a ticket."""

from collections.abc import Sequence

from kvplan.capacity import Fit
from kvplan.recommend.results import CapPoint
from kvplan.report.fit_text import budget_rows
from kvplan.report.markdown import document
from kvplan.report.page import Part, columns
from kvplan.report.simulation_text import cap_table
from kvplan.report.simulation_text import text as parts
from kvplan.simulation.results import Simulation


def text(result: Simulation, planned: Fit | None = None, caps: Sequence[CapPoint] = ()) -> str:
    """The document; ``planned`` brings the memory budget and ``caps`` the curves, where they were asked for."""
    shown: list[Part] = list(parts(result))
    if planned is not None and planned.plan.budget is not None:
        rows = [(name.strip(), *rest) for name, *rest in budget_rows(planned.plan.budget, planned.plan.kv_bytes)]
        shown.append(columns(("memory of one GPU", "GiB", "how"), rows, left={0, 2}))
    if caps:
        shown.append(cap_table(caps, result.best_default_tokens))
    return document("kvplan simulate", shown)
