"""A whole run, from the traffic file to figures: hand-worked cases, conservation, reproducibility, mistakes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvplan.admission import STRATEGIES, RequestSize, charge, effective_cap
from kvplan.engines.engine_plan import CacheGroup, CacheLayout
from kvplan.errors import InputError
from kvplan.recommend import with_recommendation
from kvplan.recommend.caps import mean_truncated
from kvplan.report.requests_csv import REQUEST_COLUMNS, request_lines
from kvplan.simulation.aggregate import mean_interval, student_t
from kvplan.simulation.backend import build_backend
from kvplan.simulation.bounds import round_caps, sustainable_per_s
from kvplan.simulation.front_door import (
    apply_strategy,
    charged_blocks,
    client_rule,
    client_table,
    effective_caps,
    judged_strategy,
    requests_for,
)
from kvplan.simulation.results import Simulation
from kvplan.simulation.simulate import is_random, simulate
from kvplan.simulation.types import ClientRule
from kvplan.traffic.load import load_traffic, parse_traffic
from kvplan.traffic.sample import sample
from kvplan.traffic.spec import Traffic

POOL = """\
deployment:
  max_model_len: 1024
  max_num_seqs: 8
  max_num_batched_tokens: 256
  async_scheduling: false
  prefix_caching: false
  kv_pool: {blocks: 101, block_tokens: 16}
  service: {base_s: 0.01, prefill_token_s: 0.001, decode_sequence_s: 0.0005, kv_token_s: 0.00001}
"""
BUSY = (
    POOL
    + """\
traffic:
  duration: 60s
  seed: 5
  classes:
    - name: short
      rate: 3/s
      prompt_tokens: {lognormal: {p50: 60, p95: 200, max: 400}}
      output_tokens: {lognormal: {p50: 30, p95: 120}}
      max_tokens: {choices: [{unset: true, share: 0.5}, {value: 64, share: 0.5}]}
      client: openai-python
      timeout: 30s
      cancel_share: 0.1
    - name: long
      rate: 20/m
      prompt_tokens: {uniform: {min: 200, max: 1100}}
      output_tokens: 50
      max_tokens: {value: 100}
"""
)


def parse(text: str) -> Traffic:
    return parse_traffic(text, file="mix.yaml")


def replay(tmp_path: Path, rows: str, more: str = "") -> Traffic:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens,max_tokens\n" + rows)
    file = tmp_path / "mix.yaml"
    file.write_text(POOL + more + "traffic: {classes: [{name: r, trace: t.csv}]}\n")
    return load_traffic(file)


def test_one_request_takes_what_the_constants_say(tmp_path: Path) -> None:
    result = simulate(replay(tmp_path, "0,100,3,8\n"), strategies=["worst_case"], keep_rows=True)
    (line,) = request_lines(result.rows[0])
    row = dict(zip(REQUEST_COLUMNS, line, strict=True))
    first_s = 0.01 + 100 * 0.001 + 100 * 0.00001  # base + prefill + context after the step
    second_s = 0.01 + 0.0005 + 101 * 0.00001
    third_s = 0.01 + 0.0005 + 102 * 0.00001
    assert row["first_token_s"] == pytest.approx(first_s, rel=1e-12)
    assert row["finish_s"] == pytest.approx(first_s + second_s + third_s, rel=1e-12)
    assert (row["strategy"], row["id"], row["class"], row["attempts"], row["outcome"]) == (
        "worst_case",
        0,
        "r",
        1,
        "completed",
    )
    assert (row["admitted_s"], row["scheduled_s"], row["prompt_tokens"], row["max_output_tokens"]) == (0.0, 0.0, 100, 8)
    assert (row["output_tokens"], row["preemptions"]) == (3, 0)
    (found,) = result.strategies
    assert (found.requests.offered, found.requests.completed, found.requests.truncated) == (1, 1, 0)
    assert found.ttft_s.mean == pytest.approx(first_s)
    assert result.inputs.seeds == 1


def test_what_can_never_be_served_is_refused_for_good(tmp_path: Path) -> None:
    rows = "0,1024,3,8\n1,2000,3,\n2,900,3,50\n3,10,90,16\n"
    traffic = replay(tmp_path, rows, "admission: {safety_fraction: 0.5}\n")
    found = simulate(traffic, strategies=["worst_case", "none"], keep_rows=True)
    for result in found.strategies:
        # 900 + 50 tokens are ceil(950 / 16) = 60 blocks, floor(100 × 0.5) = 50 are usable: only the ledger refuses it
        refused = 3 if result.name == "worst_case" else 2
        assert result.requests.rejected_permanently == refused
        assert result.requests.completed == 4 - refused
        assert result.requests.truncated == 1  # 90 tokens, cap 16
        assert result.refusals == 0


def test_every_request_is_accounted_for_in_every_strategy_and_class() -> None:
    result = simulate(parse(BUSY), strategies=list(STRATEGIES), seeds=2, workers=1)
    assert [one.name for one in result.strategies] == list(STRATEGIES)
    offered = {one.requests.offered for one in result.strategies}
    assert len(offered) == 1
    for one in result.strategies:
        counts = [one.requests, *(entry.requests for entry in one.classes)]
        for found in counts:
            ended = found.completed + found.rejected_permanently + found.gave_up + found.timed_out
            assert found.offered == ended + found.cancelled + found.unfinished
            assert found.truncated <= found.completed
        assert sum(entry.requests.offered for entry in one.classes) == one.requests.offered
        assert one.attempts == pytest.approx(one.amplification * one.requests.offered, rel=0.05)
        assert 0 <= one.kv.used_mean_share <= one.kv.used_peak_share <= 1
    assert result.strategy("worst_case").preemptions == 0
    assert result.strategy("none").preemptions > 0


def test_same_seed_same_bits_whatever_the_workers() -> None:
    text = BUSY.replace("duration: 60s", "duration: 600s")
    alone = simulate(parse(text), strategies=["worst_case", "none"], seeds=2, workers=1)
    shared = simulate(parse(text), strategies=["worst_case", "none"], seeds=2, workers=2)
    assert figures(alone) == figures(shared)


def figures(result: Simulation) -> list[object]:
    return [
        (one.name, one.requests, one.e2e_s, one.ttft_s, one.kv, one.intervals, one.preemptions)
        for one in result.strategies
    ]


def test_progress_counts_every_run() -> None:
    seen: list[tuple[int, int]] = []
    simulate(
        parse(BUSY),
        strategies=["none", "worst_case"],
        seeds=2,
        workers=1,
        progress=lambda done, n: seen.append((done, n)),
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_strategies_differ_only_by_their_decisions() -> None:
    rows = simulate(parse(BUSY), strategies=["worst_case", "none"], seeds=1, keep_rows=True).rows
    assert rows[0].requests.arrival_s.tolist() == rows[1].requests.arrival_s.tolist()
    assert rows[0].requests.output_tokens.tolist() == rows[1].requests.output_tokens.tolist()
    assert rows[0].requests.client_draw.tolist() == rows[1].requests.client_draw.tolist()


def test_worst_case_reservations_per_cap_choice() -> None:
    result = simulate(parse(BUSY), strategies=["worst_case"], seeds=1)
    rows = {row.name: row for row in result.reservations}
    # p95 of the prompt is 200: 200 + 824 = 1,024 tokens are 64 blocks, 100 usable hold 1; 264 tokens are 17 blocks: 5
    assert (rows["short, no cap sent"].blocks, rows["short, no cap sent"].sequences) == (64, 1)
    assert (rows["short, cap 64"].blocks, rows["short, cap 64"].sequences) == (17, 5)
    assert rows["short, cap 64"].share == 0.5
    assert f"short, default cap {result.inputs.default_max_tokens:,}" in rows
    # p95 of 200 … 1,100 is 1,055: beyond the window, so no such request is ever admitted
    assert (rows["long, cap 100"].prompt_tokens, rows["long, cap 100"].sequences) == (1055, 0)


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("traffic: {}", "deployment", "neither a GPU nor a KV pool"),
        ("deployment: {gpu: h100}", "model", "neither a model nor a kv_pool"),
        (
            "deployment: {kv_pool: {blocks: 100, block_tokens: 16}}",
            "deployment.max_model_len",
            "context window is unknown",
        ),
        (
            "deployment: {kv_pool: {blocks: 100, block_tokens: 16}, max_model_len: 512}",
            "deployment.service",
            "time of an engine step is unknown",
        ),
        (
            "deployment: {kv_pool: {blocks: 10, block_tokens: 16}, max_model_len: 512}",
            "deployment.max_model_len",
            "would not start",
        ),
    ],
)
def test_files_that_say_too_little(text: str, key: str, message: str) -> None:
    mix = "traffic: {duration: 5s, classes: [{name: a, rate: 1/s, prompt_tokens: 1, output_tokens: 1}]}\n"
    model = "model: meta-llama/Llama-3.1-8B-Instruct\n" if text == "traffic: {}" else f"{text}\n"
    with pytest.raises(InputError, match=message) as caught:
        simulate(parse(model + mix), offline=True)
    assert caught.value.key == key
    assert caught.value.hint


def test_arguments_out_of_range() -> None:
    for arguments, message in (
        ({"strategies": ["worst-case"]}, "did you mean worst_case"),
        ({"strategies": []}, "no strategy"),
        ({"seeds": 0}, "at least one seed"),
        ({"scale": 0.0}, "not above zero"),
        ({"scale": float("nan")}, "not above zero"),
        ({"workers": 0}, "at least one worker"),
    ):
        with pytest.raises(InputError) as caught:
            simulate(parse(BUSY), **arguments)
        assert message in f"{caught.value.message} {caught.value.hint}"


def test_a_run_without_requests() -> None:
    with pytest.raises(InputError, match="no request arrives"):
        simulate(parse(BUSY.replace("3/s", "1/d").replace("20/m", "1/d").replace("60s", "1s")))


def test_what_is_random() -> None:
    entry = "{name: a, rate: 1/s, arrivals: constant, prompt_tokens: 1, output_tokens: 1}"
    fixed = POOL + f"traffic: {{duration: 5s, classes: [{entry}]}}\n"
    assert not is_random(parse(fixed))
    assert is_random(parse(fixed.replace("arrivals: constant, ", "")))
    assert is_random(parse(fixed.replace("prompt_tokens: 1", "prompt_tokens: {uniform: {min: 1, max: 2}}")))
    assert is_random(parse(fixed.replace("output_tokens: 1", "output_tokens: 1, client: httpx")))
    assert is_random(parse(fixed.replace("rate: 1/s", "rate: 1/s, shared_prefix: {tokens: 1, groups: 2}")))


def test_the_judged_strategy_fills_in_a_default_that_the_file_has() -> None:
    assert judged_strategy(parse(BUSY)).name == "worst_case"
    assert judged_strategy(parse(f"admission: {{default_max_tokens: 64}}\n{BUSY}")).name == "worst_case_default_cap"
    assert judged_strategy(parse(f"admission: {{policy: ratio, default_max_tokens: 64}}\n{BUSY}")).name == "ratio"


LAYOUT = CacheLayout(
    block_tokens=16,
    bytes_per_block=1,
    groups=(
        CacheGroup(kind="full attention", layers=1, rule="full", block_tokens=16, page_bytes=1, token_shards=2),
        CacheGroup(kind="window", layers=1, rule="sliding", block_tokens=32, page_bytes=1, window_tokens=100),
        CacheGroup(
            kind="kept below a window",
            layers=1,
            rule="sliding",
            block_tokens=16,
            page_bytes=1,
            window_tokens=33,
            retained_tokens=5,
        ),
        CacheGroup(kind="chunk", layers=1, rule="chunked", block_tokens=16, page_bytes=1, window_tokens=64),
        CacheGroup(kind="state", layers=1, rule="fixed", block_tokens=16, page_bytes=1, fixed_blocks=3),
    ),
    in_flight_tokens=50,
)


def test_array_charges_equal_the_engine_s() -> None:
    tokens = np.arange(1, 400)
    assert charged_blocks(LAYOUT, tokens).tolist() == [LAYOUT.request_blocks(int(count)) for count in tokens]


@pytest.mark.parametrize("name", STRATEGIES)
def test_array_doors_equal_the_gateway_s_functions(name: str) -> None:
    traffic = parse(BUSY)
    backend = replace(build_backend(traffic), layout=replace(LAYOUT, in_flight_tokens=10))
    arrivals = sample(traffic, 5)
    applied = apply_strategy(STRATEGIES[name], backend, traffic.admission, traffic.deployment, 48)
    expected = (120, 50)
    asked = requests_for(
        arrivals, applied, backend, seed=5, client_timeouts_s=(1.0, 2.0), expected_output_tokens=expected
    )
    for row in range(len(arrivals)):
        prompt, sent = int(arrivals.prompt_tokens[row]), int(arrivals.max_tokens[row])
        cap = max(effective_cap(prompt, sent or None, 1024, applied.default_max_tokens), 1)
        usual = min(expected[arrivals.class_index[row]], cap)
        size = RequestSize(prompt_tokens=prompt, cap_tokens=cap, expected_output_tokens=usual)
        weight = charge(STRATEGIES[name], size, backend.layout.request_blocks)
        assert (asked.cap_tokens[row], asked.charge[row]) == (cap, weight)
        assert asked.refused_for_good[row] == (prompt >= 1024 or weight > applied.capacity)
    assert effective_caps(np.array([0, 5]), np.array([1000, 1022]), 1024, None).tolist() == [24, 2]


def test_client_profiles_become_rules() -> None:
    rules, timeouts_s = client_table(("", "openai-python", "naive", "httpx"))
    assert rules[0] == ClientRule()
    assert (rules[1].tries, rules[1].honours_retry_after, rules[1].longest_honoured_s) == (3, True, 120.0)
    assert rules[1].gives_up_when_longer
    assert rules[2].tries > 10**9
    assert rules[3].tries == 1
    assert timeouts_s[0] == float("inf")
    from kvplan.profiles.loader import list_names, load_client

    for name in list_names("clients"):
        assert client_rule(load_client(name)).tries >= 1


def test_the_recommended_cap_is_the_smallest_that_meets_the_limit() -> None:
    found = with_recommendation(simulate(parse(BUSY), strategies=["worst_case", "worst_case_default_cap"], seeds=2))
    answer = found.recommendation
    assert answer is not None
    assert answer.default_max_tokens in round_caps(1024)
    assert answer.truncated_share <= 0.01
    seed = found.inputs.seed
    drawn = [sample(parse(BUSY), one) for one in (seed, seed + 1)]
    smaller = round_caps(1024)[round_caps(1024).index(answer.default_max_tokens) - 1]
    assert smaller < answer.default_max_tokens, "the first of all would make this test empty"
    assert mean_truncated(drawn, smaller) > 0.01
    assert answer.safety_fraction == 1.0
    assert [one.name for one in answer.per_class] == ["short"]
    assert answer.reason.endswith("cuts off at most 1% of all answers; kvplan recommend searches for a better one")


def test_a_recommendation_uses_the_limits_of_the_file_and_says_that_its_cap_was_given() -> None:
    strict = BUSY + "admission: {default_max_tokens: 128}\nlimits: {refused_share: {max: 0}}\n"
    loose = strict.replace("max: 0}", "max: 0.99}")
    reasons = []
    for text in (strict, loose):
        found = with_recommendation(simulate(parse(text), strategies=["worst_case_default_cap"], seeds=1))
        assert found.recommendation is not None
        assert found.recommendation.default_max_tokens == 128
        reasons.append(found.recommendation.reason)
    assert "more than 0%" in reasons[0]
    assert "more than" not in reasons[1]
    source = "It comes from the traffic file; kvplan recommend searches for a better one"
    assert all(reason.endswith(source) for reason in reasons)


@pytest.mark.parametrize("limit", [0.005, 0.2])
def test_the_played_cap_meets_the_limit_of_the_file(limit: float) -> None:
    """Where the file limits truncated answers, that limit stands for the usual 1 %, and the reason names it."""
    traffic = parse(BUSY + f"limits: {{truncated_share: {{max: {limit}}}}}\n")
    found = with_recommendation(simulate(traffic, strategies=["worst_case_default_cap"], seeds=2))
    cap, caps = found.inputs.default_max_tokens, round_caps(1024)
    drawn = [sample(traffic, seed) for seed in (5, 6)]
    assert mean_truncated(drawn, cap) <= limit
    assert cap == caps[0] or mean_truncated(drawn, caps[caps.index(cap) - 1]) > limit
    source = f"the smallest round cap that cuts off at most {100 * limit:g}% of all answers (limits.truncated_share)"
    assert found.inputs.default_max_tokens_source == source
    assert found.recommendation is not None
    assert source in found.recommendation.reason


def test_a_limit_that_no_round_cap_meets_leaves_the_whole_window() -> None:
    text = BUSY.replace("{lognormal: {p50: 30, p95: 120}}", "900").replace("output_tokens: 50", "output_tokens: 900")
    found = simulate(parse(text + "limits: {truncated_share: {max: 0}}\n"), strategies=["none"], seeds=1).inputs
    assert found.default_max_tokens == 1024
    assert found.default_max_tokens_source.startswith("the whole window: every smaller round cap cuts off more than 0%")


def test_a_short_run_s_cap_is_judged_by_all_of_its_seeds() -> None:
    """Some 20 requests a seed: the first alone sees no long answer, and would call a cap harmless that cuts 1 in 40."""
    text = (
        POOL
        + """
traffic:
  duration: 40s
  seed: 4
  classes:
    - name: a
      rate: 0.5/s
      prompt_tokens: 100
      output_tokens: {choices: [{value: 60, share: 0.975}, {value: 700, share: 0.025}]}
      max_tokens: {unset: true}
"""
    )
    traffic = parse(text)
    assert not (sample(traffic, 4).output_tokens > 128).any()
    found = with_recommendation(simulate(traffic, strategies=["worst_case_default_cap"], seeds=10)).recommendation
    assert found is not None
    assert found.default_max_tokens > 700
    assert found.truncated_share == 0


def test_the_closed_form_bound_of_equal_requests() -> None:
    entry = "{name: a, rate: 1/s, prompt_tokens: 100, output_tokens: 60, max_tokens: {value: 60}}"
    text = POOL + f"traffic: {{duration: 50s, classes: [{entry}]}}\n"
    traffic = parse(text)
    backend = build_backend(traffic)
    applied = apply_strategy(STRATEGIES["worst_case"], backend, traffic.admission, traffic.deployment, 60)
    asked = requests_for(
        sample(traffic, 0), applied, backend, seed=0, client_timeouts_s=(float("inf"),), expected_output_tokens=(60,)
    )
    # work = 100 × (0.001 + 0.00001 / 2) + 60 × (0.0005 + 0.00001 × 130) = 0.2085 s; the ledger of 100 blocks holds ten
    # of 10 blocks over 60 steps, max_num_seqs only 8: base × 60 / 8 = 0.075 s
    found, binds = sustainable_per_s(asked, applied, backend)
    assert found == pytest.approx(1 / (0.2085 + 0.075), rel=1e-9)
    assert binds == "the GPU's speed"


def test_intervals_are_student_s() -> None:
    assert [round(student_t(degrees), 3) for degrees in (1, 9, 19, 60)] == [12.706, 2.262, 2.093, 2.0]
    assert mean_interval([3.0]) == (3.0, (3.0, 3.0))
