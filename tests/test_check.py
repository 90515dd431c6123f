"""Checks: every limit has a measure, chance is given its due, and what is not measured is no pass."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvplan.check import check
from kvplan.check.against import changes, figures, read_baseline, settings
from kvplan.check.judge import judge_limits, verdict
from kvplan.check.measures import MEASURES, combine_seeds
from kvplan.check.plan_and_play import measure
from kvplan.check.results import Change, Check, LimitResult, Measured, Reading
from kvplan.cli.options import parse_prices
from kvplan.errors import InputError
from kvplan.report.check_json import json as json_text
from kvplan.report.check_text import message
from kvplan.report.fit_json import json as fit_json
from kvplan.simulation.tasks import RunOptions
from kvplan.traffic.file.schema import LIMIT_NAMES
from kvplan.traffic.load import parse_traffic
from kvplan.traffic.spec import Limit, Traffic
from tests.small_pool import small_pool

POOL = f"""\
{small_pool()}\
    - name: batch
      rate: 1/s
      prompt_tokens: 300
      output_tokens: 50
      max_tokens: 64
"""
PLANNED = """\
model: meta-llama/Llama-3.1-8B-Instruct
deployment: {gpu: h100, max_model_len: 8192}
traffic:
  duration: 20s
  classes:
    - {name: chat, rate: 2/s, prompt_tokens: 500, output_tokens: 50, max_tokens: 100}
"""


def _traffic(limits: str, text: str = POOL) -> Traffic:
    return parse_traffic(f"{text}limits:\n  {limits}\n", file="traffic.yaml")


@pytest.mark.parametrize("engine", ["vllm", "vllm@0.10", "sglang"])
def test_a_fit_and_a_check_of_the_same_plan_name_the_same_terms(engine: str, tmp_path: Path) -> None:
    """Whether an engine books its graphs inside its share (vLLM since 0.11), beside it, or with the activations."""
    planned = measure(
        _traffic("preemptions: {max: 0}", PLANNED.replace("gpu:", f"engine: {engine}, gpu:")),
        RunOptions(seeds=1, offline=True),
    )
    assert planned.fit is not None
    path = tmp_path / "fit.json"
    path.write_text(fit_json(planned.fit, {}, ()), encoding="utf-8")
    kept, complete = read_baseline(path)
    now = figures(planned)
    assert not complete
    assert "graph_bytes" in kept
    assert {name: now[name] for name in kept} == kept


@pytest.fixture(scope="module")
def measured() -> Measured:
    """The small pool, played once for all."""
    return measure(_traffic("preemptions: {max: 0}"), RunOptions(seeds=3, workers=1))


def _value(found: LimitResult) -> float:
    assert found.reading.value is not None
    return found.reading.value


def _judged(measured: Measured, limits: str, *, strict: bool = False) -> tuple[LimitResult, ...]:
    return judge_limits(replace(measured, traffic=_traffic(limits)), strict=strict)


def test_every_limit_has_a_measure_and_every_measure_a_limit() -> None:
    assert set(MEASURES) == set(LIMIT_NAMES)


@pytest.mark.parametrize("name", [name for name in LIMIT_NAMES if not name.endswith(("_bytes", "_per_hour"))])
def test_every_figure_of_a_run_can_be_limited(name: str, measured: Measured) -> None:
    """At least 0 always holds, and the values are those of the run."""
    (found,) = _judged(measured, f"{name}: {{min: 0}}")
    assert found.passed
    assert _value(found) >= 0
    assert name in message(found)


@pytest.mark.parametrize("name", [name for name in LIMIT_NAMES if MEASURES[name].of_classes])
def test_classes_have_their_own_figures(name: str, measured: Measured) -> None:
    (found,) = _judged(measured, f"{name}: {{class: batch, min: 0}}")
    assert found.class_name == "batch"
    assert _value(found) >= 0


def test_a_figure_of_the_whole_has_no_class(measured: Measured) -> None:
    with pytest.raises(InputError, match="exists only for the whole") as caught:
        _judged(measured, "over_capacity_events: {class: chat, max: 0}")
    assert (caught.value.line, caught.value.key) == (24, "limits.over_capacity_events.class")


def test_both_bounds_of_a_limit_are_judged(measured: Measured) -> None:
    low, high = _judged(measured, "completed_share: {min: 0.1, max: 0.2}")
    assert (low.bound, low.limit, low.passed) == ("min", 0.1, True)
    assert (high.bound, high.limit, high.passed, high.certainty) == ("max", 0.2, False, "sure")
    assert low.line == high.line == 24


def test_a_list_of_limits_is_judged_one_by_one(measured: Measured) -> None:
    found = _judged(measured, "ttft_p99_s: [{class: chat, max: 100}, {class: batch, max: 0}]")
    assert [(one.class_name, one.passed) for one in found] == [("chat", True), ("batch", False)]


def test_counts_take_the_worst_seed(measured: Measured) -> None:
    assert measured.simulation is not None
    (strategy,) = measured.simulation.strategies
    refusals = [seed.figures.refusals for seed in strategy.seeds]
    assert len(set(refusals)) > 1
    (found,) = _judged(measured, f"refusals: {{max: {max(refusals) - 1}}}")
    assert (found.reading.value, found.passed, found.certainty) == (max(refusals), False, "exact")
    (kept,) = _judged(measured, f"refusals: {{max: {max(refusals)}}}")
    assert kept.passed


def test_reservations_are_the_fewest_that_the_policy_charges(measured: Measured) -> None:
    """399 usable blocks. chat's p95 prompt of 600 with the cap 512 takes 1,112 tokens = 70 blocks: 5 fit; with the
    default 256 it would be 54: 7. No cap at all is not charged, since the default is filled in. batch: 364 = 23: 17."""
    (chat,) = _judged(measured, "worst_case_reservations: {class: chat, min: 6}")
    assert (chat.reading.value, chat.passed, chat.reading.how) == (399 // 70, False, "chat, cap 512")
    (batch,) = _judged(measured, "worst_case_reservations: {class: batch, min: 17}")
    assert (batch.reading.value, batch.passed) == (399 // 23, True)
    (every,) = _judged(measured, "worst_case_reservations: {min: 1}")
    assert every.reading.value == 399 // 70


@pytest.mark.parametrize(
    ("bound", "limit", "strict", "expected"),
    [
        ("max", 5, False, ("sure", True)),
        ("max", 4, True, ("sure", True)),
        ("max", 3.5, False, ("within_noise", True)),
        ("max", 2.5, False, ("within_noise", True)),
        ("max", 2.5, True, ("within_noise", False)),
        ("max", 1.9, False, ("sure", False)),
        ("min", 1, False, ("sure", True)),
        ("min", 2, True, ("sure", True)),
        ("min", 3.9, False, ("within_noise", True)),
        ("min", 3.9, True, ("within_noise", False)),
        ("min", 4.1, False, ("sure", False)),
    ],
)
def test_an_interval_decides(bound: str, limit: float, strict: bool, expected: tuple[str, bool]) -> None:
    """A mean of 3 with the interval from 2 to 4."""
    reading = Reading(value=3, low=2, high=4)
    assert verdict(reading, "min" if bound == "min" else "max", limit, strict=strict) == expected


def test_one_seed_says_that_it_has_no_interval() -> None:
    found = check(_traffic("refused_share: {max: 1}"), seeds=1, workers=1)
    (limit,) = found.limits
    assert (limit.certainty, limit.passed) == ("one_seed", True)
    assert "one seed gives no interval" in message(limit)
    assert combine_seeds([0.25], "mean", "max") == Reading(value=0.25, how="of 1 seed")


def test_requests_that_can_never_fit_count_as_refused() -> None:
    """Of 399 usable blocks a safety fraction of 0.3 promises 119; no cap sent means the window, 2,048 / 16 = 128
    blocks, which never fit: such requests must not make a pool look emptier than it is."""
    text = POOL.replace("{default_max_tokens: 256}", "{policy: worst_case, safety_fraction: 0.3}")
    text = text.replace("rate: 4/s", "rate: 15/m").replace("duration: 2m", "duration: 10m")
    for_now_or_good, for_good = check(
        _traffic("refused_share: {max: 0.01}\n  rejected_permanently_share: {max: 0.01}", text), seeds=1, workers=1
    ).limits
    assert 0.05 < _value(for_good) <= _value(for_now_or_good) < 0.2
    assert not for_now_or_good.passed


def test_a_file_without_limits_is_refused() -> None:
    with pytest.raises(InputError, match="nothing to check") as caught:
        check(parse_traffic(POOL, file="traffic.yaml"))
    assert "kvplan explain traffic" in (caught.value.hint or "")


def test_what_cannot_be_measured_does_not_pass() -> None:
    """Requests that are larger than the window are refused for good: none is completed, so none has a TTFT."""
    text = POOL.replace("prompt_tokens: 300", "prompt_tokens: 3000")
    found = check(_traffic("ttft_p99_s: {class: batch, max: 5}", text), seeds=1, workers=1)
    assert not found.passed
    assert (found.limits[0].certainty, found.limits[0].reading.value) == ("not_measured", None)
    assert "was not measured" in message(found.limits[0])


def test_a_pool_that_does_not_start_is_a_broken_limit() -> None:
    text = POOL.replace("max_model_len: 2048", "max_model_len: 8192")
    found = check(_traffic("refused_share: {max: 1}", text), workers=1)
    fits, refused = found.limits
    assert not found.passed
    assert (fits.name, fits.passed, fits.reading.value) == ("fits", False, 0)
    assert "takes 512 blocks, 399 are usable" in message(fits)
    assert (refused.passed, refused.certainty) == (False, "not_measured")
    assert json.loads(json_text(found))["passed"] is False


def test_weights_that_do_not_fit_are_a_broken_limit_and_the_pool_is_negative() -> None:
    """An unclamped, negative pool: 8 B parameters in 16 bits are 15.0 GiB, and an L4's share of 22 GiB is not enough
    for 70 B."""
    text = PLANNED.replace("Llama-3.1-8B-Instruct", "Llama-3.1-70B-Instruct")
    found = check(_traffic("kv_pool_bytes: {min: 0GiB}", text), offline=True, workers=1)
    fits, pool = found.limits
    assert (fits.name, found.passed, pool.passed) == ("fits", False, False)
    assert _value(pool) < 0
    assert pool.certainty == "exact"


def test_a_plan_is_judged_exactly() -> None:
    """KV of 40 GiB at 128 KiB a token: 20,480 blocks of 16, 2.5 windows of 131,072."""
    text = PLANNED.replace(
        "{gpu: h100, max_model_len: 8192}",
        "{gpu: h100, kv_pool: {memory: 40GiB}, max_model_len: 131072}",
    )
    limits = "kv_pool_bytes: {min: 40GiB}\n  concurrency_at_max_model_len: {min: 2.5, max: 2.5}"
    found = check(_traffic(limits, text), offline=True, workers=1)
    assert found.passed
    assert {limit.certainty for limit in found.limits} == {"exact"}
    assert found.figures["kv_pool_tokens"] == 327_680


def test_the_band_of_a_planned_service_time_warns_and_does_not_decide() -> None:
    found = check(_traffic("e2e_mean_s: {max: 100}", PLANNED), offline=True, workers=1)
    (limit,) = found.limits
    slow, fast = limit.at_slow_end or 0.0, limit.at_fast_end or 0.0
    assert 0 < fast < _value(limit) < slow
    tight = _traffic(f"e2e_mean_s: {{max: {(_value(limit) + slow) / 2}}}", PLANNED)
    assert check(tight, offline=True, workers=1).passed


def test_a_cost_needs_a_price() -> None:
    limited = _traffic("cost_per_hour: {max: 5}", PLANNED.replace("gpu: h100", "gpu: h100, replicas: 2"))
    with pytest.raises(InputError, match="cost_per_hour cannot be judged") as caught:
        check(limited, offline=True, workers=1)
    assert caught.value.line is not None
    prices = parse_prices(["h100=2.75"])
    assert prices == {"h100-80gb-sxm": 2.75}
    found = check(limited, offline=True, workers=1, prices_per_hour=prices)
    assert (found.limits[0].reading.value, found.passed) == (5.5, False)


@pytest.mark.parametrize("text", ["h100", "h100=", "h100=cheap", "h100=-1", "h100=nan", "h100=inf"])
def test_a_price_is_an_amount(text: str) -> None:
    with pytest.raises(InputError, match="is not NAME=AMOUNT"):
        parse_prices([text])


def test_a_change_lists_keys_and_figures(measured: Measured) -> None:
    text = POOL.replace("max_model_len: 2048", "max_model_len: 4096").replace("rate: 1/s", "rate: 2/s")
    found = check(_traffic("preemptions: {max: 0}", text), against=measured.traffic, seeds=3, workers=1)
    assert found.comparison is not None
    assert [(one.key, one.before, one.after) for one in found.comparison.settings] == [
        ("deployment.max_model_len", "2048", "4096"),
        ("batch.rate_per_s", "1", "2"),
    ]
    told = {one.name: one for one in found.comparison.changes}
    assert told["max_model_len"] == Change(name="max_model_len", before=2048, after=4096)
    assert told["kv_pool_tokens"].before == told["kv_pool_tokens"].after
    assert [limit.passed for limit in found.comparison.base_limits] == [True]


def test_the_same_file_twice_has_no_difference(measured: Measured) -> None:
    """The same file twice: common random numbers leave no difference at all."""
    again = measure(measured.traffic, RunOptions(seeds=3, workers=1))
    assert settings(measured.traffic, again.traffic) == ()
    assert all(one.before == one.after for one in changes(figures(measured), figures(again)))


def test_an_earlier_answer_is_a_baseline(measured: Measured, tmp_path: Path) -> None:
    limits = judge_limits(measured)
    kept = Check(traffic=measured.traffic, measured=measured, limits=limits, strict=False, figures=figures(measured))
    path = tmp_path / "plan.json"
    path.write_text(json_text(kept), encoding="utf-8")
    assert read_baseline(path) == (figures(measured), True)
    again = check(measured.traffic, baseline=path, seeds=3, workers=1)
    assert again.comparison is not None
    assert all(one.before == one.after for one in again.comparison.changes)


def test_a_plan_as_a_baseline_is_silent_on_what_it_does_not_hold(measured: Measured, tmp_path: Path) -> None:
    """Half the window of today: of a fit's figures these are told, and nothing of times."""
    document = {"schema": "kvplan.fit", "pool": {"tokens": 6400}, "capacity": {"max_model_len": 1024}}
    (tmp_path / "fit.json").write_text(json.dumps(document), encoding="utf-8")
    found = check(measured.traffic, baseline=tmp_path / "fit.json", seeds=3, workers=1)
    assert found.comparison is not None
    assert found.comparison.changes == (
        Change(name="max_model_len", before=1024, after=2048),
        Change(name="kv_pool_tokens", before=6400, after=6400),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("[1]", "is not the JSON of kvplan"),
        ('{"schema": "kvplan.model"}', "is not the JSON of kvplan"),
        ('{"schema": "kvplan.check"}', "none of the figures"),
        ('{"schema": "kvplan.check", "figures": {"gpus": "many"}}', "none of the figures"),
        ('{"schema": "kvplan.simulation", "strategies": 3}', "none of the figures"),
        ('{"schema": "kvplan.fit", "pool": [], "capacity": null}', "none of the figures"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_not_a_baseline_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        read_baseline(path)
    with pytest.raises(InputError, match="there is no file"):
        read_baseline(tmp_path / "none.json")


def test_a_limit_knows_its_line_also_in_a_list() -> None:
    assert _traffic("preemptions: {max: 0}").limits == (Limit(name="preemptions", maximum=0, line=24),)
    limits = "ttft_p99_s:\n    - {class: chat, max: 5}\n    - {class: batch, max: 9}"
    assert [limit.line for limit in _traffic(limits).limits] == [25, 26]
