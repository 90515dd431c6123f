"""``kvplan check`` as text: the verdict, one line a limit, what is broken, what a change does."""

from collections.abc import Iterator
from shlex import quote

from kvplan.check.results import Check, Comparison, LimitResult
from kvplan.report.check_words import (
    band_warning,
    bound,
    change,
    figure_beside,
    file_name,
    interval,
    is_shown,
    measured,
    message,
    newly_broken,
    summary,
    title,
    verdict,
)
from kvplan.report.page import ACTION, BLANK, QUIET, Part, answer, columns, labelled, next_steps, paragraph
from kvplan.report.simulation_text import setting_line

HEADINGS = ("", "limit", "", "measured", "95% interval")


def text(check: Check) -> Iterator[Part]:
    """The whole answer."""
    yield answer(f"{file_name(check.traffic.file)} {summary(check)}")
    simulation = check.measured.simulation
    if simulation is not None:
        yield paragraph(setting_line(simulation), style=QUIET, indent=0)
        inputs = simulation.inputs
        runs = "1 seed" if inputs.seeds == 1 else f"{inputs.seeds} seeds"
        yield paragraph(f"judged: {inputs.judged}, {runs} from {inputs.seed}", style=QUIET, indent=0)
    yield BLANK
    yield columns(HEADINGS, [row(limit) for limit in check.limits if limit.name != "fits"], left={0, 1, 2}, wrap=1)
    yield BLANK
    remarks = list(_remarks(check))
    yield from remarks
    if remarks:
        yield BLANK
    if check.comparison is not None:
        yield from comparison(check.comparison)
    yield from next_steps(*_next(check))


def row(limit: LimitResult) -> tuple[str, ...]:
    """One limit in the columns of ``HEADINGS``."""
    return (verdict(limit), title(limit), bound(limit), measured(limit), interval(limit))


def _remarks(check: Check) -> Iterator[Part]:
    """What needs action, then what only needs to be known."""
    fresh = newly_broken(check)
    for limit in check.broken:
        if limit.certainty == "not_measured" and check.measured.trouble is not None:
            continue  # said once, by the limit that the engine starts
        new = "; the base keeps it" if limit in fresh else ""
        yield labelled("broken", f"{message(limit)}{new}", style=ACTION)
    for limit in check.limits:
        if limit.passed and limit.certainty in ("within_noise", "one_seed"):
            yield labelled("unsure", message(limit))
    simulation = check.measured.simulation
    if simulation is not None:
        strategy = simulation.strategy(simulation.inputs.judged)
        if not strategy.steady:
            yield labelled("unsteady", strategy.steady_reason, style=ACTION)
        share = simulation.inputs.service_band_share
        if share:
            for warning in filter(None, (band_warning(limit, share) for limit in check.limits)):
                yield labelled("unsure", warning)
            yield labelled("assumed", f"service time from {simulation.inputs.service_source}, ± {share:.0%}")


def comparison(found: Comparison) -> Iterator[Part]:
    """The keys and the figures that changed."""
    for setting in found.settings:
        yield labelled("changed", f"{setting.key}: {setting.before or 'not given'} → {setting.after or 'not given'}")
    if found.settings:
        yield BLANK
    shown = [one for one in found.changes if is_shown(one)]
    if shown:
        yield columns(
            (f"against {file_name(found.base)}", "before", "now", "change"),
            [
                (
                    one.name,
                    figure_beside(one.name, one.before, one.after),
                    figure_beside(one.name, one.after, one.before),
                    change(one),
                )
                for one in shown
            ],
            wrap=0,
        )
    yield paragraph(rest(found), style=QUIET)
    yield BLANK


def rest(found: Comparison) -> str:
    """How many figures are not in the table."""
    same = sum(one.before == one.after for one in found.changes)
    little = len(found.changes) - same - sum(is_shown(one) for one in found.changes)
    parts = [f"{same} figure{'s' * (same != 1)} {'do' if same != 1 else 'does'} not change"]
    if little:
        parts.append(f"{little} change{'s' * (little == 1)} by less than half a percent")
    return "; ".join(parts)


def _next(check: Check) -> tuple[str, ...]:
    name = quote(file_name(check.traffic.file))
    if check.measured.trouble is not None:
        wanted = check.traffic.deployment
        model, gpu = check.traffic.model or "MODEL", wanted.gpu or "GPU"
        ranks = f" --tp {wanted.tensor_parallel}" if wanted.tensor_parallel > 1 else ""
        window = f" --max-model-len {wanted.max_model_len}" if wanted.max_model_len else ""
        return (f"kvplan fit {quote(model)} --gpu {gpu}{ranks}{window}", "kvplan explain budget")
    seeds = check.measured.simulation.inputs.seeds if check.measured.simulation is not None else 0
    surer = tuple(
        f"kvplan check {name} --seeds {4 * seeds}"
        for _ in range(any(limit.certainty == "within_noise" for limit in check.limits))
    )
    if check.passed:
        return (*surer, f"kvplan check {name} --format junit --output kvplan.xml", "kvplan explain ci")
    return (*surer, f"kvplan simulate {name}", f"kvplan recommend {name}")
