"""Laws of what a layer keeps: longer never holds less, a window equals full attention until it fills, ranks cover the
whole."""

from fractions import Fraction

from hypothesis import given

from kvplan.layers import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    KvTypes,
    Layer,
    SlidingAttention,
)
from tests.strategies import ANY_LAYER, HEADS, KV_TYPES, RANKS, TOKENS, WIDTHS, WINDOWS


@given(layer=ANY_LAYER, kv=KV_TYPES, shorter=TOKENS, more=TOKENS)
def test_longer_never_holds_less(layer: Layer, kv: KvTypes, shorter: int, more: int) -> None:
    assert layer.bytes_for(shorter, kv) <= layer.bytes_for(shorter + more, kv)


@given(layer=ANY_LAYER, kv=KV_TYPES, tokens=TOKENS)
def test_the_pieces_make_the_whole(layer: Layer, kv: KvTypes, tokens: int) -> None:
    grown = layer.growing_bytes_per_token(kv) * tokens
    windowed = layer.windowed_bytes_per_token(kv) * min(tokens, layer.window_tokens or 0)
    exact = layer.fixed_bytes(kv) + grown + windowed
    assert 0 <= layer.bytes_for(tokens, kv) - exact < 1


@given(kv=KV_TYPES, heads=HEADS, key=WIDTHS, value=WIDTHS, window=WINDOWS, tokens=TOKENS)
def test_a_window_equals_full_attention_until_it_fills(
    kv: KvTypes, heads: int, key: int, value: int, window: int, tokens: int
) -> None:
    full = FullAttention(kv_heads=heads, head_dim=key, value_head_dim=value)
    sliding = SlidingAttention(kv_heads=heads, head_dim=key, value_head_dim=value, window=window)
    chunked = ChunkedAttention(kv_heads=heads, head_dim=key, value_head_dim=value, chunk=window)
    held = full.bytes_for(min(tokens, window), kv)
    assert sliding.bytes_for(tokens, kv) == held
    assert chunked.bytes_for(tokens, kv) == held


@given(kv=KV_TYPES, heads=HEADS, key=WIDTHS, value=WIDTHS, ranks=RANKS)
def test_ranks_cover_the_whole_and_replicas_never_hold_less_than_a_head(
    kv: KvTypes, heads: int, key: int, value: int, ranks: int
) -> None:
    whole = FullAttention(kv_heads=heads, head_dim=key, value_head_dim=value)
    one_head = FullAttention(kv_heads=1, head_dim=key, value_head_dim=value)
    mine = whole.shard(ranks).growing_bytes_per_token(kv)
    assert mine == max(whole.growing_bytes_per_token(kv) / ranks, one_head.growing_bytes_per_token(kv))


@given(layer=ANY_LAYER, kv=KV_TYPES, tokens=TOKENS, ranks=RANKS)
def test_a_rank_holds_at_most_the_whole_and_all_ranks_at_least_that(
    layer: Layer, kv: KvTypes, tokens: int, ranks: int
) -> None:
    mine = layer.shard(ranks).bytes_for(tokens, kv)
    assert mine <= layer.bytes_for(tokens, kv) <= mine * ranks


@given(layer=ANY_LAYER, kv=KV_TYPES)
def test_one_rank_is_the_whole(layer: Layer, kv: KvTypes) -> None:
    assert layer.shard(1) == layer


@given(layer=ANY_LAYER, kv=KV_TYPES)
def test_nothing_but_cross_attention_and_state_is_fixed(layer: Layer, kv: KvTypes) -> None:
    grows = layer.growing_bytes_per_token(kv) + layer.windowed_bytes_per_token(kv) > 0
    assert not (grows and layer.fixed_bytes(kv))
    if isinstance(layer, CrossAttention):
        assert layer.bytes_for(0, kv) == layer.bytes_for(10**6, kv) == layer.fixed_bytes(kv)


@given(layer=ANY_LAYER, kv=KV_TYPES)
def test_rates_are_never_negative(layer: Layer, kv: KvTypes) -> None:
    assert layer.growing_bytes_per_token(kv) >= Fraction(0)
    assert layer.windowed_bytes_per_token(kv) >= Fraction(0)
    assert layer.fixed_bytes(kv) >= 0
