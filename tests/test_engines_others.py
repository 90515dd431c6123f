"""SGLang, TensorRT-LLM, llama.cpp and TGI: their pools by hand and by their logs, and what they refuse."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from kvplan.capacity import Fit, RequestShape, fit
from kvplan.engines import ENGINES, engine_of, engine_plan, parse_engine
from kvplan.engines.base import Deployment, EnginePlan, MediaLimit
from kvplan.engines.flag_values import Served
from kvplan.engines.ggml_types import CACHE_TYPES, cache_types
from kvplan.engines.llama_cpp.devices import device_layers, device_weights
from kvplan.engines.llama_cpp.slots import divide_context, scratch_bytes, window_cells
from kvplan.engines.sglang.budget import before_loading_bytes
from kvplan.engines.sglang.classes import has_window_pool
from kvplan.engines.sglang.reserve import captured_sizes, default_fraction, static_fraction, tier_of
from kvplan.engines.sglang.rules import kv_memory, share_out, window_pool_tokens
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import (
    CompressedKv,
    CrossAttention,
    FullAttention,
    GatedDeltaState,
    IndexKeys,
    LatentAttention,
    Layer,
    Mamba2State,
    SharedKv,
    SlidingAttention,
)
from kvplan.model import ModelSpec, Shape, Source, Weights
from kvplan.profiles.loader import list_names, load_gpu
from kvplan.sources import read_model
from kvplan.units import GIB, MIB
from tests.engine_table import Line, lines, published

FULL = FullAttention(kv_heads=8, head_dim=128, value_head_dim=128)
WINDOW = SlidingAttention(kv_heads=8, head_dim=128, value_head_dim=128, window=1024)
STATE = GatedDeltaState(key_heads=16, key_dim=128, value_heads=32, value_dim=128, conv_kernel=4)
LATENT = LatentAttention(latent_dim=512, rope_dim=64)


def model_of(*layers: Layer, weights_gib: int = 10, context: int = 131_072) -> ModelSpec:
    return ModelSpec(
        id="test/model",
        architecture="Test",
        source=Source(name="test"),
        layers=tuple((layer,) for layer in layers),
        max_context_tokens=context,
        query_heads=(32,),
        dtype="bfloat16",
        shape=Shape(hidden=4096, vocabulary=32_000, intermediate=14_336),
        weights=Weights(stored_bytes=weights_gib * GIB, quantization="test"),
    )


def plan_of(engine: str, model: ModelSpec, **asked: object) -> EnginePlan:
    deployment = Deployment(engine=parse_engine(engine), gpu_memory_bytes=(80 * GIB,))
    return engine_plan(model, replace(deployment, **asked))  # type: ignore[arg-type]


CONTEXT = 131_072
DENSE = model_of(*[FULL] * 32, context=CONTEXT)
OTHERS = [name for name in ENGINES if name != "vllm"]


@pytest.mark.parametrize("engine", OTHERS)
def test_a_budget_adds_up_and_prices_a_dense_model_by_the_token(engine: str) -> None:
    plan = plan_of(engine, DENSE, max_model_len=32_768, max_num_seqs=4)
    budget = plan.budget
    assert budget is not None
    assert budget.requested_bytes == budget.kv_bytes + sum(term.bytes for term in budget.terms if term.inside_fraction)
    assert plan.layout.bytes_per_block == plan.layout.block_tokens * 32 * 2 * 8 * 128 * 2
    assert budget.kv_bytes_low <= budget.kv_bytes <= budget.kv_bytes_high
    assert plan.layout.request_blocks(5000) == -(-5000 // plan.layout.block_tokens)


@pytest.mark.parametrize("engine", OTHERS)
def test_more_memory_never_means_fewer_blocks(engine: str) -> None:
    """At a given share: SGLang's own default share falls where a larger GPU gets larger graphs."""
    share = {} if engine in ("llama.cpp", "ollama") else {"memory_utilization": Fraction(9, 10)}
    blocks = [
        plan_of(engine, DENSE, max_model_len=65_536, gpu_memory_bytes=(amount * GIB,), **share).blocks
        for amount in range(8, 90, 6)
    ]
    assert blocks == sorted(blocks)
    assert blocks[0] == 0


@pytest.mark.parametrize("engine", OTHERS)
def test_a_budget_below_the_weights_stays_negative_and_does_not_fit(engine: str) -> None:
    planned = fit(DENSE, Deployment(engine=parse_engine(engine), gpu_memory_bytes=(6 * GIB,), max_model_len=4096))
    assert planned.plan.budget is not None
    assert planned.plan.budget.kv_bytes < 0
    assert planned.verdict == "does_not_fit"


@pytest.mark.parametrize("engine", OTHERS)
def test_what_an_engine_does_not_model_is_refused(engine: str) -> None:
    compressed = model_of(CompressedKv(bytes_per_entry=584, tokens_per_entry=4))
    cross = model_of(CrossAttention(kv_heads=8, head_dim=64, value_head_dim=64, source_tokens=1500))
    for model in (compressed, replace(cross, is_encoder_decoder=True)):
        with pytest.raises(UnsupportedModelError, match="cannot tell"):
            plan_of(engine, model)
    with pytest.raises(UnsupportedModelError, match="cannot tell"):
        plan_of(engine, DENSE, speculative_tokens=3)
    with pytest.raises(InputError, match=r"is not a (KV|cache) type"):
        plan_of(engine, DENSE, kv_dtype="fp7")


def test_ollama_multiplies_the_window_by_its_parallel_requests() -> None:
    """num_ctx 4,096 × 4 = 16,384 cells (github.com/ollama/ollama/issues/9246); else by memory, cut to the model's."""
    plan = plan_of("ollama", DENSE, max_model_len=4096, max_num_seqs=4)
    assert (plan.blocks, plan.settings.max_model_len, plan.settings.max_num_seqs) == (16_384, 4096, 4)
    windows = [
        plan_of("ollama", DENSE, gpu_memory_bytes=(amount * GIB,), weight_bytes=GIB).settings.max_model_len
        for amount in (16, 24, 80)
    ]
    assert windows == [4096, 32_768, CONTEXT]
    served = Served(model=DENSE, deployment=Deployment(kv_dtype="q8_0"), settings=plan.settings, window_tokens=4096)
    words = "OLLAMA_CONTEXT_LENGTH=4096 OLLAMA_NUM_PARALLEL=4 OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve"
    assert engine_of("ollama").command(served) == words
    short = plan_of("ollama", DENSE, gpu_memory_bytes=(12 * GIB,), max_model_len=CONTEXT)
    hints = {finding.code: finding.hint or "" for finding in short.findings}
    assert "OLLAMA_NUM_PARALLEL" in hints["cache-does-not-fit"]


@pytest.mark.parametrize("engine", OTHERS)
def test_corrections_move_the_pool_by_their_sum(engine: str) -> None:
    plain = plan_of(engine, DENSE, max_model_len=131_072)
    moved = plan_of(engine, DENSE, max_model_len=131_072, corrections=(("weights", GIB), ("from the log", -3 * GIB)))
    assert plain.budget is not None
    assert moved.budget is not None
    assert moved.budget.kv_bytes == plain.budget.kv_bytes + 2 * GIB
    assert moved.budget.requested_bytes == moved.budget.kv_bytes + sum(
        term.bytes for term in moved.budget.terms if term.inside_fraction
    )
    assert plain.budget.corrected(()) is plain.budget


@pytest.fixture(scope="module")
def catalogue() -> list[ModelSpec]:
    """Every bundled model."""
    return [read_model(name, offline=True) for name in list_names("models")]


def plan_or_hint(model: ModelSpec, deployment: Deployment) -> Fit | str | None:
    """The fit, or what a refusal says to do next."""
    try:
        return fit(model, deployment)
    except (UnsupportedModelError, InputError) as refusal:
        return refusal.hint


@pytest.mark.parametrize("engine", OTHERS)
def test_every_bundled_model_has_a_plan_or_a_reason(engine: str, catalogue: list[ModelSpec]) -> None:
    """On one H100 and in a given pool: no traceback, no budget that does not add up, no memory below zero made zero."""
    asked = Deployment(engine=parse_engine(engine), gpu=load_gpu("h100"))
    planned = 0
    for model in catalogue:
        for deployment in (asked, replace(asked, kv_memory_bytes=GIB)):
            found = plan_or_hint(model, deployment)
            assert found, model.id
            if isinstance(found, str):
                continue
            planned += 1
            plan, budget = found.plan, found.plan.budget
            assert plan.blocks <= max(0, plan.kv_bytes) // plan.layout.bytes_per_block, model.id
            if budget is None:
                continue
            assert budget.requested_bytes == budget.kv_bytes + sum(t.bytes for t in budget.terms if t.inside_fraction)
            assert budget.kv_bytes_low <= budget.kv_bytes <= budget.kv_bytes_high, model.id
            weights = next(term.bytes for term in budget.terms if term.name == "weights")
            assert weights < budget.requested_bytes or budget.kv_bytes < 0, model.id
    assert planned > len(catalogue)


# SGLang


def test_sglang_defaults_by_size_of_gpu() -> None:
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


def test_sglang_reserves_graphs_by_what_is_captured() -> None:
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


def test_sglang_pool_is_what_the_fraction_leaves() -> None:
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


def test_sglang_states_take_their_ratio_and_bound_requests() -> None:
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


def test_sglang_windows_have_a_pool_beside_the_full_one() -> None:
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
def test_sglang_pools_windows_by_class(architecture: str, engine: str, *, pooled: bool) -> None:
    """The list of ``is_hybrid_swa_model``; who is not on it keeps every token in every layer."""
    assert has_window_pool(architecture, parse_engine(engine).release) is pooled
    model = replace(model_of(*[WINDOW, FULL] * 16), architecture=architecture)
    plan = plan_of(engine, model, kv_memory_bytes=40 * GIB)
    assert plan.layout.bytes_per_block == -(-16 * 4096 * (Fraction(18, 10) if pooled else 2) // 1)
    assert any(finding.code == "windows-kept-whole" for finding in plan.findings) is not pooled
    whole = plan_of(engine, model, kv_memory_bytes=40 * GIB, hybrid_kv_cache_manager=False)
    assert whole.layout.bytes_per_block == 32 * 4096


def test_sglang_allocates_shared_layers_once_more() -> None:
    """Gemma-4-E4B of 0.5.13: 805,556 tokens of 7 full layers take 21.52 GiB, 644,444 of 35 window layers 43.02."""
    model = read_model("google/gemma-4-E4B-it", offline=True)
    plan = plan_of("sglang", model, kv_memory_bytes=round((21.52 + 43.02) * GIB), max_model_len=8192)
    # 0.01 GiB of rounding in the log are 125 tokens of 84 KiB
    assert abs(plan.blocks - 805_556) <= 125
    assert window_pool_tokens(805_556, Fraction(8, 10), 1) == 644_444
    with pytest.raises(UnsupportedModelError, match="only read another's"):
        plan_of("sglang", replace(model, layers=((FULL,), (SharedKv(),))))


def test_sglang_latents_and_four_bit_kv() -> None:
    plan = plan_of("sglang", model_of(*[LATENT] * 61), kv_memory_bytes=10 * GIB, tensor_parallel=8)
    assert plan.layout.bytes_per_block == 61 * 576 * 2
    four = plan_of("sglang", DENSE, kv_memory_bytes=10 * GIB, kv_dtype="fp4_e2m1")
    assert four.layout.bytes_per_block == 32 * 2048 * 9 // 16


@pytest.mark.parametrize("engine", ["sglang", "llama.cpp", "ollama"])
def test_adapters_are_their_matrices(engine: str) -> None:
    """Llama-3.1-8B, two of rank 16: 32 layers × (q, o: 8,192; k, v: 5,120; gate, up, down: 18,432) × 2 × 16 × 2 B."""
    model = read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True)
    without, with_them = (plan_of(engine, model, max_model_len=8192, lora_slots=slots).budget for slots in (0, 2))
    assert without is not None
    assert with_them is not None
    adapters = 32 * (2 * 8192 + 2 * 5120 + 3 * 18_432) * 2 * 16 * 2
    assert [term.bytes for term in with_them.terms if term.name == "adapters"] == [adapters]
    assert with_them.kv_bytes == without.kv_bytes - adapters
    experts = read_model("Qwen/Qwen3-30B-A3B", offline=True)
    answer = plan_of(engine, experts, max_model_len=8192, lora_slots=2)
    assert [each.option for each in answer.unpriced] == ["lora_slots"]


def test_sglang_deals_experts_and_tries_no_media() -> None:
    experts = read_model("Qwen/Qwen3-30B-A3B", offline=True)
    plan = plan_of("sglang", experts, tensor_parallel=8, expert_parallel=True)
    assert "each of 8 ranks holds 16 of 128 experts" in next(
        finding.message for finding in plan.findings if finding.code == "experts-whole"
    )
    limits = (MediaLimit(sort="image", items=1),)
    seen = plan_of("sglang", DENSE, media_limits=limits)
    assert seen.budget == plan_of("sglang", DENSE).budget
    assert any(finding.code == "media-limits-take-no-memory" for finding in seen.findings)


def test_sglang_keeps_whole_gigabytes_of_kv_on_the_host() -> None:
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
    flags = engine_of("sglang").flags()
    assert (flags["--enable-hierarchical-cache"](served), flags["--hicache-size"](served)) == (True, 34)


def test_sglang_says_which_share_would_do() -> None:
    plan = plan_of(
        "sglang", model_of(*[FULL] * 32, weights_gib=76), memory_utilization=Fraction(88, 100), max_model_len=4096
    )
    finding = next(finding for finding in plan.findings if finding.code == "static-share-below-weights")
    assert finding.hint == "--mem-fraction-static above 0.9573"  # (76 + 0.15) / (80 − 0.45)


# TensorRT-LLM


def test_tensorrt_llm_takes_nine_tenths_of_what_is_free() -> None:
    """A recorded start: 17.83 GiB free, 16.05 allocated, 8,219 blocks of 32 tokens (8-bit KV of Llama-3.1-8B)."""
    block = 32 * 32 * 2 * 8 * 128
    given = plan_of("tensorrt-llm", DENSE, kv_dtype="fp8", kv_memory_bytes=round(17.83 * 0.9 * GIB))
    assert abs(given.blocks - 8219) <= 3
    plan = plan_of("tensorrt-llm", DENSE, kv_dtype="fp8")
    assert plan.budget is not None
    assert plan.layout.bytes_per_block == block
    free = plan.budget.kv_bytes + next(term.bytes for term in plan.budget.terms if term.name == "left_free")
    assert plan.budget.kv_bytes == int(free * Fraction(9, 10))


def test_tensorrt_llm_keeps_windows_whole_and_refuses_states() -> None:
    """Without ``max_attention_window`` one window of ``max_seq_len`` holds for all layers."""
    plan = plan_of("tensorrt-llm", model_of(*[WINDOW, FULL] * 16))
    assert plan.layout.bytes_per_block == 32 * 32 * 4096
    assert any(finding.code == "windows-kept-whole" for finding in plan.findings)
    wide = FullAttention(kv_heads=8, head_dim=256, value_head_dim=256)
    for layer in (STATE, wide, SharedKv(), IndexKeys(bytes_per_entry=132)):
        with pytest.raises(UnsupportedModelError, match="TensorRT-LLM"):
            plan_of("tensorrt-llm", model_of(layer, FULL))


# TGI


def test_tgi_keeps_windows_whole() -> None:
    plan = plan_of("tgi", model_of(*[WINDOW, FULL] * 16))
    assert plan.layout.bytes_per_block == 32 * 4096
    assert any(finding.code == "windows-kept-whole" for finding in plan.findings)
    assert (plan.settings.max_num_seqs, plan.settings.max_num_batched_tokens) == (128, 4096)
    # logs: "Default `max_batch_prefill_tokens` to 4145" for a window of 4,096; 8000 for 8,000 with a vision model
    early = plan_of("tgi@2.2", DENSE).settings
    assert (early.max_model_len, early.max_num_batched_tokens) == (4096, 4145)
    seeing = replace(DENSE, shape=replace(DENSE.shape, has_vision=True))
    assert plan_of("tgi", seeing, max_model_len=8000).settings.max_num_batched_tokens == 8000
    for layer in (STATE, LATENT, SharedKv()):
        with pytest.raises(UnsupportedModelError, match="TGI"):
            plan_of("tgi", model_of(layer, FULL))


# llama.cpp


def test_llama_cpp_cells_of_windows() -> None:
    """min(cells, window × slots that share + micro-batch), up to 256; all cells with the full-cache switch."""
    one, shared, divided = (
        divide_context(131_072, 1, None),
        divide_context(32_768, 4, True),
        divide_context(32_768, 4, False),
    )
    assert window_cells(1024, one, 512) == 1536
    assert window_cells(1024, shared, 512) == 4608
    assert window_cells(1024, divided, 512) == 1536
    assert window_cells(1024, divide_context(1024, 1, None), 512) == 1024
    assert window_cells(1024, one, 512, swa_full=True) == 131_072
    assert (divided.window_tokens, divided.cells, divided.all_cells) == (8192, 8192, 32_768)
    with pytest.raises(InputError, match="leave none"):
        divide_context(3, 4, False)


def test_llama_cpp_scratch_as_logs_print_it() -> None:
    """Qwen2.5-14B 307 MiB, Llama-2-7B 70.5 MiB."""
    assert scratch_bytes(512, 152_064, 5120) == 307 * MIB
    assert scratch_bytes(512, 32_000, 4096) == round(70.5 * MIB)


@pytest.mark.parametrize("name", list(CACHE_TYPES))
def test_llama_cpp_cache_types_price_every_token(name: str) -> None:
    plan = plan_of("llama.cpp", DENSE, cache_type_k=name, cache_type_v="f16", max_model_len=8192, max_num_seqs=1)
    stored = CACHE_TYPES[name]
    assert plan.layout.bytes_per_block == 32 * (1024 * stored.bytes_per_group // stored.elements_per_group + 2048)
    assert cache_types(None, None, "bfloat16").key.name == "bf16"


def test_llama_cpp_is_static() -> None:
    """The pool is what was asked for, not what is left; what does not fit does not start."""
    plan = plan_of("llama.cpp", DENSE, max_model_len=8192, max_num_seqs=2)
    assert (plan.blocks, plan.settings.max_model_len, plan.starts) == (8192, 4096, True)
    assert plan.kv_bytes == 8192 * 131_072
    big = plan_of("llama.cpp", DENSE, max_model_len=65_536, max_num_seqs=4, gpu_memory_bytes=(16 * GIB,))
    assert not big.starts
    finding = next(finding for finding in big.findings if finding.code == "cache-does-not-fit")
    assert finding.hint is not None
    most = int(finding.hint.split()[-1])
    assert plan_of("llama.cpp", DENSE, max_model_len=most, max_num_seqs=4, gpu_memory_bytes=(16 * GIB,)).starts
    assert not plan_of(
        "llama.cpp", DENSE, max_model_len=most + 4 * 256, max_num_seqs=4, gpu_memory_bytes=(16 * GIB,)
    ).starts


def test_llama_cpp_states_are_float32_and_one_a_slot() -> None:
    mamba = Mamba2State(heads=64, head_dim=64, state=128, groups=8, conv_kernel=4)
    plan = plan_of("llama.cpp", model_of(*[mamba, FULL] * 4), max_model_len=8192, max_num_seqs=3, kv_unified=True)
    assert plan.budget is not None
    term = next(term for term in plan.budget.terms if term.name == "recurrent_state")
    assert term.bytes == 3 * 4 * 4 * (3 * (4096 + 2 * 8 * 128) + 64 * 64 * 128)
    pure = plan_of("llama.cpp", model_of(mamba, mamba), max_model_len=8192, max_num_seqs=3)
    assert (pure.blocks, pure.layout.request_blocks(8192), pure.starts) == (3, 1, True)


def test_llama_cpp_index_keys_are_one_head_of_the_key_type() -> None:
    """61 × (576 + 128) values in f16, as the GGUF reader says of the same model."""
    both = ModelSpec(**{**vars(DENSE), "layers": ((LATENT, IndexKeys(bytes_per_entry=132)),) * 61})
    plan = plan_of("llama.cpp", both, max_model_len=4096, max_num_seqs=1)
    assert plan.layout.bytes_per_block == 61 * (576 + 128) * 2
    assert plan.layout.groups[0].layers == 61


def test_llama_cpp_splits_layers_over_gpus() -> None:
    """With the head there are 33: the first of two equal GPUs gets the 17 of which i / 33 is less than a half."""
    plan = plan_of("llama.cpp", DENSE, max_model_len=8192, max_num_seqs=1, tensor_parallel=2)
    assert plan.layout.bytes_per_block == 17 * 4096
    # Qwen1.5-72B, MHA, over two GPUs as --tensor-split says: 27 layers × 2 × 8,192 × 2 B × 13,000 cells, as its log
    # of early 2024 says; later builds allocate whole 256
    mha = model_of(*[FullAttention(kv_heads=64, head_dim=128, value_head_dim=128)] * 80)
    asked = Deployment(
        gpu_memory_bytes=(80 * GIB,),
        max_model_len=13_000,
        max_num_seqs=1,
        pipeline_parallel=2,
        pipeline_layers=(27, 53),
    )
    early, split = (engine_plan(mha, replace(asked, engine=parse_engine(f"llama.cpp@b{n}"))) for n in (2300, 2775))
    shares = [finding.message for plan in (early, split) for finding in plan.findings if finding.code == "kv-by-gpu"]
    assert shares == [
        "KV by GPU: 27 layers 10,968.75 MiB, 53 layers 21,531.25 MiB",
        "KV by GPU: 27 layers 11,016.00 MiB, 53 layers 21,624.00 MiB",
    ]
    flags = engine_of("llama.cpp").flags()
    served = Served(
        model=mha,
        deployment=Deployment(max_model_len=13_000, pipeline_layers=(27, 53)),
        settings=split.settings,
        window_tokens=13_000,
    )
    assert (flags["--tensor-split"](served), flags["--ctx-size"](served)) == ("27,54", 13_000)
    with pytest.raises(InputError, match="one has none"):
        device_layers(8, (100, 1))


def test_llama_cpp_builds_differ_in_slots_and_windows() -> None:
    """Four slots on one cache since November 2025; window layers have a cache of their own since May 2025."""
    model = model_of(*[WINDOW, FULL] * 16)
    newest, middle, early = (
        engine_plan(
            model,
            Deployment(engine=parse_engine(engine), gpu_memory_bytes=(80 * GIB,), max_model_len=32_768),
        )
        for engine in ("llama.cpp", "llama.cpp@b6000", "llama.cpp@b5000")
    )
    assert [plan.settings.max_num_seqs for plan in (newest, middle, early)] == [4, 1, 1]
    cells = [plan.kv_bytes // (16 * 4096) - 32_768 for plan in (newest, middle, early)]
    assert cells == [4 * 1024 + 512, 1024 + 512, 32_768]
    early_server = Served(
        model=model,
        deployment=Deployment(engine=parse_engine("llama.cpp@b5000")),
        settings=early.settings,
        window_tokens=32_768,
    )
    flags = {name: value(early_server) for name, value in engine_of("llama.cpp").flags().items()}
    assert (flags["--kv-unified"], flags["--no-kv-unified"], flags["--parallel"]) == (None, None, 1)


def test_llama_cpp_leaves_the_embedding_on_the_host() -> None:
    """Llama-3.1-8B: 8,030,261,248 parameters, 128,256 × 4,096 of them the embedding; tied, it is the head's copy."""
    model = read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True)
    on_gpu = device_weights(model, (range(32),), 0).bytes
    assert on_gpu == 2 * (8_030_261_248 - 128_256 * 4096)
    two = [device_weights(model, (range(17), range(17, 32)), device).bytes for device in (0, 1)]
    assert sum(two) == on_gpu
    assert two[1] - two[0] * 15 // 17 == 2 * (128_256 * 4096 + 4096)
    small = read_model("meta-llama/Llama-3.2-1B-Instruct", offline=True)
    assert device_weights(small, (range(16),), 0).bytes == 2 * 1_235_814_400


def test_llama_cpp_caps_a_slot_at_what_the_model_was_trained_for() -> None:
    """The server warns of a "possible training context overflow" and caps the slot, its cache allocated as asked."""
    beyond = plan_of("llama.cpp", DENSE, max_model_len=2 * CONTEXT, max_num_seqs=1)
    assert beyond.settings.max_model_len == CONTEXT
    assert beyond.blocks == 2 * CONTEXT
    (found,) = [each for each in beyond.findings if each.code == "slot-capped-at-training-context"]
    assert (found.severity, found.hint) == ("warning", f"--context {CONTEXT}")
    # four slots on one cache can use together what none may use alone
    shared = plan_of("llama.cpp", DENSE, max_model_len=4 * CONTEXT, kv_memory_bytes=200 * GIB)
    assert [each.severity for each in shared.findings if each.code == found.code] == ["info"]
    assert not [each for each in plan_of("llama.cpp", DENSE).findings if each.code == found.code]
    odd = model_of(FullAttention(kv_heads=8, head_dim=80, value_head_dim=80))
    with pytest.raises(InputError, match="whole groups of 32"):
        plan_of("llama.cpp", odd, cache_type_k="q8_0", max_model_len=1024)


def test_shared_slots_promise_each_other_s_cells() -> None:
    planned = fit(
        DENSE,
        Deployment(engine=parse_engine("llama.cpp"), gpu_memory_bytes=(80 * GIB,), max_model_len=16_384),
        [RequestShape(name="chat", prompt_tokens=3000, max_output_tokens=1096)],
    )
    assert planned.reservations[0].sequences == 4
    assert planned.concurrency == 1


@pytest.mark.parametrize("line", list(published()), ids=lambda line: f"{line.engine} {line.row} {line.figure}")
def test_published_starts(line: Line) -> None:
    """``python tests/engine_table.py`` prints them; what is not judged lies in the plan's band."""
    assert not line.judged or abs(line.error_gib) <= line.within_gib


def test_recorded_starts(shared_data: Path) -> None:
    """``python tests/engine_table.py`` prints the table."""
    found = [line for line in lines(shared_data) if line.judged]
    assert len(found) >= 15
    for line in found:
        assert abs(line.error_gib) <= (0.01 if line.figure in ("KV buffers", "state buffers") else 0.3), line
