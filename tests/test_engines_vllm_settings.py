"""vLLM's defaults by release and GPU (the table is vLLM's ``EngineArgs.get_batch_defaults``, 0.33, and older docs)."""

from dataclasses import replace
from fractions import Fraction

import pytest

from kvplan.engines import engine_of, parse_engine
from kvplan.engines.deployment import Deployment, EngineVersion
from kvplan.engines.vllm.releases import release_findings
from kvplan.engines.vllm.settings import check_supported, resolve_settings
from kvplan.errors import InputError
from kvplan.layers import CrossAttention, FullAttention, LatentAttention, Mamba1State, NgramConvState, SlidingAttention
from kvplan.model import Shape
from kvplan.profiles.kinds import GpuProfile
from kvplan.sources import read_model
from kvplan.units import GIB
from tests.models import model_of

FULL = FullAttention(kv_heads=8, head_dim=128, value_head_dim=128)
MODEL = model_of([[FULL]] * 32)


def gpu(name: str, memory_gib: float, capability: tuple[int, int]) -> GpuProfile:
    return GpuProfile(
        name=name,
        vendor="nvidia",
        family="test",
        memory_bytes=int(memory_gib * GIB),
        bandwidth_bytes_per_s=1,
        flops_per_s={},
        sources=("test",),
        checked="2026-11-30",
        compute_capability=capability,
    )


H100 = gpu("h100-80gb", 79.2, (9, 0))
A100 = gpu("a100-80gb", 79.25, (8, 0))
L40S = gpu("l40s", 44.4, (8, 9))
GB10 = gpu("gb10", 121.7, (12, 1))
B200 = gpu("b200", 178.4, (10, 0))


@pytest.mark.parametrize(
    ("device", "engine", "sequences", "tokens", "utilization"),
    [
        (None, "vllm", 1024, 8192, "0.92"),
        (H100, "vllm@0.33", 1024, 8192, "0.92"),
        (A100, "vllm@0.33", 256, 2048, "0.92"),
        (L40S, "vllm@0.33", 256, 2048, "0.92"),
        (GB10, "vllm@0.33", 256, 2048, "0.92"),
        (B200, "vllm@0.33", 1024, 16384, "0.92"),
        (B200, "vllm@0.27", 1024, 8192, "0.92"),
        (H100, "vllm@0.20", 1024, 8192, "0.92"),
        (H100, "vllm@0.19", 1024, 8192, "0.90"),
        (H100, "vllm@0.8.5", 256, 8192, "0.90"),
        (H100, "vllm@0.6.3", 256, 32768, "0.90"),
    ],
)
def test_defaults(device: GpuProfile | None, engine: str, sequences: int, tokens: int, utilization: str) -> None:
    settings = resolve_settings(MODEL, Deployment(engine=parse_engine(engine), gpu=device))
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (sequences, tokens)
    assert settings.memory_utilization == Fraction(utilization)


@pytest.mark.parametrize(("engine", "tokens"), [("vllm@0.7.3", 131072), ("vllm@0.6.6", 2048), ("vllm@0.8.5", 8192)])
def test_latents_were_computed_in_one_step_by_0_7(engine: str, tokens: int) -> None:
    """Logs of 0.7.1 and 0.7.3 say "MLA is enabled; forcing chunked prefill and prefix caching to be disabled"."""
    model = replace(model_of([[LatentAttention(latent_dim=512, rope_dim=64)]]), max_context_tokens=131072)
    settings = resolve_settings(model, Deployment(engine=parse_engine(engine), gpu=H100))
    assert settings.max_num_batched_tokens == tokens


@pytest.mark.parametrize(("engine", "tokens"), [("vllm@0.6.3", 512), ("vllm@0.6.6", 2048)])
def test_v0_takes_chunks_beyond_a_window_of_32768(engine: str, tokens: int) -> None:
    """2,048 since 0.6.5 (github.com/vllm-project/vllm/pull/10544); 0.5.5 has 512."""
    long = model_of([[FULL]] * 32, window=131072)
    settings = resolve_settings(long, Deployment(engine=parse_engine(engine), gpu=H100))
    assert settings.max_num_batched_tokens == tokens


def test_v0_does_not_chunk_media_windows_adapters_and_drafts() -> None:
    """Llama-3.2-11B-Vision at 65,536 on 0.6.6 had an activation peak of 36.63 GiB (vllm-project/vllm pull 12126)."""
    early = Deployment(engine=parse_engine("vllm@0.6.6"), gpu=H100, max_model_len=65536)
    plain = model_of([[FULL]] * 32, window=131072)
    seeing = replace(plain, shape=replace(plain.shape, has_vision=True))
    assert resolve_settings(seeing, early).max_num_batched_tokens == 65536
    assert resolve_settings(seeing, replace(early, max_model_len=4096)).max_num_batched_tokens == 5120
    assert resolve_settings(seeing, replace(early, chunked_prefill=True)).max_num_batched_tokens == 5120
    for unchunked in (replace(early, lora_slots=1), replace(early, speculative_tokens=3)):
        assert resolve_settings(plain, unchunked).max_num_batched_tokens == 65536
    sliding = model_of(
        [[SlidingAttention(kv_heads=8, head_dim=128, value_head_dim=128, window=4096)]] * 32, window=131072
    )
    assert resolve_settings(sliding, early).max_num_batched_tokens == 65536


def test_throughput_mode_doubles_the_defaults_that_were_not_given() -> None:
    """Source: ``EngineArgs`` of vLLM 0.17 and 0.33."""
    fast = Deployment(gpu=L40S, performance_mode="throughput")
    settings = resolve_settings(MODEL, fast)
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (512, 4096)
    given = resolve_settings(MODEL, replace(fast, max_num_seqs=100))
    assert (given.max_num_seqs, given.max_num_batched_tokens) == (100, 4096)
    for wrong, engine in (("fast", "vllm"), ("throughput", "vllm@0.16")):
        with pytest.raises(InputError, match="performance mode"):
            check_supported(MODEL, Deployment(engine=parse_engine(engine), performance_mode=wrong))


def test_n_gram_embeddings_take_one_stage() -> None:
    """Source: vLLM 0.33, the config class of Qwen4-Exp."""
    with pytest.raises(InputError, match="refuses pipeline parallelism"):
        check_supported(model_of([[NgramConvState(channels=8, steps=2)]] * 2), Deployment(pipeline_parallel=2))


def test_the_smallest_slice_decides_the_tier() -> None:
    settings = resolve_settings(MODEL, Deployment(gpu=H100, gpu_memory_bytes=(79 * GIB, 20 * GIB)))
    assert settings.max_num_seqs == 256


def test_default_sequences_are_at_most_the_tokens_of_a_step() -> None:
    settings = resolve_settings(MODEL, Deployment(max_num_batched_tokens=64))
    assert settings.max_num_seqs == 64


def test_default_tokens_are_at_most_sequences_times_window() -> None:
    settings = resolve_settings(MODEL, Deployment(max_num_seqs=2, max_model_len=1000))
    assert settings.max_num_batched_tokens == 2000


def test_more_sequences_than_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="refuses to start"):
        resolve_settings(MODEL, Deployment(max_num_seqs=512, max_num_batched_tokens=256))


@pytest.mark.parametrize(
    ("asynchronous", "stages", "in_flight"), [(None, 1, 16384), (False, 1, 8192), (True, 1, 16384), (False, 4, 32768)]
)
def test_tokens_in_flight_are_those_of_every_concurrent_batch(
    asynchronous: bool | None, stages: int, in_flight: int
) -> None:
    settings = resolve_settings(MODEL, Deployment(async_scheduling=asynchronous, pipeline_parallel=stages))
    assert settings.in_flight_tokens == in_flight


def test_a_class_that_pools_every_step_takes_prompts_whole() -> None:
    """What vLLM 0.33 answers on the keys of Qwen2.5-7B under this class: 32,768 batched tokens, no prefix caching."""
    reward = replace(MODEL, architecture="Qwen2ForProcessRewardModel", max_context_tokens=32768)
    settings = resolve_settings(reward, Deployment())
    assert (settings.max_num_batched_tokens, settings.chunked_prefill, settings.prefix_caching) == (32768, False, False)
    assert resolve_settings(reward, Deployment(chunked_prefill=True)).max_num_batched_tokens == 8192


def test_prefix_caching_is_off_where_there_is_no_attention_and_where_there_is_an_encoder() -> None:
    mamba = replace(
        model_of([[Mamba1State(inner=1536, state=16, conv_kernel=4)]] * 24), architecture="FalconMambaForCausalLM"
    )
    cross = CrossAttention(kv_heads=20, head_dim=64, value_head_dim=64, source_tokens=1500)
    whisper = model_of([[FULL, cross]] * 32, window=448, is_encoder_decoder=True)
    assert [resolve_settings(model, Deployment()).prefix_caching for model in (MODEL, mamba, whisper)] == [
        True,
        False,
        False,
    ]
    assert resolve_settings(mamba, Deployment(prefix_caching=True)).prefix_caching


@pytest.mark.parametrize(("engine", "is_cached"), [("vllm@0.13", False), ("vllm@0.27", False), ("vllm@0.28", True)])
def test_hybrids_cache_prefixes_by_default_since_0_28(engine: str, is_cached: bool) -> None:
    """Up to 0.25.1 ``is_prefix_caching_supported`` returns False for hybrids, and ``EngineArgs`` of 0.26 and 0.27 says
    "opt-in for now": a log of Qwen3.8-27B on 0.26 prints enable_prefix_caching=False."""
    hybrid = model_of([[FULL], [Mamba1State(inner=1536, state=16, conv_kernel=4)]] * 4)
    assert resolve_settings(hybrid, Deployment(engine=parse_engine(engine))).prefix_caching is is_cached
    assert resolve_settings(MODEL, Deployment(engine=parse_engine(engine))).prefix_caching


def test_a_hybrids_class_without_attention_keeps_its_cache() -> None:
    """The class says that there is no attention, not the layers: source: vLLM 0.33, ``IsAttentionFree``."""
    states = model_of([[Mamba1State(inner=1536, state=16, conv_kernel=4)]] * 4)
    granite = replace(states, architecture="GraniteMoeHybridForCausalLM")
    assert resolve_settings(granite, Deployment()).prefix_caching


def test_a_class_may_have_its_own_default_of_sequences() -> None:
    """Source: vLLM 0.33, ``DiffusionGemmaModelForBlockDiffusionConfig``: 8, where the user says nothing."""
    diffusion = replace(MODEL, architecture="DiffusionGemmaForBlockDiffusion")
    assert resolve_settings(diffusion, Deployment()).max_num_seqs == 8
    assert resolve_settings(diffusion, Deployment(max_num_seqs=16)).max_num_seqs == 16


def test_pooling_models_do_not_schedule_ahead() -> None:
    pooling = model_of([[FULL]] * 32, shape=Shape(hidden=4096, is_pooling=True))
    assert not resolve_settings(pooling, Deployment()).async_scheduling


def test_a_window_beyond_the_models_is_refused() -> None:
    with pytest.raises(InputError, match="32,768") as refused:
        resolve_settings(MODEL, Deployment(max_model_len=32769))
    assert refused.value.key == "max_model_len"


def test_the_window_without_any_source_is_2048() -> None:
    silent = model_of([[FULL]], window=None)
    assert resolve_settings(silent, Deployment()).max_model_len == 2048
    assert resolve_settings(silent, Deployment(max_model_len=65536)).max_model_len == 65536


@pytest.mark.parametrize(
    ("engine", "codes"),
    [
        ("vllm", []),
        ("vllm@0.33.1", []),
        ("vllm@0.20", ["engine-version-priced-as-0.33"]),
        ("vllm@0.40", ["engine-version-unknown"]),
    ],
)
def test_other_releases_are_named(engine: str, codes: list[str]) -> None:
    found = release_findings(Deployment(engine=parse_engine(engine)))
    assert [finding.code for finding in found] == codes


def test_engine_names() -> None:
    assert parse_engine("vLLM@v0.20.1rc2") == EngineVersion(name="vllm", release=(0, 20, 1))
    assert parse_engine("llamacpp@b9265") == EngineVersion(name="llama.cpp", release=(9265,))
    for wrong in ("vlm", "vllm@", "vllm@new", ""):
        with pytest.raises(InputError):
            parse_engine(wrong)


@pytest.mark.parametrize(("release", "groups"), [("0.6.3", 1), ("0.8.5", 1), ("0.9.0", 1), ("0.9.1", 7), ("0.33", 7)])
def test_windows_have_their_own_groups_since_the_hybrid_manager(release: str, groups: int) -> None:
    """vllm-project/vllm pull 17996; before, a block of Gemma-3-27B is 62 layers × 16 tokens × 2 × 16 × 128 × 2 B."""
    gemma = read_model("google/gemma-3-27b-it", offline=True)
    asked = Deployment(engine=parse_engine(f"vllm@{release}"), kv_memory_bytes=40 * 2**30, max_model_len=8192)
    plan = engine_of("vllm").plan(gemma, asked)
    assert len(plan.layout.groups) == groups
    codes = {finding.code for finding in plan.findings}
    assert (groups == 1) == ("windows-charged-in-full" in codes)
    if groups == 1:
        assert plan.layout.bytes_per_block == 62 * 16 * 2 * 16 * 128 * 2
