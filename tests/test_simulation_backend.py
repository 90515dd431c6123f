"""What stands behind the front door: the planned pool, its band, the step time, and what the engine would refuse."""

from dataclasses import replace

import pytest

from kvplan.capacity import fit
from kvplan.errors import UnsupportedModelError
from kvplan.recommend import safety_fraction
from kvplan.simulation.backend import Backend, DoesNotStartError, build_backend
from kvplan.simulation.deployment import plan_deployment
from kvplan.simulation.step_time import EFFICIENCY, roofline
from kvplan.traffic.load import parse_traffic
from kvplan.traffic.spec import Traffic

MEASURED = """\
deployment:
  max_model_len: 1024
  max_num_seqs: 8
  kv_pool: {blocks: 101, block_tokens: 16}
  service: {base_s: 0.01, prefill_token_s: 0.001, decode_sequence_s: 0.0005, kv_token_s: 0.00001}
traffic: {duration: 5s, classes: [{name: a, rate: 1/s, prompt_tokens: 1, output_tokens: 1}]}
"""


def parse(text: str) -> Traffic:
    return parse_traffic(text, file="t.yaml")


LLAMA = """\
model: meta-llama/Llama-3.1-8B-Instruct
deployment: {gpu: h100, max_model_len: 32768}
traffic: {duration: 5s, classes: [{name: a, rate: 1/s, prompt_tokens: 1, output_tokens: 1}]}
"""


def llama() -> Backend:
    return build_backend(parse(LLAMA), offline=True)


def test_a_hybrid_s_default_of_sequences_is_what_its_states_allow() -> None:
    """VLLM's default of 1,024 on an H100 would not start there; asked for, it is refused."""
    text = "model: Qwen/Qwen3.5-27B\ndeployment: {gpu: h100, max_model_len: 8192MORE}\n"
    text += "traffic: {duration: 9s, classes: [{name: a, rate: 1/s, prompt_tokens: 9, output_tokens: 9}]}\n"
    backend = build_backend(parse(text.replace("MORE", "")), offline=True)
    assert backend.settings.max_num_seqs == backend.blocks < 1024
    assert any("the number of blocks for recurrent states" in note for note in backend.notes)
    with pytest.raises(DoesNotStartError, match=r"above the .* blocks that hold recurrent state"):
        build_backend(parse(text.replace("MORE", ", max_num_seqs: 1024")), offline=True)


def test_a_pool_that_was_asked_for_has_no_band() -> None:
    """What vLLM takes, the rest of the GPU, is known to within a band; llama.cpp takes what its window needs:
    8,192 tokens of 32 layers × 2 × 8 heads × 128 × 2 bytes."""
    text = "model: meta-llama/Llama-3.1-8B-Instruct\ndeployment: {gpu: h100, engine: ENGINE, max_model_len: 8192}\n"
    text += "traffic: {duration: 9s, classes: [{name: a, rate: 1/s, prompt_tokens: 9, output_tokens: 9}]}\n"
    left, asked = (
        build_backend(parse(text.replace("ENGINE", engine)), offline=True) for engine in ("vllm", "llama.cpp")
    )
    assert left.band_share > 0
    assert asked.kv_bytes == asked.kv_bytes_low == asked.kv_bytes_high == 8192 * 32 * 2 * 8 * 128 * 2
    assert asked.band_share == 0


def test_the_scheduler_of_another_engine_is_noted_as_an_assumption() -> None:
    assert not any("scheduled as by vLLM" in note for note in build_backend(parse(MEASURED)).notes)
    other = build_backend(parse(MEASURED.replace("deployment:\n", "deployment:\n  engine: sglang\n")))
    assert "requests are scheduled as by vLLM: only the pool and its pages are sglang's own" in other.notes


def test_what_is_priced_but_not_simulated_is_noted() -> None:
    model = "model: meta-llama/Llama-3.1-8B-Instruct\n"
    text = model + MEASURED.replace("deployment:", "deployment:\n  pipeline_parallel: 2")
    notes = build_backend(parse(text.replace(", block_tokens: 16", "")), offline=True).notes
    assert any(
        note.startswith("the 2 pipeline stages are simulated as one: vLLM keeps a smaller batch") for note in notes
    )
    assert not any("stages" in note for note in build_backend(parse(MEASURED)).notes)


def test_speculation_is_priced_but_not_simulated() -> None:
    """Llama-3.2-1B guesses for 3.1-8B: its bf16 weights (1,235,814,400 × 2 B) and its KV leave the pool smaller."""
    draft = "speculative_tokens: 3, draft_model: meta-llama/Llama-3.2-1B-Instruct, gpu: h100"
    alone, guessed = (
        build_backend(parse(LLAMA.replace("gpu: h100", text)), offline=True) for text in ("gpu: h100", draft)
    )
    assert alone.kv_bytes is not None
    assert guessed.kv_bytes is not None
    assert alone.kv_bytes - guessed.kv_bytes >= 1_235_814_400 * 2
    assert any(note.startswith("speculative decoding is priced but not simulated") for note in guessed.notes)
    assert guessed.service.step == alone.service.step
    measured = parse(MEASURED.replace("deployment:", "deployment:\n  speculative_tokens: 3"))
    assert build_backend(measured).blocks == build_backend(parse(MEASURED)).blocks


@pytest.mark.parametrize(
    ("key", "option"),
    [("max_loras", "max_loras: 2"), ("kv_offload", "kv_offload: 10GiB"), ("enforce_eager", "enforce_eager: true")],
)
def test_a_plan_that_cannot_tell_is_not_simulated(key: str, option: str) -> None:
    text = LLAMA.replace("gpu: h100", f"gpu: h100, engine: tensorrt-llm, {option}")
    with pytest.raises(UnsupportedModelError, match="cannot tell") as caught:
        build_backend(parse(text), offline=True)
    assert caught.value.key == f"deployment.{key}"
    assert f"remove {key.replace('_', '-')} from the file" in (caught.value.hint or "")


def test_slots_that_find_no_memory_do_not_start() -> None:
    """Llama.cpp takes all its slots' windows at start-up: four of 32,768 tokens are 16 GiB, and 24 GiB hold 15 of
    weights; one of them would fit."""
    text = LLAMA.replace("gpu: h100, max_model_len: 32768", "gpu: 4090, engine: llama.cpp, max_model_len: WINDOW")
    shorter = parse(text.replace("WINDOW", "32768"))
    assert build_backend(shorter, offline=True).settings.max_model_len == 32768
    with pytest.raises(DoesNotStartError, match="would not start"):
        build_backend(parse(text.replace("WINDOW", "131072, max_num_seqs: 4")), offline=True)


def test_the_roofline_is_bytes_over_bandwidth_and_flops_over_peak() -> None:
    backend = llama()
    step, efficiency = backend.service.step, backend.service.efficiency
    assert efficiency is not None
    # Llama-3.1-8B on an H100 SXM (3,350 GB/s, 989.5 TFLOP/s bf16): 8,030,261,248 parameters, of which the embedding
    # (128,256 × 4,096) is not read; KV of a token 2 × 32 × 8 × 128 × 2 B; between its products a token's states take
    # 32 × 10 × 4,096 values and what the layers' parameters are over 4,096, × 2 B
    embedding = 128256 * 4096
    passing_s = 2 * (32 * 10 * 4096 + (8_030_261_248 - 2 * embedding) / 4096) / 3350e9
    assert step.base_s == pytest.approx((8_030_261_248 - embedding) * 2 / 3350e9 / efficiency, rel=1e-3)
    read, written = 2 * (8_030_261_248 - 2 * embedding) / 989.5e12, 2 * (8_030_261_248 - embedding) / 989.5e12
    assert step.prefill_token_s == pytest.approx((read + passing_s) / efficiency, rel=1e-3)
    assert step.decode_sequence_s == pytest.approx((written + passing_s) / efficiency, rel=1e-3)
    assert step.kv_token_s == pytest.approx(131072 / 3350e9 / efficiency, rel=1e-3)
    assert backend.service.band_share == 0.25


def test_an_efficiency_scales_the_whole_step() -> None:
    traffic = parse(LLAMA)
    backend = build_backend(traffic, offline=True)
    assert backend.model is not None
    deployment = plan_deployment(traffic.deployment)
    assert deployment.gpu is not None
    half = roofline(
        backend.model, deployment, deployment.gpu, fit(backend.model, deployment).plan, efficiency=EFFICIENCY / 2
    )
    assert half.step.base_s == pytest.approx(2 * backend.service.step.base_s)
    assert half.step.kv_token_s == pytest.approx(2 * backend.service.step.kv_token_s)


def test_safety_fraction_is_the_pool_less_its_band() -> None:
    backend = replace(llama(), kv_bytes=1000, kv_bytes_low=964)
    fraction, terms, binds = safety_fraction(backend)
    assert fraction == 0.96
    assert terms["budget_band_share"] == pytest.approx(0.036)
    assert "3.6% smaller than planned" in binds
    assert safety_fraction(replace(backend, kv_bytes_low=1000))[0] == 1.0
    assert safety_fraction(backend, count_error_share=0.1)[0] == 0.86  # floor of 0.964 × 0.9 = 0.8676
