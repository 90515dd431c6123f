"""The words of a check, shared by its formats: figures by their unit, limits, verdicts, one message a limit."""

from kvplan.check.results import Change, Check, LimitResult
from kvplan.report.numbers import count, format_bytes, percent, ratio, seconds


def figure(name: str, value: float | None) -> str:
    """A figure as its name's unit is read.

    >>> figure("refused_share", 0.042), figure("ttft_p99_s", 4.81), figure("kv_pool_bytes", 2**30), figure("gpus", 2)
    ('4.2%', '4.8 s', '1 GiB', '2')
    """
    if value is None:
        return "-"
    if name.endswith("_share"):
        return percent(value)
    if name.endswith("_bytes"):
        return format_bytes(int(value))
    if name.endswith(("_per_s", "_per_hour")):
        return ratio(value)
    if name.endswith("_s"):
        return "0" if value == 0 else seconds(value)
    return count(int(value)) if value == int(value) else ratio(value)


def figure_beside(name: str, value: float | None, other: float | None) -> str:
    """The figure with as many digits as it takes to tell it from ``other``.

    >>> figure_beside("refused_share", 0.0104, 0.01), figure_beside("kv_pool_bytes", 2**30 + 1, 2**30)
    ('1.04%', '1,073,741,825 B')
    >>> figure_beside("e2e_mean_s", 1.503, 1.533), figure_beside("queue_p90_s", 0.00928, 0.00902)
    ('1.5 s', '9.3 ms')
    """
    shown = figure(name, value)
    if value is None or other is None or value == other or shown != figure(name, other):
        return shown
    if name.endswith("_bytes"):
        return f"{int(value):,} B"
    scale, unit = (100, "%") if name.endswith("_share") else (1, "")
    if name.endswith("_s") and not name.endswith("_per_s"):
        scale, unit = (1, " s") if max(value, other) >= 1 else (1000, " ms")
    texts = ([f"{number * scale:,.{digits}g}" for number in (value, other)] for digits in range(2, 18))
    return next(f"{own}{unit}" for own, its in texts if own != its)


def file_name(file: str) -> str:
    """A traffic file as its reader names it: a bundled mix by its name.

    >>> file_name("/somewhere/profiles/traffic/chat.yaml"), file_name("loads/traffic.yaml")
    ('chat', 'loads/traffic.yaml')
    """
    bundled = any(folder in file.replace("\\", "/") for folder in ("/profiles/traffic/", "/_profiles/traffic/"))
    return file.replace("\\", "/").rpartition("/")[2].removesuffix(".yaml") if bundled else file


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


def band_warning(limit: LimitResult, band_share: float) -> str | None:
    """What becomes of a limit that holds, where the estimated service time is off by its band; None: it still holds."""
    for value, words in ((limit.at_slow_end, "longer"), (limit.at_fast_end, "shorter")):
        if limit.passed and value is not None and not limit.kept_by(value):
            shown = figure_beside(limit.name, value, limit.limit)
            return f"{title(limit)} would be {shown} ({bound(limit)}), were every step {band_share:.0%} {words}"
    return None


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


def newly_broken(check: Check) -> tuple[LimitResult, ...]:
    """Limits that the base kept, by name, class and bound, and this file breaks."""
    if check.comparison is None:
        return ()
    kept = {(one.name, one.class_name, one.bound) for one in check.comparison.base_limits if one.passed}
    return tuple(one for one in check.broken if (one.name, one.class_name, one.bound) in kept)
