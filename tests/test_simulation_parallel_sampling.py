"""Requests for several answers (``n``): vLLM's own scheduler, one reservation for all, figures per request."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvplan.admission import STRATEGIES
from kvplan.engines.engine_plan import CacheGroup, CacheLayout
from kvplan.errors import InputError
from kvplan.simulation.backend import build_backend
from kvplan.simulation.bounds import sustainable_per_s
from kvplan.simulation.front_door import apply_strategy, requests_for
from kvplan.simulation.kernel.run import run_kernel
from kvplan.simulation.parallel_sampling import fan_out, merge_sequences
from kvplan.simulation.simulate import simulate
from kvplan.simulation.types import ClientRule, EngineSetup, FrontDoor, Outcome, Watch
from kvplan.traffic.distributions import Choices, Constant
from kvplan.traffic.load import parse_traffic
from kvplan.traffic.sample import sample
from kvplan.traffic.spec import StepCost
from tests.tables.scheduler import open_door, plain_requests

GOLDEN = json.loads((Path(__file__).parent / "golden" / "answers_vllm_0_33.json").read_text(encoding="utf-8"))
LAYOUT = CacheLayout(
    block_tokens=16,
    bytes_per_block=1,
    groups=(CacheGroup(kind="full", layers=1, rule="full", block_tokens=16, page_bytes=1),),
    in_flight_tokens=2048,
)


def setup(*, is_async: bool = False, blocks: int = GOLDEN["blocks"], caching: bool = True) -> EngineSetup:
    return EngineSetup(
        blocks=blocks,
        layout=LAYOUT,
        max_model_len=GOLDEN["max_model_len"],
        max_num_seqs=GOLDEN["max_num_seqs"],
        max_num_batched_tokens=GOLDEN["max_num_batched_tokens"],
        step=StepCost(base_s=0.02, prefill_token_s=1e-4, decode_sequence_s=1e-3, kv_token_s=1e-6),
        async_scheduling=is_async,
        prefix_caching=caching,
    )


@pytest.mark.parametrize("answer", GOLDEN["answers"], ids=["one batch", "two in flight"])
def test_vllm_scheduler(answer: dict[str, object]) -> None:
    """Preemptions of every sequence, and its times to a microsecond (source: the golden file)."""
    arrival_s, prompt, lengths = zip(*GOLDEN["requests"], strict=True)
    count = len(arrival_s)
    asked = plain_requests(arrival_s, prompt, [1] * count, [GOLDEN["max_tokens"]] * count, GOLDEN["max_model_len"], [])
    played = fan_out(asked, np.array([len(each) for each in lengths]), np.concatenate(lengths))
    run = open_door(played, setup(is_async=bool(answer["async_scheduling"])))
    preemptions, first_token_s, finish_s = np.array(answer["sequences"]).T
    assert run.kernel == "identities"
    assert preemptions.sum() > 10
    np.testing.assert_array_equal(run.rows.preemptions, preemptions)
    np.testing.assert_allclose(run.rows.first_token_s, first_token_s, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run.rows.finish_s, finish_s, rtol=0, atol=1e-6)


def test_one_reservation_until_the_last_answer() -> None:
    """Three answers of 10, 20 and 90 tokens hold 12 blocks until the last ends; the next request waits for that."""
    asked = plain_requests([0.0, 0.1], [40, 40], [1, 1], [90, 90], 4096, [])
    asked.charge[:] = (12, 3)
    played = fan_out(asked, np.array([3, 1]), np.array([10, 20, 90, 5]))
    assert played.parent is not None
    run = run_kernel(
        played,
        setup(),
        FrontDoor(capacity=12),
        [ClientRule(tries=1000, backoff_base_s=0.01, backoff_max_s=0.01)],
        watch=Watch(),
        compiled=False,
    )
    rows = merge_sequences(run.rows, played.parent)
    assert run.totals.reserved_peak == 12
    assert rows.outcome.tolist() == [Outcome.COMPLETED] * 2
    assert rows.output_tokens.tolist() == [120, 5]
    assert rows.first_token_s[0] == run.rows.first_token_s[:3].min()
    assert rows.finish_s[0] == run.rows.finish_s[2] > run.rows.finish_s[1]
    assert rows.finish_s[0] <= rows.admitted_s[1] <= rows.finish_s[0] + 0.05  # the next try after it


def test_siblings_read_the_prompt_once() -> None:
    """1,600 prompt tokens: the first of four reads all, each other only the last block's: a hit never covers it all."""
    read = {}
    for caching in (True, False):
        asked = plain_requests([0.0], [1600], [1], [8], 4096, [])
        played = fan_out(asked, np.array([4]), np.array([8, 8, 8, 8]))
        run = open_door(played, setup(blocks=1000, caching=caching))
        read[caching] = run.totals.prefill_tokens
    assert read == {True: 1600 + 3 * 16, False: 4 * 1600}


def test_siblings_share_what_their_prompt_shares_with_others() -> None:
    """Two requests of 1,600 tokens that begin with the same 1,024, the second for three answers: it reads 576 of its
    own, its two siblings one block each; a third request, marked by nothing, reads its prompt once for two answers."""
    asked = plain_requests([0.0, 5.0, 10.0], [1600] * 3, [1] * 3, [8] * 3, 4096, [])
    asked = replace(asked, chain=np.array([7, 7, 1, 7, 7, 2]), chain_start=np.array([0, 3, 6, 6]), chain_tokens=512)
    played = fan_out(asked, np.array([1, 3, 2]), np.full(6, 8))
    run = open_door(played, setup(blocks=1000))
    assert run.kernel == "identities"
    assert run.totals.prefill_tokens == 1600 + (1600 - 1024) + 2 * 16 + 1600 + 16


def test_the_sustainable_rate_counts_a_prompt_once_a_request() -> None:
    """Prompts of 2,000 tokens that take 2 s to read, four answers of one token: 1 / 2 s a request where prefixes are
    cached (each sibling reads its last block of 16: 3 × 16 ms), 1 / 8 s where they are not."""
    text = MIX[: MIX.index("    - name: plain")].format(n="4")
    for old, new in (
        ("{lognormal: {p50: 60, p95: 200, max: 400}}", "2000"),
        ("{lognormal: {p50: 30, p95: 120}}", "1"),
        ("max_model_len: 1024", "max_model_len: 4096"),
        ("blocks: 201", "blocks: 2001"),
        ("base_s: 0.01, prefill_token_s: 0.0001", "base_s: 0, prefill_token_s: 0.001"),
        ("decode_sequence_s: 0.0005, kv_token_s: 0.00001", "decode_sequence_s: 0, kv_token_s: 0"),
    ):
        assert old in text
        text = text.replace(old, new)
    found = {}
    for caching in ("true", "false"):
        traffic = parse_traffic(text.replace("deployment:", f"deployment:\n  prefix_caching: {caching}"), file="t.yaml")
        backend = build_backend(traffic)
        applied = apply_strategy(STRATEGIES["none"], backend, traffic.admission, traffic.deployment, 64)
        arrivals = sample(traffic, 5)
        assert arrivals.answers is not None
        assert arrivals.answer_tokens is not None
        asked = requests_for(
            arrivals, applied, backend, seed=5, client_timeouts_s=[float("inf")], expected_output_tokens=(1,)
        )
        found[caching] = sustainable_per_s(fan_out(asked, arrivals.answers, arrivals.answer_tokens), applied, backend)
    assert found["true"][0] == pytest.approx(1 / (2.0 + 3 * 0.016))
    assert found["false"][0] == pytest.approx(1 / 8.0)


MIX = """\
deployment:
  max_model_len: 1024
  max_num_seqs: 8
  max_num_batched_tokens: 256
  kv_pool: {{blocks: 201, block_tokens: 16}}
  service: {{base_s: 0.01, prefill_token_s: 0.0001, decode_sequence_s: 0.0005, kv_token_s: 0.00001}}
traffic:
  duration: 120s
  seed: 5
  classes:
    - name: chat
      rate: 1/s
      prompt_tokens: {{lognormal: {{p50: 60, p95: 200, max: 400}}}}
      output_tokens: {{lognormal: {{p50: 30, p95: 120}}}}
      max_tokens: 64
      n: {n}
    - name: plain
      rate: 1/s
      prompt_tokens: 50
      output_tokens: 20
      max_tokens: 30
"""


def test_the_file_s_key() -> None:
    chat, plain = parse_traffic(MIX.format(n="4"), file="t.yaml").classes
    assert (chat.answers, plain.answers) == (Constant(value=4), Constant(value=1))
    some = parse_traffic(
        MIX.format(n="{choices: [{value: 1, share: 0.9}, {value: 8, share: 0.1}]}"), file="t.yaml"
    ).classes[0]
    assert isinstance(some.answers, Choices)


@pytest.mark.parametrize(
    "n", ["0", "129", "2.5", "{choices: [{value: 2, share: 0.5}]}", "{lognormal: {p50: 2, p95: 4}}"]
)
def test_mistakes(n: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_traffic(MIX.format(n=n), file="t.yaml")
    assert "n" in str(caught.value.key)


def test_a_trace_brings_its_own_answers(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,10\n")
    text = "traffic: {classes: [{name: r, trace: t.csv, n: 2}]}\n"
    with pytest.raises(InputError, match="a replayed trace brings its own n"):
        parse_traffic(text, file=str(tmp_path / "mix.yaml"))


def test_n_changes_nothing_else() -> None:
    """The same requests with the same first answers, whatever n."""
    one, four = (sample(parse_traffic(MIX.format(n=n), file="t.yaml"), 5) for n in (1, 4))
    assert one.answers is None
    assert four.answers is not None
    assert four.answer_tokens is not None
    for name in ("arrival_s", "prompt_tokens", "max_tokens", "class_index"):
        np.testing.assert_array_equal(getattr(one, name), getattr(four, name))
    first = np.cumsum(four.answers) - four.answers
    np.testing.assert_array_equal(four.answer_tokens[first], one.output_tokens)
    np.testing.assert_array_equal(four.answers, np.where(four.class_index == 0, 4, 1))
    np.testing.assert_array_equal(np.maximum.reduceat(four.answer_tokens, first), four.output_tokens)


def test_charges_multiply() -> None:
    """N × the worst case, also where requests are counted: as the gateway charges."""
    for strategy in STRATEGIES.values():
        charges = []
        for n in (1, 4):
            traffic = parse_traffic(MIX.format(n=n), file="t.yaml")
            backend = build_backend(traffic)
            applied = apply_strategy(strategy, backend, traffic.admission, traffic.deployment, 64)
            arrivals = sample(traffic, 5)
            asked = requests_for(
                arrivals, applied, backend, seed=5, client_timeouts_s=[float("inf")], expected_output_tokens=(60, 20)
            )
            charges.append(asked.charge)
        chat = sample(traffic, 5).class_index == 0
        np.testing.assert_array_equal(charges[1], charges[0] * np.where(chat, 4, 1), err_msg=strategy.name)


def test_a_whole_run() -> None:
    """Worst case never preempts; figures are per request; reservations are priced at the most answers."""
    traffic = parse_traffic(MIX.format(n="{choices: [{value: 1, share: 0.5}, {value: 4, share: 0.5}]}"), file="t.yaml")
    result = simulate(traffic, strategies=["worst_case", "none"], seeds=2, workers=1)
    row = result.reservations[0]
    assert (row.name, row.blocks) == ("chat, n 4, cap 64", 4 * -(-(200 + 64) // 16))
    for strategy in result.strategies:
        counts = strategy.requests
        ended = counts.rejected_permanently + counts.gave_up + counts.timed_out + counts.cancelled + counts.unfinished
        assert counts.offered == counts.completed + ended
    assert result.strategy("worst_case").preemptions == 0
    assert any("up to 4 answers" in line for line in result.inputs.assumptions)
    alone = simulate(parse_traffic(MIX.format(n=1), file="t.yaml"), strategies=["none"], seeds=2, workers=1)
    more, less = result.strategy("none"), alone.strategy("none")
    assert more.requests.offered == less.requests.offered
    assert more.output_tokens_per_s > less.output_tokens_per_s
    assert more.sustainable_per_s < less.sustainable_per_s


@pytest.mark.timeout(900)
def test_compiled_gives_the_same_bits() -> None:
    """With groups, a small ledger, retries and time-outs."""
    pytest.importorskip("numba")
    arrival_s, prompt, lengths = zip(*GOLDEN["requests"], strict=True)
    count = len(arrival_s)
    asked = plain_requests(arrival_s, prompt, [1] * count, [GOLDEN["max_tokens"]] * count, GOLDEN["max_model_len"], [])
    asked.charge[:] = [100 * len(each) for each in lengths]
    asked.time_out_s[::3] = 4.0
    played = fan_out(asked, np.array([len(each) for each in lengths]), np.concatenate(lengths))
    client = ClientRule(tries=4, backoff_base_s=0.5, backoff_max_s=8.0)
    plain, compiled = (
        run_kernel(played, setup(), FrontDoor(capacity=500), [client], compiled=compiled) for compiled in (False, True)
    )
    assert compiled.compiled
    assert (plain.rows.refusals > 0).any()
    for name, values in vars(plain.rows).items():
        np.testing.assert_array_equal(values, getattr(compiled.rows, name), err_msg=name)
