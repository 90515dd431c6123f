"""Hypothesis strategies shared by the laws: every kind of layer, KV types, whole models."""

from collections.abc import Mapping

from hypothesis import strategies as st

import kvplan.layers as kept
from kvplan.layers import BFLOAT16, FLOAT16, FLOAT32, FP8, KvTypes, Layer, StoredType

Q8_0 = StoredType(name="q8_0", bytes_per_group=34, elements_per_group=32)  # ggml: 32 values and a float16 scale

HEADS = st.sampled_from([1, 2, 4, 8, 16, 32])
WIDTHS = st.sampled_from([64, 96, 128, 192, 256])
WINDOWS = st.integers(min_value=1, max_value=40_000)
STATES = st.sampled_from([BFLOAT16, FLOAT16, FLOAT32])
KERNELS = st.integers(min_value=2, max_value=4)
TOKENS = st.integers(min_value=0, max_value=200_000)
RANKS = st.sampled_from([1, 2, 4, 8])

KV_TYPES = st.one_of(
    st.sampled_from([BFLOAT16, FLOAT16, FP8]).map(lambda stored: KvTypes(key=stored, value=stored)),
    st.just(KvTypes(key=Q8_0, value=BFLOAT16)),
    st.just(KvTypes(key=FP8, value=FP8, packed="fp8_ds_mla")),
)

LAYERS: Mapping[type[Layer], st.SearchStrategy[Layer]] = {
    kept.FullAttention: st.builds(kept.FullAttention, kv_heads=HEADS, head_dim=WIDTHS, value_head_dim=WIDTHS),
    kept.SlidingAttention: st.builds(
        kept.SlidingAttention, kv_heads=HEADS, head_dim=WIDTHS, value_head_dim=WIDTHS, window=WINDOWS
    ),
    kept.ChunkedAttention: st.builds(
        kept.ChunkedAttention, kv_heads=HEADS, head_dim=WIDTHS, value_head_dim=WIDTHS, chunk=WINDOWS
    ),
    kept.LatentAttention: st.builds(kept.LatentAttention, latent_dim=st.just(512), rope_dim=st.just(64)),
    kept.IndexKeys: st.builds(
        kept.IndexKeys, bytes_per_entry=st.sampled_from([132, 256]), tokens_per_entry=st.sampled_from([1, 4])
    ),
    kept.IndexTail: st.builds(
        kept.IndexTail, tokens=st.sampled_from([4, 16]), values_per_token=st.sampled_from([128, 256])
    ),
    kept.CompressedKv: st.builds(
        kept.CompressedKv, bytes_per_entry=st.just(584), tokens_per_entry=st.sampled_from([1, 2, 4, 128])
    ),
    kept.CompressedWindow: st.builds(kept.CompressedWindow, bytes_per_entry=st.just(584), window=WINDOWS),
    kept.CompressorState: st.builds(
        kept.CompressorState, values_per_token=st.sampled_from([512, 1024, 2048]), window=st.sampled_from([8, 128])
    ),
    kept.CrossAttention: st.builds(
        kept.CrossAttention,
        kv_heads=HEADS,
        head_dim=WIDTHS,
        value_head_dim=WIDTHS,
        source_tokens=st.integers(min_value=1, max_value=6404),
    ),
    kept.SharedKv: st.just(kept.SharedKv(read=kept.FullAttention(kv_heads=32, head_dim=128, value_head_dim=128))),
    kept.Mamba1State: st.builds(
        kept.Mamba1State,
        inner=st.sampled_from([1536, 8192]),
        state=st.just(16),
        conv_kernel=KERNELS,
        conv_type=STATES,
        temporal_type=STATES,
    ),
    kept.Mamba2State: st.builds(
        kept.Mamba2State,
        heads=st.sampled_from([24, 48, 64, 128]),
        head_dim=st.sampled_from([64, 80]),
        state=st.just(128),
        groups=st.sampled_from([1, 8]),
        conv_kernel=KERNELS,
        conv_type=STATES,
        temporal_type=STATES,
    ),
    kept.GatedDeltaState: st.builds(
        kept.GatedDeltaState,
        key_heads=st.just(16),
        key_dim=st.just(128),
        value_heads=st.sampled_from([16, 32, 64]),
        value_dim=st.just(128),
        conv_kernel=KERNELS,
        conv_type=STATES,
        temporal_type=STATES,
    ),
    kept.KdaState: st.builds(
        kept.KdaState,
        heads=st.sampled_from([32, 64]),
        dim=st.just(128),
        conv_kernel=KERNELS,
        conv_type=STATES,
        temporal_type=STATES,
    ),
    kept.LightningState: st.builds(
        kept.LightningState, heads=st.sampled_from([32, 64]), head_dim=st.just(128), temporal_type=STATES
    ),
    kept.ShortConvState: st.builds(
        kept.ShortConvState, channels=st.sampled_from([1024, 2048]), conv_kernel=KERNELS, conv_type=STATES
    ),
    kept.NgramConvState: st.builds(
        kept.NgramConvState, channels=st.sampled_from([8192, 10240]), steps=st.just(9), conv_type=STATES
    ),
    kept.RgLruState: st.builds(
        kept.RgLruState, width=st.sampled_from([2560, 4096]), conv_kernel=KERNELS, temporal_type=STATES
    ),
    kept.RwkvState: st.builds(
        kept.RwkvState, heads=st.sampled_from([32, 40]), head_dim=st.just(64), temporal_type=STATES
    ),
}

ANY_LAYER = st.one_of(*LAYERS.values())
