"""The engines other than vLLM: what holds for all of them, TensorRT-LLM and TGI by hand, and recorded starts."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from kvplan.capacity import Fit, fit
from kvplan.engines import ENGINES, engine_plan, parse_engine
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import EnginePlan
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import (
    CompressedKv,
    CrossAttention,
    FullAttention,
    GatedDeltaState,
    IndexKeys,
    LatentAttention,
    Layer,
    SharedKv,
    SlidingAttention,
)
from kvplan.model import ModelSpec, Shape, Source, Weights
from kvplan.profiles.loader import list_names, load_gpu
from kvplan.sources import read_model
from kvplan.units import GIB
from tests.tables.engines import Line, lines, published

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


@pytest.mark.parametrize("line", list(published()), ids=lambda line: f"{line.engine} {line.row} {line.figure}")
def test_published_starts(line: Line) -> None:
    """``python -m tests.tables.engines`` prints them; what is not judged lies in the plan's band."""
    assert not line.judged or abs(line.error_gib) <= line.within_gib


def test_recorded_starts(shared_data: Path) -> None:
    """``python -m tests.tables.engines`` prints the table."""
    found = [line for line in lines(shared_data) if line.judged]
    assert len(found) >= 15
    for line in found:
        assert abs(line.error_gib) <= (0.01 if line.figure in ("KV buffers", "state buffers") else 0.3), line
