"""The search behind a recommendation: fraction against risk, cap against truncation and refusal, and what it costs."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from math import isfinite
from pathlib import Path

from kvplan.admission import STRATEGIES
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.recommend.advice import charges, engine_advice, price, retry_advice, scaling_rules
from kvplan.recommend.caps import (
    candidates,
    cap_point,
    failures,
    keeps,
    knee,
    knee_words,
    mean_truncated,
    own_cap_truncated,
    per_class,
    with_class_caps,
)
from kvplan.recommend.constraints import constraints
from kvplan.recommend.fleet import fleet
from kvplan.recommend.observed import observe
from kvplan.recommend.player import Player, Setting, played
from kvplan.recommend.results import Advice, CapPoint, Constraints
from kvplan.recommend.risk import CURVE_SEEDS, played_fractions, risk_free_answer, settle
from kvplan.recommend.safety import lowered
from kvplan.recommend.sensitivity import sensitivity
from kvplan.simulation.bounds import judged_strategy, provisional_cap, reservations, unset_share
from kvplan.simulation.clients import client_table
from kvplan.simulation.gather import describe_inputs
from kvplan.simulation.plant import build_plant
from kvplan.simulation.run import WARMUP_SHARE, seed_numbers
from kvplan.simulation.workers import Progress
from kvplan.traffic.kinds import Arrivals, Traffic
from kvplan.traffic.sample import sample

SAFE_POLICY = "worst_case_default_cap"
PRICE_SEEDS = 5
_EXPECTED_RUNS = 180


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

    A constraint that is not given is read from the file's ``limits``, else it is 1 % (no bound for the time). The
    policy is the file's, where it counts blocks, else worst case with a default cap. ``count_error_share``: how far
    whoever counts a prompt's tokens may be below the engine. ``observed``: a scrape of the running engine.
    """
    limits, sources = constraints(
        traffic,
        {"truncated_share": max_truncated_share, "refused_share": max_refused_share, "e2e_p99_s": max_e2e_p99_s},
    )
    if not 0 <= count_error_share < 1:
        raise InputError(f"a counting error of {count_error_share:g} is no share below 1", key="count_error")
    if not (scale > 0 and isfinite(scale)):
        raise InputError(f"a scale of {scale:g} is not above zero", key="scale")
    plant = build_plant(traffic, model=model, offline=offline, profiles_folder=profiles_folder)
    first_seed, count = seed_numbers(traffic, seeds=seeds, seed=seed)
    drawings = [sample(traffic, first_seed + turn, scale=scale) for turn in range(count)]
    if not all(len(one) for one in drawings):
        raise InputError("no request arrives in a run", hint="raise the rate or the duration", file=traffic.file)
    player = Player(
        workers=workers,
        executor=executor,
        profiles_folder=profiles_folder,
        progress=progress,
        say=say,
        planned=_EXPECTED_RUNS + 3 * count,
    )
    judged = judged_strategy(traffic).name
    start = Setting(
        traffic=traffic,
        plant=plant,
        strategy=judged if STRATEGIES[judged].counts == "blocks" and judged != "worst_case" else SAFE_POLICY,
        cap=provisional_cap(drawings, plant, max_truncated_share=limits.max_truncated_share),
        fraction=1.0,
        first_seed=first_seed,
        seeds=count,
        scale=scale,
    )
    safety = risk_free_answer(start, drawings[0], player, count_error_share)
    found = None
    if observed is not None:
        usual = charges(start, drawings[0])
        fits = start.opened().capacity // max(int(usual.mean()) if len(usual) else 1, 1)
        found = observe(observed, plant=plant, safety=safety, limits=limits, worst_case_sequences=fits)
    start = replace(start, fraction=safety.safety_fraction if found is None else found.safety_fraction)
    if start.fraction <= 0:
        raise InputError(
            f"{start.strategy} preempts at every share of this pool, so no safety fraction can be recommended",
            hint="set admission.policy: worst_case_default_cap",
            file=traffic.file,
            key="admission.policy",
        )
    points, chosen = _search_caps(start, drawings, limits, player)
    answer, final = settle(replace(start, cap=chosen.default_max_tokens, takes_samples=True), player)
    figures = played(final)
    feasible = chosen.feasible and keeps(figures, chosen.truncated_share, limits)
    if answer.fraction < start.fraction:
        safety = lowered(safety, answer.fraction, answer.strategy)
    few = min(count, PRICE_SEEDS)
    window = plant.settings.max_model_len
    classes, unbounded = per_class(drawings, window, limits, answer.cap)
    none, plain, by_class, fresh = player.play(
        [
            replace(answer, strategy="none", seeds=few, takes_samples=False, fills_default_cap=False),
            replace(answer, strategy="worst_case", seeds=few, takes_samples=False, fills_default_cap=False),
            replace(answer, traffic=with_class_caps(traffic, classes), takes_samples=False),
            replace(answer, first_seed=first_seed + count, takes_samples=False),
        ]
    )
    fresh_drawings = [sample(traffic, first_seed + count + turn, scale=scale) for turn in range(count)]
    unset = unset_share(drawings)
    charged = charges(answer, drawings[0])
    rules, _ = client_table(drawings[0].clients, profiles_folder=profiles_folder)
    settled = replace(
        traffic,
        admission=replace(traffic.admission, safety_fraction=answer.fraction, default_max_tokens=answer.cap),
    )
    return Advice(
        traffic=traffic,
        plant=plant,
        policy=answer.strategy,
        seed=first_seed,
        seeds=count,
        scale=scale,
        constraints=limits,
        constraint_sources=sources,
        feasible=feasible,
        failed=() if feasible else failures(points, replace(chosen, played=figures), limits),
        safety_fraction=answer.fraction,
        safety=safety,
        default_max_tokens=answer.cap if unset else None,
        truncated_share=chosen.truncated_share,
        own_cap_truncated_share=own_cap_truncated(drawings),
        unset_share=unset,
        answer=figures,
        knee=knee_words(points, chosen, limits, unset),
        per_class=classes,
        per_class_unbounded=unbounded,
        per_class_played=played(by_class),
        caps=points if unset else (),
        fractions=played_fractions(answer, player, None if found is None else found.pool_blocks),
        check=played(fresh),
        check_truncated_share=mean_truncated(fresh_drawings, answer.cap),
        check_seed=first_seed + count,
        sensitivity=sensitivity(
            replace(answer, takes_samples=False),
            has_default=unset > 0,
            limits=limits,
            player=player,
            window_tokens=window,
        ),
        reservations=reservations(settled, drawings[0], plant, answer.cap),
        price=price(answer, drawings, charged, answer=figures, none=played(none), worst_case=played(plain)),
        engine=engine_advice(answer, charged, final),
        retry=retry_advice(answer, charged, figures, rules, traffic.admission.retry_after.jitter_share),
        fleet=fleet(
            replace(answer, takes_samples=False),
            points=points,
            kept=feasible,
            drawings=drawings,
            limits=limits,
            player=player,
        ),
        scaling=scaling_rules(plant, answer.fraction, figures),
        observed=found,
        runs=player.runs,
        assumptions=_assumptions(answer, drawings[0], judged),
    )


def _search_caps(
    start: Setting, drawings: Sequence[Arrivals], limits: Constraints, player: Player
) -> tuple[tuple[CapPoint, ...], CapPoint]:
    """Both curves on a few seeds, then on all seeds around the knee until the knee itself was played on all."""
    window = start.plant.settings.max_model_len
    caps = candidates(drawings, window, limits) or [window]
    truncated = {cap: mean_truncated(drawings, cap) for cap in caps}

    def measured(some: Sequence[int], seeds: int) -> dict[int, CapPoint]:
        results = player.play([replace(start, cap=cap, seeds=seeds) for cap in some])
        return {
            cap: cap_point(cap, played(result), truncated[cap], limits)
            for cap, result in zip(some, results, strict=True)
        }

    points = measured(caps, min(start.seeds, CURVE_SEEDS) if len(caps) > 1 else start.seeds)
    while True:
        chosen = knee(list(points.values()), limits)
        place = caps.index(chosen.default_max_tokens)
        around = [cap for cap in caps[max(0, place - 1) : place + 2] if points[cap].played.seeds < start.seeds]
        if not around:
            return tuple(points[cap] for cap in caps), chosen
        points |= measured(around, start.seeds)


def _assumptions(answer: Setting, arrivals: Arrivals, judged: str) -> tuple[str, ...]:
    traffic = answer.traffic
    inputs = describe_inputs(
        traffic,
        answer.plant,
        arrivals,
        names=(answer.strategy,),
        seed=answer.first_seed,
        seeds=answer.seeds,
        scale=answer.scale,
        warmup_s=0.0 if traffic.duration_s is None else WARMUP_SHARE * traffic.duration_s,
        default_cap=answer.cap,
        default_cap_source="recommended",
    )
    if STRATEGIES[judged].counts == "blocks":
        return inputs.assumptions
    return (f"the file's policy is {judged}, which promises nothing: {SAFE_POLICY} was searched", *inputs.assumptions)
