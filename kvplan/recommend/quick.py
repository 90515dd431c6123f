"""What one simulation can recommend: the share of the pool to promise, and a cap for clients that send none."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvplan.recommend.caps import mean_truncated, per_class
from kvplan.recommend.results import Constraints
from kvplan.recommend.safety import safety_fraction
from kvplan.simulation.bounds import round_caps, unset_share
from kvplan.simulation.results import Recommendation, Simulation, StrategyResult
from kvplan.traffic.kinds import Arrivals
from kvplan.traffic.sample import enough, sample

MAX_TRUNCATED_SHARE = 0.01
MAX_REFUSED_SHARE = 0.01
_SAFE_BY_CONSTRUCTION = ("worst_case", "worst_case_default_cap")


def with_recommendation(
    simulation: Simulation,
    *,
    max_truncated_share: float = MAX_TRUNCATED_SHARE,
    max_refused_share: float = MAX_REFUSED_SHARE,
    count_error_share: float = 0.0,
) -> Simulation:
    """The simulation with its recommendation filled in."""
    answer = quick_recommendation(
        simulation,
        max_truncated_share=max_truncated_share,
        max_refused_share=max_refused_share,
        count_error_share=count_error_share,
    )
    return replace(simulation, recommendation=answer)


def quick_recommendation(
    simulation: Simulation,
    *,
    max_truncated_share: float = MAX_TRUNCATED_SHARE,
    max_refused_share: float = MAX_REFUSED_SHARE,
    count_error_share: float = 0.0,
) -> Recommendation:
    """The safety fraction and the default cap that this traffic asks for, with what binds each.

    ``count_error_share``: how far whoever counts a prompt's tokens may be below the engine; 0 when the engine counts.
    """
    inputs = simulation.inputs
    first = sample(simulation.traffic, inputs.seed, scale=inputs.scale)
    drawings = enough(simulation.traffic, first, seed=inputs.seed, seeds=inputs.seeds, scale=inputs.scale)
    fraction, terms, binds = safety_fraction(simulation.plant, count_error_share=count_error_share)
    cap, window = inputs.default_max_tokens, simulation.plant.settings.max_model_len
    caps = round_caps(window)
    truncated = mean_truncated(drawings, cap)
    least = next((known for known in caps if mean_truncated(drawings, known) <= max_truncated_share), caps[-1])
    judged = _run_with_default(simulation.strategies)
    refused = None if judged is None else judged.shares["refused_share"]
    return Recommendation(
        safety_fraction=fraction,
        default_max_tokens=cap,
        truncated_share=truncated,
        refused_share=refused,
        per_class=per_class(
            drawings,
            window,
            Constraints(max_truncated_share=max_truncated_share),
            cap,
        )[0],
        binds=binds,
        reason=_reason(simulation, drawings, cap, truncated, refused, least, max_refused_share),
        terms=terms,
    )


def _run_with_default(strategies: Sequence[StrategyResult]) -> StrategyResult | None:
    return next((result for result in strategies if result.default_max_tokens is not None), None)


def _reason(
    simulation: Simulation,
    drawings: Sequence[Arrivals],
    cap: int,
    truncated: float,
    refused: float | None,
    least: int,
    max_refused_share: float,
) -> str:
    """The recommendation's evidence in a sentence or two."""
    if not unset_share(drawings):
        alike = float(np.concatenate([one.output_tokens > cap for one in drawings]).mean())
        return (
            f"every request sends its own cap, so a default changes nothing here; {cap:,} would cut off {alike:.2%} of "
            "such answers if a client sent none"
        )
    parts = [f"a default of {cap:,} cuts off {f'{truncated:.2%} of all answers' if truncated else 'no answer'}"]
    if refused is not None:
        many = f"{refused:.2%} of requests are refused at least once"
        parts.append(f"and {many if refused else 'no request is refused'}")
        if refused > max_refused_share:
            parts.append(
                f"(more than {max_refused_share:.0%}: a smaller cap cuts off more; the pool is small for this load)"
            )
    if cap < least:
        parts.append(f"; {least:,} would cut off less than the bound")
    broken = [
        result.name
        for result in simulation.strategies
        if result.name in _SAFE_BY_CONSTRUCTION and (result.preemptions or result.over_capacity_events)
    ]
    assert not broken, f"worst-case admission preempted under {broken}"
    return " ".join(parts).replace(" ;", ";")
