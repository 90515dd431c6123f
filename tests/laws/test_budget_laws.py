"""Laws of a rank's budget: it closes, it is monotone in what is asked, and its band holds the answer."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvplan.engines.vllm.budget import rank_budget, rank_terms
from kvplan.engines.vllm.budget_terms import capture_sizes, captured_graphs
from kvplan.engines.vllm.rank_facts import RankFacts
from kvplan.engines.weights import rank_share
from kvplan.model import EncoderShape, WeightPart
from kvplan.units import GIB

RELEASES = [(0, 6), (0, 11), (0, 17), (0, 19), (0, 20), (0, 21), (0, 28), (0, 33)]


@st.composite
def rank_facts(draw: st.DrawFn) -> RankFacts:
    """A rank of any model on any device."""
    mixture = draw(st.booleans())
    optional: dict[str, Any] = {}
    if mixture:
        optional = {
            "experts_per_token": draw(st.integers(1, 16)),
            "expert_intermediate": 128 * draw(st.integers(1, 64)),
        }
    return RankFacts(
        release=draw(st.sampled_from(RELEASES)),
        total_bytes=draw(st.integers(4 * GIB, 288 * GIB)),
        utilization=Fraction(draw(st.integers(1, 100)), 100),
        weight_bytes=draw(st.integers(0, 300 * GIB)),
        sequences=draw(st.integers(1, 2048)),
        batched_tokens=draw(st.integers(1, 65536)),
        window_tokens=draw(st.integers(1, 1 << 20)),
        hidden=128 * draw(st.integers(1, 128)),
        vocabulary=draw(st.integers(256, 262144)),
        intermediate=128 * draw(st.integers(1, 512)),
        tensor_parallel=draw(st.sampled_from([1, 2, 4, 8])),
        capability=draw(st.sampled_from([None, (7, 5), (8, 0), (9, 0), (10, 0), (12, 0)])),
        unified_memory=draw(st.booleans()),
        is_linked=draw(st.booleans()),
        encoder=draw(st.sampled_from([None, EncoderShape(hidden=1152, intermediate=4304, patches_per_token=9)])),
        runs_flashinfer=draw(st.booleans()),
        runs_sampler=draw(st.booleans()),
        enforce_eager=draw(st.booleans()),
        **optional,
    )


@given(rank_facts())
def test_terms_and_pool_make_up_what_was_requested(facts: RankFacts) -> None:
    answer = rank_budget(facts)
    inside = sum(term.bytes for term in answer.terms if term.inside_fraction)
    assert inside + answer.kv_bytes == answer.requested_bytes
    assert answer.requested_bytes <= answer.total_bytes


@given(rank_facts())
def test_no_term_is_negative_and_each_says_how(facts: RankFacts) -> None:
    for term in rank_terms(facts):
        assert term.bytes >= 0
        assert term.formula


@given(rank_facts(), st.integers(0, 65536))
def test_more_batched_tokens_never_leave_more(facts: RankFacts, more: int) -> None:
    larger = replace(facts, batched_tokens=facts.batched_tokens + more)
    assert rank_budget(larger).kv_bytes <= rank_budget(facts).kv_bytes


@given(rank_facts(), st.integers(0, 2048))
def test_more_sequences_never_leave_more(facts: RankFacts, more: int) -> None:
    larger = replace(facts, sequences=facts.sequences + more)
    assert rank_budget(larger).kv_bytes <= rank_budget(facts).kv_bytes


@given(rank_facts(), st.integers(0, 100))
def test_a_higher_utilisation_never_leaves_less(facts: RankFacts, percent: int) -> None:
    higher = replace(facts, utilization=max(facts.utilization, Fraction(percent, 100)))
    assert rank_budget(higher).kv_bytes >= rank_budget(facts).kv_bytes


@given(rank_facts(), st.integers(0, GIB))
def test_a_byte_of_weights_is_a_byte_less(facts: RankFacts, more: int) -> None:
    heavier = replace(facts, weight_bytes=facts.weight_bytes + more)
    assert rank_budget(heavier).kv_bytes == rank_budget(facts).kv_bytes - more


@given(rank_facts())
def test_eager_mode_never_leaves_less(facts: RankFacts) -> None:
    assert rank_budget(replace(facts, enforce_eager=True)).kv_bytes >= rank_budget(facts).kv_bytes


@given(rank_facts())
def test_the_band_holds_the_answer_evenly(facts: RankFacts) -> None:
    answer = rank_budget(facts)
    assert answer.kv_bytes_high - answer.kv_bytes == answer.kv_bytes - answer.kv_bytes_low > 0


@given(st.integers(1, 2048), st.integers(1, 8))
def test_capture_sizes_rise_and_stay_below_their_ceiling(sequences: int, query_tokens: int) -> None:
    sizes = capture_sizes(sequences, query_tokens)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] <= min(512, 2 * sequences * query_tokens)
    assert len(sizes) <= captured_graphs(sizes, sequences * query_tokens) <= 2 * len(sizes)


@given(
    st.sampled_from(["heads", "columns", "kv_heads", "none"]),
    st.sampled_from([1, 2, 4, 8, 16, 32]),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_ranks_together_hold_at_least_the_whole(split: str, kv_heads: int, ranks: int) -> None:
    heads = kv_heads if split == "kv_heads" else None
    part = WeightPart(name="x", parameters=4096 * kv_heads, split=split, kv_heads=heads)
    assert rank_share(part, ranks, None) * ranks >= part.parameters
    assert rank_share(part, ranks, None) <= part.parameters
