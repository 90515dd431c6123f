"""Reported situations of overload, retries and admission, each with its source, played through the simulation."""

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from kvplan.admission import RESERVATION_EXCEEDS_POOL, permanent_refusal
from kvplan.capacity import longest_window
from kvplan.engines import ENGINES
from kvplan.engines.engine_plan import CacheGroup, CacheLayout
from kvplan.errors import InputError
from kvplan.explain import load_page
from kvplan.profiles.loader import load_client
from kvplan.recommend.advice import engine_metrics
from kvplan.simulation.front_door import client_rule, client_table
from kvplan.simulation.kernel.arrays import Arrays
from kvplan.simulation.kernel.arrays import client_rules as table_of
from kvplan.simulation.kernel.front_door import back_off_s
from kvplan.simulation.kernel.run import run_kernel
from kvplan.simulation.simulate import simulate
from kvplan.simulation.types import ClientRule, EngineSetup, FrontDoor, Outcome, Requests, RetryAfter, Router
from kvplan.traffic.load import load_traffic
from kvplan.traffic.spec import StepCost
from tests.tables.scheduler import plain_requests

LAYOUT = CacheLayout(
    block_tokens=16,
    bytes_per_block=1,
    groups=(CacheGroup(kind="full", layers=1, rule="full", block_tokens=16, page_bytes=1),),
    in_flight_tokens=8192,
)
SETUP = EngineSetup(
    blocks=4_000,
    layout=LAYOUT,
    max_model_len=4096,
    max_num_seqs=64,
    max_num_batched_tokens=8192,
    step=StepCost(base_s=0.02, prefill_token_s=2e-5, decode_sequence_s=1e-4, kv_token_s=1e-8),
)
ONCE = ClientRule()


def retry_page() -> str:
    """What ``kvplan explain retry-after`` says, as one line."""
    return " ".join(load_page("retry-after").text.split())


def alike(arrival_s: np.ndarray, prompt: int, answer: int, charge: int = 0) -> Requests:
    count = len(arrival_s)
    asked = plain_requests(arrival_s, [prompt] * count, [answer] * count, [answer] * count, 4096, [])
    return replace(asked, charge=np.full(count, charge))


def service_s(setup: EngineSetup, prompt: int, answer: int) -> float:
    """Seconds between two completions of a busy engine: a whole load at once, over its number."""
    run = run_kernel(alike(np.zeros(512), prompt, answer), setup, FrontDoor(), [ONCE], compiled=False)
    return run.totals.end_s / 512


def test_an_engine_without_a_bound_answers_late_instead_of_refusing() -> None:
    """At twice the rate that is served nobody is refused and the wait grows without bound.

    Source: github.com/vllm-project/vllm/issues/18826
    """
    gap_s = service_s(SETUP, 200, 100) / 2
    run = run_kernel(alike(gap_s * np.arange(2000), 200, 100), SETUP, FrontDoor(), [ONCE], compiled=False)
    assert run.rows.refusals.sum() == 0
    assert (run.rows.outcome == Outcome.COMPLETED).all()
    waits_s = run.rows.scheduled_s - run.rows.admitted_s
    quarters = [float(part.mean()) for part in np.split(waits_s, 4)]
    assert quarters == sorted(quarters)
    assert quarters[3] > 2 * quarters[1]  # growing evenly, 7 / 3


def test_refusing_what_would_only_queue_costs_no_throughput() -> None:
    """4,096 requests at twice the rate: with a bound the rest is refused, the rate stays within 3 %, the mean latency
    of those let in falls by half at least. Source: github.com/kaito-project/kaito/pull/2205
    """
    arrival_s = service_s(SETUP, 200, 100) / 2 * np.arange(4096)
    asked = alike(arrival_s, 200, 100)
    runs = [run_kernel(asked, SETUP, FrontDoor(max_inside=most), [ONCE], compiled=False) for most in (2**62, 2 * 64)]
    done = [run.rows.outcome == Outcome.COMPLETED for run in runs]
    rates = [each.sum() / run.totals.end_s for each, run in zip(done, runs, strict=True)]
    latencies_s = [float((run.rows.finish_s - arrival_s)[each].mean()) for each, run in zip(done, runs, strict=True)]
    assert done[1].sum() + (runs[1].rows.outcome == Outcome.GAVE_UP).sum() == 4096
    assert done[0].all()
    assert abs(rates[1] / rates[0] - 1) <= 0.03
    assert latencies_s[1] <= latencies_s[0] / 2


def attempts(rule: ClientRule) -> int:
    """How often a client asks a server that always answers 429."""
    door = FrontDoor(max_inside=0, retry_after=RetryAfter(seconds=1.0))
    run = run_kernel(alike(np.zeros(1), 10, 10), SETUP, door, [rule], compiled=False)
    return int(run.rows.attempts[0])


def test_a_retry_loop_inside_a_retry_loop() -> None:
    """Two retries of the SDK in three attempts of a wrapper: nine calls for one.

    Source: github.com/volcengine/OpenViking/issues/1856
    """
    inner, wrapper = load_client("openai-python"), load_client("langchain-retry")
    assert attempts(client_rule(inner)) == inner.tries == wrapper.tries == 3
    rules, timeouts_s = client_table(("langchain-retry > openai-python", "openai-python"))
    assert [attempts(rule) for rule in rules] == [9, 3]
    assert timeouts_s == (inner.timeout_s, inner.timeout_s)
    assert "9 attempts at one request" in retry_page()


def test_a_loop_that_ends_early_is_begun_again() -> None:
    """Told to wait longer than it honours, the SDK raises at once: the loop around it tries as often as it may, and
    the one around that as often again."""
    impatient = ClientRule(tries=3, honours_retry_after=True, longest_honoured_s=0.5, gives_up_when_longer=True)
    assert attempts(impatient) == 1
    assert attempts(replace(impatient, outer=ClientRule(tries=4))) == 4
    assert attempts(replace(impatient, outer=ClientRule(tries=4, outer=ClientRule(tries=2)))) == 8
    assert attempts(replace(impatient, gives_up_when_longer=False, outer=ClientRule(tries=4))) == 12


def test_a_traffic_file_names_loops_from_the_outside_in(tmp_path: Path) -> None:
    """One request is let in at a time, so most are refused to the end: nine attempts, and no more."""
    text = """\
deployment:
  kv_pool: {blocks: 101, block_tokens: 16}
  service: {base_s: 0.01, prefill_token_s: 0, decode_sequence_s: 0, kv_token_s: 0}
  max_model_len: 1024
admission: {concurrency: 1}
traffic:
  duration: 60s
  classes:
    - {name: hog, rate: 20/s, prompt_tokens: 10, output_tokens: 900, client: [langchain-retry, openai-python]}
"""
    (tmp_path / "t.yaml").write_text(text, encoding="utf-8")
    traffic = load_traffic(tmp_path / "t.yaml")
    assert traffic.classes[0].client == "langchain-retry > openai-python"
    played = simulate(traffic, strategies=("concurrency",), seeds=1, keep_rows=True)
    rows = played.rows[0].rows
    assert set(rows.attempts[rows.outcome == Outcome.GAVE_UP]) == {9}
    assert 8 < played.strategy("concurrency").amplification <= 9


def test_loops_that_cannot_be_stacked() -> None:
    with pytest.raises(InputError, match="naive never gives up, so langchain-retry around it never acts"):
        client_table(("langchain-retry > naive",))
    with pytest.raises(InputError, match="'' is not a known client"):
        client_table(("langchain-retry > ",))


def test_retries_that_end_before_a_model_is_loaded() -> None:
    """0.5 + 1 + 2 s are over after 3.5 s; loading takes 60. Only a Retry-After that is honoured covers that.

    Source: github.com/earendil-works/pi/pull/1886
    """
    memory = Arrays(compiled=False)
    plain, openai = (
        table_of([rule], memory)[0]
        for rule in (
            ClientRule(tries=4, backoff_base_s=0.5, backoff_max_s=8.0),
            client_rule(load_client("openai-python")),
        )
    )
    window_s = sum(back_off_s(tries, plain, 0.0, 0.0) for tries in (1, 2, 3))
    assert abs(window_s - 3.5) <= 0.1
    assert window_s < 60
    assert back_off_s(4, plain, 0.0, 0.0) < 0
    assert back_off_s(1, openai, 60.0, 0.0) == 60.0
    assert "a Retry-After that covers the wait" in retry_page()


def test_an_undersized_pool_comes_to_an_end() -> None:
    """900 blocks in four instances, 2,000 requests a second of 48 blocks each: 18 at once in each, nothing preempted,
    everyone accounted for; also without a door. Source: github.com/inference-sim/inference-sim/issues/297
    """
    setup = replace(SETUP, blocks=900, max_num_seqs=256)
    charge = LAYOUT.request_blocks(512 + 256)
    assert (charge, 899 // charge) == (48, 18)
    asked = alike(np.arange(200) / 2000, 512, 256, charge)
    door = FrontDoor(capacity=899, replicas=4, router=Router.MIN_RESERVED, retry_after=RetryAfter(seconds=1.0))
    run = run_kernel(asked, setup, door, [replace(ONCE, tries=3, honours_retry_after=True)], compiled=False)
    assert run.rows.preemptions.sum() == 0
    assert run.totals.reserved_peak == 4 * 18 * 48
    ended = [(run.rows.outcome == outcome).sum() for outcome in (Outcome.COMPLETED, Outcome.GAVE_UP)]
    assert sum(ended) == 200
    assert min(ended) > 0
    open_run = run_kernel(asked, setup, replace(door, capacity=2**62), [ONCE], compiled=False)
    assert (open_run.rows.outcome == Outcome.COMPLETED).all()
    assert open_run.rows.preemptions.sum() > 0


def test_preempted_requests_keep_no_free_prefixes() -> None:
    """A pool of 68 requests serves 1,024 clients no faster than 256. Source:
    github.com/inference-sim/inference-sim/issues/1121
    """
    prompt, answer = 1000, 200
    setup = replace(
        SETUP, blocks=68 * LAYOUT.request_blocks(prompt + answer) + 1, max_num_seqs=1024, prefix_caching=True
    )
    rates = []
    for clients in (256, 1024):
        run = run_kernel(alike(np.zeros(clients), prompt, answer), setup, FrontDoor(), [ONCE], compiled=False)
        assert run.rows.preemptions.sum() > 0
        rates.append(clients * answer / run.totals.end_s)
    assert rates[1] <= 1.2 * rates[0]


def test_a_request_longer_than_the_pool_is_never_told_to_come_back() -> None:
    """229 blocks, a window of 4,096: 4,000 + 16 tokens never fit. Source: github.com/vllm-project/vllm/pull/2163"""
    charge = LAYOUT.request_blocks(4000 + 16)
    assert permanent_refusal(4000, 4096, charge, 229) == RESERVATION_EXCEEDS_POOL
    assert longest_window(LAYOUT, 229, 4096) < 4016  # so the plan does not fit in the first place
    patient = ClientRule(tries=100, honours_retry_after=True)
    run = run_kernel(
        alike(np.zeros(1), 4000, 16, charge),
        replace(SETUP, blocks=229),
        FrontDoor(capacity=228),
        [patient],
        compiled=False,
    )
    assert (run.rows.outcome[0], run.rows.attempts[0]) == (Outcome.REJECTED_PERMANENTLY, 1)
    assert run.totals.end_s < inf


@pytest.mark.parametrize("wrong", ["gpu_cache_usage_perc"])
def test_scaling_looks_at_the_gauge_s_new_name(wrong: str) -> None:
    """Source: github.com/kubernetes-sigs/gateway-api-inference-extension/pull/1905"""
    assert engine_metrics("vllm").kv_usage == "vllm:kv_cache_usage_perc"
    assert all(wrong not in (engine_metrics(name).kv_usage or "") for name in ENGINES)
