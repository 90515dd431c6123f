"""Laws of verdicts: a looser limit never breaks, strictness only adds failures, the unmeasured never passes."""

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from kvplan.check.judge import verdict
from kvplan.check.measures import combine_seeds
from kvplan.check.results import Reading

numbers = st.floats(0, 1e12, allow_nan=False)
bounds: st.SearchStrategy[Literal["min", "max"]] = st.sampled_from(["min", "max"])
seeds = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=12)


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    """Exact values, worst seeds and means with an interval around them."""
    how: Literal["mean", "worst"] = draw(st.sampled_from(["mean", "worst"]))
    return combine_seeds(draw(seeds), how, draw(bounds))


@given(readings(), bounds, numbers, numbers, st.booleans())
def test_a_looser_limit_never_breaks(
    reading: Reading, bound: Literal["min", "max"], one: float, other: float, strict: bool
) -> None:
    tight, loose = (min(one, other), max(one, other)) if bound == "max" else (max(one, other), min(one, other))
    assert verdict(reading, bound, loose, strict=strict)[1] >= verdict(reading, bound, tight, strict=strict)[1]


@given(readings(), bounds, numbers)
def test_strictness_only_adds_failures(reading: Reading, bound: Literal["min", "max"], limit: float) -> None:
    certainty, passed = verdict(reading, bound, limit, strict=False)
    strictly = verdict(reading, bound, limit, strict=True)
    assert strictly[0] == certainty
    assert passed >= strictly[1]
    assert (passed != strictly[1]) is (certainty == "within_noise")


@given(readings(), numbers)
def test_what_is_surely_above_is_not_surely_below(reading: Reading, limit: float) -> None:
    """Beside the limit itself, the two bounds are never both broken and never both surely kept."""
    low, high = (verdict(reading, "min", limit, strict=False), verdict(reading, "max", limit, strict=False))
    assert low[1] or high[1]
    if low[1] and high[1]:
        assert "within_noise" in (low[0], high[0]) or reading.value == limit


@given(bounds, numbers, st.booleans())
def test_what_was_not_measured_never_passes(bound: Literal["min", "max"], limit: float, strict: bool) -> None:
    assert verdict(Reading(value=None), bound, limit, strict=strict) == ("not_measured", False)


@given(seeds, bounds)
def test_the_worst_seed_is_one_of_them_and_the_mean_is_between(
    values: list[float], bound: Literal["min", "max"]
) -> None:
    worst, mean = combine_seeds(values, "worst", bound).value, combine_seeds(values, "mean", bound).value
    assert worst in values
    assert mean is not None
    assert min(values) <= mean * (1 + 1e-12)
    assert mean <= max(values) * (1 + 1e-12)
