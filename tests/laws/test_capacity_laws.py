"""Laws of pages and pools, on models drawn from every kind that vLLM pages."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from kvplan.capacity import RequestShape, fit, longest_window, usable_blocks
from kvplan.engines.deployment import Deployment
from kvplan.engines.ranks import sequence_bytes
from kvplan.engines.vllm.groups import make_groups
from kvplan.engines.vllm.specs import PageSpec, attention_spec
from kvplan.layers import (
    BFLOAT16,
    FLOAT32,
    ChunkedAttention,
    FullAttention,
    GatedDeltaState,
    IndexKeys,
    KvTypes,
    LatentAttention,
    Layer,
    Mamba1State,
    Mamba2State,
    ShortConvState,
    SlidingAttention,
)
from kvplan.model import ModelSpec
from tests.models import model_of

KV = KvTypes(key=BFLOAT16, value=BFLOAT16)
HEADS, WIDTHS, WINDOWS = (
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([64, 128, 256]),
    st.sampled_from([128, 1024, 4096]),
)


@st.composite
def full_layers(draw: st.DrawFn) -> FullAttention:
    width = draw(WIDTHS)
    return FullAttention(kv_heads=draw(HEADS), head_dim=width, value_head_dim=width)


@st.composite
def sliding_layers(draw: st.DrawFn) -> SlidingAttention:
    width = draw(WIDTHS)
    return SlidingAttention(kv_heads=draw(HEADS), head_dim=width, value_head_dim=width, window=draw(WINDOWS))


@st.composite
def chunked_layers(draw: st.DrawFn) -> ChunkedAttention:
    width = draw(WIDTHS)
    return ChunkedAttention(kv_heads=draw(HEADS), head_dim=width, value_head_dim=width, chunk=8192)


STATES = st.sampled_from(
    [
        Mamba1State(inner=8192, state=16, conv_kernel=4),
        Mamba2State(heads=64, head_dim=64, state=128, groups=8, conv_kernel=4, temporal_type=FLOAT32),
        GatedDeltaState(key_heads=16, key_dim=128, value_heads=32, value_dim=128, conv_kernel=4),
        ShortConvState(channels=2048, conv_kernel=3),
    ]
)


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """One to three distinct layers, each repeated; MLA models stay among themselves, as published ones do."""
    kinds: list[Layer]
    if draw(st.booleans()):
        kinds = draw(st.lists(st.one_of(full_layers(), sliding_layers(), chunked_layers()), min_size=1, max_size=2))
        kinds += draw(st.lists(STATES, max_size=1))
    else:
        kinds = [LatentAttention(latent_dim=512, rope_dim=64), *draw(st.lists(STATES, max_size=1))]
        if draw(st.booleans()) and len(kinds) == 1:
            kinds.append(IndexKeys(bytes_per_entry=132))
    layers = [[kind] for kind in kinds for _ in range(draw(st.integers(1, 12)))]
    return model_of(draw(st.permutations(layers)), window=131072)


DEPLOYMENTS = st.builds(
    Deployment,
    kv_memory_bytes=st.integers(0, 80 * 2**30),
    kv_dtype=st.sampled_from(["auto", "fp8"]),
    max_model_len=st.integers(64, 131072),
    max_num_batched_tokens=st.sampled_from([1024, 2048, 8192]),
    prefix_caching=st.booleans(),
    async_scheduling=st.booleans(),
)


@given(models(), DEPLOYMENTS, st.integers(1, 131072), st.integers(1, 131072))
def test_a_longer_request_is_never_charged_less(model: ModelSpec, asked: Deployment, a: int, b: int) -> None:
    layout = fit(model, asked).plan.layout
    assert layout.request_blocks(min(a, b)) <= layout.request_blocks(max(a, b))


@given(models(), DEPLOYMENTS, st.integers(1, 131072))
def test_paging_never_saves(model: ModelSpec, asked: Deployment, tokens: int) -> None:
    plan = fit(model, asked).plan
    stored = sequence_bytes(model, asked, tokens, plan.kv_types)
    assert plan.layout.request_blocks(tokens) * plan.layout.bytes_per_block >= stored


@given(models(), DEPLOYMENTS)
def test_the_longest_window_fits_and_one_token_more_does_not(model: ModelSpec, asked: Deployment) -> None:
    answer = fit(model, asked)
    layout, usable = answer.plan.layout, usable_blocks(answer.plan.layout, answer.plan.blocks)
    longest = answer.longest_window_tokens
    assert longest == 0 or layout.request_blocks(longest) <= usable
    assert longest == model.max_context_tokens or layout.request_blocks(longest + 1) > usable
    assert (answer.verdict == "fits") == (asked.max_model_len is not None and longest >= asked.max_model_len)


@given(models(), DEPLOYMENTS, st.integers(1, 2**30))
def test_more_memory_never_carries_less(model: ModelSpec, asked: Deployment, more: int) -> None:
    assert asked.kv_memory_bytes is not None
    richer = Deployment(**{**vars(asked), "kv_memory_bytes": asked.kv_memory_bytes + more})
    poor, rich = fit(model, asked), fit(model, richer)
    assert rich.concurrency >= poor.concurrency
    assert rich.longest_window_tokens >= poor.longest_window_tokens


@given(models(), DEPLOYMENTS, st.integers(1, 60), st.integers(1, 200), st.fractions(Fraction(1, 100), 1))
def test_reservations_never_overcommit_the_fraction(
    model: ModelSpec, asked: Deployment, prompt: int, cap: int, share: Fraction
) -> None:
    answer = fit(model, asked, [RequestShape(name="one", prompt_tokens=prompt, max_output_tokens=cap)], share)
    (one,) = answer.reservations
    usable = usable_blocks(answer.plan.layout, answer.plan.blocks)
    assert one.sequences * one.blocks <= usable * share
    assert (one.sequences + 1) * one.blocks > usable * share


@given(models(), DEPLOYMENTS)
def test_groups_hold_every_cache_once_and_no_group_is_larger_than_a_block(model: ModelSpec, asked: Deployment) -> None:
    layout = fit(model, asked).plan.layout
    assert sum(group.layers for group in layout.groups) == len(model.layers)
    assert max(group.page_bytes for group in layout.groups) == layout.bytes_per_block


@given(st.lists(st.one_of(full_layers(), sliding_layers(), chunked_layers()), min_size=1, max_size=40))
def test_dealing_loses_and_invents_no_layer(layers: list[Layer]) -> None:
    specs = [attention_spec(layer, index, KV, block_tokens=16, encoder_tokens=1) for index, layer in enumerate(layers)]
    known: list[PageSpec] = [spec for spec in specs if spec is not None]
    groups = make_groups(known)
    assert sorted(spec.decoder_layer for group in groups for spec in group) == list(range(len(layers)))
    if len(groups) > 1:
        assert len({spec.page_bytes for group in groups for spec in group}) == 1
    assert all(len({spec.token_demand for spec in group}) == 1 for group in groups)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**5))
def test_a_window_costs_what_full_attention_costs_until_it_fills(tokens: int, window: int, blocks: int) -> None:
    one = SlidingAttention(kv_heads=1, head_dim=64, value_head_dim=64, window=window)
    all_tokens = FullAttention(kv_heads=1, head_dim=64, value_head_dim=64)
    asked = Deployment(kv_memory_bytes=2**30, max_num_batched_tokens=1024)
    sliding = fit(model_of([[one]], window=10**6), asked).plan.layout
    full = fit(model_of([[all_tokens]], window=10**6), asked).plan.layout
    difference = full.request_blocks(tokens) + 1 - sliding.request_blocks(tokens)
    assert difference >= 0
    assert difference == 0 or tokens > window - 1
    assert longest_window(sliding, blocks, 10**6) >= longest_window(full, max(0, blocks - 1), 10**6)
