"""Price lists against arithmetic written out by hand."""

from fractions import Fraction

import pytest

from kvplan.api import deploy
from kvplan.capacity import fit
from kvplan.engines import ENGINES
from kvplan.engines.deployment import Deployment
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.pricing import LayerRow, SequenceRow, price
from kvplan.sources import read_model


def test_grouped_heads() -> None:
    """Llama-3.1-8B: 32 layers, 8 KV heads of 128, bfloat16 (its config.json)."""
    priced = price(
        read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True), Deployment(tensor_parallel=16), (1000,)
    )
    per_token = 32 * 2 * 8 * 128 * 2
    assert priced.bytes_per_token == per_token
    assert priced.gpu_bytes_per_token == per_token // 8, "8 heads on 16 ranks: one each, kept twice"
    assert priced.layers == (
        LayerRow(
            kind="full attention",
            layers=32,
            kv_heads=8,
            head_dim=128,
            value_head_dim=128,
            window_tokens=None,
            bytes_per_token=Fraction(per_token),
            fixed_bytes=0,
            formula="2 × 32 × 8 × 128 × 2",
        ),
    )
    assert priced.sequences == (
        SequenceRow(tokens=1000, sequence_bytes=1000 * per_token, gpu_bytes=1000 * per_token // 8),
    )


def test_windows_stop_growing() -> None:
    """gemma-3-27b: 62 layers, every sixth full (10), 16 KV heads of 128, window 1,024 (its config.json)."""
    priced = price(read_model("google/gemma-3-27b-it", offline=True), Deployment(), (512, 100_000))
    layer = 2 * 16 * 128 * 2
    assert priced.bytes_per_token == 10 * layer
    assert priced.windowed_bytes_per_token == 52 * layer
    assert [row.sequence_bytes for row in priced.sequences] == [
        62 * layer * 512,
        10 * layer * 100_000 + 52 * layer * 1024,
    ]


def test_only_context_parallelism_splits_a_latent() -> None:
    """DeepSeek-V3: 61 layers of (512 + 64) × 2 B."""
    model = read_model("deepseek-ai/DeepSeek-V3", offline=True)
    alone = price(model, Deployment(), (1001,))
    assert alone.bytes_per_token == 61 * 576 * 2
    assert price(model, Deployment(tensor_parallel=8)).gpu_bytes_per_token == alone.bytes_per_token
    dealt = price(model, Deployment(tensor_parallel=8, context_parallel=8), (1001,))
    assert dealt.gpu_bytes_per_token == Fraction(alone.bytes_per_token, 8)
    assert dealt.sequences[0].gpu_bytes == 126 * 61 * 576 * 2, "ceil(1001 / 8) = 126 tokens on the fullest rank"


def test_the_fullest_pipeline_stage_decides() -> None:
    """61 layers over 4 stages: 15, 15, 16, 15."""
    model = read_model("deepseek-ai/DeepSeek-V3", offline=True)
    assert price(model, Deployment(pipeline_parallel=4)).gpu_bytes_per_token == 16 * 576 * 2
    with pytest.raises(InputError, match="exceeds the model's 61 layers"):
        price(model, Deployment(pipeline_parallel=62))


def test_lengths_shown_stay_within_the_window() -> None:
    model = read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True)
    assert [row.tokens for row in price(model, Deployment()).sequences] == [2048, 8192, 32768, 131072]
    assert [row.tokens for row in price(model, Deployment(max_model_len=4000)).sequences] == [2048, 4000]


@pytest.mark.parametrize("engine", [*ENGINES, "sglang@0.5.10", "vllm@0.10"])
@pytest.mark.parametrize("gpu", ["h100", "b200"])
@pytest.mark.parametrize(
    ("name", "word"), [("deepseek-ai/DeepSeek-V3.2", "fp8"), ("meta-llama/Llama-3.1-8B-Instruct", "auto")]
)
def test_what_is_priced_is_what_the_plan_stores(engine: str, gpu: str, name: str, word: str) -> None:
    """The GPU and the release decide with: SGLang packs 8-bit latents on Hopper, and stores them bare on Blackwell."""
    model = read_model(name, offline=True)
    asked = deploy(gpu, engine=engine, tensor_parallel=8, kv_dtype="q8_0" if engine == "llama.cpp" else word)
    try:
        planned = fit(model, asked)
    except (InputError, UnsupportedModelError):
        pytest.skip(f"{engine} does not run {name} so")
    assert price(model, asked).kv_types == planned.plan.kv_types
