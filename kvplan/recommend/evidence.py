"""What supports a recommendation: its price, seeds it never saw, its assumptions, and what else to set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvplan.admission import STRATEGIES
from kvplan.recommend.advice import charges, engine_advice, price, retry_advice, scaling_rules
from kvplan.recommend.caps import (
    failures,
    knee_reason,
    mean_truncated,
    meets,
    own_cap_truncated,
    per_class,
    with_class_caps,
)
from kvplan.recommend.fleet import fleet
from kvplan.recommend.player import PRICE_SEEDS, SAFE_POLICY, Player, Setting, played
from kvplan.recommend.results import Advice, CapPoint, Constraints, ObservedUse, SafetyAnswer
from kvplan.recommend.safety import played_fractions
from kvplan.recommend.sensitivity import sensitivity
from kvplan.simulation.assumptions import describe_inputs
from kvplan.simulation.bounds import reservations, unset_share
from kvplan.simulation.front_door import client_table, judged_strategy
from kvplan.simulation.results import StrategyResult
from kvplan.simulation.tasks import warmup_s
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.sample import sample


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchResult:
    """Where the search ended: the answer as played on all seeds, the caps it was chosen from, the terms of the
    fraction, and the scrape that set it, if one did."""

    answer: Setting
    final: StrategyResult
    points: tuple[CapPoint, ...]
    chosen: CapPoint
    safety: SafetyAnswer
    observed: ObservedUse | None


def advise(
    found: SearchResult, limits: Constraints, sources: Mapping[str, str], drawings: Sequence[Arrivals], player: Player
) -> Advice:
    """The whole answer. ``drawings`` are the traffic of every seed; ``sources`` say where each limit comes from."""
    answer, chosen, figures = replace(found.answer, takes_samples=False), found.chosen, played(found.final)
    traffic, backend, window = answer.traffic, answer.backend, answer.backend.settings.max_model_len
    feasible = chosen.feasible and meets(figures, chosen.truncated_share, limits)
    classes, unbounded = per_class(drawings, window, limits, answer.cap)
    few, next_seed = min(answer.seeds, PRICE_SEEDS), answer.first_seed + answer.seeds
    none, plain, by_class, fresh = player.figures(
        [
            replace(answer, strategy="none", seeds=few, fills_default_cap=False),
            replace(answer, strategy="worst_case", seeds=few, fills_default_cap=False),
            replace(answer, traffic=with_class_caps(traffic, classes)),
            replace(answer, first_seed=next_seed),
        ]
    )
    fresh_drawings = [sample(traffic, next_seed + turn, scale=answer.scale) for turn in range(answer.seeds)]
    unset, charged = unset_share(drawings), charges(answer, drawings[0])
    clients, _ = client_table(drawings[0].clients, profiles_folder=player.options.profiles_folder)
    settled = replace(traffic.admission, safety_fraction=answer.fraction, default_max_tokens=answer.cap)
    return Advice(
        traffic=traffic,
        backend=backend,
        policy=answer.strategy,
        seed=answer.first_seed,
        seeds=answer.seeds,
        scale=answer.scale,
        constraints=limits,
        constraint_sources=sources,
        feasible=feasible,
        failed=() if feasible else failures(found.points, replace(chosen, played=figures), limits),
        safety_fraction=answer.fraction,
        safety=found.safety,
        default_max_tokens=answer.cap if unset else None,
        truncated_share=chosen.truncated_share,
        own_cap_truncated_share=own_cap_truncated(drawings),
        unset_share=unset,
        answer=figures,
        knee=knee_reason(found.points, chosen, limits, unset),
        per_class=classes,
        per_class_unbounded=unbounded,
        per_class_played=by_class,
        caps=found.points if unset else (),
        fractions=played_fractions(answer, player, None if found.observed is None else found.observed.pool_blocks),
        check=fresh,
        check_truncated_share=mean_truncated(fresh_drawings, answer.cap),
        check_seed=next_seed,
        sensitivity=sensitivity(answer, has_default=unset > 0, limits=limits, player=player, window_tokens=window),
        reservations=reservations(replace(traffic, admission=settled), drawings[0], backend, answer.cap),
        price=price(answer, drawings, charged, answer=figures, none=none, worst_case=plain),
        engine=engine_advice(answer, charged, found.final),
        retry=retry_advice(answer, charged, figures, clients, traffic.admission.retry_after.jitter_share),
        fleet=fleet(answer, points=found.points, feasible=feasible, drawings=drawings, limits=limits, player=player),
        scaling=scaling_rules(backend, answer.fraction, figures),
        observed=found.observed,
        runs=player.runs,  # after the last of them
        assumptions=_assumptions(answer, drawings[0]),
    )


def _assumptions(answer: Setting, arrivals: Arrivals) -> tuple[str, ...]:
    traffic = answer.traffic
    inputs = describe_inputs(
        traffic,
        answer.backend,
        arrivals,
        names=(answer.strategy,),
        seed=answer.first_seed,
        seeds=answer.seeds,
        scale=answer.scale,
        warmup_s=warmup_s(traffic),
        default_cap=answer.cap,
        default_cap_source="recommended",
    )
    judged = judged_strategy(traffic).name
    if STRATEGIES[judged].counts == "blocks":
        return inputs.assumptions
    return (f"the file's policy is {judged}, which promises nothing: {SAFE_POLICY} was searched", *inputs.assumptions)
