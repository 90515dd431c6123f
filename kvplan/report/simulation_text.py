"""``kvplan simulate`` as text: the pool, the worst cases, the strategies side by side, what to set."""

from collections.abc import Callable, Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from kvplan.report.numbers import count, format_bytes, percent, plain_seconds, ratio, seconds
from kvplan.report.page import ACTION, BLANK, QUIET, Columns, Part, answer, columns, labelled, next_steps, paragraph
from kvplan.report.traffic_file import file_name, write_step
from kvplan.simulation.plant import Plant
from kvplan.simulation.results import Burst, Inputs, Recommendation, Simulation, StrategyResult
from kvplan.traffic.spec import PlannedDeployment
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.recommend.results import CapPoint

COLUMNS = (
    "done … gave up: shares of requests, mean over seeds (refused: at least once, many come back); preempts: "
    "sum over seeds; KV: mean share of the pool in use; "
    "p50 s, p99 s: from a client's first attempt to the last token; bound/s: requests per second that the strategy can "
    "carry for ever, in closed form; ±: the figure's 95% interval over seeds, in points of a share"
)


def text(result: Simulation) -> Iterator[Part]:
    """The whole answer."""
    yield paragraph(setting_line(result), style="1", indent=0)
    yield paragraph(pool_line(result), style=QUIET, indent=0)
    yield paragraph(promise_line(result), style=QUIET, indent=0)
    yield BLANK
    yield reservations(result)
    yield BLANK
    yield strategies(result)
    yield BLANK
    for label, remark in remarks(result):
        yield labelled(label, remark, style=ACTION)
    yield BLANK
    if result.recommendation is not None:
        yield from recommendation(result.recommendation)
    yield labelled("Load", load_line(result))
    if result.band:
        yield labelled("Band", service_band_line(result))
    for label, line in storm_lines(result):
        yield labelled(label, line)
    for number, assumption in enumerate(result.inputs.assumptions):
        yield labelled("" if number else "Assumed", assumption)
    yield labelled("Seeds", seeds_line(result))
    yield labelled("Columns", COLUMNS)
    yield from next_steps(*_next(result.inputs.traffic_file))


def setting_line(result: Simulation) -> str:
    """Which model on what."""
    return plant_words(result.plant, result.traffic.deployment)


def plant_words(plant: Plant, asked: PlannedDeployment) -> str:
    """The model, all of its GPUs, the engine and its window."""
    name = plant.model.id.rpartition("/")[2] if plant.model is not None else "a measured pool"
    replicas = f"{plant.replicas} replicas, each " if plant.replicas > 1 else ""
    ranks = asked.tensor_parallel * asked.pipeline_parallel * asked.data_parallel
    gpu = f" on {replicas}{ranks} × {plant.gpu}" if plant.gpu else ""
    engine = plant.engine.replace("@", " ")
    return f"{name}{gpu}, {engine}, window {plant.settings.max_model_len:,}"


def pool_line(result: Simulation) -> str:
    """The pool and its band."""
    plant = result.plant
    size = "" if plant.kv_bytes is None else f"{format_bytes(plant.kv_bytes)} = "
    block = plant.layout.block_tokens
    groups = len(plant.layout.groups)
    tokens = f" ({(plant.blocks * block):,} tokens)" if groups == 1 else f", shared by {groups} groups"
    band = ""
    if plant.kv_bytes is not None and plant.kv_bytes_low is not None and plant.kv_bytes_low != plant.kv_bytes:
        band = f", ± {(plant.kv_bytes - plant.kv_bytes_low) / GIB:.1f} GiB"
    return f"KV pool {size}{plant.blocks:,} blocks of {block}{tokens}{band}"


def promise_line(result: Simulation) -> str:
    """What of the pool the front door may promise."""
    fraction = result.inputs.safety_fraction
    return f"of which {result.promised_blocks:,} may be promised, at a safety fraction of {fraction:.2f}"


def reservations(result: Simulation) -> Columns:
    """A row per class and cap choice."""
    prompt = f"prompt p{result.inputs.reservation_quantile * 100:g}"
    rows = [
        (
            f"{row.name} ({percent(row.share)})" if 0 < row.share < 1 else row.name,
            *map(count, (row.prompt_tokens, row.cap_tokens, row.blocks, row.sequences)),
        )
        for row in result.reservations
    ]
    return columns(("worst-case reservations", prompt, "cap", "blocks", "fit"), rows)


def cap_table(caps: "Sequence[CapPoint]", chosen: int) -> Columns:
    """A row per default cap."""
    rows = [
        (
            count(point.default_max_tokens),
            percent(point.truncated_share),
            percent(point.played.refused_share),
            " to ".join(percent(end) for end in point.played.refused_interval),
            percent(point.played.gave_up_share),
            plain_seconds(point.played.e2e_p99_s),
        )
        for point in caps
    ]
    marked = [place for place, point in enumerate(caps) if point.default_max_tokens == chosen]
    return columns(("default cap", "cuts off", "refused", "95% interval", "gave up", "p99 s"), rows, marked=marked)


def strategies(result: Simulation) -> Columns:
    """The strategies side by side, the judged one marked."""
    rows = [(strategy.name, row) for strategy in result.strategies for row in _strategy(strategy, result.inputs)]
    marked = [place for place, (name, _) in enumerate(rows) if name == result.inputs.judged]
    return columns(
        ("strategy", "done", "refused", "gave up", "preempts", "KV", "p50 s", "p99 s", "bound/s"),
        [row for _, row in rows],
        marked=marked,
    )


def _strategy(strategy: StrategyResult, inputs: Inputs) -> Iterator[tuple[str, ...]]:
    """One strategy's figures; under them how far they may be off, where there are seeds."""
    yield (
        f"{strategy.name} ({inputs.concurrency:,})" if strategy.name == "concurrency" else strategy.name,
        *(percent(strategy.shares[name]) for name in _ENDS),
        count(strategy.preemptions),
        percent(strategy.kv.used_mean_share),
        plain_seconds(strategy.e2e_s.p50),
        plain_seconds(strategy.e2e_s.p99),
        ratio(strategy.sustainable_per_s),
    )
    if len(strategy.seeds) > 1:
        yield (
            "",
            *(spread(strategy, name, strategy.shares[name]) for name in _ENDS),
            spread(strategy, "preemptions", strategy.preemptions / inputs.seeds, times=inputs.seeds),
            spread(strategy, "kv_used_mean_share", strategy.kv.used_mean_share),
            spread(strategy, "e2e_p50_s", strategy.e2e_s.p50),
            spread(strategy, "e2e_p99_s", strategy.e2e_s.p99),
            spread(strategy, "sustainable_per_s", strategy.sustainable_per_s),
        )


_ENDS = ("completed_share", "refused_share", "gave_up_share")


def spread(
    strategy: StrategyResult,
    name: str,
    mean: float | None,
    *,
    times: int = 1,
    show: Callable[[float], str] = plain_seconds,
) -> str:
    """± how far the 95 % interval reaches from the mean, in the figure's unit: points of a share, ``times`` a count."""
    if mean is None or name not in strategy.intervals or len(strategy.seeds) < 2:
        return ""
    low, high = strategy.intervals[name]
    reach = max(mean - low, high - mean) * times  # an end at 0 or 1 was cut there
    if name.endswith("_share"):
        return f"±{percent(reach).removeprefix('< ').removesuffix('%')}"
    if times > 1:
        return f"±{count(round(reach))}"
    return f"±{show(reach)}" if reach else "±0"


def remarks(result: Simulation) -> Iterator[tuple[str, str]]:
    """A label and a sentence for each thing that the table of strategies does not show: requests that nothing can
    serve, runs that never settled."""
    if all(not strategy.requests.offered for strategy in result.strategies):
        yield "Nothing", f"no request arrives after the first {seconds(result.inputs.warmup_s)}, which are warm-up"
    for row in result.inputs.odd_rows:
        yield "Trace", row
    yield from _above_the_worst_case(result)
    found: dict[tuple[str, str], list[str]] = {}
    for strategy in result.strategies:
        share = strategy.shares["rejected_permanently_share"]
        if share:
            never = "a prompt beyond the window, or a reservation beyond the pool"
            found.setdefault(("Too large", f"{percent(share)} of requests can never be served ({never})"), []).append(
                strategy.name
            )
        if late := strategy.shares["timed_out_share"]:
            said = f"{percent(late)} of requests end at their time-out, and are not sent again as some clients would"
            found.setdefault(("Timed out", said), []).append(strategy.name)
    for strategy in result.strategies:
        if not strategy.steady:
            found.setdefault(("Unsteady", strategy.steady_reason), []).append(strategy.name)
            if not strategy.requests.refused and result.stability.offered_per_s > strategy.sustainable_per_s:
                found.setdefault(("Endless", _ENDLESS), []).append(strategy.name)
    for (label, sentence), names in found.items():
        whom = "all strategies" if len(names) == len(result.strategies) > 1 else ", ".join(names)
        yield label, f"{whom}: {sentence}"


_ENDLESS = "no 429/503 from the engine; the wait grows without bound; put the limit in front"


def _above_the_worst_case(result: Simulation) -> Iterator[tuple[str, str]]:
    """Where a plain limit on requests lets in more than the pool holds of the largest."""
    worst = min((row for row in result.reservations if row.sequences), key=lambda row: row.sequences, default=None)
    at_once = result.inputs.concurrency * result.plant.replicas
    if worst is not None and "concurrency" in result.inputs.strategies and at_once > worst.sequences:
        times = f"{at_once:,} at once is {at_once / worst.sequences:,.3g} × the safe concurrency"
        yield "Unsafe", f"concurrency: {times} (worst cases that fit of {worst.name}: {worst.sequences:,})"


def recommendation(advice: Recommendation) -> Iterator[Part]:
    """What to set, and what decided it."""
    yield answer(
        f"Recommended   safety fraction {advice.safety_fraction:.2f}, max_tokens default {advice.default_max_tokens:,}"
    )
    yield labelled("fraction", advice.binds)
    yield labelled("default", advice.reason)
    if len(advice.per_class) > 1:
        caps = ", ".join(f"{each.name} {each.default_max_tokens:,}" for each in advice.per_class)
        yield labelled("by class", caps)
    yield BLANK


def load_line(result: Simulation) -> str:
    """What is offered, and what the judged strategy can sustain."""
    stability = result.stability
    return (
        f"{ratio(stability.offered_per_s)} requests/s offered, {ratio(stability.sustainable_per_s)} sustainable under "
        f"{stability.strategy} ({stability.binds})"
    )


def service_band_line(result: Simulation) -> str:
    """What the judged strategy does at both ends of the service time's band."""
    ends = (
        f"steps × {ratio(end.factor)}: done {_with_spread(end.result, 'completed_share')}, "
        f"refused {_with_spread(end.result, 'refused_share')}, p99 "
        f"{_beside(seconds(end.result.e2e_s.p99), spread(end.result, 'e2e_p99_s', end.result.e2e_s.p99, show=seconds))}"
        for end in result.band
    )
    return f"{result.band[0].result.name} with {'; '.join(ends)}"


def _with_spread(strategy: StrategyResult, share: str) -> str:
    return _beside(percent(strategy.shares[share]), spread(strategy, share, strategy.shares[share]))


def _beside(figure: str, reach: str) -> str:
    """A figure and its ±, which no line end parts."""
    return f"{figure}\xa0{reach}" if reach else figure


_STORM = 1.05
"""Attempts a request from which retries are a load of their own."""


def storm_lines(result: Simulation) -> Iterator[tuple[str, str]]:
    """How long a burst is felt, and what retries add, where there is either."""
    felt = [(strategy, strategy.burst) for strategy in result.strategies if strategy.burst is not None]
    if felt:
        peaks = [burst.peak_to_usual for _, burst in felt if burst.peak_to_usual is not None]
        size = f"{ratio(max(peaks))} × the usual arrivals" if peaks else "arrivals"
        times = ", ".join(f"{one.name} {_felt_for(one, burst)}" for one, burst in felt)
        yield "Burst", f"{size} in the fullest minute; from its end until no more wait than before: {times}"
    storms = [
        f"{one.name} {_beside(ratio(one.amplification), spread(one, 'amplification', one.amplification))}"
        for one in result.strategies
        if one.amplification > _STORM
    ]
    if storms:
        yield "Retries", f"attempts for each request: {', '.join(storms)}"


def _felt_for(strategy: StrategyResult, burst: Burst) -> str:
    if burst.recovery_s is None:
        return f"not before the end of {burst.seeds - burst.seeds_recovered} of {burst.seeds} runs"
    return _beside(seconds(burst.recovery_s), spread(strategy, "recovery_s", burst.recovery_s, show=seconds))


def seeds_line(result: Simulation) -> str:
    """Which seeds."""
    inputs = result.inputs
    return f"{inputs.seed}" if inputs.seeds == 1 else f"{inputs.seed} to {inputs.seed + inputs.seeds - 1}"


def _next(file: str) -> tuple[str, ...]:
    return (f"kvplan check {quote(file_name(file))}", write_step(file))
