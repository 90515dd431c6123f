"""The kernel equals the step-by-step reference: same decisions, same order, and times equal to the bit."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.engines.engine_plan import CacheGroup, CacheLayout
from kvplan.simulation.kernel.run import run_kernel
from kvplan.simulation.parallel_sampling import fan_out, merge_sequences
from kvplan.simulation.types import (
    UNLIMITED,
    ClientRule,
    EngineSetup,
    FrontDoor,
    Outcome,
    Requests,
    RetryAfter,
    Router,
    Run,
    Watch,
)
from kvplan.traffic.spec import StepCost
from tests.reference_door import ReferenceDoor

WINDOW_TOKENS = 96
OPEN_DOOR, ALL_TIME = FrontDoor(), Watch()
STEP = StepCost(base_s=0.01, prefill_token_s=0.0, decode_sequence_s=0.0, kv_token_s=0.0)


def group(rule: str, block_tokens: int, window_tokens: int | None = None, retained_tokens: int = 0) -> CacheGroup:
    return CacheGroup(
        kind=rule,
        layers=1,
        rule=rule,
        block_tokens=block_tokens,
        page_bytes=1,
        window_tokens=window_tokens,
        retained_tokens=retained_tokens,
        fixed_blocks=1 if rule == "fixed" else 0,
    )


@st.composite
def layouts(draw: st.DrawFn, in_flight_tokens: int, *, plain: bool) -> CacheLayout:
    """One full group, or a hybrid of several kinds and sizes of block."""
    block = draw(st.sampled_from([1, 2, 4, 8]))
    groups = [group("full", block)]
    if not plain:
        groups *= draw(st.integers(0, 2))
        for _ in range(draw(st.integers(0 if groups else 1, 2))):
            rule = draw(st.sampled_from(["sliding", "chunked", "fixed"]))
            size = draw(st.sampled_from([block, 4]))
            span = draw(st.sampled_from([size, 2 * size, 3 * size + 1])) if rule == "sliding" else 4 * size
            retained = draw(st.sampled_from([0, 0, 2])) if rule == "sliding" else 0
            one = group(rule, size, None if rule == "fixed" else span, retained)
            groups += [one] * draw(st.integers(1, 2))
    return CacheLayout(block_tokens=block, bytes_per_block=1, groups=tuple(groups), in_flight_tokens=in_flight_tokens)


@st.composite
def setups(draw: st.DrawFn, *, caching: bool = False, whole: bool = False) -> EngineSetup:
    """A small engine whose pool is often too small for its traffic, and always large enough for one request."""
    tokens = WINDOW_TOKENS if whole else draw(st.sampled_from([6, 16, 64]))
    is_async = draw(st.booleans())
    layout = draw(layouts((2 if is_async else 1) * tokens, plain=caching))
    least = layout.request_blocks(WINDOW_TOKENS) + layout.reserved_blocks
    return EngineSetup(
        blocks=least + draw(st.integers(0, least)),
        layout=layout,
        max_model_len=WINDOW_TOKENS,
        max_num_seqs=draw(st.sampled_from([1, 3, 6])),
        max_num_batched_tokens=tokens,
        step=StepCost(
            base_s=draw(st.sampled_from([0.01, 0.1])),
            prefill_token_s=draw(st.sampled_from([0.0, 0.003])),
            decode_sequence_s=draw(st.sampled_from([0.0, 0.001])),
            kv_token_s=draw(st.sampled_from([0.0, 0.0007])),
        ),
        async_scheduling=is_async,
        prefix_caching=caching,
        watermark_blocks=draw(st.sampled_from([0, 0, 2])),
        long_prefill_tokens=draw(st.sampled_from([0, 0, 5])),
        chunked_prefill=not whole,
        reserves_whole_input=draw(st.booleans()) or caching,
    )


@st.composite
def traffic(draw: st.DrawFn, *, patient: bool = True, shared: bool = False) -> Requests:
    """Bursts of requests, of which many are alike."""
    count = draw(st.integers(1, 24))
    gaps = st.sampled_from([0.0, 0.0, 0.01, 0.25, 1.7])
    arrival_s = np.cumsum(draw(st.lists(gaps, min_size=count, max_size=count)))
    prompts = np.array(draw(st.lists(st.integers(1, WINDOW_TOKENS - 2), min_size=count, max_size=count)))
    answers = np.array(draw(st.lists(st.sampled_from([1, 2, 9, 40, 95]), min_size=count, max_size=count)))
    asked = np.array(draw(st.lists(st.sampled_from([1, 9, 40, 95]), min_size=count, max_size=count)))
    seconds = st.just(inf) if patient else st.sampled_from([inf, 0.05, 0.73, 3.0])
    chain = start = None
    if shared:
        own = [draw(st.lists(st.integers(0, 2), min_size=0, max_size=3)) for _ in range(count)]
        chain = np.array([link for links in own for link in links], np.int64)
        start = np.cumsum([0, *map(len, own)])
    return Requests.uncharged(
        arrival_s,
        prompts,
        answers,
        np.minimum(asked, WINDOW_TOKENS - prompts),
        client=np.array(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))),
        time_out_s=np.array(draw(st.lists(seconds, min_size=count, max_size=count))),
        cancel_s=np.array(draw(st.lists(seconds, min_size=count, max_size=count))),
        client_draw=np.linspace(0.0, 0.93, count),
        server_draw=np.linspace(0.91, 0.02, count),
        chain=chain,
        chain_start=start,
        chain_tokens=16,
    )


CLIENTS = (
    ClientRule(tries=1),
    ClientRule(
        tries=4,
        honours_retry_after=True,
        longest_honoured_s=3.0,
        backoff_base_s=0.5,
        backoff_max_s=2.0,
        jitter_share=0.25,
    ),
    ClientRule(
        tries=3,
        honours_retry_after=True,
        whole_seconds=True,
        longest_honoured_s=2.0,
        gives_up_when_longer=True,
        jitter_add_s=0.75,
        jitter_on_header=True,
    ),
    ClientRule(
        tries=2,
        honours_retry_after=True,
        longest_honoured_s=2.0,
        gives_up_when_longer=True,
        backoff_base_s=0.3,
        backoff_max_s=1.0,
        outer=ClientRule(
            tries=3,
            backoff_base_s=0.7,
            backoff_max_s=4.0,
            jitter_share=1.0,
            outer=ClientRule(tries=2, jitter_add_s=0.5),
        ),
    ),
)


def compared(requests: Requests, setup: EngineSetup, door: FrontDoor = OPEN_DOOR, watch: Watch = ALL_TIME) -> Run:
    """The run on the kernel, after it was compared with the reference row by row and in total; times with ==."""
    run = run_kernel(requests, setup, door, CLIENTS, watch=watch)
    reference = ReferenceDoor(requests, setup, door, CLIENTS, watch)
    rows = reference.run()
    for name, expected in {
        "outcome": [row.outcome for row in rows],
        "attempts": [row.attempts for row in rows],
        "refusals": [row.refusals for row in rows],
        "preemptions": [row.sequence.preemptions for row in rows],
        "recomputed_tokens": [row.sequence.recomputed for row in rows],
        "replica": [row.replica for row in rows],
        "output_tokens": [row.sequence.generated if row.outcome is not Outcome.UNFINISHED else 0 for row in rows],
        "admitted_s": [row.admitted_s for row in rows],
        "scheduled_s": [row.sequence.scheduled_s for row in rows],
        "first_token_s": [row.sequence.first_token_s for row in rows],
        "finish_s": [row.left_s for row in rows],
    }.items():
        np.testing.assert_array_equal(getattr(run.rows, name), expected, err_msg=name)
    engines = [side.engine for side in reference.sides]
    if watch.stop_s == inf:
        assert run.totals.steps == sum(engine.steps for engine in engines)
        assert run.totals.prefill_tokens == sum(engine.prefill_tokens for engine in engines)
        assert run.totals.decode_tokens == sum(engine.decode_tokens for engine in engines)
        assert run.totals.over_capacity_events == sum(engine.over_capacity_events for engine in engines)
        if all(each.rule == "full" for each in setup.layout.groups):
            assert run.totals.used_peak_blocks == sum(engine.peak_used for engine in engines)
    return run


def small_setup(**changes: Any) -> EngineSetup:
    """96 blocks of one token for three sequences; a step takes 10 ms."""
    setup = EngineSetup(
        blocks=97,
        layout=CacheLayout(block_tokens=1, bytes_per_block=1, groups=(group("full", 1),), in_flight_tokens=96),
        max_model_len=WINDOW_TOKENS,
        max_num_seqs=3,
        max_num_batched_tokens=96,
        step=STEP,
    )
    return replace(setup, **changes)


@given(setup=setups(), requests=traffic())
@settings(max_examples=250, deadline=None)
def test_counts_equal_the_reference(setup: EngineSetup, requests: Requests) -> None:
    assert compared(requests, setup).kernel == "counts"


@given(setup=st.one_of(setups(whole=True), setups(whole=True, caching=True)), requests=traffic())
@settings(max_examples=60, deadline=None)
def test_whole_prompts_equal_the_reference(setup: EngineSetup, requests: Requests) -> None:
    """Without chunked prefill; a step then holds the longest prompt."""
    compared(requests, setup)


def test_ends_in_one_batch_are_seen_in_order_of_admission() -> None:
    """The third request takes the first one's seat and ends with the second: the hold that a refusal is told from
    moves by the second's first."""
    answers = [2, 10, 8, 7, 1]
    requests = Requests.uncharged(
        [0.0, 0.0, 1.5, 15.0, 20.0],
        [1] * 5,
        answers,
        answers,
        charge=np.array([1, 10, 19, 25, 10]),
        client=np.ones(5, int),
    )
    run = compared(requests, small_setup(step=replace(STEP, base_s=1.0)), FrontDoor(capacity=30))
    assert run.rows.finish_s[1] == run.rows.finish_s[2]
    assert run.rows.refusals[4] > 0


@pytest.mark.parametrize("is_async", [False, True])
def test_a_client_that_leaves_during_a_batch_is_freed_before_what_the_batch_ends(is_async: bool) -> None:
    """Two requests are read in one batch, and the client of the second leaves meanwhile. A third takes all other blocks
    and two of theirs: the second's only block and the first's last, so that twelve of its thirteen are found again."""
    setup = small_setup(step=replace(STEP, prefill_token_s=0.003), prefix_caching=True, async_scheduling=is_async)
    requests = Requests.uncharged(
        [0.0, 0.0, 0.1, 1.0],
        [13, 1, 84, 13],
        [1] * 4,
        [1] * 4,
        cancel_s=np.array([inf, 0.05, inf, inf]),
        chain=np.array([7, 7]),
        chain_start=np.array([0, 1, 1, 1, 2]),
        chain_tokens=16,
    )
    run = compared(requests, setup)
    assert run.rows.first_token_s[3] == pytest.approx(1.0 + 0.01 + 0.003)


def test_an_end_that_a_preemption_brings_forward_is_seen_before_the_client_leaves() -> None:
    """The second request is preempted on the way, so that later batches are shorter: the first one's client, which
    leaves at 3.25 s, has its last token at 2.88 s, and no other event made the door look before."""
    requests = Requests.uncharged([0.25, 0.5], [49, 10], [40, 40], [40, 40], cancel_s=np.array([3.0, inf]))
    run = compared(requests, small_setup(max_num_batched_tokens=16, step=replace(STEP, kv_token_s=0.0007)))
    assert run.rows.preemptions.tolist() == [0, 1]
    assert run.rows.outcome.tolist() == [Outcome.COMPLETED, Outcome.COMPLETED]


@given(setup=setups(caching=True), requests=traffic())
@settings(max_examples=150, deadline=None)
def test_cached_prefixes_equal_the_reference(setup: EngineSetup, requests: Requests) -> None:
    """Nobody shares content: counts say what a preempted request finds again."""
    assert compared(requests, setup).kernel == "counts"


@given(setup=setups(caching=True), requests=traffic(shared=True))
@settings(max_examples=150, deadline=None)
def test_shared_prefixes_equal_the_reference(setup: EngineSetup, requests: Requests) -> None:
    assert compared(requests, setup).kernel == "identities"


@st.composite
def doors(draw: st.DrawFn) -> FrontDoor:
    """Small ledgers, the engine's own caps, fixed and computed waits, several replicas."""
    return FrontDoor(
        capacity=draw(st.sampled_from([30, 200, UNLIMITED])),
        max_inside=draw(st.sampled_from([2, 5, UNLIMITED])),
        max_queued_tokens=draw(st.sampled_from([40, UNLIMITED])),
        retry_after=RetryAfter(
            seconds=draw(st.sampled_from([None, 1.0, 2.5])),
            jitter_share=draw(st.sampled_from([0.0, 0.25])),
            longest_s=5.0,
        ),
        replicas=draw(st.integers(1, 3)),
        router=draw(st.sampled_from(list(Router))),
    )


@given(setup=setups(), requests=traffic(patient=False), door=doors(), stop_s=st.sampled_from([inf, inf, 1.31]))
@settings(max_examples=250, deadline=None)
def test_doors_and_clients_equal_the_reference(
    setup: EngineSetup, requests: Requests, door: FrontDoor, stop_s: float
) -> None:
    charged = replace(requests, charge=-(-(requests.prompt_tokens + requests.cap_tokens) // 4))
    compared(charged, setup, door, Watch(stop_s=stop_s))


@given(
    setup=setups(caching=True),
    requests=st.one_of(traffic(patient=False), traffic(patient=False, shared=True)),
    door=doors(),
)
@settings(max_examples=150, deadline=None)
def test_clients_that_leave_cached_prefixes_equal_the_reference(
    setup: EngineSetup, requests: Requests, door: FrontDoor
) -> None:
    """Blocks of a client that left during a batch are freed before those of what that batch ends: it shows in who is
    evicted first."""
    compared(requests, setup, door)


@given(
    setup=st.one_of(setups(), setups(caching=True)),
    requests=traffic(patient=False),
    door=doors(),
    stop_s=st.sampled_from([inf, inf, 1.31]),
    asked=st.lists(st.sampled_from([1, 1, 2, 3]), min_size=24, max_size=24),
)
@settings(max_examples=200, deadline=None)
def test_requests_for_several_answers_equal_the_reference(
    setup: EngineSetup, requests: Requests, door: FrontDoor, stop_s: float, asked: list[int]
) -> None:
    """One reservation for all sequences of a request, given back with the last; its full blocks shared where cached."""
    answers = np.array(asked[: len(requests.arrival_s)])
    lengths = np.resize(requests.output_tokens, int(answers.sum()))
    charge = answers * -(-(requests.prompt_tokens + requests.cap_tokens) // 4)
    played = fan_out(replace(requests, charge=charge), answers, lengths)
    run = compared(played, setup, door, Watch(stop_s=stop_s))
    assert played.parent is not None
    rows = merge_sequences(run.rows, played.parent)
    assert rows.attempts.sum() == run.rows.attempts.sum()
    assert rows.output_tokens.sum() == run.rows.output_tokens.sum()


@given(
    setup=st.one_of(setups(), setups(caching=True)),
    requests=st.one_of(traffic(patient=False), traffic(patient=False, shared=True)),
    door=doors(),
    watch=st.builds(
        Watch, stop_s=st.sampled_from([inf, inf, 1.31]), sample_every_s=st.just(0.1), sample_until_s=st.just(2.0)
    ),
    piece_rows=st.integers(1, 9),
)
@settings(max_examples=200, deadline=None)
def test_a_run_in_pieces_equals_the_whole_run(
    setup: EngineSetup, requests: Requests, door: FrontDoor, watch: Watch, piece_rows: int
) -> None:
    """To the bit: rows, totals and samples."""
    charged = replace(requests, charge=-(-(requests.prompt_tokens + requests.cap_tokens) // 4))
    whole, pieced = (
        run_kernel(charged, setup, door, CLIENTS, watch=watch, piece_rows=rows) for rows in (24, piece_rows)
    )
    assert whole.totals == pieced.totals
    for one, other in ((whole.rows, pieced.rows), (whole.samples, pieced.samples)):
        for name, column in vars(one).items():
            np.testing.assert_array_equal(getattr(other, name), column, err_msg=name)
