"""The safety fraction played: the largest at which nothing is preempted, and what other fractions would do."""

from dataclasses import replace

from kvplan.recommend.advice import charges
from kvplan.recommend.player import CURVE_SEEDS, Player, Setting, played
from kvplan.recommend.results import FractionPoint, SafetyAnswer
from kvplan.recommend.safety import LEAST_FRACTION, largest_safe_fraction, look_ahead_share, safety_fraction
from kvplan.simulation.plant import Plant
from kvplan.simulation.results import StrategyResult
from kvplan.traffic.kinds import Arrivals

_FRACTIONS = (0.5, 0.7, 0.9, 1.0, 1.25, 1.5)


def risk_free_answer(start: Setting, arrivals: Arrivals, player: Player, count_error_share: float) -> SafetyAnswer:
    """The largest fraction at which no seed preempts on the planned pool, less the terms."""

    def is_safe(fraction: float) -> bool:
        (result,) = player.play([replace(start, fraction=fraction)])
        return not result.preemptions and not result.over_capacity_events

    risk_free = largest_safe_fraction(is_safe)
    usual = charges(start, arrivals)
    ahead = look_ahead_share(
        start.plant, start.traffic.deployment.speculative_tokens, float(usual.mean()) if len(usual) else 0.0
    )
    fraction, terms, binds = safety_fraction(
        start.plant, count_error_share=count_error_share, look_ahead_share=ahead, risk_free=risk_free
    )
    if risk_free == 1.0:
        reason = f"the whole planned pool promised: no preemption in {start.seeds} seeds"
    else:
        reason = f"{start.strategy} first preempts above {risk_free:.2f} of the planned pool, {start.seeds} seeds"
    return SafetyAnswer(
        safety_fraction=fraction,
        risk_free_fraction=risk_free,
        terms=terms,
        binds=binds,
        reason=reason,
        seeds=start.seeds,
    )


def settle(answer: Setting, player: Player) -> tuple[Setting, StrategyResult]:
    """The answer played on all seeds, its fraction lowered until nothing is preempted there.

    Worst-case policies never need it; for the others the risk was measured at another cap.
    """
    while True:
        (final,) = player.play([answer])
        if not (final.preemptions or final.over_capacity_events) or answer.fraction <= LEAST_FRACTION:
            return answer, final
        answer = replace(answer, fraction=max(LEAST_FRACTION, round(answer.fraction - 0.02, 2)))


def played_fractions(answer: Setting, player: Player, blocks: int | None) -> tuple[FractionPoint, ...]:
    """Other shares promised, the engine having its observed ``blocks``, else the pool at the low end of its band."""
    low = _low_plant(answer.plant, blocks)
    tried = sorted({*_FRACTIONS, answer.fraction})
    settings = [
        replace(answer, fraction=fraction, engine_plant=low, seeds=min(answer.seeds, CURVE_SEEDS)) for fraction in tried
    ]
    return tuple(
        FractionPoint(safety_fraction=fraction, played=played(result))
        for fraction, result in zip(tried, player.play(settings), strict=True)
    )


def _low_plant(plant: Plant, blocks: int | None) -> Plant:
    """The plant with the smallest pool that its band allows, or the one that was observed; at least what one request
    of the whole window takes."""
    low = blocks if blocks is not None else plant.layout.reserved_blocks + int(plant.usable * (1.0 - plant.band_share))
    least = plant.layout.reserved_blocks + plant.layout.request_blocks(plant.settings.max_model_len)
    return replace(plant, blocks=max(low, least))
