"""Drawing requests: distributions, arrival processes, streams per purpose."""

from dataclasses import replace

import numpy as np
import pytest

from kvplan.errors import InputError
from kvplan.traffic.arrival_processes import (
    ArrivalProcess,
    Diurnal,
    Evenly,
    Gamma,
    OnOff,
    Poisson,
    Ramp,
    Recorded,
    Weibull,
    arrival_times,
)
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.distributions import (
    Choice,
    Choices,
    Constant,
    Distribution,
    Exponential,
    Lognormal,
    Quantiles,
    Uniform,
    coupled,
    histogram,
)
from kvplan.traffic.prefixes import SharedPrefix
from kvplan.traffic.sample import sample
from kvplan.traffic.spec import Traffic, TrafficClass

LAWS: list[Distribution] = [
    Constant(value=7),
    Lognormal(p50=1020, p95=4083),
    Lognormal(p50=100, p95=400, minimum=50, maximum=300),
    Exponential(average=200),
    Uniform(minimum=10, maximum=20),
    Choices(choices=(Choice(value=0, share=0.55), Choice(value=4096, share=0.45))),
    Quantiles(points=((0.0, 1.0), (0.5, 100.0), (1.0, 900.0))),
    histogram((0, 100, 200), (0.25, 0.75)),
]


def times(process: ArrivalProcess, *, rate_per_s: float, duration_s: float, seed: int = 1, ramp: Ramp | None = None):  # type: ignore[no-untyped-def]
    rngs = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    return arrival_times(
        process, rate_per_s=rate_per_s, duration_s=duration_s, gap_rng=rngs[0], curve_rng=rngs[1], ramp=ramp
    )


@pytest.mark.parametrize("law", LAWS)
def test_draws_follow_the_named_quantiles(law: Distribution) -> None:
    drawn = law.draw(np.random.default_rng(5), 40_000)
    for probability in (0.5, 0.9, 0.95):
        got = float(np.quantile(drawn, probability, method="inverted_cdf"))
        assert got == pytest.approx(law.quantile(probability), rel=0.05)
    if not isinstance(law, Lognormal) or law.maximum is None:
        assert float(drawn.mean()) == pytest.approx(law.mean(), rel=0.03)


@pytest.mark.parametrize("law", LAWS)
def test_the_first_draws_do_not_depend_on_how_many_follow(law: Distribution) -> None:
    few, many = law.draw(np.random.default_rng(5), 10), law.draw(np.random.default_rng(5), 1000)
    assert few.tolist() == many[:10].tolist()


@pytest.mark.parametrize(
    ("process", "cv"),
    [(Poisson(), 1.0), (Gamma(cv=2.5), 2.5), (Gamma(cv=0.5), 0.5), (Weibull(cv=2.0), 2.0), (Evenly(), 0.0)],
)
def test_renewal_processes_have_their_rate_and_cv(process: ArrivalProcess, cv: float) -> None:
    arrivals = times(process, rate_per_s=5.0, duration_s=20_000.0)
    gaps = np.diff(arrivals)
    assert len(arrivals) / 20_000.0 == pytest.approx(5.0, rel=0.03)
    assert float(gaps.std() / gaps.mean()) == pytest.approx(cv, rel=0.05, abs=1e-6)


def test_on_off_keeps_the_mean_rate_and_is_bursty() -> None:
    arrivals = times(OnOff(on_s=20, off_s=40), rate_per_s=4.0, duration_s=60_000.0)
    counts = np.histogram(arrivals, bins=6000, range=(0, 60_000))[0]
    assert len(arrivals) / 60_000.0 == pytest.approx(4.0, rel=0.05)
    assert counts.var() / counts.mean() > 20


def test_off_periods_are_silent() -> None:
    process = OnOff(on_s=20, off_s=40)
    rng = np.random.default_rng([1, 1])
    edges, integral = process.rate_curve(rng, 1000.0)
    arrivals = times(process, rate_per_s=50.0, duration_s=1000.0)
    silent = np.flatnonzero(np.diff(integral) == 0)
    assert len(silent) > 5
    for piece in silent:
        assert not ((arrivals > edges[piece] + 1e-9) & (arrivals < edges[piece + 1] - 1e-9)).any()


def test_diurnal_peaks_where_it_says() -> None:
    process = Diurnal(period_s=1000.0, peak_to_mean=1.8, peak_at_s=250.0)
    arrivals = times(process, rate_per_s=200.0, duration_s=1000.0)
    counts = np.histogram(arrivals, bins=10, range=(0, 1000))[0]
    assert int(counts.argmax()) == 2  # 200 s to 300 s holds the peak
    assert counts[2] / counts.mean() == pytest.approx(1.79, rel=0.05)  # mean of 1 + 0.8 cos over ± 18 degrees: 1.787
    assert len(arrivals) == pytest.approx(200_000, rel=0.02)


def test_a_ramp_multiplies_the_rate() -> None:
    arrivals = times(Poisson(), rate_per_s=100.0, duration_s=1000.0, ramp=Ramp(start=1.0, end=3.0))
    counts = np.histogram(arrivals, bins=10, range=(0, 1000))[0]
    assert counts[0] / 10_000 == pytest.approx(1.1, rel=0.05)
    assert counts[-1] / 10_000 == pytest.approx(2.9, rel=0.05)


def test_a_recorded_course_is_followed_over_and_over() -> None:
    course = Recorded(step_s=10.0, counts=(0.0, 30.0, 10.0))
    counts = np.histogram(times(course, rate_per_s=50.0, duration_s=6000.0), bins=600, range=(0, 6000))[0]
    by_step = counts.reshape(-1, 3).sum(axis=0)
    assert by_step[0] == 0
    assert by_step[1] / by_step[2] == pytest.approx(3.0, rel=0.02)
    assert counts.sum() == pytest.approx(300_000, rel=0.01)
    even = np.histogram(times(replace(course, cv=0.05), rate_per_s=50.0, duration_s=6000.0), bins=600, range=(0, 6000))
    assert np.ptp(even[0].reshape(-1, 3)[:, 1]) < 20 < np.ptp(counts.reshape(-1, 3)[:, 1])


def test_coupled_lengths_keep_their_values_and_go_together() -> None:
    rng = np.random.default_rng(2)
    prompt, output = rng.integers(1, 1000, 5000), rng.integers(1, 100, 5000)
    for correlation in (-0.8, 0.0, 0.5):
        found = coupled(output, prompt, correlation, np.random.default_rng(3))
        assert np.array_equal(np.sort(found), np.sort(output))
        # of two uniform columns behind a Gaussian copula: 6 / π × asin(correlation / 2)
        expected = 6 / np.pi * np.arcsin(correlation / 2)
        assert np.corrcoef(prompt, found)[0, 1] == pytest.approx(expected, abs=0.03)


def test_groups_share_prefixes_while_they_last() -> None:
    law = SharedPrefix(tokens=Constant(value=100), groups=2, lifetime_s=50.0)
    arrival_s, prompt = np.arange(0.0, 200.0), np.full(200, 1000)
    found = law.draw(arrival_s, prompt, np.random.default_rng(1), law.block_tokens)
    lengths = np.diff(found.offsets)
    assert (found.block_tokens, set(lengths)) == (16, {7})  # floor(100 / 16) shared blocks, then one of its own
    chains = found.ids.reshape(-1, 7)
    assert (chains[:, :6] == chains[:, :1]).all()
    assert len(set(chains[:, 6])) == 200
    assert not set(chains[:, 6]) & set(chains[:, 0])
    groups = {group: arrival_s[chains[:, 0] == group] for group in set(chains[:, 0].tolist())}
    assert 8 <= len(groups) <= 10  # two at a time over four lifetimes, each begun somewhere in its first
    assert all(np.ptp(when) < 50.0 for when in groups.values())


def test_no_prompt_shares_more_than_it_has() -> None:
    law = SharedPrefix(tokens=Constant(value=4000), groups=1)
    found = law.draw(np.arange(3.0), np.array([10, 600, 9000]), np.random.default_rng(1), 512)
    assert np.diff(found.offsets).tolist() == [0, 2, 8]  # less than a block: nothing; one block; seven (of 512)
    assert (law.block_tokens, found.ids[0], found.ids[2]) == (64, 0, 0)


def test_a_shared_prefix_leaves_the_other_draws_alone() -> None:
    traffic = mix()
    shared = replace(traffic.classes[0], shared_prefix=SharedPrefix(tokens=Constant(value=256), groups=3))
    before, after = sample(traffic, 3), sample(replace(traffic, classes=(shared, traffic.classes[1])), 3)
    assert columns(before) == columns(after)
    assert before.prefixes is None
    assert after.prefixes is not None
    marked = np.diff(after.prefixes.offsets) > 0
    assert np.array_equal(marked, (after.class_index == 0) & (after.prompt_tokens >= 16))


def mix(**changes: object) -> Traffic:
    entry = TrafficClass(
        name="a",
        rate_per_s=3.0,
        prompt_tokens=Lognormal(p50=1000, p95=4000),
        output_tokens=Lognormal(p50=100, p95=400),
        max_tokens=Choices(choices=(Choice(value=0, share=0.5), Choice(value=64, share=0.5))),
        cancel_share=0.25,
    )
    traffic = Traffic(file="x", classes=(entry, replace(entry, name="b", client="c", timeout_s=9.0)), duration_s=500.0)
    return replace(traffic, **changes)  # type: ignore[arg-type]


def columns(arrivals: Arrivals) -> list[list[float]]:
    names = ("arrival_s", "prompt_tokens", "output_tokens", "max_tokens", "class_index", "client_index", "cancel_draw")
    return [getattr(arrivals, name).tolist() for name in names]


def test_same_seed_same_bits_other_seed_other_requests() -> None:
    assert columns(sample(mix(), 3)) == columns(sample(mix(), 3))
    assert columns(sample(mix(), 3)) != columns(sample(mix(), 4))


def test_scale_keeps_lengths_and_order_within_a_class() -> None:
    plain, scaled = sample(mix(), 3), sample(mix(), 3, scale=2.0)
    for index in (0, 1):
        before = plain.prompt_tokens[plain.class_index == index]
        after = scaled.prompt_tokens[scaled.class_index == index]
        shared = min(len(before), len(after))
        assert len(after) > 1.8 * len(before)
        assert before[:shared].tolist() == after[:shared].tolist()


def test_changing_one_distribution_leaves_the_other_draws_alone() -> None:
    traffic = mix()
    other = replace(traffic, classes=(replace(traffic.classes[0], output_tokens=Constant(value=5)), traffic.classes[1]))
    before, after = sample(traffic, 3), sample(other, 3)
    assert before.arrival_s.tolist() == after.arrival_s.tolist()
    assert before.prompt_tokens.tolist() == after.prompt_tokens.tolist()
    assert before.max_tokens.tolist() == after.max_tokens.tolist()


def test_classes_are_merged_in_order_of_arrival() -> None:
    arrivals = sample(mix(), 3)
    assert (np.diff(arrivals.arrival_s) >= 0).all()
    assert (arrivals.classes, arrivals.clients) == (("a", "b"), ("", "c"))
    assert np.array_equal(arrivals.class_index, arrivals.client_index)
    assert np.array_equal(np.isfinite(arrivals.timeout_s), arrivals.class_index == 1)
    assert float(np.isfinite(arrivals.cancel_draw).mean()) == pytest.approx(0.25, abs=0.03)


def test_runs_too_large_for_memory_are_refused() -> None:
    with pytest.raises(InputError, match="about 300,000,000,000 requests"):
        sample(mix(), 3, scale=1e8)
