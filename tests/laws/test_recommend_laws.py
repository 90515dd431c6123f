"""A recommendation keeps its promises: played again on seeds it never saw, and under a larger pool."""

from dataclasses import replace

import pytest

from kvplan.recommend import Advice, recommend
from kvplan.simulation.aggregate import student_t
from kvplan.simulation.simulate import simulate
from kvplan.traffic.spec import Traffic
from tests.test_recommend import mix

FRESH_SEED = 4711


def settled(traffic: Traffic, advice: Advice) -> Traffic:
    """The traffic with the answer in its file."""
    return replace(
        traffic,
        admission=replace(
            traffic.admission,
            policy="worst_case_default_cap",
            safety_fraction=advice.safety_fraction,
            default_max_tokens=advice.default_max_tokens,
        ),
    )


@pytest.mark.parametrize(("rate", "blocks"), [(8, 1001), (4, 801), (2, 501)])
def test_what_is_recommended_holds_on_fresh_seeds(rate: int, blocks: int) -> None:
    traffic = mix(rate=rate, blocks=blocks)
    advice = recommend(traffic, seeds=4, workers=1)
    assert advice.feasible
    result = simulate(
        settled(traffic, advice), strategies=["worst_case_default_cap"], seeds=8, seed=FRESH_SEED, workers=1
    ).strategies[0]
    assert result.preemptions == 0
    assert result.over_capacity_events == 0
    limits = advice.constraints
    never = result.requests.rejected_permanently / result.requests.offered  # prompts longer than the window
    assert result.intervals["refused_share"][0] + never <= limits.max_refused_share
    # truncated answers are few and independent: their count lies within t deviations of what the curve says
    offered, cut = result.requests.offered, result.requests.truncated
    expected = advice.truncated_share * offered
    assert abs(cut - expected) <= student_t(7) * max(1.0, expected) ** 0.5 * 2**0.5
    assert cut / offered <= limits.max_truncated_share * 2


def test_a_larger_pool_never_asks_for_a_smaller_cap_nor_a_smaller_share() -> None:
    answers = [recommend(mix(rate=6, blocks=blocks), seeds=2, workers=1) for blocks in (301, 501, 801, 2001)]
    caps = [one.default_max_tokens or 0 for one in answers]
    assert caps == sorted(caps)
    assert [one.safety_fraction for one in answers] == [1.0] * 4
    refused = [one.caps[-1].played.refused_share for one in answers if one.caps]
    assert refused == sorted(refused, reverse=True)
    worst_cases = [one.price.worst_case_sequences for one in answers]
    assert worst_cases[0] < worst_cases[-1]


def test_a_looser_bound_never_turns_yes_into_no() -> None:
    traffic = mix(rate=10, blocks=501)
    verdicts = [
        recommend(traffic, seeds=1, workers=1, max_refused_share=share).feasible for share in (0.0, 0.02, 0.2, 1.0)
    ]
    assert verdicts == sorted(verdicts)
