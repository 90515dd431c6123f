"""Layers into groups, on small hand-built models. Group shapes of real models are the golden rows of this folder."""

import pytest

from kvplan.engines.vllm.groups import make_groups
from kvplan.engines.vllm.specs import PageSpec, attention_spec, padded, state_spec
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import (
    BFLOAT16,
    ChunkedAttention,
    FullAttention,
    KvTypes,
    LatentAttention,
    Layer,
    RgLruState,
    SharedKv,
    ShortConvState,
    SlidingAttention,
)

KV = KvTypes(key=BFLOAT16, value=BFLOAT16)


def full(kv_heads: int = 8) -> FullAttention:
    return FullAttention(kv_heads=kv_heads, head_dim=128, value_head_dim=128)


def sliding(kv_heads: int = 8, window: int = 1024) -> SlidingAttention:
    return SlidingAttention(kv_heads=kv_heads, head_dim=128, value_head_dim=128, window=window)


CHUNKED = ChunkedAttention(kv_heads=8, head_dim=128, value_head_dim=128, chunk=8192)
LATENT = LatentAttention(latent_dim=512, rope_dim=64)


def specs(*layers: Layer) -> list[PageSpec]:
    made = [
        attention_spec(layer, index, KV, block_tokens=16, encoder_tokens=8192) for index, layer in enumerate(layers)
    ]
    return [spec for spec in made if spec is not None]


def state(index: int, page_bytes: int) -> PageSpec:
    layer = ShortConvState(channels=2048, conv_kernel=3)
    return state_spec(layer, index, KV, block_tokens=16, page_bytes=page_bytes, blocks=2)


def shape(groups: list[list[PageSpec]]) -> list[tuple[str, int, int, int]]:
    """(family, layers, block, page of one layer) of each group."""
    return [(group[0].family, len(group), group[0].block_tokens, group[0].page_bytes) for group in groups]


def test_one_demand_is_one_group() -> None:
    assert shape(make_groups(specs(*[full()] * 4))) == [("full", 4, 16, 65536)]
    assert shape(make_groups(specs(*[sliding()] * 4))) == [("sliding", 4, 16, 65536)]


def test_full_layers_of_unlike_heads_share_a_group() -> None:
    groups = make_groups(specs(full(8), full(2), LATENT))
    assert len(groups) == 1
    assert [spec.page_bytes for spec in groups[0]] == [65536, 16384, 18432]


def test_the_smaller_bucket_is_the_size_of_a_group() -> None:
    """Gemma-3-4b: 29 windows and 5 full layers make groups of 5."""
    pattern = [*[sliding()] * 5, full()] * 5 + [sliding()] * 4
    assert shape(make_groups(specs(*pattern))) == [
        *[("sliding", 5, 16, 65536)] * 5,
        ("sliding", 4, 16, 65536),
        ("full", 5, 16, 65536),
    ]


def test_nearly_equal_buckets_take_the_larger_size() -> None:
    """12 windows and 13 full layers: 13 < 1.5 × 12, so two groups."""
    assert [len(group) for group in make_groups(specs(*[sliding()] * 12, *[full()] * 13))] == [12, 13]
    assert [len(group) for group in make_groups(specs(*[sliding()] * 12, *[full()] * 18))] == [12, 9, 9]


def test_layers_are_dealt_in_turn() -> None:
    groups = make_groups(specs(*[sliding(), sliding(), full()] * 2))
    assert [[spec.decoder_layer for spec in group] for group in groups] == [[0, 3], [1, 4], [2, 5]]


def test_windows_of_unlike_length_are_unlike() -> None:
    assert [len(group) for group in make_groups(specs(sliding(), sliding(window=512), full()))] == [1, 1, 1]


def test_a_smaller_page_gets_a_longer_block() -> None:
    assert shape(make_groups(specs(sliding(8), full(4)))) == [("sliding", 1, 16, 65536), ("full", 1, 32, 65536)]


def test_a_page_that_does_not_divide_the_largest_is_padded() -> None:
    assert shape(make_groups(specs(sliding(3), full(8)))) == [("sliding", 1, 16, 65536), ("full", 1, 16, 65536)]


def test_a_state_takes_the_largest_page() -> None:
    assert shape(make_groups([state(0, 8192), *specs(full())])) == [("state", 1, 16, 65536), ("full", 1, 16, 65536)]


def test_latent_pages_that_cannot_be_raised_make_windows_full() -> None:
    groups = make_groups(specs(LATENT, sliding()))
    assert [(spec.family, spec.rule) for spec in groups[0]] == [("latent", "full"), ("full", "full")]
    assert len(groups) == 1


def test_latent_beside_chunks_is_refused() -> None:
    with pytest.raises(UnsupportedModelError):
        make_groups(specs(LATENT, CHUNKED))


def test_without_the_hybrid_manager_windows_and_chunks_are_full() -> None:
    for local in (sliding(), CHUNKED):
        groups = make_groups(specs(local, full(), local), hybrid_manager=False)
        assert [[spec.rule for spec in group] for group in groups] == [["full", "full", "full"]]


def test_without_the_hybrid_manager_all_windows_stay_windows() -> None:
    assert shape(make_groups(specs(*[sliding()] * 4), hybrid_manager=False)) == [("sliding", 4, 16, 65536)]


@pytest.mark.parametrize(
    "mixed",
    [
        [state(0, 65536), *specs(full())],
        specs(sliding(), sliding(window=512)),
        specs(sliding(), sliding(window=512), full()),
    ],
)
def test_without_the_hybrid_manager_the_rest_is_refused(mixed: list[PageSpec]) -> None:
    with pytest.raises(InputError) as refused:
        make_groups(mixed, hybrid_manager=False)
    assert refused.value.key == "hybrid_kv_cache_manager"


def test_shared_layers_keep_nothing() -> None:
    assert specs(SharedKv()) == []
    assert make_groups([]) == []


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="RG-LRU"):
        specs(RgLruState(width=2560, conv_kernel=4))


def test_padding() -> None:
    assert [padded(amount, 576) for amount in (1, 576, 577)] == [576, 576, 1152]
