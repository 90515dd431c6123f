"""``kvplan simulate`` as text: the pool, the worst cases, the strategies side by side, what to set."""

from collections.abc import Callable, Iterator, Sequence
from shlex import quote

from kvplan.report.fit_text import engine_words
from kvplan.report.numbers import count, format_bytes, percent, plain_seconds, ratio, seconds
from kvplan.report.page import ACTION, BLANK, QUIET, Columns, Part, answer, columns, labelled, next_steps, paragraph
from kvplan.simulation.backend import Backend
from kvplan.simulation.results import Burst, Inputs, Recommendation, ReservationRow, Simulation, StrategyResult
from kvplan.traffic.spec import PlannedDeployment, Traffic
from kvplan.units import GIB

COLUMNS = (
    "refused: at least once; KV: mean use; p50 s, p99 s: first attempt to last token; bound/s: sustainable "
    "requests/s; ±: 95% interval"
)
"""The headings that are not obvious; ``kvplan explain simulation`` explains all."""


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
    if result.recommendation is not None:
        yield from recommendation(result.recommendation)
    yield BLANK
    for label, remark in remarks(result):
        yield labelled(label, remark, style=ACTION)
    yield labelled("Load", load_line(result))
    for label, line in (*service_band_lines(result), *storm_lines(result)):
        yield labelled(label, line)
    yield assumed(result.inputs.assumptions)
    yield labelled("Columns", COLUMNS)
    yield from next_steps(*_next(result.traffic))


def assumed(assumptions: Sequence[str]) -> Part:
    """What the figures rest on, in one paragraph."""
    return labelled("Assumed", " · ".join(assumptions) or "nothing beyond the traffic file")


def setting_line(result: Simulation) -> str:
    """Which model on what."""
    return backend_words(result.backend, result.traffic.deployment)


def backend_words(backend: Backend, asked: PlannedDeployment) -> str:
    """The model, all of its GPUs, the engine and its window."""
    name = backend.model.id.rpartition("/")[2] if backend.model is not None else "a measured pool"
    replicas = f"{backend.replicas} replicas, each " if backend.replicas > 1 else ""
    ranks = asked.tensor_parallel * asked.pipeline_parallel  # attention replicas are among the backend's replicas
    gpu = f" on {replicas}{ranks} × {backend.gpu}" if backend.gpu else ""
    return f"{name}{gpu}, {engine_words(backend.engine)}, window {backend.settings.max_model_len:,}"


def pool_line(result: Simulation) -> str:
    """The pool and how far it may be off."""
    backend = result.backend
    size = "" if backend.kv_bytes is None else f"{format_bytes(backend.kv_bytes)} = "
    block = backend.layout.block_tokens
    groups = len(backend.layout.groups)
    tokens = f" ({(backend.blocks * block):,} tokens)" if groups == 1 else f", shared by {groups} groups"
    band = ""
    if backend.kv_bytes is not None and backend.kv_bytes_low is not None and backend.kv_bytes_low != backend.kv_bytes:
        band = f", ± {(backend.kv_bytes - backend.kv_bytes_low) / GIB:.1f} GiB"
    return f"KV pool {size}{backend.blocks:,} blocks of {block}{tokens}{band}"


def promise_line(result: Simulation) -> str:
    """How much of the pool the front door may promise."""
    fraction = result.inputs.safety_fraction
    return f"{result.promised_blocks:,} of them may be promised (safety fraction {fraction:.2f})"


def reservations(result: Simulation) -> Columns:
    """A row per class and cap choice; classes with the same charge for the same choice share one."""
    prompt = f"prompt p{result.inputs.reservation_quantile * 100:g}"
    alike: dict[tuple[str, ...], list[ReservationRow]] = {}
    for row in result.reservations:
        figures = map(count, (row.prompt_tokens, row.cap_tokens, row.blocks, row.sequences))
        alike.setdefault((row.name.removeprefix(row.class_name), *figures), []).append(row)
    rows = [(_reserved_by(choice, members), *figures) for (choice, *figures), members in alike.items()]
    return columns(("worst-case reservations", prompt, "cap", "blocks", "fit"), rows)


def _reserved_by(choice: str, members: Sequence[ReservationRow]) -> str:
    """The classes and their cap choice, with the share of a class's requests where it is not all of them."""
    shares = [f" ({percent(row.share)})" if 0 < row.share < 1 else "" for row in members]
    if len(members) == 1:
        return f"{members[0].name}{shares[0]}"
    names = [f"{row.class_name}{share}" for row, share in zip(members, shares, strict=True)]
    return f"{', '.join(names[:-1])} and {names[-1]}{choice}"


def strategies(result: Simulation) -> Columns:
    """The strategies side by side, with the judged one highlighted."""
    rows = [(strategy.name, row) for strategy in result.strategies for row in _strategy(strategy, result.inputs)]
    marked = [place for place, (name, _) in enumerate(rows) if name == result.inputs.judged]
    return columns(
        ("strategy", "done", "refused", "gave up", "preempts", "KV", "p50 s", "p99 s", "bound/s"),
        [row for _, row in rows],
        marked=marked,
    )


def _strategy(strategy: StrategyResult, inputs: Inputs) -> Iterator[tuple[str, ...]]:
    """One strategy's figures, and under them how far they may be off, if there are several seeds."""
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
    """± how far the 95% interval reaches from the mean, in the figure's unit: points of a share, ``times`` a count."""
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
    """A label and a sentence for what the table does not show: requests that can never be served, runs that never
    settled."""
    if all(not strategy.requests.offered for strategy in result.strategies):
        yield "Nothing", f"no request arrives after the first {seconds(result.inputs.warmup_s)}, which are warm-up"
    for row in result.inputs.odd_rows:
        yield "Trace", row
    if result.unsafe_concurrency is not None:
        yield _unsafe(*result.unsafe_concurrency)
    if large := _by_share(result, "rejected_permanently_share"):
        never = "their prompt is longer than the window, or their reservation larger than the pool"
        yield "Oversize", f"{large} of requests can never be served: {never}"
    if late := _by_share(result, "timed_out_share"):
        yield "Time-out", f"{late} of requests time out; some clients would send them again, which is not played"
    found: dict[tuple[str, str], list[str]] = {}
    for strategy in result.strategies:
        if not strategy.steady:
            found.setdefault(("Unsteady", strategy.steady_reason), []).append(strategy.name)
            if not strategy.requests.refused and result.stability.offered_per_s > strategy.sustainable_per_s:
                found.setdefault(("Endless", _ENDLESS), []).append(strategy.name)
    for (label, sentence), names in found.items():
        yield label, f"{_strategies(names, result)}: {sentence}"


def _by_share(result: Simulation, name: str) -> str:
    """``0.4% (prompt_only, none)``: the share of every strategy where it is not 0, equal ones together."""
    alike: dict[str, list[str]] = {}
    for strategy in result.strategies:
        if share := strategy.shares[name]:
            alike.setdefault(percent(share), []).append(strategy.name)
    return ", ".join(f"{share} ({_strategies(names, result)})" for share, names in alike.items())


def _strategies(names: Sequence[str], result: Simulation) -> str:
    return "all strategies" if len(names) == len(result.strategies) > 1 else ", ".join(names)


_ENDLESS = "no 429/503 from the engine; the wait grows without bound; put the limit in front"


def _unsafe(at_once: int, worst: ReservationRow) -> tuple[str, str]:
    """A limit on the number of requests admits more worst cases than the pool holds."""
    times = f"{at_once:,} at once is {at_once / worst.sequences:,.3g} × the safe concurrency"
    cases, fit = ("worst case", "fits") if worst.sequences == 1 else ("worst cases", "fit")
    return "Unsafe", f'concurrency: {times}; only {worst.sequences:,} {cases} of "{worst.name}" {fit}'


def recommendation(advice: Recommendation) -> Iterator[Part]:
    """The safety fraction to set and what decided it; the default cap as it was played, which is not searched here."""
    yield answer(
        f"Recommended   safety fraction {advice.safety_fraction:.2f} (played: max_tokens default "
        f"{advice.default_max_tokens:,})"
    )
    yield labelled("fraction", advice.binds)
    yield labelled("default", advice.reason)
    if len(advice.per_class) > 1:
        caps = ", ".join(f"{each.name} {each.default_max_tokens:,}" for each in advice.per_class)
        yield labelled("by class", caps)


def load_line(result: Simulation) -> str:
    """What arrives, what the judged strategy can sustain, and which seeds were played."""
    stability, inputs = result.stability, result.inputs
    last = inputs.seed + inputs.seeds - 1
    seeds = f"seed {inputs.seed}" if inputs.seeds == 1 else f"seeds {inputs.seed} to {last}"
    return (
        f"{ratio(stability.offered_per_s)} requests/s arrive, {stability.strategy} can sustain "
        f"{ratio(stability.sustainable_per_s)} (limit: {stability.binds}); {seeds}"
    )


def service_band_lines(result: Simulation) -> Iterator[tuple[str, str]]:
    """What the judged strategy does at both ends of the step time's band."""
    for place, end in enumerate(result.band):
        length = f"{abs(end.factor - 1):.0%} {'longer' if end.factor > 1 else 'shorter'}"
        done, refused = (_with_spread(end.result, share) for share in ("completed_share", "refused_share"))
        p99 = _time_with_spread(end.result, "e2e_p99_s", end.result.e2e_s.p99)
        yield "" if place else "Band", f"steps {length}: done {done}, refused {refused}, p99 {p99}"


def _with_spread(strategy: StrategyResult, share: str) -> str:
    return _beside(percent(strategy.shares[share]), spread(strategy, share, strategy.shares[share]))


def _time_with_spread(strategy: StrategyResult, name: str, mean: float | None) -> str:
    """A time and its ±, both in seconds from a second on."""
    in_seconds = mean is not None and mean >= 1
    return _beside(
        seconds(mean),
        spread(strategy, name, mean, show=lambda reach: f"{plain_seconds(reach)} s" if in_seconds else seconds(reach)),
    )


def _beside(figure: str, reach: str) -> str:
    """A figure and its ±, on one line."""
    return f"{figure}\xa0{reach}" if reach else figure


_STORM = 1.05
"""Attempts a request from which retries are a load of their own."""


def storm_lines(result: Simulation) -> Iterator[tuple[str, str]]:
    """How long a burst is felt and what retries add, where there are any."""
    felt = [(strategy, strategy.burst) for strategy in result.strategies if strategy.burst is not None]
    if felt:
        peaks = [burst.peak_to_usual for _, burst in felt if burst.peak_to_usual is not None]
        size = f"{ratio(max(peaks))} × the usual arrivals" if peaks else "arrivals"
        times = ", ".join(f"{one.name} {_felt_for(one, burst)}" for one, burst in felt)
        yield "Burst", f"{size} in the fullest minute; waits are back to what they were after: {times}"
    storms = [
        f"{one.name} {_beside(ratio(one.amplification), spread(one, 'amplification', one.amplification))}"
        for one in result.strategies
        if one.amplification > _STORM
    ]
    if storms:
        yield "Retries", f"attempts per request: {', '.join(storms)}"


def _felt_for(strategy: StrategyResult, burst: Burst) -> str:
    if burst.recovery_s is None:
        return f"not before the end of {burst.seeds - burst.seeds_recovered} of {burst.seeds} runs"
    return _time_with_spread(strategy, "recovery_s", burst.recovery_s)


def _next(traffic: Traffic) -> tuple[str, ...]:
    check = (f"kvplan check {quote(file_name(traffic.file))}",) if traffic.limits else ()
    return (*check, write_step(traffic.file), "kvplan explain simulation")


def file_name(file: str) -> str:
    """A traffic file by the name its reader knows: a bundled mix by its own.

    >>> file_name("/somewhere/profiles/traffic/chat.yaml"), file_name("loads/traffic.yaml")
    ('chat', 'loads/traffic.yaml')
    """
    bundled = any(folder in file.replace("\\", "/") for folder in ("/profiles/traffic/", "/_profiles/traffic/"))
    return file.replace("\\", "/").rpartition("/")[2].removesuffix(".yaml") if bundled else file


def write_step(file: str) -> str:
    """The command that writes the answer beside the file, or over it if it has the usual name."""
    name = file_name(file)
    output = f"{name} --force" if name == "traffic.yaml" else "traffic.yaml"
    return f"kvplan recommend {quote(name)} --write --output {output}"
