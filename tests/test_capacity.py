"""What fits: windows, concurrency and reservations, worked out by hand on small pools."""

from dataclasses import replace
from fractions import Fraction

import pytest

from kvplan.capacity import (
    DOES_NOT_FIT,
    FITS,
    RequestShape,
    Reservation,
    fit,
    longest_window,
    reserved_tokens,
    usable_blocks,
)
from kvplan.engines import parse_engine
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import CacheGroup, CacheLayout
from kvplan.engines.ranks import sequence_bytes, stage_layers
from kvplan.errors import InputError
from kvplan.layers import BFLOAT16, FullAttention, KvTypes, Mamba2State, SlidingAttention
from kvplan.profiles.loader import load_gpu
from kvplan.units import GIB
from tests.models import model_of

KV = KvTypes(key=BFLOAT16, value=BFLOAT16)
FULL = FullAttention(kv_heads=8, head_dim=128, value_head_dim=128)
LLAMA = model_of([[FULL]] * 32, query_heads=(32,))
"""Llama-3-8B's layers: 32 × 2 × 8 × 128 × 2 = 131,072 B a token, 2 MiB a block of 16."""
TEN_GIB = Deployment(kv_memory_bytes=10 * GIB)


def layout(*groups: CacheGroup, in_flight_tokens: int = 16384) -> CacheLayout:
    return CacheLayout(block_tokens=16, bytes_per_block=1024, groups=groups, in_flight_tokens=in_flight_tokens)


ONE_FULL = CacheGroup(kind="full attention", layers=32, rule="full", block_tokens=16, page_bytes=1024)
ONE_SLIDING = CacheGroup(
    kind="sliding window", layers=32, rule="sliding", block_tokens=16, page_bytes=1024, window_tokens=1024
)
ONE_CHUNK = CacheGroup(
    kind="chunked attention", layers=32, rule="chunked", block_tokens=16, page_bytes=1024, window_tokens=8192
)
ONE_STATE = CacheGroup(kind="Mamba-2 state", layers=32, rule="fixed", block_tokens=16, page_bytes=1024, fixed_blocks=3)


@pytest.mark.parametrize(
    ("group", "tokens", "blocks"),
    [
        (ONE_FULL, 1, 1),
        (ONE_FULL, 16, 1),
        (ONE_FULL, 17, 2),
        (ONE_SLIDING, 16, 2),
        (ONE_SLIDING, 17407, 1089),  # ceil(17,407 / 16) + 1: window − 1 + in flight = 17,407
        (ONE_SLIDING, 131072, 1089),
        (ONE_CHUNK, 8192, 512),
        (ONE_CHUNK, 131072, 1536),  # (8,192 + 16,384) / 16
        (ONE_STATE, 1, 3),
        (ONE_STATE, 131072, 3),
    ],
)
def test_charges_by_rule(group: CacheGroup, tokens: int, blocks: int) -> None:
    assert layout(group).request_blocks(tokens) == blocks


def test_context_parallel_ranks_share_the_tokens() -> None:
    shared = CacheGroup(kind="full attention", layers=32, rule="full", block_tokens=16, page_bytes=1024, token_shards=2)
    assert [layout(shared).request_blocks(tokens) for tokens in (1, 32, 33, 64)] == [1, 1, 2, 2]


def test_longest_window_is_exact() -> None:
    assert longest_window(layout(ONE_FULL), blocks=11, limit=1000) == 160
    assert longest_window(layout(ONE_FULL), blocks=11, limit=100) == 100
    assert longest_window(layout(ONE_FULL), blocks=1, limit=100) == 0
    assert longest_window(layout(ONE_FULL), blocks=0, limit=100) == 0
    # A state takes 3 of the 10 usable blocks, so 7 × 16 tokens remain.
    assert longest_window(layout(ONE_FULL, ONE_STATE), blocks=11, limit=1000) == 112
    # Beyond its plateau a window costs nothing more: 1,089 blocks carry any length.
    assert longest_window(layout(ONE_SLIDING), blocks=1090, limit=10**9) == 10**9


def test_a_fit_by_hand() -> None:
    """10 GiB / 2 MiB = 5,120 blocks; a window of 32,768 takes 2,048: vLLM prints 2.50x and 81,920 tokens."""
    answer = fit(LLAMA, TEN_GIB, [RequestShape(name="chat", prompt_tokens=4083, max_output_tokens=1024)])
    assert answer.verdict == FITS
    assert (answer.plan.blocks, answer.plan.layout.bytes_per_block) == (5120, 2 * 2**20)
    assert answer.concurrency == Fraction(5120, 2048)
    assert answer.pool_tokens == 81920
    assert answer.longest_window_tokens == 32768
    # 5,107 tokens are 320 blocks; floor(5,119 / 320) = 15.
    assert answer.reservations == (
        Reservation(
            name="chat",
            prompt_tokens=4083,
            max_output_tokens=1024,
            reserved_tokens=5107,
            reserved_bytes=320 * 2 * 2**20,
            logical_bytes=5107 * 131072,
            blocks=320,
            sequences=15,
            fewest_sequences=15,
        ),
    )
    (found,) = answer.findings
    assert found.message.startswith("max_num_seqs 1,024 is 68.3x the safe concurrency: 15 worst cases of chat fit")


def test_no_more_sequences_than_fit_at_their_worst_is_no_finding() -> None:
    shape = RequestShape(name="chat", prompt_tokens=4083, max_output_tokens=1024)
    assert fit(LLAMA, replace(TEN_GIB, max_num_seqs=15), [shape]).findings == ()


def test_the_smallest_pool_of_the_band_holds_fewer() -> None:
    """The blocks of the pool's lower bound by their share of the planned bytes, one of them reserved."""
    shape = RequestShape(name="chat", prompt_tokens=4083, max_output_tokens=1024)
    answer = fit(LLAMA, Deployment(gpu=load_gpu("rtx-4090"), weight_bytes=15 * GIB), [shape])
    (one,), budget = answer.reservations, answer.plan.budget
    assert budget is not None
    blocks = answer.plan.blocks * budget.kv_bytes_low // budget.kv_bytes
    assert one.fewest_sequences == (blocks - 1) // 320 < one.sequences == (answer.plan.blocks - 1) // 320


def test_a_safety_fraction_takes_its_share() -> None:
    shape = RequestShape(name="chat", prompt_tokens=4083, max_output_tokens=1024)
    (one,) = fit(LLAMA, TEN_GIB, [shape], Fraction(9, 10)).reservations
    assert one.sequences == 14  # floor(5,119 × 0.9 / 320) = floor(14.397)
    for wrong in (Fraction(0), Fraction(11, 10)):
        with pytest.raises(InputError):
            fit(LLAMA, TEN_GIB, [shape], wrong)


def test_a_window_that_cannot_be_served_does_not_fit() -> None:
    """1 GiB holds 512 blocks; 2,048 are asked: the longest window is 511 × 16."""
    answer = fit(LLAMA, Deployment(kv_memory_bytes=GIB))
    assert answer.verdict == DOES_NOT_FIT
    assert answer.longest_window_tokens == 511 * 16
    assert "window-not-servable" in {finding.code for finding in answer.findings}


def test_one_block_more_decides() -> None:
    exact = 2048 * 2 * 2**20
    assert fit(LLAMA, Deployment(kv_memory_bytes=exact)).verdict == DOES_NOT_FIT
    assert fit(LLAMA, Deployment(kv_memory_bytes=exact + 2 * 2**20)).verdict == FITS


@pytest.mark.parametrize("memory", [0, -GIB, 2**20])
def test_no_memory_is_an_answer(memory: int) -> None:
    answer = fit(LLAMA, Deployment(kv_memory_bytes=memory))
    assert (answer.verdict, answer.plan.blocks, answer.longest_window_tokens) == (DOES_NOT_FIT, 0, 0)
    assert answer.plan.kv_bytes == memory
    assert answer.concurrency == 0


def test_a_reservation_larger_than_the_pool_is_never_admitted() -> None:
    shape = RequestShape(name="long", prompt_tokens=20000)
    answer = fit(LLAMA, Deployment(kv_memory_bytes=GIB), [shape])
    assert answer.reservations[0].sequences == 0
    assert "reservation-larger-than-pool" in {finding.code for finding in answer.findings}


def test_worst_cases() -> None:
    assert reserved_tokens(RequestShape(name="a", prompt_tokens=10, max_output_tokens=5), 100) == 15
    assert reserved_tokens(RequestShape(name="a", prompt_tokens=10), 100) == 100
    assert reserved_tokens(RequestShape(name="a", prompt_tokens=10, max_output_tokens=500), 100) == 100
    for wrong in (
        RequestShape(name="a", prompt_tokens=100),
        RequestShape(name="a", prompt_tokens=0),
        RequestShape(name="a", prompt_tokens=1, max_output_tokens=0),
    ):
        with pytest.raises(InputError):
            reserved_tokens(wrong, 100)


def test_a_cap_beyond_the_window_is_reported() -> None:
    shape = RequestShape(name="greedy", prompt_tokens=1000, max_output_tokens=40000)
    answer = fit(LLAMA, TEN_GIB, [shape])
    assert answer.reservations[0].reserved_tokens == 32768
    assert "cap-beyond-window" in {finding.code for finding in answer.findings}


def test_stored_bytes_are_shown_beside_charged_ones() -> None:
    """A hybrid: windows saturate and states are unpadded in what is stored, not in what is charged."""
    state = Mamba2State(heads=128, head_dim=64, state=128, groups=8, conv_kernel=4)
    hybrid = model_of([[FULL], [state]] * 4)
    answer = fit(hybrid, TEN_GIB, [RequestShape(name="one", prompt_tokens=900, max_output_tokens=100)])
    (one,) = answer.reservations
    assert one.logical_bytes == 4 * 1000 * 4096 + 4 * state.fixed_bytes(KV)
    assert one.reserved_bytes > one.logical_bytes
    assert "hybrid-charges-more-than-stored" in {finding.code for finding in answer.findings}


def test_logical_bytes_by_rank() -> None:
    sliding = SlidingAttention(kv_heads=8, head_dim=128, value_head_dim=128, window=1024)
    model = model_of([[FULL], [sliding], [FULL], [sliding]], query_heads=(32,))

    def stored(**asked: int) -> int:
        return sequence_bytes(model, Deployment(**asked), 10000, KV)  # type: ignore[arg-type]

    assert stored() == 4096 * (2 * 10000 + 2 * 1024)
    assert stored(tensor_parallel=2) == stored() // 2
    assert stored(pipeline_parallel=2) == stored() // 2
    assert stored(tensor_parallel=16, context_parallel=2) == 512 * (2 * 5000 + 2 * 1024)


def test_the_heaviest_stage_decides_the_pool_of_a_pipeline() -> None:
    """34 layers on 4 stages are 8 + 9 + 9 + 8: a block is 9 layers'."""
    model = model_of([[FULL]] * 34)
    plan = fit(model, Deployment(kv_memory_bytes=10 * GIB, pipeline_parallel=4)).plan
    assert plan.layout.bytes_per_block == 9 * 65536
    assert plan.settings.in_flight_tokens == 5 * 8192


def test_stages() -> None:
    assert [len(stage) for stage in stage_layers(10, 4)] == [2, 3, 3, 2]
    assert [list(stage) for stage in stage_layers(3, 2)] == [[0, 1], [2]]


def test_usable_blocks_leave_the_reserved_one() -> None:
    assert [usable_blocks(layout(ONE_FULL), blocks) for blocks in (0, 1, 10)] == [0, 0, 9]


def test_replicas_multiply_concurrency() -> None:
    answer = fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB, data_parallel=3))
    assert answer.concurrency_all_replicas == 3 * Fraction(5120, 2048)


def test_older_releases_print_blocks_by_groups() -> None:
    sliding = SlidingAttention(kv_heads=8, head_dim=128, value_head_dim=128, window=1024)
    model = model_of([[sliding], [FULL]] * 4)
    new = fit(model, TEN_GIB)
    old = fit(model, Deployment(engine=parse_engine("vllm@0.11"), kv_memory_bytes=10 * GIB))
    assert new.pool_tokens == int(new.plan.blocks / new.plan.layout.request_blocks(32768) * 32768)
    assert old.pool_tokens == old.plan.blocks // 2 * 16


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({"context_parallel": 2, "tensor_parallel": 8}, "context_parallel"),
        ({"context_parallel": 3}, "context_parallel"),
    ],
)
def test_context_parallelism_needs_copies(asked: dict[str, int], key: str) -> None:
    with pytest.raises(InputError) as refused:
        fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB, **asked))  # type: ignore[arg-type]
    assert refused.value.key == key


def test_context_parallelism_halves_the_charge() -> None:
    plain = fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB, tensor_parallel=16))
    shared = fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB, tensor_parallel=16, context_parallel=2))
    assert shared.concurrency == 2 * plain.concurrency
