"""SGLang: its pools by hand and by recorded starts, speculative decoding, sparse MLA, and what it refuses."""

from dataclasses import replace
from fractions import Fraction

import pytest

from kvplan.engines import engine_of, parse_engine
from kvplan.engines.deployment import Deployment, MediaLimit
from kvplan.engines.flag_values import Served
from kvplan.engines.sglang.budget import before_loading_bytes
from kvplan.engines.sglang.classes import has_window_pool
from kvplan.engines.sglang.drafting import draft_term
from kvplan.engines.sglang.pools import kv_memory, share_out, window_pool_tokens
from kvplan.engines.sglang.static_fraction import captured_sizes, default_fraction, static_fraction, tier_of
from kvplan.engines.sglang.storage import kv_types, page_tokens, stored_layers
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import (
    FullAttention,
    IndexKeys,
    IndexTail,
    KdaState,
    LatentAttention,
    SharedKv,
)
from kvplan.model import ModelSpec
from kvplan.profiles.loader import load_gpu
from kvplan.sources import read_model
from kvplan.units import GIB, MIB
from tests.test_engines_others import CONTEXT, DENSE, FULL, LATENT, STATE, WINDOW, model_of, plan_of


def test_defaults_by_size_of_gpu() -> None:
    """Tiers and reserve by hand: H100 512 + 8192 × 1.5 + 128 MiB, and 256 × 2 + 58 × 8 for graphs."""
    sizes = (15, 24, 44, 79, 140, 180)
    assert [tier_of(size * GIB).chunk_tokens for size in sizes] == [2048, 4096, 4096, 8192, 8192, 16384]
    assert [tier_of(size * GIB, (0, 5, 19)).chunk_tokens for size in sizes] == [2048, 2048, 4096, 8192, 8192, 16384]
    assert default_fraction(81_559 * MIB, 8192, 1, 976) == Fraction(round((81_559 - 13_904) / 81_559 * 1000), 1000)
    # a 4090: 512 + 4096 × 1.5 + 128 + 48 × 2 + 50 × 8 = 7,280 MiB; before 0.5.12 512 + 2048 × 1.5 + 128 + 24 × 2
    asked = Deployment(engine=parse_engine("sglang"), gpu_memory_bytes=(24_564 * MIB,))
    older = replace(asked, engine=parse_engine("sglang@0.5.6"))
    assert static_fraction(DENSE, asked, 24_564 * MIB) == Fraction(round((24_564 - 7_280) / 24_564 * 1000), 1000)
    assert static_fraction(DENSE, older, 24_564 * MIB) == Fraction(847, 1000)
    # above 60 GiB at least 10 GiB are kept
    assert default_fraction(81_559 * MIB, 2048, 1, 0) == Fraction(874, 1000)


def test_reserves_graphs_by_what_is_captured() -> None:
    """8 replicas of attention keep 512 × 8 × 4.5 MiB more; MLA 1.5 GiB, not 74 × 8 MiB; stages and eager mode none."""
    memory = 180 * GIB

    def share(model: ModelSpec, **asked: object) -> Fraction:
        deployment = Deployment(engine=parse_engine("sglang"), gpu_memory_bytes=(memory,))
        return static_fraction(model, replace(deployment, **asked), memory)  # type: ignore[arg-type]

    def kept(mib: float) -> Fraction:
        return Fraction(round((1 - mib * MIB / memory) * 1000), 1000)

    base = 512 + 16384 * 1.5
    assert (captured_sizes(16_384), captured_sizes(100)) == (74, 12)
    assert share(DENSE) == kept(base + 128 + 1024 + 74 * 8)
    assert share(DENSE, pipeline_parallel=2) == kept(base + 256 + 1024)
    assert share(DENSE, enforce_eager=True) == kept(base + 128)
    assert share(DENSE, data_parallel=8) == kept(base + 1024 + 1024 + 512 * 8 * 4.5 + 74 * 8)
    assert share(DENSE, max_num_seqs=16) == kept(base + 128 + 32 + 74 * 8)
    assert share(model_of(*[LATENT] * 61)) == kept(base + 128 + 1024 + 1536)
    seeing = replace(DENSE, shape=replace(DENSE.shape, has_vision=True))
    assert share(seeing) == kept(base + 128 + 1024) * Fraction(95, 100)
    # Qwen3-VL's encoder: 27 × 1152² is 1.42 of ViT-L's 24 × 1024²
    tower = replace(seeing, shape=replace(seeing.shape, vision_layers=27, vision_hidden=1152))
    larger = Fraction(27 * 1152**2, 24 * 1024**2)
    assert share(tower) == kept(base + 128 + 1024) * Fraction(95, 100) * (1 - (larger - 1) / 10)
    assert share(replace(seeing, architecture="Gemma3ForConditionalGeneration")) == share(DENSE)


def test_pool_is_what_the_fraction_leaves() -> None:
    """A recorded start on an RTX PRO 6000: 93.99 GiB free, 57.06 of weights, 0.92: 29.41 GiB, 29.32 printed."""
    assert abs(kv_memory(round(93.99 * GIB), round(36.93 * GIB), Fraction(92, 100)) / GIB - 29.32) <= 0.1
    plan = plan_of("sglang", DENSE, memory_utilization=Fraction(9, 10))
    assert plan.budget is not None
    before, beside = (
        next(term.bytes for term in plan.budget.terms if term.name == name)
        for name in ("before_loading", "loaded_beside")
    )
    assert plan.kv_bytes == int((80 * GIB - before) * Fraction(9, 10)) - 10 * GIB - beside
    assert (plan.layout.block_tokens, plan.layout.reserved_blocks) == (1, 1)
    assert plan.tokens == plan.kv_bytes // 131_072
    # taken before loading: 0.7 on an H100, 1.75 to 2.5 on eight H100s or H200s; 95.0 − 93.99 on eight RTX PRO 6000s
    taken = {
        (name, ranks): round(before_loading_bytes(Deployment(gpu=load_gpu(name), tensor_parallel=ranks)) / GIB, 2)
        for name in ("h200", "rtx-pro-6000")
        for ranks in (1, 4, 8)
    }
    assert [taken["h200", ranks] for ranks in (1, 4, 8)] == [0.7, 2.1, 2.1]
    assert [taken["rtx-pro-6000", ranks] for ranks in (1, 4, 8)] == [0.45, 0.55, 0.95]


def test_states_take_their_ratio_and_bound_requests() -> None:
    """Qwen3.5-9B at TP 2: 39.42 GiB were shared into 18.68 for 1,521 states and 20.74 for tokens (a recorded start).

    One state more pads a batch. Qwen3-Next and its kin take five states a request for the prefix cache, others three.
    """
    state = 24 * (16 * 128 * 128 * 2 + 3 * 4096 * 2)
    pools = share_out(round((20.74 + 0.84 + 17.84) * GIB), state, Fraction(9, 10))
    assert abs(pools.state_slots - 1521) <= 2
    assert abs(pools.kv_bytes / GIB - 20.74) <= 0.02
    # bfloat16 conv states of 3 × (2 × 16 × 128 + 32 × 128) values, float32 temporal states of 32 × 128 × 128
    one = 2 * 3 * 8192 + 4 * 32 * 128 * 128
    hybrid = model_of(*[STATE, STATE, STATE, FULL] * 8)
    slots = share_out(20 * GIB, 24 * one, Fraction(9, 10)).state_slots
    assert plan_of("sglang", hybrid, kv_memory_bytes=20 * GIB).settings.max_num_seqs == slots // 3
    tracked = replace(hybrid, architecture="Qwen3NextForCausalLM")
    assert plan_of("sglang", tracked, kv_memory_bytes=20 * GIB).settings.max_num_seqs == slots // 5
    older = plan_of("sglang@0.5.12", tracked, kv_memory_bytes=20 * GIB)
    assert older.settings.max_num_seqs == slots // 3
    for wanted, severity in ((slots // 3, "info"), (slots // 3 + 1, "warning")):
        bound = plan_of("sglang", hybrid, kv_memory_bytes=20 * GIB, max_num_seqs=wanted)
        assert {each.code: each.severity for each in bound.findings}["states-bound-sequences"] == severity
    unkept = plan_of(
        "sglang", model_of(*[STATE, FULL] * 8), kv_memory_bytes=20 * GIB, prefix_caching=False, max_num_seqs=64
    )
    assert unkept.kv_bytes == 20 * GIB - 65 * 8 * one


def test_windows_have_a_pool_beside_the_full_one() -> None:
    """Cell = full + 0.8 × window; a request is charged by whichever pool it empties first."""
    model = replace(model_of(*[WINDOW, WINDOW, WINDOW, FULL] * 8), architecture="GptOssForCausalLM")
    plan = plan_of("sglang", model, kv_memory_bytes=40 * GIB, max_model_len=65_536)
    cell = 8 * 4096 + Fraction(8, 10) * 24 * 4096
    assert plan.layout.bytes_per_block == -(-cell.numerator // cell.denominator)
    assert plan.layout.request_blocks(800) == 1000
    assert plan.layout.request_blocks(10_000) == 10_000
    assert window_pool_tokens(plan.blocks, Fraction(8, 10), 1) == int(plan.blocks * Fraction(8, 10))
    small = plan_of("sglang", model, kv_memory_bytes=GIB // 2, max_model_len=2048, window_pool_ratio=Fraction(1, 5))
    assert any(finding.code == "window-pool-smaller-than-chunk" for finding in small.findings)
    smaller = plan_of("sglang", model, kv_memory_bytes=GIB // 2, max_model_len=2048, window_pool_ratio=Fraction(1, 20))
    assert any(finding.code == "window-pool-smaller-than-window" for finding in smaller.findings)
    assert not smaller.starts


@pytest.mark.parametrize(
    ("architecture", "engine", "pooled"),
    [
        ("GptOssForCausalLM", "sglang", True),
        ("Gemma3ForConditionalGeneration", "sglang", False),
        ("Gemma3ForConditionalGeneration", "sglang@0.5.6", True),
        ("Llama4ForConditionalGeneration", "sglang@0.5.6", False),
        ("Gemma4ForConditionalGeneration", "sglang@0.5.9", False),
        ("Gemma4ForConditionalGeneration", "sglang@0.5", True),
    ],
)
def test_pools_windows_by_class(architecture: str, engine: str, *, pooled: bool) -> None:
    """The list of ``is_hybrid_swa_model``; who is not on it keeps every token in every layer."""
    assert has_window_pool(architecture, parse_engine(engine).release) is pooled
    model = replace(model_of(*[WINDOW, FULL] * 16), architecture=architecture)
    plan = plan_of(engine, model, kv_memory_bytes=40 * GIB)
    assert plan.layout.bytes_per_block == -(-16 * 4096 * (Fraction(18, 10) if pooled else 2) // 1)
    assert any(finding.code == "windows-kept-whole" for finding in plan.findings) is not pooled
    whole = plan_of(engine, model, kv_memory_bytes=40 * GIB, hybrid_kv_cache_manager=False)
    assert whole.layout.bytes_per_block == 32 * 4096


def test_allocates_shared_layers_once_more() -> None:
    """Gemma-4-E4B of 0.5.13: 805,556 tokens of 7 full layers take 21.52 GiB, 644,444 of 35 window layers 43.02."""
    model = read_model("google/gemma-4-E4B-it", offline=True)
    plan = plan_of("sglang", model, kv_memory_bytes=round((21.52 + 43.02) * GIB), max_model_len=8192)
    # 0.01 GiB of rounding in the log are 125 tokens of 84 KiB
    assert abs(plan.blocks - 805_556) <= 125
    assert window_pool_tokens(805_556, Fraction(8, 10), 1) == 644_444
    with pytest.raises(UnsupportedModelError, match="only read another's"):
        plan_of("sglang", replace(model, layers=((FULL,), (SharedKv(),))))


def test_latents_and_four_bit_kv() -> None:
    plan = plan_of("sglang", model_of(*[LATENT] * 61), kv_memory_bytes=10 * GIB, tensor_parallel=8)
    assert plan.layout.bytes_per_block == 61 * 576 * 2
    four = plan_of("sglang", DENSE, kv_memory_bytes=10 * GIB, kv_dtype="fp4_e2m1")
    assert four.layout.bytes_per_block == 32 * 2048 * 9 // 16


def test_deals_experts_and_tries_no_media() -> None:
    experts = read_model("Qwen/Qwen3-30B-A3B", offline=True)
    plan = plan_of("sglang", experts, tensor_parallel=8, expert_parallel=True)
    assert "each of 8 ranks holds 16 of 128 experts" in next(
        finding.message for finding in plan.findings if finding.code == "experts-whole"
    )
    limits = (MediaLimit(modality="image", items=1),)
    seen = plan_of("sglang", DENSE, media_limits=limits)
    assert seen.budget == plan_of("sglang", DENSE).budget
    assert any(finding.code == "media-limits-take-no-memory" for finding in seen.findings)


def test_keeps_whole_gigabytes_of_kv_on_the_host() -> None:
    """64 GiB over two ranks are 34 GB each: 34 × 10**9 // 65,536 B a token; less than the pool is said."""
    plan, small = (
        plan_of("sglang", DENSE, tensor_parallel=2, kv_memory_bytes=20 * GIB, kv_offload_bytes=amount * GIB)
        for amount in (64, 4)
    )
    (found,) = [finding for finding in plan.findings if finding.code == "kv-offload"]
    assert f"{34 * 10**9 // 65_536:,} tokens" in found.message
    assert found.severity == "info"
    assert [finding.severity for finding in small.findings if finding.code == "kv-offload"] == ["warning"]
    served = Served(
        model=DENSE,
        deployment=Deployment(tensor_parallel=2, kv_offload_bytes=64 * GIB),
        settings=plan.settings,
        window_tokens=CONTEXT,
    )
    flags = engine_of("sglang").flags
    assert (flags["--enable-hierarchical-cache"](served), flags["--hicache-size"](served)) == (True, 34)


def test_says_which_share_would_do() -> None:
    plan = plan_of(
        "sglang", model_of(*[FULL] * 32, weights_gib=76), memory_utilization=Fraction(88, 100), max_model_len=4096
    )
    finding = next(finding for finding in plan.findings if finding.code == "static-share-below-weights")
    assert finding.hint == "--mem-fraction-static above 0.9573"  # (76 + 0.15) / (80 − 0.45)


DEEP = replace(model_of(*[LATENT] * 61), next_token_layers=((LATENT,),))
DRAFT = replace(
    model_of(*[FullAttention(kv_heads=8, head_dim=64, value_head_dim=64)] * 16, weights_gib=2), id="a/draft"
)
EAGLE = replace(model_of(FULL, weights_gib=1), id="an/eagle", architecture="LlamaForCausalLMEagle3")


@pytest.mark.parametrize(
    ("model", "asked", "cell_bytes"),
    [
        (DEEP, {}, 62 * 1152),
        (DEEP, {"speculative_method": "ngram"}, 61 * 1152),
        (DENSE, {"draft_model": DRAFT}, 48 * 4096),
        (DENSE, {"draft_model": EAGLE}, 33 * 4096),
    ],
)
def test_a_draft_widens_every_token(model: ModelSpec, asked: dict[str, object], cell_bytes: int) -> None:
    """A draft's layer counts as wide as the model's own, however wide it is."""
    plan = plan_of("sglang", model, speculative_tokens=3, **asked)
    assert plan.tokens == plan.kv_bytes // cell_bytes
    assert plan.settings.max_num_seqs == 48
    assert plan_of("sglang", model, speculative_tokens=3, max_num_seqs=200, **asked).settings.max_num_seqs == 200


def test_a_draft_s_weights_are_taken_from_the_pool() -> None:
    alone = plan_of("sglang", DENSE)
    drafted = plan_of("sglang", DENSE, speculative_tokens=3, draft_model=DRAFT)
    assert alone.budget is not None
    assert drafted.budget is not None
    assert alone.budget.kv_bytes - drafted.budget.kv_bytes == 2 * GIB


def test_a_draft_s_copies_of_embedding_and_head_are_there_while_the_pool_is_sized() -> None:
    """DeepSeek-V3's next-token layer over 8 ranks: its checkpoint carries both copies, and they are all that it loads.

    What the files hold of it, a rank's share: 1.98 GiB.
    """
    deep = read_model("deepseek-ai/DeepSeek-V3", offline=True)
    asked = Deployment(
        engine=parse_engine("sglang"),
        gpu_memory_bytes=(141 * GIB,) * 8,
        tensor_parallel=8,
        speculative_tokens=3,
    )
    term = draft_term(deep, asked)
    assert term is not None
    assert abs(term.bytes / GIB - 1.98) < 0.01
    third = draft_term(DENSE, replace(asked, tensor_parallel=1, draft_model=EAGLE))
    assert third is not None
    assert third.bytes == GIB + 32_000 * 4096 * 2


@pytest.mark.parametrize(
    ("engine", "model", "asked", "error"),
    [
        ("sglang@0.5.12", DEEP, {}, UnsupportedModelError),
        ("sglang", DENSE, {}, UnsupportedModelError),
        ("sglang", DENSE, {"speculative_method": "lookahead"}, UnsupportedModelError),
        ("sglang", model_of(*[FULL] * 4, *[STATE] * 12), {"draft_model": DRAFT}, UnsupportedModelError),
        ("sglang", replace(model_of(FULL, WINDOW), architecture="GptOssForCausalLM"), {"draft_model": DRAFT},
         UnsupportedModelError),
        ("sglang", DENSE, {"draft_model": model_of(STATE)}, UnsupportedModelError),
        ("sglang", DEEP, {"pipeline_parallel": 2, "gpu_memory_bytes": (80 * GIB,) * 2}, UnsupportedModelError),
        ("sglang", DENSE, {"speculative_method": "mtp"}, InputError),
        ("sglang", DENSE, {"speculative_method": "eagle"}, InputError),
        ("sglang", DENSE, {"speculative_method": "ngram", "draft_model": DRAFT}, InputError),
        ("sglang", DENSE, {"draft_model": DRAFT, "data_parallel": 2, "gpu_memory_bytes": (80 * GIB,) * 2}, InputError),
    ],
)  # fmt: skip
def test_what_is_not_known_of_a_draft_is_refused(
    engine: str, model: ModelSpec, asked: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error) as refused:
        plan_of(engine, model, speculative_tokens=3, **asked)
    assert getattr(refused.value, "hint", None)


HOPPER, DATACENTRE, WORKSTATION = "h100", "b200", "rtx-pro-6000"
INDEX = IndexKeys(bytes_per_entry=132)
PLAIN = replace(model_of(LATENT, LATENT), layers=((LATENT, INDEX),) * 61, architecture="DeepseekV32ForCausalLM")
SHARING = replace(PLAIN, layers=((LATENT, INDEX), (LATENT,)) * 39, architecture="GlmMoeDsaForCausalLM")
BARE = LatentAttention(latent_dim=512, rope_dim=0)
POOLED = (BARE, IndexKeys(bytes_per_entry=132, tokens_per_entry=4), IndexTail(tokens=4, values_per_token=256))
FLASH = replace(
    PLAIN,
    layers=((KdaState(heads=64, dim=128, conv_kernel=4),), POOLED),
    architecture="Glm5NextForConditionalGeneration",
)


@pytest.mark.parametrize(
    ("model", "word", "gpu", "engine", "latent_bytes"),
    [
        (PLAIN, "auto", HOPPER, "sglang", 1152),
        (PLAIN, "fp8", HOPPER, "sglang", 656),
        (PLAIN, "auto", DATACENTRE, "sglang", 576),
        (PLAIN, "auto", DATACENTRE, "sglang@0.5.9", 656),
        (PLAIN, "auto", WORKSTATION, "sglang", 576),
        (SHARING, "auto", WORKSTATION, "sglang", 656),
        (FLASH, "fp8", HOPPER, "sglang", 528),
        (FLASH, "auto", DATACENTRE, "sglang", 512),
    ],
)
def test_eight_bit_latents_have_scales_where_the_kernels_read_them(
    model: ModelSpec, word: str, gpu: str, engine: str, latent_bytes: int
) -> None:
    latent = next(layer for kept in model.layers for layer in kept if isinstance(layer, LatentAttention))
    deployment = Deployment(kv_dtype=word, gpu=load_gpu(gpu), engine=parse_engine(engine))
    assert latent.growing_bytes_per_token(kv_types(model, deployment)) == latent_bytes


def test_sparse_latents_have_two_types() -> None:
    with pytest.raises(InputError, match="bfloat16 or fp8_e4m3"):
        kv_types(PLAIN, Deployment(kv_dtype="nvfp4"))


def test_older_releases_allocate_the_index_of_every_layer() -> None:
    layers = [layer for kept in SHARING.layers for layer in kept]
    assert sum(layer == INDEX for layer in stored_layers(SHARING, layers, None)) == 39
    assert sum(layer == INDEX for layer in stored_layers(SHARING, layers, (0, 5, 16))) == 78
    newest, older = (plan_of(each, SHARING, kv_memory_bytes=10 * GIB) for each in ("sglang", "sglang@0.5.16"))
    assert newest.layout.bytes_per_block == 64 * (78 * 1152 + 39 * 132)
    assert older.layout.bytes_per_block == 64 * 78 * (1152 + 132)


def test_pages_hold_64_entries_and_pooled_keys_a_quarter() -> None:
    assert page_tokens(PLAIN, Deployment()) == 64
    plan = plan_of("sglang", FLASH, kv_memory_bytes=10 * GIB)
    assert plan.layout.block_tokens == 256
    assert plan.layout.bytes_per_block == 256 * (1024 + 33)
    assert plan.layout.groups[0].layers == 1


def test_a_draft_beside_sparse_latents_has_an_index_of_its_own() -> None:
    model = replace(SHARING, next_token_layers=((LATENT, INDEX),))
    plan = plan_of("sglang", model, kv_memory_bytes=10 * GIB, speculative_tokens=3)
    assert plan.layout.bytes_per_block == 64 * (79 * 1152 + 40 * 132)
