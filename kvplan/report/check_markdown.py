"""``kvplan check`` as Markdown, for a pull request or a job summary."""

from collections.abc import Iterator

from kvplan.check.results import Check, Comparison
from kvplan.report.check_words import CHANGES, LIMITS, change_rows, doubts, failure, rest, row, runs, summary
from kvplan.report.markdown import code, plain, strong, table
from kvplan.report.simulation_text import setting_line
from kvplan.report.traffic_file import file_name


def text(check: Check) -> str:
    """The document."""
    return "\n".join(_lines(check)) + "\n"


def _lines(check: Check) -> Iterator[str]:
    yield f"### kvplan check: {plain(file_name(check.traffic.file))} {plain(summary(check))}"
    yield ""
    simulation = check.measured.simulation
    if simulation is not None:
        judged = f"judged: {code(simulation.inputs.judged)}, {runs(simulation)}"
        yield f"{plain(setting_line(simulation))}; {judged}"
        yield ""
    rows = []
    for limit in check.limits:
        if limit.name != "fits":
            verdict, *cells = row(limit)
            rows.append((verdict if limit.passed else strong(verdict), *cells))
    yield from table(LIMITS, rows, left=3)
    remarks = list(_remarks(check))
    yield from remarks
    if remarks and check.comparison is not None:
        yield ""
    if check.comparison is not None:
        yield from _comparison(check.comparison)


def _remarks(check: Check) -> Iterator[str]:
    """A list of what is broken and what is not sure."""
    for limit in check.broken:
        if not (limit.certainty == "not_measured" and check.measured.trouble):
            yield f"- {strong('broken')}: {plain(failure(limit, check))}"
    for doubt in doubts(check):
        yield f"- unsure: {plain(doubt)}"


def _comparison(found: Comparison) -> Iterator[str]:
    yield f"#### What changes against {plain(file_name(found.base))}"
    yield ""
    if found.settings:
        settings = [(code(one.key), one.before or "not given", one.after or "not given") for one in found.settings]
        yield from table(("setting", *CHANGES[1:3]), settings)
    rows = change_rows(found)
    if rows:
        yield from table(CHANGES, rows)
    yield f"{rest(found)}."
