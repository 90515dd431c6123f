"""The words of a check, shared by its formats: limits, verdicts, one message a limit, what a change does."""

from collections.abc import Iterator

from kvplan.check.results import Change, Check, Difference, LimitResult
from kvplan.report.numbers import figure, figure_beside
from kvplan.simulation.results import Simulation

LIMITS = ("verdict", "limit", "bound", "measured", "95% interval")
UNSURE = ("within_noise", "one_seed")
CHANGES = ("figure", "before", "now", "change")


def row(limit: LimitResult) -> tuple[str, ...]:
    """One limit in the columns of ``LIMITS``."""
    return (verdict(limit), title(limit), bound(limit), measured(limit), interval(limit))


def title(limit: LimitResult) -> str:
    """The limit's name, and its class."""
    return limit.name if limit.class_name is None else f"{limit.name} of {limit.class_name}"


def bound(limit: LimitResult) -> str:
    """The limit itself, as it was written: ``≤ 1%``."""
    name, value = limit.name, limit.limit
    is_time = name.endswith("_s") and not name.endswith("_per_s")
    shown = f"{value:g} s" if is_time else f"{value * 100:g}%" if name.endswith("_share") else figure(name, value)
    return f"{'≥' if limit.bound == 'min' else '≤'} {shown}"


def measured(limit: LimitResult) -> str:
    """The measured value, told apart from the limit."""
    return figure_beside(limit.name, limit.reading.value, limit.limit)


def interval(limit: LimitResult) -> str:
    """The 95% interval; empty where there is none, or it is a point."""
    low, high = limit.reading.low, limit.reading.high
    if low is None or high is None or low == high:
        return ""
    low, high = max(low, 0.0), min(high, 1.0) if limit.name.endswith("_share") else high
    return f"{figure_beside(limit.name, low, limit.limit)} … {figure_beside(limit.name, high, limit.limit)}"


def verdict(limit: LimitResult) -> str:
    """One word."""
    if limit.certainty == "within_noise":
        return "in noise"
    return "holds" if limit.passed else "broken"


def message(limit: LimitResult) -> str:
    """What was measured against what, and how sure that is, in one sentence."""
    if limit.name == "fits":
        return limit.reading.detail
    if limit.certainty == "not_measured":
        return f"{title(limit)} ({bound(limit)}) was not measured: {limit.reading.detail}"
    side = {("max", True): "within", ("max", False): "above", ("min", True): "within", ("min", False): "below"}
    said = f"{title(limit)} is {measured(limit)}, {side[limit.bound, limit.keeps]} its limit {bound(limit)}"
    facts = [limit.reading.how] if limit.reading.how else []
    if interval(limit):
        facts.append(f"95% interval {interval(limit)}")
    if limit.certainty == "within_noise":
        facts.append("within noise, so not sure" + ("" if limit.passed else ": --strict"))
    elif limit.certainty == "one_seed":
        facts.append("no interval from one seed")
    return f"{said} ({', '.join(facts)})" if facts else said


def failure(limit: LimitResult, check: Check) -> str:
    """The message of a limit that is broken, and whether it is the change that breaks it."""
    return f"{message(limit)}{'; the base keeps it' if limit in check.newly_broken else ''}"


def doubts(check: Check) -> Iterator[str]:
    """Of limits that hold: where the runs are not sure, and where an estimated service time decides."""
    for limit in check.limits:
        if limit.passed and limit.certainty in UNSURE:
            yield message(limit)
    simulation = check.measured.simulation
    share = 0.0 if simulation is None else simulation.inputs.service_band_share
    for limit in check.limits:
        for value, words in ((limit.at_slow_end, "longer"), (limit.at_fast_end, "shorter")):
            if limit.passed and value is not None and not limit.kept_by(value):
                shown = figure_beside(limit.name, value, limit.limit)
                yield f"{title(limit)} would be {shown} ({bound(limit)}), were every step {share:.0%} {words}"
                break


def runs(simulation: Simulation) -> str:
    """How often it was played."""
    inputs = simulation.inputs
    return f"{'1 seed' if inputs.seeds == 1 else f'{inputs.seeds} seeds'} from {inputs.seed}"


def summary(check: Check) -> str:
    """The answer in one line."""
    total, broken = len(check.limits), len(check.broken)
    if check.measured.trouble is not None:
        return f"fails: {check.measured.trouble}"
    if broken:
        return f"fails: {broken} of {total} limit{'s' * (total > 1)} {'is' if broken == 1 else 'are'} broken"
    unsure = sum(limit.certainty == "within_noise" for limit in check.limits)
    if unsure:
        return f"passes: {total - unsure} of {total} limit{'s' * (total > 1)} hold, {unsure} within noise"
    words = {1: "its limit holds", 2: "both limits hold"}
    return f"passes: {words.get(total, f'all {total} limits hold')}"


def change(found: Change) -> str:
    """After against before: points for shares, counts for counts, percent for the rest.

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


def is_shown(found: Change) -> bool:
    """Whether a figure changes by enough to be read: half a percent of itself, or of a point."""
    if found.before == found.after:
        return False
    if found.before is None or found.after is None:
        return True
    if found.name.endswith("_share"):
        return abs(found.after - found.before) >= 0.0005
    return abs(found.after - found.before) >= 0.005 * max(abs(found.before), abs(found.after))


def change_rows(found: Difference) -> list[tuple[str, ...]]:
    """The figures that change by enough to be read, in the columns of ``CHANGES``."""
    return [
        (
            one.name,
            figure_beside(one.name, one.before, one.after),
            figure_beside(one.name, one.after, one.before),
            change(one),
        )
        for one in found.changes
        if is_shown(one)
    ]


def rest(found: Difference) -> str:
    """How many figures have no row."""
    same = sum(one.before == one.after for one in found.changes)
    little = len(found.changes) - same - sum(is_shown(one) for one in found.changes)
    parts = [f"{same} figure{'s' * (same != 1)} {'do' if same != 1 else 'does'} not change"]
    if little:
        parts.append(f"{little} change{'s' * (little == 1)} by less than half a percent")
    return "; ".join(parts)
