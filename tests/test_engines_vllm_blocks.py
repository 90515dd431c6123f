"""Block sizes: what kernels and recurrent state demand. Figures of real models come from vLLM 0.33.0 itself."""

from dataclasses import replace

import pytest

from kvplan.capacity import fit
from kvplan.engines import parse_engine
from kvplan.engines.deployment import Deployment
from kvplan.engines.vllm.blocks import (
    attention_block,
    checkpoint_blocks,
    hybrid_block,
    kernel_block,
    state_alignment,
)
from kvplan.errors import InputError
from kvplan.layers import (
    BFLOAT16,
    FLOAT32,
    FP8,
    CompressedWindow,
    FullAttention,
    GatedDeltaState,
    IndexKeys,
    KdaState,
    KvTypes,
    LatentAttention,
    Layer,
    Mamba1State,
    Mamba2State,
    NgramConvState,
    RecurrentLayer,
    ShortConvState,
)
from kvplan.profiles.loader import load_gpu
from kvplan.sources import read_model
from kvplan.units import GIB

KV16, KV8 = KvTypes(key=BFLOAT16, value=BFLOAT16), KvTypes(key=FP8, value=FP8)
HOPPER, AMPERE, BLACKWELL = (9, 0), (8, 0), (10, 0)
GQA = FullAttention(kv_heads=8, head_dim=128, value_head_dim=128)
WIDE = FullAttention(kv_heads=2, head_dim=512, value_head_dim=512)
MLA = LatentAttention(latent_dim=512, rope_dim=64)
INDEX = IndexKeys(bytes_per_entry=132)
GDN = GatedDeltaState(key_heads=16, key_dim=128, value_heads=32, value_dim=128, conv_kernel=4, temporal_type=FLOAT32)
MAMBA2 = Mamba2State(heads=128, head_dim=64, state=128, groups=8, conv_kernel=4, temporal_type=FLOAT32)


@pytest.mark.parametrize(
    ("layers", "kv", "capability", "block"),
    [
        ([GQA], KV16, HOPPER, 16),
        ([GQA], KV8, HOPPER, 16),
        ([WIDE, GQA], KV16, HOPPER, 16),
        ([WIDE, GQA], KV8, HOPPER, 64),
        ([WIDE, GQA], KV8, AMPERE, 16),
        ([MLA], KV16, HOPPER, 16),
        ([MLA], KV8, HOPPER, 64),
        ([MLA], KV8, (12, 0), 16),
        ([GQA], KV8, AMPERE, 16),
        ([MLA, INDEX], KV16, HOPPER, 64),
        ([GQA, INDEX], KV16, HOPPER, 128),
        ([CompressedWindow(bytes_per_entry=584, window=128)], KV8, HOPPER, 256),
    ],
)
def test_blocks_by_kind_type_and_gpu(layers: list[Layer], kv: KvTypes, capability: tuple[int, int], block: int) -> None:
    assert attention_block(kernel_block(layers, kv, capability), None) == block


def test_a_given_block_is_used_or_refused() -> None:
    assert attention_block(kernel_block([GQA], KV16, HOPPER), 32) == 32
    assert attention_block(kernel_block([MLA], KV8, HOPPER), 16) == 16  # Triton's kernel takes it
    for layers, asked in (([GQA], 8), ([GQA], 0), ([MLA, INDEX], 16)):
        with pytest.raises(InputError) as refused:
            attention_block(kernel_block(layers, KV16, HOPPER), asked)
        assert refused.value.key == "block_size"


def test_sparse_mla_needs_hopper_and_mla_has_no_e5m2() -> None:
    with pytest.raises(InputError, match=r"8\.0"):
        kernel_block([MLA, INDEX], KV16, AMPERE)


@pytest.mark.parametrize(
    ("layer", "capability"),
    [
        (MLA, AMPERE),
        (GQA, (7, 5)),
        (FullAttention(kv_heads=8, head_dim=80, value_head_dim=80), AMPERE),
    ],
)
def test_8_bit_kv_before_ada_is_refused_where_no_kernel_reads_it(layer: Layer, capability: tuple[int, int]) -> None:
    assert kernel_block([layer], KV16, capability).preferred == 16
    with pytest.raises(InputError, match="8-bit") as refused:
        kernel_block([layer], KV8, capability)
    assert refused.value.key == "kv_dtype"


@pytest.mark.parametrize(
    ("layer", "capability", "blocks"),
    [
        (MAMBA2, AMPERE, 1),
        (GDN, HOPPER, 1),
        (GDN, AMPERE, 0),
        (GDN, BLACKWELL, 1),
        (NgramConvState(channels=8, steps=2), AMPERE, 1),
        (Mamba1State(inner=8192, state=16, conv_kernel=4), HOPPER, 0),
        (ShortConvState(channels=2048, conv_kernel=3), HOPPER, 0),
        (KdaState(heads=32, dim=128, conv_kernel=4), HOPPER, 0),
        (KdaState(heads=32, dim=128, conv_kernel=4, bounded_gate=True), HOPPER, 1),
    ],
)
def test_exportable_states_cost_a_block(layer: RecurrentLayer, capability: tuple[int, int], blocks: int) -> None:
    assert checkpoint_blocks(layer, capability) == blocks


def test_only_flashinfers_delta_net_aligns_blocks() -> None:
    assert state_alignment([GDN], HOPPER) == 64
    assert state_alignment([GDN], AMPERE) == 1
    assert state_alignment([GDN, NgramConvState(channels=8, steps=2)], HOPPER) == 64
    assert state_alignment([MAMBA2], HOPPER) == 1


@pytest.mark.parametrize(
    ("attention", "state", "kv", "caching", "block"),
    [
        # Qwen3.5-35B-A3B: (3 × 8,192) × 2 + 32 × 128 × 128 × 4 = 2,146,304 B of state; 2 × 2 × 256 × 2 = 2,048 B a
        # token; 64 × ceil(2,146,304 / 131,072) = 1,088 (vLLM 0.33.0 says 1,088; with fp8 KV 2,112).
        (FullAttention(kv_heads=2, head_dim=256, value_head_dim=256), GDN, KV16, True, 1088),
        (FullAttention(kv_heads=2, head_dim=256, value_head_dim=256), GDN, KV8, True, 2112),
        # Without prefix caching the block is a multiple of 16: 16 × ceil(2,146,304 / 32,768) = 1,056.
        (FullAttention(kv_heads=2, head_dim=256, value_head_dim=256), GDN, KV16, False, 1056),
        # Kimi-Linear: 3 × 12,288 × 2 + 32 × 128 × 128 × 4 = 2,170,880 B; 1,152 B a token; MLA aligns to 128:
        # 128 × ceil(2,170,880 / 147,456) = 1,920 (vLLM 0.33.0 says 1,920).
        (MLA, KdaState(heads=32, dim=128, conv_kernel=4, temporal_type=FLOAT32), KV16, True, 1920),
    ],
)
def test_hybrid_blocks(attention: Layer, state: RecurrentLayer, kv: KvTypes, caching: bool, block: int) -> None:
    made = hybrid_block(attention, [state], kv, block_tokens=16, prefix_caching=caching, capability=HOPPER)
    page_bytes = block * int(attention.growing_bytes_per_token(kv))
    assert made == (block, page_bytes)
    assert page_bytes >= state.fixed_bytes(kv)


def test_a_longer_given_block_is_kept() -> None:
    block, _ = hybrid_block(GQA, [GDN], KV16, block_tokens=4096, prefix_caching=True, capability=HOPPER)
    assert block == 4096


@pytest.mark.parametrize(
    ("layer", "first"),
    [
        (KdaState(heads=32, dim=128, conv_kernel=4, bounded_gate=True), (0, 29)),
        (MAMBA2, (0, 32)),
        (GDN, (0, 33)),
    ],
)
def test_the_first_release_that_exports_a_state(layer: RecurrentLayer, first: tuple[int, int]) -> None:
    """``num_prefill_checkpoint_blocks`` in the sources of vLLM 0.28 (none), 0.29, 0.31, 0.32 and 0.33."""
    before = (0, first[1] - 1)
    assert [checkpoint_blocks(layer, HOPPER, release) for release in (before, first)] == [0, 1]


def test_exported_delta_states_align_blocks_since_0_33() -> None:
    """A GB10 on 0.23.1 logs attention blocks of 1,568 tokens, which are not a multiple of 64."""
    releases = (0, 23, 1), (0, 32), (0, 33)
    assert [state_alignment([GDN], (12, 1), release) for release in releases] == [1, 1, 64]


def test_a_delta_hybrid_of_0_28() -> None:
    """A log of Qwen3.8-27B on an H100, 0.28, window 262,144, pool of 19.54 GiB: 313,650 tokens, 1.1965 windows, which
    are 408 blocks of 784 tokens, 335 of them for a window and 2 for each of 3 groups of states."""
    asked = Deployment(engine=parse_engine("vllm@0.28"), kv_memory_bytes=int(19.54 * GIB), max_model_len=262_144)
    answer = fit(read_model("Qwen/Qwen3.8-27B", offline=True), replace(asked, gpu=load_gpu("h100")))
    assert (answer.plan.layout.block_tokens, answer.plan.blocks) == (784, 408)
    assert [group.fixed_blocks for group in answer.plan.layout.groups if group.rule == "fixed"] == [2, 2, 2]
    assert abs(answer.pool_tokens - 313_650) <= 1


def test_latents_of_0_7_are_padded() -> None:
    """A log of DeepSeek-R1 at TP 8 on 0.7.3: 18,418 blocks in 21.43 GiB, 61 layers x 16 tokens x 1,280 B."""
    model = read_model("deepseek-ai/DeepSeek-R1", offline=True)
    asked = Deployment(
        engine=parse_engine("vllm@0.7.3"), tensor_parallel=8, kv_memory_bytes=int(21.43 * GIB), max_model_len=8192
    )
    plan = fit(model, asked).plan
    assert plan.layout.bytes_per_block == 61 * 16 * 1280
    assert abs(plan.blocks - 18_418) <= 5, "the log's two decimals"


def test_a_pooled_index_and_its_tail() -> None:
    """GLM-5.3-Flash on vLLM 0.33, TP 1, 20 GiB: blocks of 4,352 tokens and 50,620,416 B, 424 of them; KDA states in
    groups of 9, 9, 8 and 8, eleven latents with their index keys in one, the tails in a ring of one block a request.
    A request of 1,048,576 tokens takes 254 blocks, one of 8,192 takes 15."""
    plan = fit(read_model("zai-org/GLM-5.3-Flash", offline=True), Deployment(kv_memory_bytes=20 * GIB)).plan
    layout = plan.layout
    assert (layout.block_tokens, layout.bytes_per_block, plan.blocks) == (4352, 50_620_416, 424)
    assert [(group.layers, group.block_tokens) for group in layout.groups] == [
        (9, 4352),
        (9, 4352),
        (8, 4352),
        (8, 4352),
        (22, 4352),
        (11, 4),
    ]
    assert [group.page_bytes for group in layout.groups][-2:] == [11 * (4_456_448 + 143_616), 11 * 2048]
    assert [layout.request_blocks(tokens) for tokens in (1_048_576, 8192)] == [254, 15]


def test_a_shorter_block_of_a_pooled_index_is_read_in_other_pieces() -> None:
    """The same at TP 8, 40 GiB, window 32,768: blocks of 640 tokens and 7,468,032 B, 5,751 of them, 65 a request."""
    asked = Deployment(kv_memory_bytes=40 * GIB, tensor_parallel=8, max_model_len=32_768)
    plan = fit(read_model("zai-org/GLM-5.3-Flash", offline=True), asked).plan
    assert (plan.layout.block_tokens, plan.layout.bytes_per_block, plan.blocks) == (640, 7_468_032, 5751)
    assert plan.layout.request_blocks(32_768) == 65


def test_8_bit_kv_of_narrow_sparse_latents_has_no_kernel_on_hopper() -> None:
    """Asked for fp8 KV of GLM-5.3-Flash on an H100, vLLM 0.33 finds no valid attention backend (head size 512)."""
    model = read_model("zai-org/GLM-5.3-Flash", offline=True)
    with pytest.raises(InputError, match="latents of 512 values"):
        fit(model, Deployment(kv_memory_bytes=20 * GIB, kv_dtype="fp8"))
    wide = read_model("deepseek-ai/DeepSeek-V3.2", offline=True)
    assert fit(wide, Deployment(kv_memory_bytes=20 * GIB, kv_dtype="fp8", max_model_len=8192)).plan.blocks
