"""What holds for every traffic and every pool: conservation, the ledger's bound, no eviction, queueing theory."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.admission import STRATEGIES
from kvplan.simulation.aggregate import mean_interval
from kvplan.simulation.backend import Backend, build_backend, engine_setup
from kvplan.simulation.front_door import apply_strategy, requests_for
from kvplan.simulation.kernel.run import run_kernel
from kvplan.simulation.types import ClientRule, Flags, FrontDoor, Outcome, Requests, RetryAfter, Run
from kvplan.traffic.distributions import Constant
from kvplan.traffic.load import parse_traffic
from kvplan.traffic.sample import sample
from kvplan.traffic.spec import Traffic

POOL = """\
deployment:
  max_model_len: 512
  max_num_seqs: {seqs}
  max_num_batched_tokens: 128
  async_scheduling: {is_async}
  prefix_caching: false
  replicas: {replicas}
  router: least_reserved
  kv_pool: {{blocks: {blocks}, block_tokens: 16}}
  service: {{base_s: 0.01, prefill_token_s: 0.0004, decode_sequence_s: 0.0005, kv_token_s: 0.00001}}
traffic:
  duration: 20s
  seed: {seed}
  classes:
    - name: a
      rate: {rate}/s
      arrivals: {arrivals}
      prompt_tokens: {{lognormal: {{p50: 60, p95: 200}}}}
      output_tokens: {{lognormal: {{p50: 30, p95: 120}}}}
      max_tokens: {{choices: [{{unset: true, share: 0.5}}, {{value: 64, share: 0.5}}]}}
      client: {client}
      cancel_share: {cancel}
      timeout: {timeout}
"""

USUAL: dict[str, object] = {
    "seqs": 32,
    "is_async": "true",
    "replicas": 1,
    "blocks": 100,
    "seed": 3,
    "rate": 8,
    "arrivals": "poisson",
    "client": "httpx",
    "cancel": 0.0,
    "timeout": "60s",
}

mixes = st.fixed_dictionaries(
    {
        "seqs": st.integers(1, 12),
        "is_async": st.sampled_from(["true", "false"]),
        "replicas": st.integers(1, 3),
        "blocks": st.integers(34, 160),
        "seed": st.integers(0, 10_000),
        "rate": st.sampled_from([1, 4, 12]),
        "arrivals": st.sampled_from(["poisson", "{gamma: {cv: 3}}", "{on_off: {on: 2s, off: 3s}}"]),
        "client": st.sampled_from(["openai-python", "httpx", "huggingface-hub", "vercel-ai"]),
        "cancel": st.sampled_from([0.0, 0.3]),
        "timeout": st.sampled_from(["2s", "60s"]),
    }
).map(lambda values: parse_traffic(POOL.format(**values), file="mix.yaml"))

several = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def play(traffic: Traffic, name: str, *, backend: Backend | None = None) -> tuple[Run, Requests, FrontDoor]:
    from kvplan.simulation.front_door import client_table

    backend = backend or build_backend(traffic)
    arrivals = sample(traffic, traffic.seed)
    rules, timeouts_s = client_table(arrivals.clients)
    applied = apply_strategy(STRATEGIES[name], backend, traffic.admission, traffic.deployment, 64)
    asked = requests_for(
        arrivals, applied, backend, seed=traffic.seed, client_timeouts_s=timeouts_s, expected_output_tokens=(120,)
    )
    return (
        run_kernel(asked, engine_setup(backend), applied.front_door, rules, compiled=False),
        asked,
        applied.front_door,
    )


@several
@given(mixes, st.sampled_from(sorted(STRATEGIES)))
def test_every_request_ends_once(traffic: Traffic, name: str) -> None:
    run, asked, _ = play(traffic, name)
    rows = run.rows
    assert len(rows.outcome) == len(asked.arrival_s)
    assert (rows.outcome != Outcome.UNFINISHED).all()
    completed = rows.outcome == Outcome.COMPLETED
    assert not np.isnan(rows.finish_s[completed]).any()
    assert (rows.output_tokens[completed] == np.minimum(asked.output_tokens, asked.cap_tokens)[completed]).all()
    assert (rows.admitted_s[completed] >= asked.arrival_s[completed]).all()
    assert (rows.scheduled_s[completed] >= rows.admitted_s[completed]).all()
    assert (rows.first_token_s[completed] > rows.scheduled_s[completed]).all()
    assert (rows.finish_s[completed] >= rows.first_token_s[completed]).all()
    assert (rows.attempts >= np.maximum(rows.refusals, 1)).all()
    assert (rows.refusals[rows.outcome == Outcome.GAVE_UP] > 0).all()
    assert ((rows.outcome == Outcome.REJECTED_PERMANENTLY) == asked.refused_for_good).all()


@several
@given(
    mixes, st.sampled_from(["worst_case", "worst_case_default_cap", "prompt_only", "concurrency", "ratio", "quantile"])
)
def test_the_ledger_is_never_over(traffic: Traffic, name: str) -> None:
    run, asked, front = play(traffic, name)
    assert run.totals.reserved_peak <= front.capacity * front.replicas
    admitted = ~np.isnan(run.rows.admitted_s)
    for replica in range(front.replicas):
        here = admitted & (run.rows.replica == replica)
        left = np.where(np.isnan(run.rows.finish_s), inf, run.rows.finish_s)[here]
        events = [(when, 1, weight) for when, weight in zip(run.rows.admitted_s[here], asked.charge[here], strict=True)]
        events += [(when, 0, -weight) for when, weight in zip(left, asked.charge[here], strict=True)]
        held = 0
        for _, _, weight in sorted(events):
            held += int(weight)
            assert 0 <= held <= front.capacity
        assert held == 0


KINDS: dict[str, dict[str, Any]] = {
    "full": {"rule": "full"},
    "short window": {"rule": "sliding", "window_tokens": 40},
    "long window": {"rule": "sliding", "window_tokens": 256},
    "window with kept tokens": {"rule": "sliding", "window_tokens": 64, "retained_tokens": 8},
    "small blocks": {"rule": "sliding", "window_tokens": 64, "block_tokens": 4},
    "chunks": {"rule": "chunked", "window_tokens": 64},
    "state": {"rule": "fixed", "fixed_blocks": 1},
}


@several
@given(
    mixes,
    st.sampled_from(["worst_case", "worst_case_default_cap"]),
    st.lists(st.sampled_from(sorted(KINDS)), max_size=4),
    st.integers(0, 60),
)
def test_worst_case_admission_never_preempts(traffic: Traffic, name: str, kinds: list[str], more_blocks: int) -> None:
    """Whatever groups the layers form, in a pool that holds little more than one request of the whole window; every
    answer reaches its cap."""
    traffic = replace(
        traffic, classes=tuple(replace(one, output_tokens=Constant(value=512)) for one in traffic.classes)
    )
    backend = build_backend(traffic)
    if kinds:
        groups = tuple(replace(backend.layout.groups[0], **KINDS[kind]) for kind in kinds)
        layout = replace(backend.layout, groups=groups)
        backend = replace(
            backend, layout=layout, blocks=layout.request_blocks(512) + layout.reserved_blocks + more_blocks
        )
    run, _, _ = play(traffic, name, backend=backend)
    assert int(run.rows.preemptions.sum()) == 0
    assert (run.totals.over_capacity_events, int(run.rows.recomputed_tokens.sum())) == (0, 0)


@several
@given(mixes)
def test_the_integral_of_reservations_is_their_stays(traffic: Traffic) -> None:
    """Little's law, exactly: ∫ reserved dt = Σ charge × stay over a run that drained."""
    run, asked, _ = play(traffic, "worst_case")
    admitted = ~np.isnan(run.rows.admitted_s)
    stays = (run.rows.finish_s - run.rows.admitted_s)[admitted] * asked.charge[admitted]
    assert run.totals.reserved_unit_s == pytest.approx(float(stays.sum()), rel=1e-9, abs=1e-9)


@several
@given(mixes)
def test_ample_memory_means_no_refusal_and_no_preemption(traffic: Traffic) -> None:
    backend = replace(build_backend(traffic), blocks=10**7)
    run, _, _ = play(traffic, "worst_case", backend=backend)
    assert (int(run.rows.refusals.sum()), int(run.rows.preemptions.sum())) == (0, 0)


def erlang_b(servers: int, load: float) -> float:
    """B(0) = 1; B(n) = load × B(n − 1) / (n + load × B(n − 1))."""
    blocking = 1.0
    for count in range(1, servers + 1):
        blocking = load * blocking / (count + load * blocking)
    return blocking


def test_equal_requests_that_never_retry_are_refused_as_erlang_says() -> None:
    """M/G/c/c: the share refused depends on the load alone. The engine's step takes the same time whatever is in it."""
    text = """\
deployment:
  max_model_len: 512
  max_num_seqs: 64
  async_scheduling: false
  prefix_caching: false
  kv_pool: {blocks: 1000, block_tokens: 16}
  service: {base_s: 0.02, prefill_token_s: 0, decode_sequence_s: 0, kv_token_s: 0}
admission: {concurrency: 8}
traffic: {duration: 1000s, classes: [{name: a, rate: 7/s, prompt_tokens: 16, output_tokens: 50, max_tokens: 50}]}
"""
    traffic = parse_traffic(text, file="mix.yaml")
    refused, stays = [], []
    for seed in range(8):
        run, asked, _ = play(replace(traffic, seed=seed), "concurrency")
        kept = asked.arrival_s > 20
        refused.append(float((run.rows.outcome == Outcome.GAVE_UP)[kept].mean()))
        stays.append(float(np.nanmean((run.rows.finish_s - run.rows.admitted_s)[kept & (run.rows.outcome == 1)])))
    mean, (low, high) = mean_interval(refused)
    expected = erlang_b(8, 7.0 * float(np.mean(stays)))
    assert low - 0.004 < expected < high + 0.004, (mean, expected)
    assert 0.15 < expected < 0.35


EVEN_STEPS = """\
deployment:
  max_model_len: 512
  max_num_seqs: 64
  async_scheduling: false
  kv_pool: {blocks: 4000, block_tokens: 16}
  service: {base_s: 0.125, prefill_token_s: 0, decode_sequence_s: 0, kv_token_s: 0}
traffic: {duration: 1s, classes: [{name: a, rate: 1/s, prompt_tokens: 1, output_tokens: 1, max_tokens: 1}]}
"""


def who_enters(arrivals: Sequence[int], answers: Sequence[int], charges: Sequence[int], capacity: int) -> Flags:
    """Which requests are let in, that arrive at these steps, write these answers and never try twice."""
    asked = Requests.uncharged(
        np.array(arrivals) / 8, np.ones(len(answers)), answers, answers, charge=np.array(charges)
    )
    setup = engine_setup(build_backend(parse_traffic(EVEN_STEPS, file="even.yaml")))
    run = run_kernel(asked, setup, FrontDoor(capacity=capacity), [ClientRule()], compiled=False)
    entered: Flags = run.rows.outcome == Outcome.COMPLETED
    return entered


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 60)), min_size=1, max_size=40),
    seats=st.integers(0, 8),
    more=st.integers(1, 4),
)
@several
def test_whoever_enters_a_ledger_enters_a_larger_one(arrivals: list[tuple[int, int]], seats: int, more: int) -> None:
    """Equal charges, clients that never retry, and stays that are the same in any company (arrivals on the grid of
    steps that cost their base alone): those inside are then always among those inside with one seat more, where at most
    one is beside them; so whoever finds room in the smaller ledger finds it in the larger.

    None of the conditions can go. A large charge that only the larger ledger takes keeps small ones out; one more
    inside slows the others, or moves a retry, into the way of somebody else.
    """
    gaps, lengths = zip(*arrivals, strict=True)
    entered = [
        who_enters(np.cumsum(gaps).tolist(), lengths, [5] * len(lengths), 5 * room + 4)
        for room in (seats, seats + more)
    ]
    assert (entered[1] >= entered[0]).all()


def test_a_larger_ledger_may_refuse_more_unequal_requests() -> None:
    """Six units are too few for the charge of 7, so all six small ones enter; seven take it, and refuse those six."""
    for capacity, entered in ((6, 6), (7, 1)):
        assert who_enters(range(7), [40] * 7, [7, 1, 1, 1, 1, 1, 1], capacity).sum() == entered


def test_a_constant_retry_after_is_obeyed() -> None:
    """Two requests, room for one: the second comes back after exactly the seconds that it was told."""
    asked = Requests.uncharged([0.0, 0.1], [16, 16], [100, 100], [100, 100], charge=np.array([8, 8]))
    traffic = parse_traffic(POOL.format(**USUAL | {"seqs": 4, "is_async": "false"}), file="mix.yaml")
    front = FrontDoor(capacity=8, retry_after=RetryAfter(seconds=3.0))
    rule = ClientRule(tries=3, honours_retry_after=True)
    run = run_kernel(asked, engine_setup(build_backend(traffic)), front, [rule], compiled=False)
    assert run.rows.attempts.tolist() == [1, 2]
    assert run.rows.admitted_s.tolist() == [0.0, pytest.approx(3.1)]
