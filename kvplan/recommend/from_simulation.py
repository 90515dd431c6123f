"""What one simulation can recommend: a safety fraction, and a cap for clients that send none."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvplan.recommend.caps import constraints, mean_truncated, per_class
from kvplan.recommend.results import Constraints
from kvplan.recommend.safety import safety_fraction
from kvplan.simulation.bounds import round_caps, unset_share
from kvplan.simulation.results import Recommendation, Simulation
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.sample import enough_drawings, sample


def with_recommendation(
    simulation: Simulation,
    *,
    max_truncated_share: float | None = None,
    max_refused_share: float | None = None,
    count_error_share: float = 0.0,
) -> Simulation:
    """The simulation with the safety fraction and default cap that its traffic asks for, and what decides each.

    The cap is the one that was played; ``recommend`` plays others too. A bound that is not given is the file's.
    ``count_error_share``: how far a front door that counts prompt tokens itself may be below the engine; 0 when the
    engine counts.
    """
    inputs, window = simulation.inputs, simulation.backend.settings.max_model_len
    limits, _ = constraints(
        simulation.traffic, {"truncated_share": max_truncated_share, "refused_share": max_refused_share}
    )
    first = sample(simulation.traffic, inputs.seed, scale=inputs.scale)
    drawings = enough_drawings(simulation.traffic, first, seed=inputs.seed, seeds=inputs.seeds, scale=inputs.scale)
    fraction, terms, binds = safety_fraction(simulation.backend, count_error_share=count_error_share)
    filled = next((one for one in simulation.strategies if one.default_max_tokens is not None), None)
    refused, cap = None if filled is None else filled.shares["refused_share"], inputs.default_max_tokens
    answer = Recommendation(
        safety_fraction=fraction,
        default_max_tokens=cap,
        truncated_share=mean_truncated(drawings, cap),
        refused_share=refused,
        per_class=per_class(drawings, window, limits, cap)[0],
        binds=binds,
        reason=_reason(drawings, cap, refused, limits, window) + _source(drawings, inputs.default_max_tokens_source),
        terms=terms,
    )
    return replace(simulation, recommendation=answer)


def _source(drawings: Sequence[Arrivals], source: str) -> str:
    """Where the cap comes from: it was not searched, unlike ``recommend``'s; nothing where no cap is filled in."""
    if not unset_share(drawings):
        return ""
    chosen = "comes from the traffic file" if source == "the traffic file" else f"is {source}"
    return f". It {chosen}; kvplan recommend searches for a better one"


def _reason(drawings: Sequence[Arrivals], cap: int, refused: float | None, limits: Constraints, window: int) -> str:
    """The recommendation's evidence in a sentence or two."""
    if not unset_share(drawings):
        alike = float(np.concatenate([one.output_tokens > cap for one in drawings]).mean())
        return (
            f"every request sends its own cap, so a default changes nothing here; {cap:,} would cut off {alike:.2%} of "
            "these answers if clients sent none"
        )
    truncated = mean_truncated(drawings, cap)
    seen = sum(map(len, drawings))
    cut = f"{truncated:.2%} of answers" if truncated else f"none of {seen:,} answers"
    said = f"{cap:,} cuts off {cut}"
    if refused is not None:
        said += f" and {f'{refused:.2%} of requests are refused at least once' if refused else 'no request is refused'}"
        if refused > limits.max_refused_share:
            most = f"{limits.max_refused_share:.0%}"
            said += f" (more than {most}: a smaller cap would refuse fewer and cut off more; the pool is small)"
    caps = round_caps(window)
    least = next((one for one in caps if mean_truncated(drawings, one) <= limits.max_truncated_share), caps[-1])
    return f"{said}; {least:,} would cut off no more than is allowed" if cap < least else said
