"""The roofline's terms, each by hand: what GPUs exchange, and what ranks that share experts read and wait for."""

from dataclasses import replace

import pytest

from kvplan.capacity import fit
from kvplan.engines.deployment import Deployment
from kvplan.model import ModelSpec
from kvplan.profiles.loader import load_gpu
from kvplan.simulation.step_time import Service, at_efficiency, expert_parameters, link_bytes_per_s, roofline
from kvplan.sources import read_model

DENSE = "meta-llama/Llama-3.1-8B-Instruct"
EXPERTS = "Qwen/Qwen3-30B-A3B-Instruct-2507"


def ideal(model: str, gpu: str, *, tensor: int = 1, data: int = 1) -> tuple[ModelSpec, Service]:
    """The roofline itself, at efficiency 1."""
    spec, profile = read_model(model, offline=True), load_gpu(gpu)
    deployment = Deployment(
        gpu=profile, tensor_parallel=tensor, data_parallel=data, max_model_len=4096, kv_memory_bytes=2**34
    )
    return spec, roofline(spec, deployment, profile, fit(spec, deployment).plan, efficiency=1.0)


@pytest.mark.parametrize(
    ("gpu", "rate"),
    [
        ("h100", 450e9),  # NVLink 4: 900 GB/s both ways
        ("mi300x", 448e9),  # seven links of 128 GB/s both ways
        ("rtx-pro-6000", 32e9),  # PCIe 5.0 x16, through the host's memory
        ("rtx-4090", 16e9),  # PCIe 4.0 x16
        ("t4", 8e9),  # PCIe 3.0 x16
    ],
)
def test_gpus_exchange_over_their_link_or_their_slot(gpu: str, rate: float) -> None:
    assert link_bytes_per_s(load_gpu(gpu)) == rate


def test_tensor_parallel_ranks_reduce_twice_a_layer() -> None:
    """32 layers × 2 all-reduces × 2 × (2 - 1) / 2 × 4,096 values × 2 B = 524,288 B a token.

    The norms stand on every rank: 32 × 8 × 4,096 values × 2 B = 2,097,152 B, which a second rank does not halve.
    """
    _, alone = ideal(DENSE, "l40s")
    _, pair = ideal(DENSE, "l40s", tensor=2)
    more_s = 524_288 / 16e9 + 2_097_152 / 2 / 864e9
    assert pair.step.base_s == pytest.approx(alone.step.base_s / 2)
    assert pair.step.kv_token_s == pytest.approx(alone.step.kv_token_s / 2)
    assert pair.step.decode_sequence_s == pytest.approx(alone.step.decode_sequence_s / 2 + more_s)
    assert pair.step.prefill_token_s == pytest.approx(alone.step.prefill_token_s / 2 + more_s)


def test_data_parallel_ranks_of_a_dense_model_have_nothing_to_share() -> None:
    assert ideal(DENSE, "l40s", data=2)[1].step == ideal(DENSE, "l40s")[1].step


def test_ranks_that_share_experts_hold_half_of_them_and_wait_for_each_others_prompts() -> None:
    """48 layers × 128 experts × 3 × 2,048 × 768 = 28,991,029,248 parameters, of which a token meets 8 in 128.

    Exchanged: 48 layers × (all-gather + reduce-scatter) × 1 other rank × 2,048 values × 2 B = 393,216 B a token.
    Passed between products: 48 × 2,048 × (8 for the norms + 2 + 2 × 8 for the experts' answers) values, and what the
    layers' parameters are over 2,048, × 2 B.
    """
    spec, alone = ideal(EXPERTS, "rtx-pro-6000")
    _, pair = ideal(EXPERTS, "rtx-pro-6000", data=2)
    experts, exchange_s = 28_991_029_248, 393_216 / 32e9
    assert expert_parameters(spec) == experts
    assert alone.step.base_s - pair.step.base_s == pytest.approx(experts / 2 * 2 / 1792e9)
    assert pair.step.decode_sequence_s == pytest.approx(alone.step.decode_sequence_s + exchange_s)
    # What every prompt token passes: all parameters but embedding, head and idle experts.
    dense = 30_532_122_624 - 2 * 311_164_928 - experts
    peak = 503.8e12
    passing_s = 2 * (48 * 2048 * (8 + 2 + 16) + (dense + experts / 16) / 2048) / 1792e9
    assert alone.step.prefill_token_s == pytest.approx(2 * (dense + experts / 16) / peak + passing_s)
    assert pair.step.prefill_token_s == pytest.approx(
        2 * (2 * dense + experts / 16) / peak + 2 * exchange_s + passing_s
    )
    assert pair.step.kv_token_s == alone.step.kv_token_s


def test_another_efficiency_lengthens_every_term_alike() -> None:
    _, known = ideal(DENSE, "h100")
    half = at_efficiency(known, 0.5)
    assert half.step == replace(known.step, **{name: value / 0.5 for name, value in vars(known.step).items()})
    assert half.source.endswith("efficiency 0.5")
    assert half.efficiency == 0.5
