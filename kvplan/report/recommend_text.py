"""``kvplan recommend`` as text: what to set, the search that led there, what it costs, and what else to set."""

from collections.abc import Iterator
from dataclasses import replace
from shlex import join, quote

from kvplan.engines.options import flag_words
from kvplan.recommend.results import Advice, FailedConstraint
from kvplan.report import recommend_tables as tables
from kvplan.report.numbers import count, figure, figure_beside, percent, ratio, seconds
from kvplan.report.page import ACTION, BLANK, QUIET, Part, answer, labelled, next_steps, paragraph
from kvplan.report.simulation_text import assumed, backend_words, file_name, write_step

_NAMES = {
    "truncated_share": "truncated",
    "refused_share": "refused for now or for good",
    "e2e_p99_s": "p99 to the last token",
}


def text(advice: Advice, written_to: str | None = None) -> Iterator[Part]:
    """The whole answer; ``written_to`` is the traffic file that already has it."""
    yield from _headline(advice)
    yield BLANK
    if advice.caps:
        yield tables.caps(advice)
    yield BLANK
    yield tables.fractions(advice)
    yield BLANK
    yield tables.sensitivity(advice)
    yield BLANK
    yield tables.price(advice)
    yield BLANK
    yield labelled("Price", _price(advice))
    yield from _settings(advice)
    yield from _observed(advice)
    yield assumed(advice.assumptions)
    yield labelled("Search", _search(advice))
    yield labelled("Columns", _columns_said(advice))
    yield from next_steps(*_next(advice, written_to))


def _headline(advice: Advice) -> Iterator[Part]:
    cap = advice.default_max_tokens
    setting = paragraph(backend_words(advice.backend, advice.traffic.deployment), style=QUIET, indent=0)
    default = "no max_tokens default needed" if cap is None else f"max_tokens default {cap:,}"
    if advice.feasible:
        yield answer(f"Recommended   safety fraction {advice.safety_fraction:.2f}, {default}")
        yield setting
    else:
        yield answer("No setting meets the constraints")
        yield setting
        yield labelled("nearest", f"safety fraction {advice.safety_fraction:.2f}, {default}")
        for failed in advice.failed:
            yield labelled("fails", _failure(failed), style=ACTION)
        yield labelled("replicas", _replicas(advice), style=ACTION)
    yield labelled("fraction", advice.binds)
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
        f"on seeds that the search never saw ({advice.check_seed} to {advice.check_seed + check.seeds - 1}): refused "
        f"{percent(check.refused_share)} ({percent(max(0.0, low))} to {percent(high)}), cuts off "
        f"{percent(advice.check_truncated_share)}, {count(check.preemptions)} preemptions, p99 "
        f"{seconds(check.e2e_p99_s)}{_doubt(advice)}",
    )


def _doubt(advice: Advice) -> str:
    """If fresh seeds refuse more than is allowed, whether that is certain."""
    limit, check = advice.constraints.max_refused_share, advice.check
    if not advice.feasible or check.refused_share <= limit:
        return ""
    within = check.refused_interval[0] <= limit
    return "; within noise of the limit" if within else "; more than is allowed: a smaller cap is safer"


def _failure(failed: FailedConstraint) -> str:
    measured = figure_beside(failed.name, failed.measured, failed.limit)
    return f"{_NAMES[failed.name]} {measured}, at most {figure(failed.name, failed.limit)} allowed: {failed.needs}"


def _price(advice: Advice) -> str:
    """Worst cases against what requests really use."""
    price = advice.price
    cases = f"worst case{'s fit' if price.worst_case_sequences != 1 else ' fits'} at once"
    full = price.pool_idle_when_full_share
    idle = "" if full is None else f"; a full ledger leaves {percent(full)} of the pool unused"
    return (
        f"{count(price.worst_case_sequences)} {cases}, but {ratio(price.expected_sequences, 0)} requests by what they "
        f"really use{idle}"
    )


def _settings(advice: Advice) -> Iterator[Part]:
    """What to set besides, and when to scale."""
    engine, retry = advice.engine, advice.retry
    yield labelled(
        "Engine",
        f"max_num_seqs {engine.max_num_seqs:,} (now {engine.max_num_seqs_now:,}): at most {engine.running_peak:,} ran "
        "at once",
    )
    tokens, now = engine.max_num_batched_tokens, engine.max_num_batched_tokens_now
    before, instead = ("", "") if tokens == now else (f" (now {now:,})", f", not {seconds(engine.full_step_now_s)}")
    yield labelled("", f"max_num_batched_tokens {tokens:,}{before}: {seconds(engine.full_step_s)} a step{instead}")
    most = "" if retry.least_honoured_s is None else f"; clients honour ≤ {seconds(retry.least_honoured_s)}"
    usual, long, fixed = seconds(retry.typical_s), seconds(retry.long_s), f"fixed: {retry.fixed_s} s"
    large = "" if long == usual else f", {long} for large requests"
    yield labelled("Retry", f"Retry-After {usual}{large} ({fixed}), jitter {retry.jitter_share:g}{most}")
    if advice.feasible and advice.fleet.now > 1:
        yield labelled("Replicas", _replicas(advice))
    for number, rule in enumerate(advice.scaling):
        sign = ">" if rule.direction == "out" else "<"
        yield labelled(
            "" if number else "Scale",
            f"{rule.direction}: {rule.metric} {sign} {rule.threshold:g} for {rule.for_s} s",
        )


def _replicas(advice: Advice) -> str:
    fleet = advice.fleet
    if fleet.needed is None:
        return f"no number of replicas helps: {fleet.reason}"
    if advice.feasible:
        return f"{fleet.needed} needed, {fleet.now} planned: {fleet.reason}"
    refused = "" if fleet.played is None else f", refused {percent(fleet.played.refused_share)}"
    return f"{fleet.needed} would do (now {fleet.now}): {fleet.reason}{refused}"


def _observed(advice: Advice) -> Iterator[Part]:
    found = advice.observed
    if found is None:
        return
    share = "" if found.used_share is None else f", {percent(found.used_share)} of what is reserved is used"
    yield labelled("Observed", f"{found.source}, {found.requests:,} requests{share} ({found.reserved_source})")
    if found.pool_blocks is not None:
        yield labelled("", f"the engine has {found.pool_blocks:,} blocks, {advice.backend.blocks:,} were planned")
    if found.overbooking_fraction is not None:
        yield labelled(
            "",
            f"at a fraction of {found.overbooking_fraction:.2f} live requests would fill the pool, three standard "
            "deviations up; above 1 that is overbooking, which promises nothing",
        )
    if found.output_cap_tokens is not None:
        yield labelled(
            "",
            f"at most {percent(advice.constraints.max_truncated_share)} of the answers served are longer than "
            f"{found.output_cap_tokens:,} tokens",
        )
    for note in found.notes:
        yield labelled("", note)


def _search(advice: Advice) -> str:
    """What was searched, within which limits, on which seeds."""
    limits = advice.constraints
    bounds = {
        "truncated_share": f"truncated ≤ {percent(limits.max_truncated_share)}",
        "refused_share": f"refused ≤ {percent(limits.max_refused_share)}",
    }
    if limits.max_e2e_p99_s is not None:
        bounds["e2e_p99_s"] = f"p99 ≤ {seconds(limits.max_e2e_p99_s)}"
    by_source: dict[str, list[str]] = {}
    for name, bound in bounds.items():
        by_source.setdefault(advice.constraint_sources[name], []).append(bound)
    within = "; ".join(f"{', '.join(these)} ({source})" for source, these in by_source.items())
    last = advice.seed + advice.seeds - 1
    played = f"seed {advice.seed}" if advice.seeds == 1 else f"seeds {advice.seed} to {last}"
    return f"{advice.policy} within {within}; {advice.runs} runs, {played}"


def _columns_said(advice: Advice) -> str:
    """The headings that are not obvious; ``kvplan explain recommendation`` explains all."""
    own = advice.own_cap_truncated_share
    also = f" ({percent(own)} more by their client's cap)" if own else ""
    said = [f"cuts off: by the default{also}", "refused: at least once"]
    if advice.caps:
        said.append("past the |: over its limit")
    return "; ".join(said)


def _next(advice: Advice, written_to: str | None) -> tuple[str, ...]:
    """What to run next; ``written_to`` is the traffic file that already has the answer."""
    if written_to is not None:
        return (f"kvplan check {quote(written_to)}", f"kvplan simulate {quote(written_to)}", *_flags_step(advice))
    name = quote(file_name(advice.traffic.file))
    if not advice.feasible:
        if advice.fleet.needed is not None:
            return (f"kvplan recommend {name} --replicas {advice.fleet.needed}",)
        return (*_larger_step(advice, name), "kvplan explain recommendation")
    return (write_step(advice.traffic.file), *_flags_step(advice), "kvplan explain recommendation")


def _larger_step(advice: Advice, name: str) -> tuple[str, ...]:
    """If no number of replicas helps, twice or four times the ranks may; without a GPU, only other limits do."""
    asked, model = advice.traffic.deployment, advice.backend.model
    if model is None or asked.gpu_name is None:
        return (f"kvplan recommend {name} --max-refused 5%",)
    ranks = f"{2 * asked.tensor_parallel},{4 * asked.tensor_parallel}"
    return (f"kvplan compare {quote(model.id)} --traffic {name} --gpu {asked.gpu_name} --tp {ranks}",)


def _flags_step(advice: Advice) -> tuple[str, ...]:
    """The command that prints the engine's flags for this answer, if the plan is of a GPU's memory."""
    asked, model = advice.traffic.deployment, advice.backend.model
    if model is None or asked.gpu_name is None or asked.kv_pool is not None:
        return ()
    decided = replace(
        asked,
        max_model_len=advice.backend.settings.max_model_len,
        max_num_seqs=advice.engine.max_num_seqs,
        max_num_batched_tokens=advice.engine.max_num_batched_tokens,
    )
    named = {
        "--gpu": asked.gpu_name,
        "--draft-model": asked.draft_model_name,
        "--calibration": asked.calibration,
        "--default-max-tokens": advice.default_max_tokens,
    }
    words = [word for flag, value in named.items() if value is not None for word in (flag, str(value))]
    return (join(["kvplan", "fit", model.id, *words, *flag_words(decided), "--flags", "cli"]),)
