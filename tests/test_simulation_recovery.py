"""A burst and how long it is felt: cases that can be counted by hand."""

from dataclasses import replace
from math import nan

import numpy as np
import pytest

from kvplan.simulation.recovery import recovery
from kvplan.simulation.simulate import simulate
from kvplan.simulation.types import RequestRows, Requests
from kvplan.traffic.load import parse_traffic
from tests.tables.scheduler import plain_requests


def played(waits: list[tuple[float, float]], **columns: list[float]) -> tuple[Requests, RequestRows]:
    """Requests that arrive and are scheduled at these times (nan: never)."""
    arrival_s, scheduled_s = np.array(sorted(waits)).T
    count = len(arrival_s)
    requests = plain_requests(arrival_s, [1] * count, [1] * count, [1] * count, 100, [])
    none, never = np.zeros(count, np.int32), np.full(count, nan)
    rows = RequestRows(
        attempts=none + 1,
        refusals=none,
        outcome=none.astype(np.int8),
        admitted_s=arrival_s,
        scheduled_s=scheduled_s,
        first_token_s=scheduled_s,
        finish_s=never,
        gave_up_s=never,
        output_tokens=none,
        preemptions=none,
        recomputed_tokens=none,
        replica=none,
    )
    return requests, replace(rows, **{name: np.array(values) for name, values in columns.items()})


EVEN = [(10.0 * k, 10.0 * k) for k in range(200)]
"""One every ten seconds, served at once: nobody waits."""


def test_even_arrivals_have_no_burst() -> None:
    assert recovery(*played(EVEN), 0.0, 2000.0) is None


def test_ordinary_chance_is_no_burst() -> None:
    arrival_s = np.cumsum(np.random.default_rng(3).exponential(1.0, 1800))
    assert recovery(*played([(t, t) for t in arrival_s.tolist()]), 0.0, 1800.0) is None


def test_the_last_of_a_burst_is_served_twenty_seconds_after_it() -> None:
    """Sixty in the minute from 600 s, served one a second from 620 s on, so the last at 680 s."""
    burst = [(600.0 + k, 621.0 + k) for k in range(60)]
    found = recovery(*played(EVEN + burst), 0.0, 2000.0)
    assert found is not None
    assert (found.start_s, found.end_s, found.waiting_before) == (600.0, 660.0, 0.0)
    assert (found.peak_per_s, found.usual_per_s) == (66 / 60, 6 / 60)
    assert found.recovery_s == 20.0


def test_a_burst_that_is_served_as_it_comes_is_over_with_its_end() -> None:
    found = recovery(*played([*EVEN, *((600.0 + k, 600.0 + k) for k in range(60))]), 0.0, 2000.0)
    assert found is not None
    assert found.recovery_s == 0.0


def test_those_who_never_get_in_are_not_recovered_from() -> None:
    burst = [(600.0 + k, nan) for k in range(60)]
    requests, rows = played(EVEN + burst)
    found = recovery(requests, rows, 0.0, 2000.0)
    assert found is not None
    assert found.recovery_s is None
    gave_up_s = np.where(np.isnan(rows.scheduled_s), requests.arrival_s + 100.0, nan)
    gone = recovery(requests, replace(rows, gave_up_s=gave_up_s), 0.0, 2000.0)
    assert gone is not None
    assert gone.recovery_s == 99.0  # the last came at 659 s and went at 759 s


def test_the_level_before_need_not_be_zero() -> None:
    """Two wait at any time before; three from the burst on, until one more is served at 900 s."""
    waiting = [(0.0, nan), (1.0, nan)]
    burst = [(600.0 + k, 600.5 + k) for k in range(59)] + [(659.5, 900.0)]
    found = recovery(*played(EVEN + waiting + burst), 0.0, 2000.0)
    assert found is not None
    assert (found.waiting_before, found.recovery_s) == (2.0, 240.0)


STORM = """\
deployment:
  max_model_len: 1024
  max_num_seqs: 64
  max_num_batched_tokens: 256
  kv_pool: {{blocks: {blocks}, block_tokens: 16}}
  service: {{base_s: 0.02, prefill_token_s: 0.0, decode_sequence_s: 0.0, kv_token_s: 0.0}}
traffic:
  duration: 20m
  seed: 3
  classes:
    - name: burst
      rate: 1/s
      arrivals: {{on_off: {{on: 60s, off: 300s, off_share: 0.1}}}}
      prompt_tokens: 100
      output_tokens: 400
      max_tokens: 400
      client: {client}
"""


def test_a_larger_pool_recovers_no_later() -> None:
    """Equal requests and clients that never come back: there, more places can only shorten the queue."""
    times = []
    for blocks in (129, 257, 513, 2049):
        traffic = parse_traffic(STORM.format(blocks=blocks, client="httpx"), file="t.yaml")
        (result,) = simulate(traffic, strategies=["none"], seeds=1, workers=1).strategies
        assert result.burst is not None
        assert (result.burst.seeds, result.intervals.get("recovery_s") is None) == (1, result.burst.recovery_s is None)
        times.append(result.burst.recovery_s if result.burst.recovery_s is not None else np.inf)
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
    assert times[-1] == pytest.approx(0.0, abs=1.0)


def test_a_larger_ledger_serves_more_of_a_storm() -> None:
    """Whatever is left of a ledger beside whole reservations (of 96 blocks: 44 of 1,100, 80 of 1,520), refused clients
    are called back one by one, so every place more is used."""
    text = STORM.format(blocks=2001, client="openai-python").replace("20m", "6m").replace("1/s", "4/s")
    text = (
        text.replace("_len: 1024", "_len: 8192").replace("tokens: 256", "tokens: 8192").replace(", off_share: 0.1", "")
    )
    text = (
        text.replace("tokens: 100", "tokens: 512")
        .replace("ns: 400", "ns: 150", 1)
        .replace("tokens: 400", "tokens: 1024")
    )
    text = text.replace("on: 60s, off: 300s", "on: 20s, off: 60s")
    done = []
    for fraction in (0.55, 0.76):
        traffic = parse_traffic(f"{text}admission: {{safety_fraction: {fraction}}}\n", file="t.yaml")
        (result,) = simulate(traffic, strategies=["worst_case"], seeds=2, workers=1).strategies
        done.append(result.requests.completed / result.requests.offered)
    assert done[0] + 0.02 < done[1]


def test_retries_are_a_load_of_their_own() -> None:
    """Two retries a request at most make at most three attempts; who never gives up makes many more."""
    amplification = {}
    for client in ("httpx", "openai-python", "naive"):
        text = STORM.format(blocks=129, client=client).replace("20m", "90s").replace("60s, off: 300s", "10s, off: 20s")
        (result,) = simulate(
            parse_traffic(text, file="t.yaml"), strategies=["worst_case"], seeds=1, workers=1
        ).strategies
        amplification[client] = result.amplification
    assert amplification["httpx"] == 1.0
    assert 1.0 < amplification["openai-python"] <= 3.0
    assert amplification["naive"] > 10.0
