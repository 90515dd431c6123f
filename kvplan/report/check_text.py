"""``kvplan check`` for people: the verdict, one line per limit, what is broken, what a change does."""

from collections.abc import Iterator
from shlex import join, quote

from kvplan.check.measures import judged
from kvplan.check.results import Change, Check, Difference, LimitResult
from kvplan.engines.options import flag_words
from kvplan.report.markdown import document
from kvplan.report.numbers import figure, figure_beside
from kvplan.report.page import ACTION, BLANK, QUIET, Part, answer, columns, labelled, next_steps, paragraph
from kvplan.report.simulation_text import file_name, setting_line


def text(check: Check) -> Iterator[Part]:
    """The whole answer."""
    yield answer(f"{file_name(check.traffic.file)} {summary(check)}")
    simulation = check.measured.simulation
    if simulation is not None:
        yield paragraph(setting_line(simulation), style=QUIET, indent=0)
        inputs = simulation.inputs
        seeds = "1 seed" if inputs.seeds == 1 else f"{inputs.seeds} seeds"
        yield paragraph(f"judged: {inputs.judged}, {seeds} from {inputs.seed}", style=QUIET, indent=0)
    yield BLANK
    rows = [
        (_verdict(limit), title(limit), bound(limit), measured(limit), interval(limit))
        for limit in check.limits
        if limit.name != "fits"
    ]
    yield columns(("", "limit", "", "measured", "95% interval"), rows, left={0, 1, 2}, wrap=1)
    yield BLANK
    yield from _remarks(check)
    yield BLANK
    if check.comparison is not None:
        yield from _comparison(check.comparison)
    yield from next_steps(*_next(check))


def _verdict(limit: LimitResult) -> str:
    if limit.certainty == "within_noise":
        return "unsure"
    return "holds" if limit.passed else "broken"


def _remarks(check: Check) -> Iterator[Part]:
    """What needs action, then what only needs to be known."""
    for limit in check.broken:
        if limit.certainty == "not_measured" and check.measured.trouble is not None:
            continue  # said once, by the limit that the engine starts
        yield labelled("broken", failure(limit, check), style=ACTION)
    simulation = check.measured.simulation
    if simulation is not None and not judged(simulation).steady:
        yield labelled("unsteady", judged(simulation).steady_reason, style=ACTION)
    for doubt in _doubts(check):
        yield labelled("unsure", doubt)
    if simulation is not None and simulation.inputs.service_band_share:
        band = f"± {simulation.inputs.service_band_share:.0%}"
        yield labelled("assumed", f"step times from {simulation.inputs.service_source}, {band}")


def _doubts(check: Check) -> Iterator[str]:
    """Limits that hold where the runs are not sure, or where an estimated step time decides."""
    for limit in check.limits:
        if limit.passed and limit.certainty in UNSURE:
            yield message(limit)
    simulation = check.measured.simulation
    share = 0.0 if simulation is None else simulation.inputs.service_band_share
    for limit in check.limits:
        if limit.broken_within_band is not None:
            value, end = limit.broken_within_band
            shown, length = figure_beside(limit.name, value, limit.limit), "longer" if end == "slow" else "less"
            yield f"{title(limit)} would be {shown} ({bound(limit)}) if every step took {share:.0%} {length}"


def _comparison(found: Difference) -> Iterator[Part]:
    """The keys and the figures that changed."""
    for setting in found.settings:
        yield labelled("changed", f"{setting.key}: {setting.before or 'not given'} → {setting.after or 'not given'}")
    yield BLANK
    shown = [one for one in found.changes if _is_shown(one)]
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
    same = sum(one.before == one.after for one in found.changes)
    little = len(found.changes) - same - len(shown)
    rest = f"{same} figure{'s' * (same != 1)} {'do' if same != 1 else 'does'} not change"
    rest += f"; {little} change{'s' * (little == 1)} by less than half a percent" if little else ""
    yield paragraph(rest, style=QUIET)
    yield BLANK


def change(found: Change) -> str:
    """After against before: points for shares, differences for counts, percent for the rest.

    >>> change(Change(name="refused_share", before=0.01, after=0.05))
    '+4 points'
    """
    if found.before is None or found.after is None:
        return ""
    difference = found.after - found.before
    if found.name.endswith("_share"):
        return f"{difference * 100:+.2g} points"
    whole = found.before == int(found.before) and found.after == int(found.after)
    if found.before == 0 or (whole and abs(difference) < 1000 and not found.name.endswith("_bytes")):
        return f"{difference:+,.0f}" if whole else f"{difference:+.3g}"
    if found.before > 0 and found.after >= 2 * found.before:
        return f"× {found.after / found.before:.3g}"
    return f"{difference / found.before:+.1%}"


def _is_shown(found: Change) -> bool:
    """Whether a figure changes by half a percent of itself, or half a percent of a point, and more."""
    if found.before == found.after:
        return False
    if found.before is None or found.after is None:
        return True
    if found.name.endswith("_share"):
        return abs(found.after - found.before) >= 0.0005
    return abs(found.after - found.before) >= 0.005 * max(abs(found.before), abs(found.after))


def _next(check: Check) -> tuple[str, ...]:
    name = quote(file_name(check.traffic.file))
    if check.measured.trouble is not None:
        wanted = check.traffic.deployment
        model, gpu = check.traffic.model or "MODEL", wanted.gpu_name or "GPU"
        return (join(["kvplan", "fit", model, "--gpu", gpu, *flag_words(wanted)]), "kvplan explain budget")
    surer: tuple[str, ...] = ()
    if check.measured.simulation is not None and any(limit.certainty == "within_noise" for limit in check.limits):
        surer = (f"kvplan check {name} --seeds {4 * check.measured.simulation.inputs.seeds}",)
    if check.passed:
        return (*surer, f"kvplan check {name} --format junit --output kvplan.xml", "kvplan explain ci")
    return (*surer, f"kvplan simulate {name}", f"kvplan recommend {name}")


UNSURE = ("within_noise", "one_seed")


def title(limit: LimitResult) -> str:
    """The limit's name and its class."""
    return limit.name if limit.class_name is None else f"{limit.name} of {limit.class_name}"


def bound(limit: LimitResult) -> str:
    """The limit as it was written: ``≤ 1%``."""
    name, value = limit.name, limit.limit
    is_time = name.endswith("_s") and not name.endswith("_per_s")
    shown = f"{value:g} s" if is_time else f"{value * 100:g}%" if name.endswith("_share") else figure(name, value)
    return f"{'≥' if limit.bound == 'min' else '≤'} {shown}"


def measured(limit: LimitResult) -> str:
    """The measured value, with enough digits to tell it from the limit."""
    return figure_beside(limit.name, limit.reading.value, limit.limit)


def interval(limit: LimitResult) -> str:
    """The 95% interval; empty where there is none or it is a point."""
    low, high = limit.reading.low, limit.reading.high
    if low is None or high is None or low == high:
        return ""
    low, high = max(low, 0.0), min(high, 1.0) if limit.name.endswith("_share") else high
    return f"{figure_beside(limit.name, low, limit.limit)} … {figure_beside(limit.name, high, limit.limit)}"


def message(limit: LimitResult) -> str:
    """What was measured against which limit, and how sure that is, in one sentence."""
    if limit.name == "fits":
        return limit.reading.detail
    if limit.certainty == "not_measured":
        return f"{title(limit)} ({bound(limit)}) was not measured: {limit.reading.detail}"
    side = "within" if limit.is_met else "above" if limit.bound == "max" else "below"
    said = f"{title(limit)} is {measured(limit)}, {side} its limit {bound(limit)}"
    facts = [limit.reading.how] if limit.reading.how else []
    if interval(limit):
        facts.append(f"95% interval {interval(limit)}")
    if limit.certainty == "within_noise":
        facts.append("which reaches across the limit" + ("" if limit.passed else ", and --strict fails that"))
    elif limit.certainty == "one_seed":
        facts.append("one seed gives no interval")
    return f"{said} ({', '.join(facts)})" if facts else said


def failure(limit: LimitResult, check: Check) -> str:
    """The message of a broken limit, and whether the change broke it."""
    return f"{message(limit)}{'; the base meets it' if limit in check.newly_broken else ''}"


def summary(check: Check) -> str:
    """The answer in one line."""
    total, broken = len(check.limits), len(check.broken)
    if check.measured.trouble is not None:
        return f"fails: {check.measured.trouble}"
    if broken:
        return f"fails: {broken} of {total} limit{'s' * (total > 1)} {'is' if broken == 1 else 'are'} broken"
    unsure = sum(limit.certainty == "within_noise" for limit in check.limits)
    if unsure:
        return f"passes: {total - unsure} of {total} limit{'s' * (total > 1)} hold, {unsure} unsure"
    words = {1: "its limit holds", 2: "both limits hold"}
    return f"passes: {words.get(total, f'all {total} limits hold')}"


def markdown(check: Check) -> str:
    """The text report for a pull request or a job summary."""
    return document("kvplan check", text(check))
