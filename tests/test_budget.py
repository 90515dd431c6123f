"""Budgets: each term by hand, which rank decides, real start-ups as golden rows, and the bars on recorded logs."""

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines.deployment import Deployment
from kvplan.engines.devices import device_memories
from kvplan.engines.engine_plan import Budget
from kvplan.engines.lora import ExpertSlots, lora_bytes
from kvplan.engines.vllm.budget import rank_budget, rank_terms, stage_budgets
from kvplan.engines.vllm.budget_terms import (
    capture_sizes,
    captured_graphs,
    communication_bytes,
    compile_bytes,
    encoder_bytes,
    encoder_output_bytes,
    encoder_tokens,
    forward_bytes,
    graph_bytes,
    non_torch_bytes,
    sampler_bytes,
    sampler_state_bytes,
    workspace_bytes,
)
from kvplan.engines.vllm.rank_facts import RankFacts, rank_facts
from kvplan.engines.vllm.releases import is_second_runner
from kvplan.engines.vllm.settings import resolve_settings
from kvplan.errors import InputError
from kvplan.model import EncoderShape, WeightPart
from kvplan.profiles.kinds import GpuProfile
from kvplan.units import GIB, MIB
from tests.models import LLAMA_CONFIG
from tests.tables import budget as budget_table
from tests.tables.budget import gib
from tests.test_weights import DEEPSEEK_V3, spec

H100 = GpuProfile(
    name="h100",
    vendor="NVIDIA",
    family="Hopper",
    memory_bytes=gib("79.2"),
    bandwidth_bytes_per_s=0,
    flops_per_s={},
    sources=("a log",),
    checked="2026-01-01",
    compute_capability=(9, 0),
)


TOWER = EncoderShape(hidden=1152, intermediate=4304, patches_per_token=4, item_tokens=16384)
"""The vision tower of Qwen3-VL and its successors."""


def facts(**changes: Any) -> RankFacts:
    """Llama-3.1-8B on an H100 as vLLM 0.33 serves it by default."""
    base: dict[str, Any] = {
        "release": (0, 33),
        "total_bytes": gib("79.2"),
        "utilization": Fraction(92, 100),
        "weight_bytes": 16_060_522_496,
        "sequences": 1024,
        "batched_tokens": 8192,
        "window_tokens": 131072,
        "hidden": 4096,
        "vocabulary": 128256,
        "intermediate": 14336,
        "capability": (9, 0),
    }
    return RankFacts(**{**base, **changes})


def terms(**changes: Any) -> dict[str, int]:
    return {term.name: term.bytes for term in rank_terms(facts(**changes))}


def test_forward_pass_by_hand() -> None:
    assert forward_bytes(facts()) == 8192 * 2 * (3 * 14336 + 3 * 4096)
    assert forward_bytes(facts(tensor_parallel=4)) == 8192 * 2 * (3 * 3584 + 3 * 4096)


def test_forward_pass_of_experts_by_hand() -> None:
    """Qwen3-30B-A3B: 8 of 128 experts of 768, hidden 2,048; two workspaces as wide as the hidden state."""
    mixture = facts(hidden=2048, experts_per_token=8, expert_intermediate=768, batched_tokens=2048)
    assert forward_bytes(mixture) == 2048 * 2 * (8 * 2 * 2048 + 3 * 2048)
    wide = facts(hidden=2048, experts_per_token=8, expert_intermediate=1536, batched_tokens=2048)
    assert forward_bytes(wide) > forward_bytes(replace(wide, expert_slices=2)) == forward_bytes(mixture)
    assert forward_bytes(wide) == 2048 * 2 * (8 * 2 * 2 * 1536 + 3 * 2048)


def test_experts_worked_in_chunks_before_0_17() -> None:
    """65,536 tokens of Qwen3-30B-A3B: 3 vectors of all, two workspaces of 8 experts for 32,768 at a time."""
    mixture = {"hidden": 2048, "experts_per_token": 8, "expert_intermediate": 768, "batched_tokens": 65536}
    chunked = forward_bytes(facts(**mixture, release=(0, 16)))
    assert chunked == 2 * (65536 * 3 * 2048 + 32768 * 8 * 2 * 2048)
    assert forward_bytes(facts(**mixture, release=(0, 17))) == 2 * 65536 * (3 * 2048 + 8 * 2 * 2048)
    (term,) = (term for term in rank_terms(facts(**mixture, release=(0, 16))) if term.name == "activation_forward")
    assert "experts 32,768 tokens at a time" in term.formula


def test_latent_attention_expands_its_cached_context() -> None:
    """DeepSeek at TP 8: 16 heads × 256 values × 65,536 tokens × 2 B = 512 MiB beside the layer."""
    with_context = forward_bytes(facts(latent_context_width=16 * 256))
    assert with_context - forward_bytes(facts()) == 512 * MIB


@pytest.mark.parametrize(
    ("changes", "copies"),
    [
        ({"release": (0, 11)}, Fraction(96, 10)),
        ({"release": (0, 19)}, Fraction(7, 2)),
        ({}, Fraction(3)),
        ({"capability": (7, 5)}, Fraction(7, 2)),
        ({"vendor": "amd"}, Fraction(7, 2)),
        ({"vendor": "amd", "release": (0, 16)}, Fraction(96, 10)),
        ({"sampler": "flashinfer", "release": (0, 11)}, Fraction(3)),
        ({"runs_sampler": False}, Fraction(0)),
        # the second runner: logits in 16 bit alone, from 0.33 also the whole pipeline in 32 bit
        ({"is_second_runner": True, "release": (0, 29)}, Fraction(1, 2)),
        ({"is_second_runner": True}, Fraction(7, 2)),
        ({"is_second_runner": True, "capability": (7, 5)}, Fraction(3, 2)),
    ],
)
def test_sampler_by_hand(changes: dict[str, Any], copies: Fraction) -> None:
    assert sampler_bytes(facts(**changes)) == int(copies * 1024 * 128256 * 4)


def test_the_peak_is_the_largest_phase() -> None:
    """Forward pass, sampler and compiler run while what the encoder made is kept; the encoder runs before them."""
    for changes in ({}, {"sequences": 1}, {"encoder": TOWER}, {"encoder": TOWER, "batched_tokens": 2048}):
        here = facts(**changes)
        found = terms(**changes)
        activation = sum(amount for name, amount in found.items() if name.startswith("activation"))
        decoding = max(forward_bytes(here), sampler_bytes(here), compile_bytes(here))
        assert activation == max(encoder_bytes(here), encoder_output_bytes(here) + decoding)


def test_an_encoder_has_its_own_term_even_below_the_peak() -> None:
    """Qwen3.6's: the start-up run encodes one picture of 16,384 tokens (a log of 0.20 with steps of 4,096 prints it),
    each of 4 patches × (3 × 4,304 + 3 × 1,152) × 2 B = 2.0 GiB, and keeps 16,384 × 4,096 × 2 B."""
    here = facts(encoder=TOWER, batched_tokens=4096)
    assert encoder_tokens(here) == 16384
    assert encoder_tokens(facts(encoder=TOWER, batched_tokens=40000)) == 2 * 16384
    assert encoder_bytes(here) == 16384 * 4 * 2 * (3 * 4304 + 3 * 1152)
    assert encoder_output_bytes(here) == 16384 * 4096 * 2
    found = {term.name: term for term in rank_terms(facts(encoder=TOWER, release=(0, 11)))}
    assert found["activation_encoder"].bytes == 0  # 1,024 sequences: sampling takes more
    assert found["activation_encoder"].formula == (
        "16,384 tokens × 4 patches × 2 B × 16,368 values = 2 GiB before the decoder runs; only the excess "
        "over the other peaks counts"
    )
    assert "activation_encoder" not in terms()
    # 0.11 keeps room for 153,600 tokens of a video of Qwen3-VL, which makes four vectors of each
    deep = replace(TOWER, outputs=4)
    assert encoder_output_bytes(facts(encoder=deep, release=(0, 11))) == 153600 * 4 * 4096 * 2
    assert encoder_output_bytes(facts(encoder=deep)) == 16384 * 4 * 4096 * 2


def test_a_gated_delta_net_works_on_whole_steps() -> None:
    """75,776 values a token of Qwen3.6-35B-A3B's, where an MLP of 3 × 512 would be less; a wider MLP hides it."""
    narrow = facts(intermediate=512, recurrent_width=75776)
    assert forward_bytes(narrow) - forward_bytes(facts(intermediate=0)) == 8192 * 75776 * 2
    wide = {"intermediate": 100_000}
    assert forward_bytes(facts(**wide, recurrent_width=75776)) == forward_bytes(facts(**wide))


def test_what_the_second_runner_keeps() -> None:
    """1,024 requests × 128,256 words: 4 B of counts and a bit of mask each, since 0.27 counts all that is gone."""
    kept = {"is_second_runner": True, "release": (0, 29)}
    assert sampler_state_bytes(facts(**kept)) == 1024 * 128256 * 33 // 8
    assert sampler_state_bytes(facts(**{**kept, "release": (0, 26)})) == 0
    assert sampler_state_bytes(facts()) == 0
    assert terms(**kept)["sampler_state"] == 1024 * 128256 * 33 // 8


def test_compiling_tunes_kernels_on_its_own_table() -> None:
    """Gemma's table, 262,144 × 2,816 × 2 B = 1.375 GiB, is above a small batch; eager mode compiles nothing."""
    gemma = {"vocabulary": 262144, "hidden": 2816, "sequences": 16, "batched_tokens": 512}
    assert compile_bytes(facts(**gemma)) == 262144 * 2816 * 2
    assert terms(**gemma)["activation_compile"] == 262144 * 2816 * 2 - forward_bytes(facts(**gemma))
    assert compile_bytes(facts(**gemma, tensor_parallel=2)) == 262144 * 2816
    assert compile_bytes(facts(**gemma, enforce_eager=True)) == 0
    assert compile_bytes(facts(**gemma, release=(0, 11))) == 0


def test_which_runner_a_model_gets() -> None:
    """Qwen2.5-0.5B on 0.27.1 and Gemma-4-26B-A4B on 0.29.0 log the second; Qwen3-235B-A22B on 0.27 the first."""
    dense = {"has_experts": False, "has_states": False, "is_pooling": False}
    assert is_second_runner((0, 27, 1), "Qwen2ForCausalLM", **dense)
    assert not is_second_runner((0, 27), "Qwen3MoeForCausalLM", **{**dense, "has_experts": True})
    assert not is_second_runner((0, 28), "Qwen3_5ForConditionalGeneration", **{**dense, "has_states": True})
    assert is_second_runner((0, 29), "Gemma4ForConditionalGeneration", **{**dense, "has_experts": True})
    assert is_second_runner((0, 24), "Qwen3ForCausalLM", **dense)
    assert not is_second_runner((0, 24), "Qwen2ForCausalLM", **dense)
    assert not is_second_runner((0, 22), "Qwen3ForCausalLM", **dense)


def test_graphs_lie_inside_from_0_20() -> None:
    """86 graphs at 256 sequences: 0.10 + 86 × 0.0042 GiB; a log of 0.29 on an L40S prints an estimate of 0.46."""
    assert captured_graphs(capture_sizes(256), 256) == 86
    assert graph_bytes(86) / GIB == pytest.approx(0.46, abs=0.005)
    runner = {"is_second_runner": True}
    for changes, inside in (
        ({"release": (0, 19, 1)}, False),
        ({"release": (0, 20)}, True),
        ({"release": (0, 28), **runner}, False),
        ({"release": (0, 29), **runner}, True),
    ):
        (graphs,) = (term for term in rank_terms(facts(**changes)) if term.name == "cuda_graphs")
        assert graphs.inside_fraction is inside
    assert terms(enforce_eager=True)["cuda_graphs"] == 0


def test_non_torch_by_release_and_device() -> None:
    assert non_torch_bytes(facts()) == gib("0.33")
    assert non_torch_bytes(facts(release=(0, 11))) == gib("0.12")
    # 0.6 before its fifth release counted the context once
    assert non_torch_bytes(facts(release=(0, 6, 4))) == gib("0.33")
    assert non_torch_bytes(facts(release=(0, 6, 6))) == gib("0.12")
    assert non_torch_bytes(facts(release=(0, 11), total_bytes=gib(22))) == gib("0.06")
    assert non_torch_bytes(facts(capability=(7, 5))) == gib("0.1")
    assert non_torch_bytes(facts(unified_memory=True)) == gib("2.5")


def test_communication_grows_with_ranks_and_nodes() -> None:
    for changes in ({"is_linked": True}, {"is_linked": True, "capability": (8, 0)}, {"capability": (8, 9)}):
        by_ranks = [communication_bytes(facts(tensor_parallel=ranks, gpus=ranks, **changes)) for ranks in (1, 2, 4, 8)]
        assert by_ranks == sorted(by_ranks)
        assert by_ranks[0] == 0
        assert communication_bytes(facts(tensor_parallel=8, gpus=16, **changes)) - by_ranks[3] == gib("1.5")


@pytest.mark.parametrize(
    ("changes", "amount"),
    [
        # "non-torch 1.38 GiB" on 2 × H200, 0.07 on one H100
        ({"tensor_parallel": 2, "is_linked": True}, "1.3"),
        ({"tensor_parallel": 2, "is_linked": True, "capability": (8, 0)}, "0.15"),
        ({"tensor_parallel": 8, "is_linked": True, "capability": (8, 0)}, "2.5"),
        # "non-torch 0.21 GiB" on 8 × L40S, "non_torch_memory takes 0.20GiB" on 16 × RTX 3090
        ({"tensor_parallel": 8, "capability": (8, 9)}, "0.15"),
        ({"tensor_parallel": 16, "capability": (8, 6)}, "0.15"),
        ({"tensor_parallel": 8, "capability": None}, "2.5"),
        ({"tensor_parallel": 8, "vendor": "amd", "capability": None}, "2.5"),
    ],
)
def test_communication_by_link(changes: dict[str, Any], amount: str) -> None:
    assert communication_bytes(facts(gpus=changes["tensor_parallel"] // 2, **changes)) == gib(amount)


def test_cards_that_reach_each_other_over_pcie_keep_buffers_for_each_peer() -> None:
    """A PRO 6000 has no NVLink, but its pools say that the buffers are on the card: 2.5 GiB among 8."""
    for ranks in (2, 4, 8):
        found = communication_bytes(facts(gpus=ranks, tensor_parallel=ranks, capability=(12, 0)))
        assert found == (ranks - 1) * (gib("2.5") // 7)


def test_rocm_keeps_its_libraries_on_the_card() -> None:
    """0.8.5 prints "non_torch_memory takes 0.46GiB" on a Radeon; CUDA 0.06 to 0.12."""
    found = non_torch_bytes(facts(release=(0, 8, 5), vendor="amd", capability=None))
    assert found == gib("0.5") > non_torch_bytes(facts(release=(0, 8, 5)))


def half_width(**changes: Any) -> float:
    """GiB on either side of the answer."""
    answer = rank_budget(facts(**changes))
    return (answer.kv_bytes_high - answer.kv_bytes) / GIB


def test_the_band_is_the_root_of_the_summed_squares() -> None:
    """0.11 on an H100, 1,024 × 128,256: 8 % of 4.70 GiB of sampler, 35 % of 0.84 GiB of forward pass, 0.25 of CUDA."""
    sampler, forward = 9.6 * 1024 * 128256 * 4 / GIB, 8192 * 2 * 3 * (14336 + 4096) / GIB
    expected = math.sqrt((0.08 * sampler) ** 2 + (0.35 * forward) ** 2 + 0.25**2)
    assert half_width(release=(0, 11)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("surer", "unsurer"),
    [
        ({"release": (0, 11)}, {"release": (0, 6, 4)}),
        ({"release": (0, 11), "vendor": "nvidia"}, {"release": (0, 11), "vendor": "amd"}),
        ({"encoder": None}, {"encoder": TOWER}),
        ({"unified_memory": False}, {"unified_memory": True}),
        ({}, {"runs_flashinfer": True}),
        ({"release": (0, 25), "recurrent_width": 131_072}, {"release": (0, 26), "recurrent_width": 131_072}),
        (
            {"tensor_parallel": 8, "capability": (10, 0), "is_linked": True},
            {"tensor_parallel": 8, "capability": (12, 0)},
        ),
        ({"capability": (8, 9)}, {"capability": (8, 9), "tensor_parallel": 8, "intermediate": 8 * 14336}),
    ],
)
def test_less_certain_terms_widen_the_band(surer: dict[str, Any], unsurer: dict[str, Any]) -> None:
    assert half_width(**surer) < half_width(**unsurer)


def test_sparse_attention_keeps_workspaces() -> None:
    """VLLM's own comment: 5 × 163,840 × 576 × 2 B ≈ 900 MB for DeepSeek-V3.2."""
    sparse = facts(sparse_latent_width=576, window_tokens=163840)
    assert workspace_bytes(sparse) == 5 * 163840 * 576 * 2 + 512 * MIB


def test_flashinfers_buffer_is_taken_where_its_attention_runs_and_graphs_are_profiled() -> None:
    runs = {"runs_flashinfer": True}
    assert workspace_bytes(facts(**runs)) == 394 * MIB
    assert workspace_bytes(facts(**runs, enforce_eager=True)) == 0
    assert workspace_bytes(facts(**runs, release=(0, 19))) == 0
    assert workspace_bytes(facts(capability=(10, 0))) == 0


def test_a_budget_that_does_not_close_stays_negative() -> None:
    answer = rank_budget(facts(total_bytes=gib(16)))
    assert answer.kv_bytes < 0
    assert answer.kv_bytes_low < answer.kv_bytes < answer.kv_bytes_high


# --- from a model and a deployment ---


def answer_for(config: dict[str, Any], **changes: Any) -> Budget:
    model = spec(config)
    deployment = Deployment(**{"gpu": H100, **changes})
    return min(stage_budgets(model, deployment, resolve_settings(model, deployment)), key=lambda each: each.kv_bytes)


def test_llama_on_an_h100() -> None:
    answer = answer_for(LLAMA_CONFIG)
    by_name = {term.name: term for term in answer.terms}
    assert answer.requested_bytes == -(-gib("79.2") * 92 // 100)
    assert by_name["weights"].bytes == 8_030_261_248 * 2
    # 2 × 128,256 × 4,096 × 2 B of embedding and head
    assert by_name["weights"].formula == ("config arithmetic, bfloat16: layers 13.00 + embedding and head 1.96 GiB")
    assert set(by_name) == {
        "weights",
        "non_torch",
        "activation_forward",
        "activation_sampler",
        "sampler_state",
        "cuda_graphs",
        "log_probabilities",
    }


def test_weights_given_for_all_ranks() -> None:
    answer = answer_for(LLAMA_CONFIG, tensor_parallel=2, weight_bytes=10 * GIB)
    assert next(term.bytes for term in answer.terms if term.name == "weights") == 5 * GIB


def test_the_smallest_device_decides() -> None:
    answer = answer_for(LLAMA_CONFIG, tensor_parallel=2, gpu_memory_bytes=(gib(80), gib(60)))
    assert (answer.rank, answer.total_bytes) == (1, gib(60))


def test_the_last_pipeline_stage_samples() -> None:
    """Two equal stages: the last one samples, and holds a head as large as the first one's embedding."""
    answer = answer_for(LLAMA_CONFIG, pipeline_parallel=2)
    assert answer.rank == 1
    assert any(term.name == "activation_sampler" for term in answer.terms)


def test_lora_slots_by_hand() -> None:
    """Rank 16 at TP 2: A over the whole input of q, k, v, gate and up, B over half their outputs; o and down the other
    way round. Per layer 16 × 2 B × (7 × hidden + (q + 2 kv + o + 3 MLP widths) / 2); embedding and head are whole."""
    model = spec(LLAMA_CONFIG)
    by_hand = 32 * 16 * 2 * (7 * 4096 + (4096 + 2 * 1024 + 4096 + 3 * 14336) // 2) + 16 * 2 * 2 * (128256 + 4096)
    assert lora_bytes(model.weights.parts, 4096, tensor_parallel=2, slots=1, rank=16) == by_hand
    assert lora_bytes(model.weights.parts, 4096, tensor_parallel=2, slots=4, rank=64) == 16 * by_hand


def test_every_expert_has_adapters_of_its_own() -> None:
    """Qwen3-30B-A3B's layer at TP 2, rank 16: 128 experts × (3 × 2,048 + 3 × 768 / 2) widths, the router's 2,048 + 128;
    under expert parallelism 64 of them whole; gpt-oss joins gate and up, which have one A."""
    layer = [
        WeightPart(name="mlp.experts", parameters=128 * 3 * 2048 * 768, split="columns", layer=0),
        WeightPart(name="mlp.gate", parameters=2048 * 128, split="none", layer=0),
    ]

    def taken(held: int, slices: int, inputs: int = 3) -> int:
        slots = ExpertSlots(experts=128, held=held, slices=slices, inputs=inputs)
        return lora_bytes(layer, 2048, tensor_parallel=2, slots=1, rank=16, experts=slots)

    assert taken(128, 2) == 16 * 2 * (128 * (3 * 2048 + 3 * 768 // 2) + 2048 + 128)
    assert taken(64, 1) == 16 * 2 * (64 * (3 * 2048 + 3 * 768) + 2048 + 128)
    assert taken(128, 2) - taken(128, 2, inputs=2) == 16 * 2 * 128 * 2048


def test_adapters_take_from_the_pool() -> None:
    model, deployment = spec(LLAMA_CONFIG), Deployment(gpu=H100)
    settings = resolve_settings(model, deployment)
    (plain,) = stage_budgets(model, deployment, settings)
    (more,) = stage_budgets(model, deployment, settings, lora_slots=2)
    taken = {term.name: term.bytes for term in more.terms}
    assert plain.kv_bytes - more.kv_bytes == taken["lora"] > 0


def test_multi_token_layers_are_loaded_only_for_speculation() -> None:
    model = spec(DEEPSEEK_V3)
    deployment = Deployment(gpu=H100, tensor_parallel=8)
    plain = rank_facts(model, deployment, resolve_settings(model, deployment))
    assert plain.speculative_bytes == 0
    assert plain.latent_context_width == 16 * 256
    assert plain.sparse_latent_width == 0


def test_memory_is_given_per_rank_or_once() -> None:
    assert device_memories(Deployment(gpu=H100, tensor_parallel=2)) == (H100.memory_bytes,) * 2
    assert device_memories(Deployment(gpu_memory_bytes=(5,), tensor_parallel=2)) == (5, 5)
    assert device_memories(Deployment(gpu_memory_bytes=(9, 7, 8, 6), tensor_parallel=2, data_parallel=2)) == (8, 6)
    with pytest.raises(InputError, match="3 amounts of GPU memory, but the number of ranks is 2"):
        device_memories(Deployment(gpu_memory_bytes=(1, 2, 3), tensor_parallel=2))
    with pytest.raises(InputError, match="needs a GPU"):
        device_memories(Deployment())


def test_a_mig_slice_is_a_device_of_its_own_size() -> None:
    whole = answer_for(LLAMA_CONFIG)
    part = answer_for(LLAMA_CONFIG, gpu_memory_bytes=(gib("39.5"),))
    assert part.total_bytes == gib("39.5")
    assert part.kv_bytes < whole.kv_bytes


# --- real start-ups ---

LOGS = [
    pytest.param(
        {
            "release": (0, 11),
            "total_bytes": gib("22.16"),
            "utilization": Fraction(92, 100),
            "weight_bytes": gib("14.9889"),
            "sequences": 128,
            "batched_tokens": 2048,
            "window_tokens": 32000,
        },
        "4.75",
        # https://github.com/abinavChandar/demo_env_l4/blob/a7412410f3430401527878bfb0e6e4a15a5e5fe1/vllm.log
        id="llama-3.1-8b-l4",
    ),
    pytest.param(
        {
            "release": (0, 11),
            "total_bytes": gib("79.18"),
            "utilization": Fraction(9, 10),
            "weight_bytes": gib("14.99"),
            "batched_tokens": 8192,
            "window_tokens": 16000,
        },
        "51.38",
        # https://github.com/llm-d-incubation/llm-d-planner/blob/e50305af90f0812e77e1827f3bc740fe75b76370/docs/empirical-vllm-memory-results.md
        id="llama-3.1-8b-h100",
    ),
    pytest.param(
        {
            "release": (0, 10),
            "total_bytes": gib("79.18"),
            "utilization": Fraction(9, 10),
            "weight_bytes": gib("56.9342"),
            "window_tokens": 6144,
            "hidden": 2048,
            "vocabulary": 151936,
            "experts_per_token": 8,
            "expert_intermediate": 768,
        },
        "8.68",
        # https://github.com/kolyangg/mlops-assignment/blob/daaf8cb3262f5daa5d099ff13a25e2a38e7cf765/logs/vllm.log
        id="qwen3-30b-a3b-h100",
    ),
    pytest.param(
        {
            "release": (0, 10),
            "total_bytes": gib("79.25"),
            "utilization": Fraction(8, 10),
            "weight_bytes": gib("17.2217"),
            "sequences": 256,
            "batched_tokens": 2048,
            "window_tokens": 16384,
            "hidden": 2880,
            "vocabulary": 201088,
            "experts_per_token": 4,
            "expert_intermediate": 2880,
            "tensor_parallel": 4,
            "gpus": 4,
            "sampler": "flashinfer",
        },
        "45.32",
        # https://github.com/dennislee22/vLLM-benchmarking/blob/b474d1e053c35c9aef8c02aae4efbc0d8675f033/log/vllm-120B-4gpuA10080GB-0.8GRAM-diff-nodes.log
        id="gpt-oss-120b-4-a100",
    ),
    pytest.param(
        {
            "release": (0, 29),
            "total_bytes": gib("44.4"),
            "weight_bytes": gib("24.72"),
            "sequences": 256,
            "batched_tokens": 2048,
            "window_tokens": 4096,
            "hidden": 2816,
            "vocabulary": 262144,
            "experts_per_token": 8,
            "expert_intermediate": 704,
            "capability": (8, 9),
            "is_second_runner": True,
        },
        "13.63",
        # https://github.com/akamaslabs/vllm-benchmark/blob/026d8a5800d50f9fa95eef63c9f071713cb9dd7a/studies/30-l40s-gemma4-26b-tps/probe/probe.log
        id="gemma-4-26b-a4b-fp8-l40s",
    ),
    # Logs that no constant was fitted to, told by the engine's version and the lines that it printed.
    pytest.param(
        {
            "release": (0, 28, 1),
            "total_bytes": gib("23.47"),
            "utilization": Fraction(9, 10),
            "weight_bytes": gib("2.98"),
            "sequences": 256,
            "window_tokens": 4096,
            "hidden": 1536,
            "vocabulary": 151936,
            "intermediate": 8960,
            "capability": (7, 5),
            "enforce_eager": True,
            "is_second_runner": True,
        },
        "17.36",
        # The log says "(23.3/23.47 GiB) on startup", "3.25 GiB for consumed memory", "0.5 GiB for peak activation"
        id="qwen2.5-1.5b-turing-second-runner",
    ),
    pytest.param(
        {
            "release": (0, 27, 1),
            "total_bytes": gib("23.99"),
            "weight_bytes": gib("0.93"),
            "sequences": 256,
            "window_tokens": 32768,
            "hidden": 896,
            "vocabulary": 151936,
            "intermediate": 4864,
            "capability": (8, 9),
            "is_second_runner": True,
        },
        "20.52",
        # The log says "(22.45/23.99 GiB) on startup", "1.23 GiB for consumed memory", "0.31 GiB for peak activation"
        id="qwen2.5-0.5b-4090-second-runner",
    ),
    pytest.param(
        {
            "release": (0, 27),
            "total_bytes": gib("95.01"),
            "utilization": Fraction(9, 10),
            "weight_bytes": gib("55.19"),
            "sequences": 32,
            "window_tokens": 32768,
            "vocabulary": 151936,
            "experts_per_token": 8,
            "expert_intermediate": 1536,
            "tensor_parallel": 4,
            "gpus": 4,
            "capability": (12, 0),
        },
        "27.85",
        # The log says "(94.05/95.01 GiB) on startup", "56.89 GiB for consumed memory", "0.76 GiB for peak activation"
        id="qwen3-235b-a22b-fp8-4-rtx-pro-6000",
    ),
    pytest.param(
        {
            "release": (0, 9, 2),
            "total_bytes": gib("39.49"),
            "utilization": Fraction(9, 10),
            "weight_bytes": gib("15.2683"),
            "sequences": 256,
            "batched_tokens": 2048,
            "window_tokens": 40960,
            "vocabulary": 151936,
            "intermediate": 12288,
        },
        "18.69",
        # The log says "max_num_batched_tokens=2048", "num_gpu_blocks is: 8505"
        id="qwen3-8b-a100-40gb",
    ),
    pytest.param(
        {
            "release": (0, 7, 2),
            "total_bytes": gib("22.06"),
            "utilization": Fraction(9, 10),
            "weight_bytes": gib("2.88"),
            "sequences": 256,
            "batched_tokens": 4096,
            "window_tokens": 4096,
            "hidden": 1536,
            "vocabulary": 151936,
            "intermediate": 8960,
        },
        "15.52",
        # The log says "non_torch_memory takes 0.05GiB; PyTorch activation peak memory takes 1.40GiB"
        id="qwen2.5-math-1.5b-a10",
    ),
    pytest.param(
        {
            "release": (0, 16),
            "total_bytes": gib("44.4"),
            "utilization": Fraction(9, 10),
            "weight_bytes": gib("18.55"),
            "sequences": 256,
            "batched_tokens": 2048,
            "window_tokens": 8192,
            "hidden": 8192,
            "vocabulary": 128256,
            "intermediate": 28672,
            "tensor_parallel": 2,
            "gpus": 2,
        },
        "20.16",
        # The log says "max_num_batched_tokens=2048", "GPU KV cache size: 132,128 tokens"
        id="llama-3-70b-awq-2-l40s",
    ),
]


@pytest.mark.parametrize(("changes", "printed"), LOGS)
def test_printed_pools(changes: dict[str, Any], printed: str) -> None:
    """Start-up logs, figures as printed; each with its source. Within 2 % or 0.3 GiB, inside the band."""
    answer = rank_budget(facts(**changes))
    assert abs(answer.kv_bytes - gib(printed)) <= max(gib(printed) * 0.02, gib("0.3"))
    assert answer.kv_bytes_low <= gib(printed) <= answer.kv_bytes_high


def test_the_bars_hold_on_recorded_logs(shared_data: Path) -> None:
    rows = [row for row in budget_table.read_rows(shared_data) if row.core]
    figures = budget_table.totals([budget_table.judge(row) for row in rows])
    assert figures["median_error_share"] <= 0.01
    assert figures["good_share"] >= 0.85
    assert figures["tight_share_below_0_19"] >= 0.90
    assert figures["covered_share"] >= 0.90
    assert figures["median_half_width_share"] <= 0.08


def test_the_table_prints(shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert budget_table.main(["--markdown", "--rows"]) == 0
    assert "| median error of 37 rows" in capsys.readouterr().out


def test_the_table_says_when_there_are_no_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budget_table, "DATA", tmp_path / "nowhere")
    assert budget_table.main([]) == 0
    assert "not beside this checkout" in capsys.readouterr().err
