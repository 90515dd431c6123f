"""The search behind a recommendation: first the fraction against preemptions, then the cap against truncation and
refusal."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from kvplan.admission import STRATEGIES
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.recommend.advice import charges, mean_charge
from kvplan.recommend.caps import candidates, cap_points, constraints, knee, mean_truncated
from kvplan.recommend.evidence import SearchResult, advise
from kvplan.recommend.observed import observe
from kvplan.recommend.player import CURVE_SEEDS, SAFE_POLICY, Player, Setting
from kvplan.recommend.results import Advice, CapPoint, Constraints, ObservedUse, SafetyAnswer
from kvplan.recommend.safety import risk_free_answer, settle, with_lower_fraction
from kvplan.simulation.backend import build_backend
from kvplan.simulation.bounds import provisional_cap
from kvplan.simulation.front_door import judged_strategy
from kvplan.simulation.simulate import seed_numbers
from kvplan.simulation.tasks import RunOptions
from kvplan.simulation.workers import Progress
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.sample import sample
from kvplan.traffic.spec import Traffic

_EXPECTED_RUNS = 180
"""Of a usual search besides three rounds of all seeds; the progress bar is right about the order of size only."""


def recommend(
    traffic: Traffic,
    *,
    model: ModelSpec | None = None,
    max_truncated_share: float | None = None,
    max_refused_share: float | None = None,
    max_e2e_p99_s: float | None = None,
    count_error_share: float = 0.0,
    observed: Path | None = None,
    seeds: int | None = None,
    seed: int | None = None,
    scale: float = 1.0,
    workers: int | None = None,
    executor: Executor | None = None,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Advice:
    """The safety fraction and the default cap for this traffic, with the search, its evidence and its price.

    A constraint that is not given comes from the file's ``limits``, else it is 1% (no bound on time). The policy is
    the file's if it counts blocks, else worst case with a default cap. ``count_error_share``: how far a front door that
    counts prompt tokens itself may be below the engine. ``observed``: a scrape of the running engine.
    """
    limits, sources = constraints(
        traffic,
        {"truncated_share": max_truncated_share, "refused_share": max_refused_share, "e2e_p99_s": max_e2e_p99_s},
    )
    if not 0 <= count_error_share < 1:
        raise InputError(
            f"a counting error of {count_error_share:g} is not a share below 1",
            hint="--count-error 5%",
            key="count_error",
        )
    options = RunOptions(
        seeds=seeds,
        seed=seed,
        scale=scale,
        workers=workers,
        executor=executor,
        offline=offline,
        profiles_folder=profiles_folder,
        progress=progress,
        say=say,
    )
    start, drawings = _start(traffic, model, limits, options)
    player = Player(options, planned=_EXPECTED_RUNS + 3 * start.seeds)
    safety = risk_free_answer(start, drawings[0], player, count_error_share)
    seen = None if observed is None else _observed(observed, start, drawings[0], safety, limits)
    start = replace(start, fraction=safety.safety_fraction if seen is None else seen.safety_fraction)
    if start.fraction <= 0:
        raise InputError(
            f"{start.strategy} preempts at every safety fraction of this pool, so none can be recommended",
            hint="set admission.policy: worst_case_default_cap",
            file=traffic.file,
            key="admission.policy",
        )
    points, chosen = _search_caps(start, drawings, limits, player)
    answer, final = settle(replace(start, cap=chosen.default_max_tokens, takes_samples=True), player)
    if answer.fraction < start.fraction:
        safety = with_lower_fraction(safety, answer.fraction, answer.strategy)
    found = SearchResult(answer=answer, final=final, points=points, chosen=chosen, safety=safety, observed=seen)
    return advise(found, limits, sources, drawings, player)


def _start(
    traffic: Traffic, model: ModelSpec | None, limits: Constraints, options: RunOptions
) -> tuple[Setting, list[Arrivals]]:
    """Where the search begins: the whole pool promised under the closed form's cap; and the traffic of every seed."""
    first_seed, seeds = seed_numbers(traffic, options)
    backend = build_backend(traffic, model=model, offline=options.offline, profiles_folder=options.profiles_folder)
    drawings = [sample(traffic, first_seed + turn, scale=options.scale) for turn in range(seeds)]
    if not all(len(one) for one in drawings):
        raise InputError("no request arrives in a run", hint="raise the rate or the duration", file=traffic.file)
    judged = judged_strategy(traffic).name
    start = Setting(
        traffic=traffic,
        backend=backend,
        strategy=judged if STRATEGIES[judged].counts == "blocks" and judged != "worst_case" else SAFE_POLICY,
        cap=provisional_cap(drawings, backend, max_truncated_share=limits.max_truncated_share),
        fraction=1.0,
        first_seed=first_seed,
        seeds=seeds,
        scale=options.scale,
    )
    return start, drawings


def _observed(path: Path, start: Setting, arrivals: Arrivals, safety: SafetyAnswer, limits: Constraints) -> ObservedUse:
    """What a scrape says, for as many average requests as the ledger holds."""
    fits = start.applied().capacity // max(int(mean_charge(charges(start, arrivals))), 1)
    return observe(path, backend=start.backend, safety=safety, limits=limits, worst_case_sequences=fits)


def _search_caps(
    start: Setting, drawings: Sequence[Arrivals], limits: Constraints, player: Player
) -> tuple[tuple[CapPoint, ...], CapPoint]:
    """Both curves on a few seeds, then on all seeds around the knee until the knee itself has been played on all."""
    window = start.backend.settings.max_model_len
    caps = candidates(drawings, window, limits) or [window]
    truncated = {cap: mean_truncated(drawings, cap) for cap in caps}

    def measured(some: Sequence[int], seeds: int) -> dict[int, CapPoint]:
        settings = [replace(start, cap=cap, seeds=seeds) for cap in some]
        found = cap_points(settings, [truncated[cap] for cap in some], limits, player)
        return {point.default_max_tokens: point for point in found}

    points = measured(caps, min(start.seeds, CURVE_SEEDS) if len(caps) > 1 else start.seeds)
    while True:
        chosen = knee(list(points.values()), limits)
        place = caps.index(chosen.default_max_tokens)
        around = [cap for cap in caps[max(0, place - 1) : place + 2] if points[cap].played.seeds < start.seeds]
        if not around:
            return tuple(points[cap] for cap in caps), chosen
        points |= measured(around, start.seeds)
