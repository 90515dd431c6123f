"""What a vLLM plan warns about, and the options that it refuses rather than ignores."""

from dataclasses import replace

import pytest

from kvplan.capacity import Fit, fit
from kvplan.engines import parse_engine
from kvplan.engines.base import Deployment
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import FLOAT32, FullAttention, Mamba2State
from kvplan.model import Shape
from kvplan.profiles.kinds import GpuProfile
from kvplan.units import GIB
from tests.models import model_of

FULL = FullAttention(kv_heads=8, head_dim=128, value_head_dim=128)
STATE = Mamba2State(heads=128, head_dim=64, state=128, groups=8, conv_kernel=4, temporal_type=FLOAT32)
LLAMA, HYBRID = model_of([[FULL]] * 32), model_of([[FULL], [STATE]] * 4)
B200 = GpuProfile(
    name="b200",
    vendor="nvidia",
    family="Blackwell",
    memory_bytes=178 * GIB,
    bandwidth_bytes_per_s=1,
    flops_per_s={},
    sources=("test",),
    checked="2026-11-30",
    compute_capability=(10, 0),
)


def codes(answer: Fit) -> dict[str, str]:
    return {finding.code: finding.severity for finding in answer.findings}


def test_a_plain_plan_has_nothing_to_say() -> None:
    assert codes(fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB))) == {}


def test_more_sequences_than_state_blocks_do_not_start() -> None:
    """A practitioner's start-up at 0.25.1: 614 state blocks, 1,024 sequences by default: refused, lower it to 614."""
    block_bytes = fit(HYBRID, Deployment(kv_memory_bytes=10 * GIB)).plan.layout.bytes_per_block
    answer = fit(HYBRID, Deployment(kv_memory_bytes=614 * block_bytes))
    assert answer.plan.blocks == 614
    (found,) = [finding for finding in answer.findings if finding.code == "max-num-seqs-above-state-blocks"]
    assert (found.severity, found.hint) == ("error", "--max-num-seqs 614")
    enough = fit(HYBRID, Deployment(kv_memory_bytes=614 * block_bytes, max_num_seqs=614))
    assert "max-num-seqs-above-state-blocks" not in codes(enough)
    eager = fit(HYBRID, Deployment(kv_memory_bytes=614 * block_bytes, enforce_eager=True))
    assert "max-num-seqs-above-state-blocks" not in codes(eager)


def test_sequences_that_can_never_run_together_are_said() -> None:
    answer = fit(LLAMA, Deployment(kv_memory_bytes=GIB, max_model_len=1024))
    assert codes(answer) == {"max-num-seqs-above-pool": "info"}
    assert answer.findings[0].hint == "--max-num-seqs 511"


def test_a_hybrids_charge_is_explained() -> None:
    assert codes(fit(HYBRID, Deployment(kv_memory_bytes=200 * GIB)))["hybrid-charges-more-than-stored"] == "info"


def test_expert_parallelism_is_not_ignored() -> None:
    found = codes(fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB, expert_parallel=True)))
    assert found == {"expert-parallel-not-priced": "warning"}


@pytest.mark.parametrize(("capability", "said"), [((8, 0), False), ((9, 0), False), ((10, 0), True), (None, True)])
def test_other_generations_are_named(capability: tuple[int, int] | None, said: bool) -> None:
    device = replace(B200, compute_capability=capability)
    found = codes(fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB, gpu=device)))
    assert ("gpu-generation-unchecked" in found) == said


def test_options_that_change_the_pool_unpriced_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="cannot tell"):
        fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB, speculative_tokens=3))
    with pytest.raises(InputError, match="cache_type_k is an option of llama"):
        fit(LLAMA, Deployment(kv_memory_bytes=10 * GIB, cache_type_k="q8_0"))


def test_gemma_4_needs_a_step_that_holds_a_video() -> None:
    """A start-up on a small card prints 2,496 = 32 frames × (70 + 8) tokens, where others take 2,048."""
    small = Deployment(kv_memory_bytes=10 * GIB, gpu_memory_bytes=(44 * GIB,))
    gemma = replace(LLAMA, architecture="Gemma4ForConditionalGeneration", shape=Shape(hidden=4096, has_vision=True))
    assert fit(gemma, small).plan.settings.max_num_batched_tokens == 2496
    assert fit(LLAMA, small).plan.settings.max_num_batched_tokens == 2048


def test_a_class_that_vllm_dropped_is_named() -> None:
    mpt = replace(LLAMA, architecture="MptForCausalLM")
    assert codes(fit(mpt, Deployment(kv_memory_bytes=10 * GIB))) == {"model-class-dropped": "warning"}
    older = Deployment(kv_memory_bytes=10 * GIB, engine=parse_engine("vllm@0.28"))
    assert "model-class-dropped" not in codes(fit(mpt, older))
