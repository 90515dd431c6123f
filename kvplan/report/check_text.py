"""``kvplan check`` as text: the verdict, one line a limit, what is broken, what a change does."""

from collections.abc import Iterator
from shlex import join, quote

from kvplan.check.results import Check, Difference
from kvplan.engines.asked import flag_words
from kvplan.report.check_words import CHANGES, LIMITS, change_rows, doubts, failure, rest, row, runs, summary
from kvplan.report.page import ACTION, BLANK, QUIET, Part, answer, columns, labelled, next_steps, paragraph
from kvplan.report.simulation_text import setting_line
from kvplan.report.traffic_file import file_name


def text(check: Check) -> Iterator[Part]:
    """The whole answer."""
    yield answer(f"{file_name(check.traffic.file)} {summary(check)}")
    simulation = check.measured.simulation
    if simulation is not None:
        yield paragraph(setting_line(simulation), style=QUIET, indent=0)
        yield paragraph(f"judged: {simulation.inputs.judged}, {runs(simulation)}", style=QUIET, indent=0)
    yield BLANK
    headings = ("", LIMITS[1], "", *LIMITS[3:])
    yield columns(headings, [row(limit) for limit in check.limits if limit.name != "fits"], left={0, 1, 2}, wrap=1)
    yield BLANK
    remarks = list(_remarks(check))
    yield from remarks
    if remarks:
        yield BLANK
    if check.comparison is not None:
        yield from _comparison(check.comparison)
    yield from next_steps(*_next(check))


def _remarks(check: Check) -> Iterator[Part]:
    """What needs action, then what only needs to be known."""
    for limit in check.broken:
        if limit.certainty == "not_measured" and check.measured.trouble is not None:
            continue  # said once, by the limit that the engine starts
        yield labelled("broken", failure(limit, check), style=ACTION)
    simulation = check.measured.simulation
    if simulation is not None and not simulation.strategy(simulation.inputs.judged).steady:
        yield labelled("unsteady", simulation.strategy(simulation.inputs.judged).steady_reason, style=ACTION)
    for doubt in doubts(check):
        yield labelled("unsure", doubt)
    if simulation is not None and simulation.inputs.service_band_share:
        band = f"± {simulation.inputs.service_band_share:.0%}"
        yield labelled("assumed", f"service time from {simulation.inputs.service_source}, {band}")


def _comparison(found: Difference) -> Iterator[Part]:
    """The keys and the figures that changed."""
    for setting in found.settings:
        yield labelled("changed", f"{setting.key}: {setting.before or 'not given'} → {setting.after or 'not given'}")
    if found.settings:
        yield BLANK
    rows = change_rows(found)
    if rows:
        yield columns((f"against {file_name(found.base)}", *CHANGES[1:]), rows, wrap=0)
    yield paragraph(rest(found), style=QUIET)
    yield BLANK


def _next(check: Check) -> tuple[str, ...]:
    name = quote(file_name(check.traffic.file))
    if check.measured.trouble is not None:
        wanted = check.traffic.deployment
        model, gpu = check.traffic.model or "MODEL", wanted.gpu_name or "GPU"
        return (join(["kvplan", "fit", model, "--gpu", gpu, *flag_words(wanted)]), "kvplan explain budget")
    seeds = check.measured.simulation.inputs.seeds if check.measured.simulation is not None else 0
    surer = tuple(
        f"kvplan check {name} --seeds {4 * seeds}"
        for _ in range(any(limit.certainty == "within_noise" for limit in check.limits))
    )
    if check.passed:
        return (*surer, f"kvplan check {name} --format junit --output kvplan.xml", "kvplan explain ci")
    return (*surer, f"kvplan simulate {name}", f"kvplan recommend {name}")
