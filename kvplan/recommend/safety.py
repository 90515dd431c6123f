"""The safety fraction: what runs without preemption, less everything by which plan and engine may differ."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from kvplan.recommend.advice import charges, mean_charge
from kvplan.recommend.player import CURVE_SEEDS, Player, Setting
from kvplan.recommend.results import FractionPoint, SafetyAnswer
from kvplan.simulation.backend import Backend
from kvplan.simulation.results import StrategyResult
from kvplan.traffic.arrivals import Arrivals

MIN_FRACTION = 0.05
"""A smaller share of the pool is not worth a front door."""
_LOWERED_BY = 0.02
"""Steps in which ``settle`` lowers a fraction that still preempts."""
_SMALL_BAND = 0.005
"""What a start-up log leaves open is less; measuring takes a larger band away."""
_PLAYED_FRACTIONS = (0.5, 0.7, 0.9, 1.0, 1.25, 1.5)
LOOK_AHEAD, BAND, COUNT = "look_ahead_share", "budget_band_share", "token_count_share"


def safety_fraction(
    backend: Backend,
    *,
    count_error_share: float = 0.0,
    look_ahead_share: float = 0.0,
    risk_free: float = 1.0,
    band_share: float | None = None,
) -> tuple[float, dict[str, float], str]:
    """risk_free × (1 − look-ahead) × (1 − the pool's band) × (1 − the counting error), rounded down to whole percents;
    its terms; and what decides it.

    Block rounding takes nothing: the ledger charges the engine's own blocks for prompt + cap, and no token beyond the
    cap is stored. The look-ahead is that of draft tokens. The band is how far the pool may be below the plan, 0 for a
    measured or calibrated pool.
    """
    band = backend.band_share if band_share is None else band_share
    terms = {LOOK_AHEAD: look_ahead_share, BAND: band, COUNT: count_error_share}
    product = risk_free
    for taken in terms.values():
        product *= 1.0 - taken
    return int(product * 100 + 1e-9) / 100, terms, _binding(terms, risk_free)


def binding_term(terms: Mapping[str, float], risk_free: float) -> str | None:
    """The term that takes most; None where preemptions take more, or nothing is taken."""
    largest = max(terms, key=lambda name: terms[name])
    return largest if terms[largest] > 0 and terms[largest] >= 1.0 - risk_free else None


def _binding(terms: Mapping[str, float], risk_free: float) -> str:
    """What takes most, in words."""
    measure = ": run kvplan calibrate" if terms[BAND] > _SMALL_BAND else ""
    words = {
        BAND: f"the pool may be {terms[BAND]:.1%} smaller than planned{measure}",
        COUNT: f"the front door may count up to {terms[COUNT]:.1%} fewer tokens than the engine",
        LOOK_AHEAD: f"draft tokens may take {terms[LOOK_AHEAD]:.1%} on top of a reservation",
    }
    term = binding_term(terms, risk_free)
    if term is not None:
        return words[term]
    if risk_free < 1.0:
        return f"above {risk_free:.2f} this policy preempts on this traffic"
    return "nothing is held back: the pool was measured, and the ledger counts the engine's own blocks"


def look_ahead_share(backend: Backend, speculative_tokens: int, mean_charge_blocks: float) -> float:
    """Blocks that draft tokens may take beyond prompt + cap, over the blocks of an average reservation.

    ceil(drafts / block) / mean charge: an engine that speculates sets slots aside for drafts past the last token.
    """
    if not speculative_tokens or mean_charge_blocks <= 0:
        return 0.0
    extra = -(-speculative_tokens // backend.layout.block_tokens)
    return extra / (mean_charge_blocks + extra)


def with_lower_fraction(safety: SafetyAnswer, fraction: float, policy: str) -> SafetyAnswer:
    """The answer after runs with the recommended cap called for less."""
    return replace(
        safety,
        safety_fraction=fraction,
        risk_free_fraction=min(safety.risk_free_fraction, fraction),
        binds=f"above {fraction:.2f} {policy} preempts on this traffic under the recommended cap",
    )


def largest_safe_fraction(is_safe: Callable[[float], bool]) -> float:
    """The largest of 1.00, 0.99, … 0.05 at which nothing is preempted, by bisection; 0 if even 0.05 is not safe.

    >>> largest_safe_fraction(lambda fraction: fraction <= 0.37)
    0.37
    >>> largest_safe_fraction(lambda fraction: True)
    1.0
    """
    if is_safe(1.0):
        return 1.0
    low, high = 4, 100
    while high - low > 1:
        middle = (low + high) // 2
        if is_safe(middle / 100):
            low = middle
        else:
            high = middle
    return low / 100 if low >= 5 else 0.0


def risk_free_answer(start: Setting, arrivals: Arrivals, player: Player, count_error_share: float) -> SafetyAnswer:
    """The largest fraction at which no seed preempts on the planned pool, less the terms."""

    def is_safe(fraction: float) -> bool:
        (result,) = player.play([replace(start, fraction=fraction)])
        return not result.preemptions and not result.over_capacity_events

    risk_free = largest_safe_fraction(is_safe)
    drafts = start.traffic.deployment.speculative_tokens
    ahead = look_ahead_share(start.backend, drafts, mean_charge(charges(start, arrivals)))
    fraction, terms, binds = safety_fraction(
        start.backend, count_error_share=count_error_share, look_ahead_share=ahead, risk_free=risk_free
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
    """The answer played on all seeds, its fraction lowered until nothing is preempted.

    Worst-case policies never need it; for the others the risk was measured with another cap.
    """
    while True:
        (final,) = player.play([answer])
        if not (final.preemptions or final.over_capacity_events) or answer.fraction <= MIN_FRACTION:
            return answer, final
        answer = replace(answer, fraction=max(MIN_FRACTION, round(answer.fraction - _LOWERED_BY, 2)))


def played_fractions(answer: Setting, player: Player, blocks: int | None) -> tuple[FractionPoint, ...]:
    """Other fractions, played on an engine with its observed ``blocks``, or with the pool at the low end of its
    band."""
    low = _low_backend(answer.backend, blocks)
    tried = sorted({*_PLAYED_FRACTIONS, answer.fraction})
    settings = [
        replace(answer, fraction=fraction, engine_backend=low, seeds=min(answer.seeds, CURVE_SEEDS))
        for fraction in tried
    ]
    return tuple(
        FractionPoint(safety_fraction=fraction, played=figures)
        for fraction, figures in zip(tried, player.figures(settings), strict=True)
    )


def _low_backend(backend: Backend, blocks: int | None) -> Backend:
    """The backend with the smallest pool that its band allows, or the one that was observed; at least what one request
    of the whole window takes."""
    low = (
        blocks
        if blocks is not None
        else backend.layout.reserved_blocks + int(backend.usable * (1.0 - backend.band_share))
    )
    least = backend.layout.reserved_blocks + backend.layout.request_blocks(backend.settings.max_model_len)
    return replace(backend, blocks=max(low, least))
