"""``kvplan check`` as Markdown, for a pull request or a job summary."""

from collections.abc import Iterable, Iterator

from kvplan.check.results import Check, Comparison
from kvplan.report.check_text import rest, row
from kvplan.report.check_words import (
    band_warning,
    change,
    figure_beside,
    file_name,
    is_shown,
    message,
    newly_broken,
    summary,
)
from kvplan.report.simulation_text import setting_line


def text(check: Check) -> str:
    """The document."""
    return "\n".join(_lines(check)) + "\n"


def _lines(check: Check) -> Iterator[str]:
    yield f"### kvplan check: {_plain(file_name(check.traffic.file))} {_plain(summary(check))}"
    yield ""
    simulation = check.measured.simulation
    if simulation is not None:
        inputs = simulation.inputs
        runs = "1 seed" if inputs.seeds == 1 else f"{inputs.seeds} seeds"
        yield f"{_plain(setting_line(simulation))}; judged: `{inputs.judged}`, {runs} from {inputs.seed}"
        yield ""
    rows = [
        (f"**{cells[0]}**" if not limit.passed else cells[0], *cells[1:])
        for limit in check.limits
        for cells in [row(limit)]
        if limit.name != "fits"
    ]
    yield from _table(("verdict", "limit", "bound", "measured", "95% interval"), rows, left=3)
    remarks = list(_remarks(check))
    yield from remarks
    if remarks and check.comparison is not None:
        yield ""
    if check.comparison is not None:
        yield from _comparison(check.comparison)


def _remarks(check: Check) -> Iterator[str]:
    """A list of what is broken and what is not sure."""
    simulation, fresh = check.measured.simulation, newly_broken(check)
    for limit in check.limits:
        if not limit.passed and not (limit.certainty == "not_measured" and check.measured.trouble):
            yield f"- **broken**: {_plain(message(limit))}{'; the base keeps it' if limit in fresh else ''}"
        elif limit.passed and limit.certainty in ("within_noise", "one_seed"):
            yield f"- unsure: {_plain(message(limit))}"
    share = 0.0 if simulation is None else simulation.inputs.service_band_share
    for warning in filter(None, (band_warning(limit, share) for limit in check.limits)):
        yield f"- unsure: {_plain(warning)}"


def _comparison(found: Comparison) -> Iterator[str]:
    yield f"#### What changes against {_plain(file_name(found.base))}"
    yield ""
    if found.settings:
        settings = [(f"`{one.key}`", one.before or "not given", one.after or "not given") for one in found.settings]
        yield from _table(("setting", "before", "now"), settings, left=1)
    shown = [one for one in found.changes if is_shown(one)]
    if shown:
        rows = [
            (
                one.name,
                figure_beside(one.name, one.before, one.after),
                figure_beside(one.name, one.after, one.before),
                change(one),
            )
            for one in shown
        ]
        yield from _table(("figure", "before", "now", "change"), rows, left=1)
    yield f"{rest(found)}."


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]], *, left: int) -> Iterator[str]:
    cells = list(headings)
    yield _row(cells)
    yield _row([":--" if place < left else "--:" for place in range(len(cells))])
    for one in rows:
        yield _row([_plain(cell) for cell in one])
    yield ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Text that cannot end a cell, open a tag or a link."""
    for sign, written in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("[", "\\["), ("\r", " "), ("\n", " ")):
        text = text.replace(sign, written)
    return text
