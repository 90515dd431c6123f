"""The words of a check, shared by its formats: limits, measured values, one message a limit, the answer in a line."""

from kvplan.check.results import Check, LimitResult
from kvplan.report.numbers import figure, figure_beside

UNSURE = ("within_noise", "one_seed")


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
