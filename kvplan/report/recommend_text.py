"""``kvplan recommend`` as text: what to set, the search that led there, what it costs, and what else to set."""

from collections.abc import Iterator

from kvplan.recommend.advice import LONGEST_STEP_S
from kvplan.recommend.results import (
    Advice,
    CapPoint,
    Constraints,
    FailedConstraint,
    FractionPoint,
    Played,
    SensitivityRow,
)
from kvplan.report.numbers import count, figure, figure_beside, percent, plain_seconds, ratio, seconds
from kvplan.report.page import ACTION, BLANK, Part, answer, columns, labelled, next_steps
from kvplan.report.recommend_words import columns_said, next_commands, search
from kvplan.report.simulation_text import plant_words

CAPS = ("cap", "cuts off", "refused", "95%", "gave up", "p99 s", "cut|limit  ref|limit ")
FRACTIONS = ("fraction", "refused", "gave up", "preempts", "peak KV", "p99 s", "")
SENSITIVITY = ("if this is off", "by", "cuts off", "refused", "p99 s", "keeps", "then set")
PRICE = ("", "done tokens/s", "refused", "preempts", "KV", "p50 s", "p99 s")
_BAR = 9
_NAMES = {
    "truncated_share": "truncated",
    "refused_share": "refused for now or for good",
    "e2e_p99_s": "p99 to the last token",
}


def text(advice: Advice, written_to: str | None = None) -> Iterator[Part]:
    """The whole answer; ``written_to`` is the traffic file that has it already."""
    yield from _headline(advice)
    yield BLANK
    if advice.caps:
        rows = [_cap_row(point, advice.constraints) for point in advice.caps]
        marked = [place for place, one in enumerate(advice.caps) if one.default_max_tokens == advice.default_max_tokens]
        yield columns(CAPS, rows, marked=marked, last_is_drawn=True)
    yield BLANK
    yield columns(
        FRACTIONS,
        [_fraction_row(point) for point in advice.fractions],
        marked=[place for place, one in enumerate(advice.fractions) if one.safety_fraction == advice.safety_fraction],
    )
    yield BLANK
    yield columns(SENSITIVITY, [_sensitivity_row(one, advice) for one in advice.sensitivity])
    yield BLANK
    yield from _price(advice)
    yield BLANK
    yield from _settings(advice)
    yield from _observed(advice)
    for number, assumption in enumerate(advice.assumptions):
        yield labelled("" if number else "Assumed", assumption)
    yield labelled("Search", search(advice))
    yield labelled("Columns", columns_said(advice))
    yield from next_steps(*next_commands(advice, written_to))


def _headline(advice: Advice) -> Iterator[Part]:
    cap = advice.default_max_tokens
    default = "no max_tokens default needed" if cap is None else f"max_tokens default {cap:,}"
    if advice.feasible:
        yield answer(f"Recommended   safety fraction {advice.safety_fraction:.2f}, {default}")
    else:
        yield answer("No setting keeps the constraints")
        yield labelled("nearest", f"safety fraction {advice.safety_fraction:.2f}, {default}")
        for failed in advice.failed:
            yield labelled("fails", _failure(failed), style=ACTION)
        yield labelled("replicas", _replicas(advice), style=ACTION)
    yield labelled("for", _setting(advice))
    yield labelled("fraction", f"bound by {advice.binds}")
    yield labelled("default", advice.knee)
    if len(advice.per_class) > 1:
        caps = [
            f"{one.name} {one.default_max_tokens:,}"
            + (" (no cap is enough)" if one.name in advice.per_class_unbounded else "")
            for one in advice.per_class
        ]
        then = advice.per_class_played
        figures = f"refused {percent(then.refused_share)}, p99 {seconds(then.e2e_p99_s)}"
        yield labelled("by class", f"{', '.join(caps)}: {figures}")
    check = advice.check
    low, high = check.refused_interval
    yield labelled(
        "checked",
        f"on seeds {advice.check_seed} to {advice.check_seed + check.seeds - 1}, which the search never saw: refused "
        f"{percent(check.refused_share)} ({percent(max(0.0, low))} to {percent(high)}), cuts off "
        f"{percent(advice.check_truncated_share)}, {count(check.preemptions)} preemptions, p99 "
        f"{seconds(check.e2e_p99_s)}{_doubt(advice)}",
    )


def _doubt(advice: Advice) -> str:
    """Where fresh seeds refuse more than is allowed: whether that is surely so."""
    limit, check = advice.constraints.max_refused_share, advice.check
    if not advice.feasible or check.refused_share <= limit:
        return ""
    within = check.refused_interval[0] <= limit
    return "; within noise of the limit" if within else "; more than is allowed: a cap below this one is safer"


def _setting(advice: Advice) -> str:
    """What it is recommended for: the model, the engine, the pool."""
    return f"{plant_words(advice.plant, advice.traffic.deployment)}, pool of {advice.plant.blocks:,} blocks"


def _failure(failed: FailedConstraint) -> str:
    measured = figure_beside(failed.name, failed.measured, failed.limit)
    return f"{_NAMES[failed.name]} {measured}, allowed {figure(failed.name, failed.limit)}: {failed.needs}"


def _bar(share: float, limit: float) -> str:
    """A curve drawn sideways: nine signs are three times the limit, where a line stands at a third."""
    scale = 3.0 * max(limit, 1e-4)
    length = min(_BAR, round(share / scale * _BAR + 0.4999) if share > 0 else 0)
    cells = ["#" if place < length else "." for place in range(_BAR)]
    cells.insert(_BAR // 3, "|")
    return "".join(cells)


def _cap_row(point: CapPoint, limits: Constraints) -> tuple[str, ...]:
    played = point.played
    low, high = played.refused_interval
    curve = f"{_bar(point.truncated_share, limits.max_truncated_share)} "
    curve += _bar(played.refused_share, limits.max_refused_share)
    return (
        count(point.default_max_tokens),
        percent(point.truncated_share),
        percent(played.refused_share),
        f"{percent(max(0.0, low))}-{percent(high)}",
        percent(played.gave_up_share),
        plain_seconds(played.e2e_p99_s),
        curve,
    )


def _fraction_row(point: FractionPoint) -> tuple[str, ...]:
    played = point.played
    return (
        f"{point.safety_fraction:.2f}",
        percent(played.refused_share),
        percent(played.gave_up_share),
        count(played.preemptions),
        percent(played.kv_used_peak_share),
        plain_seconds(played.e2e_p99_s),
        "" if point.safety_fraction <= 1 else "overdrawn",
    )


def _sensitivity_row(row: SensitivityRow, advice: Advice) -> tuple[str, ...]:
    return (
        row.what,
        "" if row.factor == 1 else f"{row.factor - 1:+.0%}",
        percent(row.truncated_share),
        percent(row.refused_share),
        plain_seconds(row.e2e_p99_s),
        "yes" if row.holds else "no",
        "" if advice.default_max_tokens is None else count(row.default_max_tokens),
    )


def _price_row(name: str, played: Played) -> tuple[str, ...]:
    return (
        name,
        f"{played.output_tokens_per_s:,.0f}",
        percent(played.refused_share),
        count(played.preemptions),
        percent(played.kv_used_mean_share),
        plain_seconds(played.e2e_p50_s),
        plain_seconds(played.e2e_p99_s),
    )


def _price(advice: Advice) -> Iterator[Part]:
    price = advice.price
    beside = (("this answer", price.answer), ("worst_case, no default", price.worst_case), ("none", price.none))
    yield columns(PRICE, [_price_row(name, played) for name, played in beside], marked=[0])
    full = price.pool_idle_when_full_share
    idle = "" if full is None else f"; with the ledger full {percent(full)} of the pool is promised and idle"
    fit = f"worst case{'s fit' if price.worst_case_sequences != 1 else ' fits'} at once"
    held = f"{ratio(price.expected_sequences, 0)} requests by what they really hold"
    yield labelled("Price", f"{count(price.worst_case_sequences)} {fit}, {held}{idle}")


def _settings(advice: Advice) -> Iterator[Part]:
    engine, retry = advice.engine, advice.retry
    yield labelled(
        "Engine",
        f"max_num_seqs {engine.max_num_seqs:,} (now {engine.max_num_seqs_now:,}): room for all that a full ledger "
        f"admits; at most {engine.running_peak:,} were inside at once",
    )
    tokens, now = engine.max_num_batched_tokens, engine.max_num_batched_tokens_now
    beside = "" if tokens == now else f" (now {now:,}: {seconds(engine.full_step_now_s)})"
    yield labelled(
        "",
        f"max_num_batched_tokens {tokens:,}: a full step takes {seconds(engine.full_step_s)}{beside}; one above "
        f"{seconds(LONGEST_STEP_S)} is felt by every answer in progress",
    )
    honoured = "" if retry.least_honoured_s is None else f"; clients honour at most {seconds(retry.least_honoured_s)}"
    yield labelled(
        "Retry",
        f"Retry-After by the ledger's drain, jitter {retry.jitter_share:g}: usually {seconds(retry.typical_s)}, long "
        f"{seconds(retry.long_s)}; a fixed one: {retry.fixed_s} s{honoured}",
    )
    if advice.feasible:
        yield labelled("Replicas", _replicas(advice))
    for number, rule in enumerate(advice.scaling):
        sign = ">" if rule.direction == "out" else "<"
        yield labelled(
            "" if number else "Scale",
            f"{rule.direction}: {rule.metric} {sign} {rule.threshold:g} for {rule.for_s} s ({rule.meaning})",
        )


def _replicas(advice: Advice) -> str:
    fleet = advice.fleet
    if fleet.needed is None:
        return f"no number of replicas helps: {fleet.reason}"
    if advice.feasible:
        return f"{fleet.needed} of {fleet.now}: {fleet.reason}"
    refused = "" if fleet.played is None else f", refused {percent(fleet.played.refused_share)}"
    return f"{fleet.needed} would do (now {fleet.now}): {fleet.reason}{refused}"


def _observed(advice: Advice) -> Iterator[Part]:
    found = advice.observed
    if found is None:
        return
    share = "" if found.used_share is None else f", {percent(found.used_share)} of what is reserved is used"
    yield labelled("Observed", f"{found.source}, {found.requests:,} requests{share} ({found.reserved_source})")
    if found.pool_blocks is not None:
        yield labelled("", f"the engine has {found.pool_blocks:,} blocks, planned were {advice.plant.blocks:,}")
    if found.overbooking_fraction is not None:
        yield labelled(
            "",
            f"live requests would fill the pool at a fraction of {found.overbooking_fraction:.2f}, three deviations "
            "up; above 1 that is overbooking and no promise",
        )
    if found.output_cap_tokens is not None:
        yield labelled(
            "",
            f"answers longer than {found.output_cap_tokens:,} tokens: at most "
            f"{percent(advice.constraints.max_truncated_share)} of those served",
        )
    for note in found.notes:
        yield labelled("", note)
