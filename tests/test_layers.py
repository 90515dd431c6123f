"""What each kind of layer keeps: one golden row a kind, the arithmetic written out."""

from fractions import Fraction

import pytest

from kvplan.errors import InputError
from kvplan.layers import (
    BFLOAT16,
    FLOAT32,
    FP8,
    ChunkedAttention,
    CompressedKv,
    CompressedWindow,
    CompressorState,
    CrossAttention,
    FullAttention,
    GatedDeltaState,
    IndexKeys,
    IndexTail,
    KdaState,
    KvTypes,
    LatentAttention,
    Layer,
    LightningState,
    Mamba1State,
    Mamba2State,
    NgramConvState,
    RgLruState,
    RwkvState,
    SharedKv,
    ShortConvState,
    SlidingAttention,
    StoredType,
)
from tests.models import kinds_of_layers
from tests.published import evaluate
from tests.strategies import LAYERS

HALF = KvTypes(key=BFLOAT16, value=BFLOAT16)
BYTE = KvTypes(key=FP8, value=FP8)
PACKED = KvTypes(key=FP8, value=FP8, packed="fp8_ds_mla")

# layer, bytes a token adds without end, bytes a token adds in its window, fixed bytes; source of the shape
GOLDEN: list[tuple[Layer, str, str, str]] = [
    # Llama-3.1-8B (config.json); vLLM 0.33 FullAttentionSpec
    (FullAttention(kv_heads=8, head_dim=128, value_head_dim=128), "2 × 8 × 128 × 2", "0", "0"),
    # MiMo-V2-Flash (config.json): keys of 192, values of 128
    (FullAttention(kv_heads=4, head_dim=192, value_head_dim=128), "4 × (192 + 128) × 2", "0", "0"),
    # gpt-oss-120b (config.json); vLLM 0.33 SlidingWindowSpec
    (SlidingAttention(kv_heads=8, head_dim=64, value_head_dim=64, window=128), "0", "2 × 8 × 64 × 2", "0"),
    # Llama-4-Scout (config.json); vLLM 0.33 ChunkedLocalAttentionSpec
    (ChunkedAttention(kv_heads=8, head_dim=128, value_head_dim=128, chunk=8192), "0", "2 × 8 × 128 × 2", "0"),
    # DeepSeek-V3 (config.json); vLLM 0.33 MLAAttentionSpec
    (LatentAttention(latent_dim=512, rope_dim=64), "(512 + 64) × 2", "0", "0"),
    # DeepSeek-V3.2's indexer; vLLM 0.33 DeepseekV32IndexerCache: 128 fp8 and one float32
    (IndexKeys(bytes_per_entry=132), "128 + 4", "0", "0"),
    # GLM-5.3-Flash; vLLM 0.33 Glm5NextTailCache: key and gate score of 4 tokens in bfloat16
    (IndexTail(tokens=4, values_per_token=256), "0", "0", "4 × 2 × 128 × 2"),
    # DeepSeek-V4; vLLM 0.33 MLAAttentionSpec with tokens_per_state 128
    (CompressedKv(bytes_per_entry=584, tokens_per_entry=128), "584 / 128", "0", "0"),
    (CompressedWindow(bytes_per_entry=584, window=128), "0", "584", "0"),
    (CompressorState(values_per_token=2048, window=8), "0", "2048 × 4", "0"),
    # Whisper-large-v3 (config.json): 1,500 encoder positions
    (
        CrossAttention(kv_heads=20, head_dim=64, value_head_dim=64, source_tokens=1500),
        "0",
        "0",
        "1500 × 2 × 20 × 64 × 2",
    ),
    # Qwen3.8-Flash-Next (config.json); vLLM 0.33, its PLE layer: 3 × 3 steps of 4 streams of 2,560
    (NgramConvState(channels=10240, steps=9), "0", "0", "9 × 4 × 2560 × 2"),
    (SharedKv(), "0", "0", "0"),
    # mamba-130m (config.json); vLLM 0.33 mamba1_state_shape
    (Mamba1State(inner=1536, state=16, conv_kernel=4), "0", "0", "(3 × 1536 + 1536 × 16) × 2"),
    # granite-4.0-h-tiny (config.json); vLLM 0.33 mamba2_state_shape
    (
        Mamba2State(heads=48, head_dim=64, state=128, groups=1, conv_kernel=4),
        "0",
        "0",
        "(3 × (48 × 64 + 2 × 1 × 128) + 48 × 64 × 128) × 2",
    ),
    # Qwen3.5-0.8B (config.json); vLLM 0.33 gated_delta_net_state_shape, temporal state in float32
    (
        GatedDeltaState(key_heads=16, key_dim=128, value_heads=16, value_dim=128, conv_kernel=4, temporal_type=FLOAT32),
        "0",
        "0",
        "3 × (2 × 16 × 128 + 16 × 128) × 2 + 16 × 128 × 128 × 4",
    ),
    # Kimi-Linear-48B (config.json); vLLM 0.33 kda_state_shape
    (
        KdaState(heads=32, dim=128, conv_kernel=4, temporal_type=FLOAT32),
        "0",
        "0",
        "3 × 3 × 32 × 128 × 2 + 32 × 128 × 128 × 4",
    ),
    # MiniMax-M1 (config.json); vLLM 0.33 linear_attention_state_shape
    (LightningState(heads=64, head_dim=128), "0", "0", "64 × 128 × 128 × 2"),
    # LFM2-2.6B (config.json); vLLM 0.33 short_conv_state_shape
    (ShortConvState(channels=2048, conv_kernel=3), "0", "0", "2 × 2048 × 2"),
    # RecurrentGemma-2b (config.json); transformers' recurrent_states in float32
    (RgLruState(width=2560, conv_kernel=4, temporal_type=FLOAT32), "0", "0", "3 × 2560 × 2 + 2560 × 4"),
    # RWKV-5-World-3B (config.json): two shifted tokens and one matrix a head
    (RwkvState(heads=40, head_dim=64, temporal_type=FLOAT32), "0", "0", "2 × 2560 × 2 + 40 × 64 × 64 × 4"),
]


@pytest.mark.parametrize(
    ("layer", "growing", "windowed", "fixed"), GOLDEN, ids=lambda value: getattr(value, "kind", "")
)
def test_bytes_of_a_layer(layer: Layer, growing: str, windowed: str, fixed: str) -> None:
    assert layer.growing_bytes_per_token(HALF) == evaluate(growing)
    assert layer.windowed_bytes_per_token(HALF) == evaluate(windowed)
    assert layer.fixed_bytes(HALF) == evaluate(fixed)


def test_every_kind_has_a_golden_row_and_a_strategy() -> None:
    assert {type(layer) for layer, *_ in GOLDEN} == kinds_of_layers()
    assert set(LAYERS) == kinds_of_layers()


def test_kinds_have_names_of_their_own() -> None:
    names = [kind.kind for kind in kinds_of_layers()]
    assert len(names) == len(set(names))


def test_a_window_saturates() -> None:
    layer = SlidingAttention(kv_heads=8, head_dim=64, value_head_dim=64, window=128)
    assert [layer.bytes_for(tokens, HALF) for tokens in (0, 1, 128, 129, 10**6)] == [0, 2048, 262144, 262144, 262144]


def test_compressed_entries_count_started_groups_of_bytes() -> None:
    assert CompressedKv(bytes_per_entry=584, tokens_per_entry=4).bytes_for(6, HALF) == 876  # 584 × 6 / 4


def test_fp8_halves_what_follows_the_kv_type_and_nothing_else() -> None:
    assert FullAttention(kv_heads=8, head_dim=128, value_head_dim=128).growing_bytes_per_token(BYTE) == 2048
    assert LatentAttention(latent_dim=512, rope_dim=64).growing_bytes_per_token(BYTE) == 576
    assert IndexKeys(bytes_per_entry=132).growing_bytes_per_token(BYTE) == 132
    assert KdaState(heads=32, dim=128, conv_kernel=4).fixed_bytes(BYTE) == (9 * 32 * 128 + 32 * 128 * 128) * 2


def test_packed_latent_takes_656_bytes() -> None:
    assert LatentAttention(latent_dim=512, rope_dim=64).growing_bytes_per_token(PACKED) == 512 + 4 * 4 + 64 * 2


def test_grouped_types_are_exact_fractions() -> None:
    q8_0 = StoredType(name="q8_0", bytes_per_group=34, elements_per_group=32)
    assert q8_0.bytes_for(128) == Fraction(136)
    assert q8_0.bytes_for(16) == Fraction(17)


@pytest.mark.parametrize(("packed", "name"), [(None, "q8_0/bfloat16"), ("fp8_ds_mla", "fp8_ds_mla")])
def test_names_of_mixed_types(packed: str | None, name: str) -> None:
    q8_0 = StoredType(name="q8_0", bytes_per_group=34, elements_per_group=32)
    assert KvTypes(key=q8_0, value=BFLOAT16, packed=packed).name == name


@pytest.mark.parametrize(
    ("layer", "ranks", "growing", "fixed"),
    [
        (FullAttention(kv_heads=8, head_dim=128, value_head_dim=128), 4, 2 * 2 * 128 * 2, 0),
        (FullAttention(kv_heads=2, head_dim=128, value_head_dim=128), 8, 2 * 1 * 128 * 2, 0),
        (LatentAttention(latent_dim=512, rope_dim=64), 8, 1152, 0),
        (IndexKeys(bytes_per_entry=132), 8, 132, 0),
        (Mamba1State(inner=1536, state=16, conv_kernel=4), 2, 0, (3 * 768 + 768 * 16) * 2),
        # one group is kept by every rank: 3 × (24 × 64 + 2 × 128) + 24 × 64 × 128
        (
            Mamba2State(heads=48, head_dim=64, state=128, groups=1, conv_kernel=4),
            2,
            0,
            (3 * (24 * 64 + 2 * 128) + 24 * 64 * 128) * 2,
        ),
        (
            GatedDeltaState(key_heads=16, key_dim=128, value_heads=32, value_dim=128, conv_kernel=4),
            8,
            0,
            (3 * (2 * 2 * 128 + 4 * 128) + 4 * 128 * 128) * 2,
        ),
    ],
    ids=lambda value: getattr(value, "kind", str(value)),
)
def test_share_of_a_rank(layer: Layer, ranks: int, growing: int, fixed: int) -> None:
    mine = layer.shard(ranks)
    assert mine.growing_bytes_per_token(HALF) == growing
    assert mine.fixed_bytes(HALF) == fixed


@pytest.mark.parametrize(
    "layer",
    [
        FullAttention(kv_heads=10, head_dim=128, value_head_dim=128),  # phi-4 at TP 4
        Mamba2State(heads=48, head_dim=64, state=128, groups=6, conv_kernel=4),
        GatedDeltaState(key_heads=6, key_dim=128, value_heads=32, value_dim=128, conv_kernel=4),
        KdaState(heads=6, dim=128, conv_kernel=4),
    ],
    ids=lambda layer: str(layer.kind),
)
def test_heads_that_cannot_be_shared_are_refused(layer: Layer) -> None:
    with pytest.raises(InputError) as caught:
        layer.shard(4)
    assert caught.value.key == "tensor_parallel"
    assert caught.value.hint is not None
