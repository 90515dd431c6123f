"""The kernel on small cases done by hand, against vLLM's own scheduler, and compiled against uncompiled."""

import ast
import json
from collections.abc import Callable
from dataclasses import fields, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvplan.admission import DrainEstimate, retry_after_s
from kvplan.engines.engine_plan import CacheGroup, CacheLayout
from kvplan.errors import InputError
from kvplan.simulation.kernel import advance, front_door
from kvplan.simulation.kernel import compiled as numba_kernel
from kvplan.simulation.kernel.run import run_kernel
from kvplan.simulation.types import ClientRule, EngineSetup, FrontDoor, Outcome, Requests, RetryAfter, Run, Watch
from kvplan.traffic.spec import StepCost
from tests.tables.scheduler import lines, open_door, plain_requests, text

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "scheduler_vllm_0_33.json").read_text())
SCENARIOS: list[dict[str, Any]] = GOLDEN["scenarios"]
STEP = StepCost(base_s=0.01, prefill_token_s=0.001, decode_sequence_s=0.002, kv_token_s=0.0001)


def one_group(block_tokens: int = 16, rule: str = "full", **more: Any) -> CacheLayout:
    group = CacheGroup(kind=rule, layers=1, rule=rule, block_tokens=block_tokens, page_bytes=1, **more)
    return CacheLayout(block_tokens=block_tokens, bytes_per_block=1, groups=(group,), in_flight_tokens=64)


def small_engine(**changes: Any) -> EngineSetup:
    setup = EngineSetup(
        blocks=11,
        layout=one_group(),
        max_model_len=160,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        step=STEP,
    )
    return replace(setup, **changes)


def asks(*rows: tuple[float, int, int, int], window: int = 160, **columns: Any) -> Requests:
    """(arrival, prompt, answer, cap) each."""
    arrival_s, prompt, answer, cap = zip(*rows, strict=True)
    requests = plain_requests(arrival_s, prompt, answer, cap, window, [])
    changes: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
    return replace(requests, **changes)


def let_in(requests: Requests, setup: EngineSetup, door: FrontDoor | None = None, **more: Any) -> Run:
    return run_kernel(requests, setup, door or FrontDoor(), [ClientRule()], compiled=False, **more)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: str(scenario["name"]))
def test_vllm_scheduler(scenario: dict[str, Any]) -> None:
    """Preemptions of every request, and its times to a microsecond (source: the golden file)."""
    groups = tuple(CacheGroup(kind=group["rule"], layers=1, page_bytes=1, **group) for group in scenario["groups"])
    names = [field.name for field in fields(EngineSetup) if field.name in scenario]
    setup = EngineSetup(
        layout=CacheLayout(
            block_tokens=16,
            bytes_per_block=1,
            groups=groups,
            in_flight_tokens=(2 if scenario["async_scheduling"] else 1) * scenario["max_num_batched_tokens"],
        ),
        step=StepCost(**dict(zip([field.name for field in fields(StepCost)], scenario["step_s"], strict=True))),
        **{name: scenario[name] for name in names},
    )
    rows = GOLDEN["traffic"][scenario["traffic"]]
    arrival_s, prompt, answer, cap = zip(*(row[:4] for row in rows), strict=True)
    chains = [row[4] if len(row) > 4 else [] for row in rows]
    run = open_door(plain_requests(arrival_s, prompt, answer, cap, setup.max_model_len, chains), setup)
    preemptions, scheduled_s, first_token_s, finish_s = zip(*scenario["answers"], strict=True)
    assert run.rows.preemptions.tolist() == list(preemptions)
    np.testing.assert_allclose(run.rows.scheduled_s, scheduled_s, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run.rows.first_token_s, first_token_s, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run.rows.finish_s, finish_s, rtol=0, atol=1e-6)
    assert (run.totals.steps, run.totals.used_peak_blocks) == (scenario["steps"], scenario["peak_blocks"])


def test_the_golden_scenarios_preempt() -> None:
    """They would say little if nothing ran short."""
    assert sum(any(answer[0] for answer in scenario["answers"]) for scenario in SCENARIOS) >= 10
    assert {group["rule"] for scenario in SCENARIOS for group in scenario["groups"]} == {
        "full",
        "sliding",
        "chunked",
        "fixed",
    }


def test_recorded_scheduler_answers(shared_data: Path) -> None:
    table = lines(shared_data)
    assert len(table) >= 10
    assert [line.name for line in table if not line.equal] == []
    assert text(table, markdown=True).count("\n") == len(table) + 1


def test_one_request_by_hand() -> None:
    """Prompt 100 in chunks of 64 and 36, then two decodes: each step is base + prefill + decode + kv × context."""
    run = let_in(asks((2.0, 100, 3, 10)), small_engine())
    first_chunk_s = 0.01 + 64 * 0.001 + 64 * 0.0001
    second_chunk_s = 0.01 + 36 * 0.001 + 100 * 0.0001
    decodes_s = 2 * (0.01 + 0.002) + (101 + 102) * 0.0001
    assert run.rows.scheduled_s.tolist() == [2.0]
    assert run.rows.first_token_s[0] == pytest.approx(2.0 + first_chunk_s + second_chunk_s, rel=1e-12)
    assert run.rows.finish_s[0] == pytest.approx(2.0 + first_chunk_s + second_chunk_s + decodes_s, rel=1e-12)
    assert run.totals.steps == 4
    assert (run.totals.prefill_tokens, run.totals.decode_tokens) == (100, 2)
    assert run.totals.used_peak_blocks == 7
    assert run.totals.busy_s == pytest.approx(first_chunk_s + second_chunk_s + decodes_s)
    # 4 blocks during the first chunk, 7 from then on
    assert run.totals.used_block_s == pytest.approx(4 * first_chunk_s + 7 * (second_chunk_s + decodes_s))


def test_async_works_in_vain_behind_a_stop() -> None:
    """A stop is seen when its batch returns; the batch behind it costs a decode more. A cap is known beforehand."""
    stops = let_in(asks((0.0, 10, 3, 50)), small_engine(async_scheduling=True))
    ends_at_cap = let_in(asks((0.0, 10, 3, 3)), small_engine(async_scheduling=True))
    assert (stops.totals.steps, stops.totals.decode_tokens) == (4, 3)
    assert (ends_at_cap.totals.steps, ends_at_cap.totals.decode_tokens) == (3, 2)
    assert stops.rows.finish_s.tolist() == ends_at_cap.rows.finish_s.tolist()


def test_the_latest_admitted_is_preempted_and_computes_again() -> None:
    """10 usable blocks: 3 + 4 blocks are taken, and the answers outgrow the pool."""
    run = let_in(asks((0.0, 40, 60, 60), (0.0, 50, 60, 60)), small_engine())
    assert run.rows.preemptions.tolist() == [0, 1]
    assert run.rows.outcome.tolist() == [Outcome.COMPLETED, Outcome.COMPLETED]
    assert run.rows.recomputed_tokens[0] == 0
    assert run.rows.recomputed_tokens[1] > 50
    assert run.totals.over_capacity_events == 1
    assert run.totals.used_peak_blocks == 10


def test_worst_case_never_preempts() -> None:
    """The same two requests behind a ledger of the pool: the second is refused, for 7 + 7 > 10."""
    requests = asks((0.0, 40, 60, 60), (0.0, 50, 60, 60), charge=[7, 7])
    run = let_in(requests, small_engine(), FrontDoor(capacity=10))
    assert run.rows.outcome.tolist() == [Outcome.COMPLETED, Outcome.GAVE_UP]
    assert (run.totals.over_capacity_events, run.totals.reserved_peak) == (0, 7)


def test_the_cost_of_a_request_does_not_grow_with_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel looks at an engine as often for a thousand times the tokens."""

    def looks(answer: int) -> int:
        count = 0

        def counted(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                nonlocal count
                count += 1
                return original(*arguments)

            return call

        with monkeypatch.context() as patch:
            for name in ("jump", "form_batch"):
                patch.setattr(advance, name, counted(getattr(advance, name)))
            window = 200_000
            rows = [(0.0, 100, answer, answer), (0.1, 500, answer, answer), (0.2, 20, answer, answer)]
            setup = small_engine(
                blocks=100_000, max_model_len=window, layout=one_group(), async_scheduling=True, prefix_caching=True
            )
            run = let_in(asks(*rows, window=window), setup)
            assert run.totals.decode_tokens == 3 * (answer - 1)
        return count

    assert looks(100_000) == looks(100)


def test_windows_keep_the_cost_even(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full window gives a block back each time it takes one: the pool stays level over a long answer."""
    layout = one_group(rule="sliding", window_tokens=32)
    setup = small_engine(blocks=12, layout=layout, max_model_len=100_000)
    run = let_in(asks((0.0, 10, 50_000, 50_000), window=100_000), setup)
    assert run.rows.outcome.tolist() == [Outcome.COMPLETED]
    assert run.totals.used_peak_blocks <= 3 + 1


def test_time_outs_and_cancellation_free_the_engine() -> None:
    """The first client leaves after 0.05 s, before its answer; the second walks away after 0.03 s, in the queue."""
    requests = asks(
        (0.0, 60, 90, 90), (0.0, 60, 2, 2), (0.0, 60, 2, 2), time_out_s=[0.05, inf, inf], cancel_s=[inf, 0.03, inf]
    )
    run = let_in(requests, small_engine(max_num_seqs=1))
    assert run.rows.outcome.tolist() == [Outcome.TIMED_OUT, Outcome.CANCELLED, Outcome.COMPLETED]
    assert run.rows.finish_s[:2].tolist() == [0.05, 0.03]
    assert np.isnan(run.rows.scheduled_s[1])
    assert run.rows.scheduled_s[2] == pytest.approx(0.01 + 60 * 0.001 + 60 * 0.0001)
    assert run.rows.output_tokens.tolist() == [0, 0, 2]


def test_refused_for_good() -> None:
    requests = asks((0.0, 10, 2, 2), (0.0, 10, 2, 2), charge=[1, 11], refused_for_good=[True, False])
    run = let_in(requests, small_engine(), FrontDoor(capacity=10))
    assert run.rows.outcome.tolist() == [Outcome.REJECTED_PERMANENTLY] * 2
    assert (run.rows.attempts.tolist(), run.rows.refusals.tolist()) == ([1, 1], [0, 0])


def test_the_engine_s_own_caps() -> None:
    """At most two requests inside, or no more than 50 prompt tokens unread: further ones get 503."""
    rows = asks((0.0, 40, 5, 5), (0.0, 40, 5, 5), (0.0, 40, 5, 5))
    inside = let_in(rows, small_engine(), FrontDoor(max_inside=2))
    assert inside.rows.refusals.tolist() == [0, 0, 1]
    unread = let_in(rows, small_engine(), FrontDoor(max_queued_tokens=50))
    assert unread.rows.refusals.tolist() == [0, 0, 1]
    assert unread.rows.outcome.tolist() == [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.GAVE_UP]


def test_what_is_watched() -> None:
    """Reserved: 7 for the whole stay of one request; half of the run watched gives half of it. Samples on a grid."""
    requests = asks((0.0, 40, 60, 60), charge=[7])
    whole = let_in(requests, small_engine(), FrontDoor(capacity=10))
    stay_s = float(whole.rows.finish_s[0])
    assert whole.totals.reserved_unit_s == pytest.approx(7 * stay_s)
    watch = Watch(from_s=stay_s / 2, until_s=stay_s, sample_every_s=stay_s / 4, sample_until_s=2 * stay_s)
    half = let_in(requests, small_engine(), FrontDoor(capacity=10), watch=watch)
    assert half.totals.reserved_unit_s == pytest.approx(7 * stay_s / 2)
    assert half.samples.reserved.tolist() == [7, 7, 7, 0, 0, 0, 0, 0]
    assert half.samples.running.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert half.totals.end_s == stay_s
    np.testing.assert_allclose(half.samples.time_s, stay_s / 4 * np.arange(1, 9))
    assert half.samples.used_blocks[2] == -(-(40 + 45) // 16)


def test_stopping_leaves_the_rest_inside() -> None:
    run = let_in(asks((0.0, 40, 60, 60), (9.0, 5, 5, 5)), small_engine(), watch=Watch(stop_s=0.2))
    assert run.rows.outcome.tolist() == [Outcome.UNFINISHED, Outcome.UNFINISHED]
    assert np.isnan(run.rows.finish_s).all()
    assert not np.isnan(run.rows.first_token_s[0])
    assert run.rows.attempts.tolist() == [1, 0]
    assert run.totals.end_s == 0.2


def test_a_run_of_no_requests() -> None:
    nothing = plain_requests([], [], [], [], 160, [])
    run = let_in(nothing, small_engine())
    assert (run.totals.steps, run.totals.end_s, len(run.rows.outcome)) == (0, 0.0, 0)


def test_unknown_groups_are_refused() -> None:
    with pytest.raises(InputError, match="paired"):
        let_in(asks((0.0, 10, 2, 2)), small_engine(layout=one_group(rule="paired")))


OPENAI = [3.0, 1.0, 0.0, 120.0, 1.0, 0.5, 8.0, 0.25, 0.0, 0.0]
LITELLM = [3.0, 1.0, 0.0, 60.0, 0.0, 0.5, 8.0, 0.0, 0.75, 1.0]
HUB = [6.0, 1.0, 1.0, inf, 0.0, 1.0, 8.0, 0.0, 0.0, 0.0]
DEAF = [5.0, 0.0, 0.0, inf, 0.0, 2.0, 60.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("rule", "tries", "told_s", "expected_s"),
    [
        (OPENAI, 1, 2.5, 2.5),  # honoured as it is, no jitter
        (OPENAI, 1, 121.0, -1.0),  # too long: gives up
        (OPENAI, 3, 2.5, -1.0),  # the last try
        (LITELLM, 1, 2.0, 2.0 + 0.5 * 0.75),  # jitter also on the header
        (LITELLM, 2, 61.0, 1.0 + 0.5 * 0.75),  # too long: own back-off, 0.5 × 2¹
        (HUB, 1, 2.2, 3.0),  # reads whole seconds
        (DEAF, 3, 1.0, 8.0),  # 2 × 2²
        ([3.0, 0.0, 0.0, inf, 0.0, 0.5, 8.0, 0.25, 0.0, 0.0], 2, 1.0, 1.0 * (1 - 0.5 * 0.25)),
    ],
)
def test_back_off(rule: list[float], tries: int, told_s: float, expected_s: float) -> None:
    assert front_door.back_off_s(tries, rule, told_s, 0.5) == pytest.approx(expected_s)


def test_retry_after_is_the_ledger_s_estimate() -> None:
    """The kernel's arithmetic is that of ``admission``, to the bit."""
    wait = RetryAfter(jitter_share=0.25, longest_s=60.0)
    drain = DrainEstimate(unknown_s=2.0, longest_s=60.0)
    waits = [0.0, 0.25, 60.0, 2.0, 1.0, 0.05]
    since = [0.0, 0.0, -1.0, 0.0]
    doors = [1000, 9, 0]
    watch = (0.0, inf, inf, 0.0, 0.0)
    for now_s, charge in ((0.5, 30), (0.9, 200), (4.0, 1), (4.0, 60)):
        for lacking in (0, 5, 500, 10_000):
            wait_s = drain.wait_s(missing=lacking, weight=charge, reserved=doors[0], now_s=now_s)
            told_s = retry_after_s(wait_s, jitter_share=wait.jitter_share, draw=0.3, longest_s=60.0)
            assert front_door.retry_after_s(lacking, charge, doors[0], now_s, 0.3, since, waits) == told_s
        drain.released(charge, held_s=now_s / 3, reserved=doors[0])
        front_door.release(0, now_s, now_s / 3, doors, since, ([charge], [], []), watch)


def test_a_refused_client_waits_and_comes_again() -> None:
    """One place; the second client is told 1.5 s, comes again at 1.5 and enters."""
    requests = asks((0.0, 40, 20, 20), (0.0, 10, 2, 2), charge=[5, 5], client=[0, 0])
    rule = ClientRule(tries=2, honours_retry_after=True)
    door = FrontDoor(capacity=5, retry_after=RetryAfter(seconds=1.5))
    run = run_kernel(requests, small_engine(), door, [rule], compiled=False)
    assert run.rows.attempts.tolist() == [1, 2]
    assert run.rows.admitted_s.tolist() == [0.0, 1.5]
    assert run.rows.outcome.tolist() == [Outcome.COMPLETED, Outcome.COMPLETED]


def test_the_compiled_source_is_the_kernel_s() -> None:
    source = numba_kernel.joined_source()
    assert "kvplan.simulation" not in source
    names = ("advance", "form_batch", "clock", *numba_kernel._INLINED, *numba_kernel._WITH_REFERENCE_COUNTING)
    for name in names:
        assert f"\ndef {name}(" in source
    compile(source, "kernel", "exec")


def test_no_function_with_a_comprehension_writes_to_an_array() -> None:
    """Numba 0.68 takes such writes for dead code where the array comes out of a tuple (see ``event_loop``)."""
    functions = [
        each for each in ast.walk(ast.parse(numba_kernel.joined_source())) if isinstance(each, ast.FunctionDef)
    ]
    comprehend = {each.name for each in functions if any(isinstance(node, ast.ListComp) for node in ast.walk(each))}
    write = {
        each.name
        for each in functions
        if any(isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) for node in ast.walk(each))
    }
    assert "empty_heaps" in comprehend
    assert "event_loop" in write
    assert comprehend.isdisjoint(write)


def test_a_compilation_is_announced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    assert not numba_kernel.is_cached()
    numba_kernel.compiled_event_loop(said.append)
    assert len(said) == 1
    assert "compiling" in said[0]
    assert list((tmp_path / "kvplan").glob("kernel_*.py"))


@pytest.mark.timeout(900)
def test_compiled_gives_the_same_bits() -> None:
    """All rows, totals and samples, with counts and with identities, retries, time-outs and two replicas."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(5)
    count = 300
    prompt = rng.integers(1, 100, count)
    answer = rng.integers(1, 50, count)
    requests = Requests.uncharged(
        np.cumsum(rng.exponential(0.05, count)),
        prompt,
        answer,
        np.minimum(answer + rng.integers(0, 10, count), 160 - prompt),
        charge=-(-prompt // 16),
        refused_for_good=rng.random(count) < 0.01,
        client=rng.integers(0, 2, count),
        time_out_s=np.where(rng.random(count) < 0.2, 1.0, inf),
        cancel_s=np.where(rng.random(count) < 0.2, 2.0, inf),
        client_draw=rng.random(count),
        server_draw=rng.random(count),
    )
    clients = [
        ClientRule(tries=3, honours_retry_after=True, longest_honoured_s=60.0, backoff_base_s=0.5, backoff_max_s=8.0),
        ClientRule(
            tries=2,
            backoff_base_s=0.1,
            backoff_max_s=1.0,
            jitter_share=0.25,
            jitter_add_s=0.5,
            outer=ClientRule(tries=2, backoff_base_s=0.2, backoff_max_s=1.0),
        ),
    ]
    door = FrontDoor(capacity=14, retry_after=RetryAfter(jitter_share=0.25), replicas=2)
    watch = Watch(from_s=1.0, until_s=9.0, sample_every_s=0.5, sample_until_s=12.0)
    windows = CacheLayout(
        block_tokens=16,
        bytes_per_block=1,
        groups=(*one_group().groups, *one_group(rule="sliding", window_tokens=24).groups),
        in_flight_tokens=128,
    )
    ids = rng.integers(0, 3, 2 * count)
    alike = replace(requests, chain=ids, chain_start=2 * np.arange(count + 1), chain_tokens=16)
    cached = small_engine(async_scheduling=True, prefix_caching=True)
    kernels = set()
    for asked, setup in (
        (requests, cached),
        (alike, cached),
        (requests, small_engine(blocks=26, layout=windows, async_scheduling=True)),
        (requests, small_engine(long_prefill_tokens=10, watermark_blocks=1)),
    ):
        plain = run_kernel(asked, setup, door, clients, watch=watch, compiled=False)
        compiled = run_kernel(asked, setup, door, clients, watch=watch, compiled=True, piece_rows=count // 3)
        kernels.add(plain.kernel)
        assert plain.rows.preemptions.sum() > 0
        assert (plain.compiled, compiled.compiled) == (False, True)
        assert compiled.totals == plain.totals
        for part in ("rows", "samples"):
            for field in fields(getattr(plain, part)):
                mine, other = getattr(getattr(compiled, part), field.name), getattr(getattr(plain, part), field.name)
                np.testing.assert_array_equal(mine, other, err_msg=field.name)
    assert kernels == {"counts", "identities"}


def test_a_client_that_leaves_with_its_first_token_was_read_once() -> None:
    """The first leaves at 0.04 s, as its prompt is read; two prompts of 30 tokens then wait, so the last finds 60."""
    rows = asks((0.0, 60, 5, 5), (0.05, 30, 5, 5), (0.06, 30, 5, 5), (0.07, 30, 5, 5), cancel_s=[0.04, inf, inf, inf])
    step = replace(STEP, base_s=0.04, prefill_token_s=0.0, kv_token_s=0.0, decode_sequence_s=0.0)
    run = let_in(rows, small_engine(max_num_seqs=1, step=step), FrontDoor(max_queued_tokens=31))
    assert run.rows.outcome[0] == Outcome.CANCELLED
    assert run.rows.refusals.tolist() == [0, 0, 0, 1]


def test_an_answer_that_ends_as_its_client_leaves_is_complete() -> None:
    """Four steps of 0.25 s end when the client would leave: releases come first, though nobody looked since 0.3 s."""
    rows = asks((0.0, 10, 4, 4), (0.3, 10, 1, 1), cancel_s=[1.0, inf])
    step = replace(STEP, base_s=0.25, prefill_token_s=0.0, kv_token_s=0.0, decode_sequence_s=0.0)
    run = let_in(rows, small_engine(step=step), FrontDoor(max_inside=1))
    assert run.rows.outcome.tolist() == [Outcome.COMPLETED, Outcome.GAVE_UP]
    assert run.rows.finish_s[0] == 1.0


def test_without_chunked_prefill_a_prompt_waits_for_a_whole_step() -> None:
    """64 tokens a step: 40 of the second prompt would fit a part; unchunked, it waits for the next step."""
    rows = asks((0.0, 24, 1, 1), (0.0, 50, 1, 1))
    chunked, whole = (let_in(rows, small_engine(chunked_prefill=each)) for each in (True, False))
    assert (chunked.totals.steps, whole.totals.steps) == (2, 2)
    assert chunked.rows.scheduled_s.tolist() == [0.0, 0.0]
    assert whole.rows.scheduled_s.tolist() == [0.0, pytest.approx(0.01 + 24 * 0.001 + 24 * 0.0001)]
