"""The smallest change under which a plan that does not fit would."""

from dataclasses import replace

import pytest

from kvplan.capacity import FITS, fit
from kvplan.engines import parse_engine
from kvplan.engines.deployment import Deployment
from kvplan.profiles.loader import load_gpu
from kvplan.remedies import smallest_changes
from kvplan.sources import read_model
from kvplan.units import GIB

LLAMA = read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True)


def test_a_plan_that_fits_needs_no_change() -> None:
    assert smallest_changes(fit(LLAMA, Deployment(kv_memory_bytes=40 * GIB))) == ()


def test_a_shorter_window_and_smaller_kv() -> None:
    """2 GiB of 128 KiB a token hold 16,384 tokens less one block. 16 GiB and a block are needed for 131,072: of eight
    KV heads on eight ranks 1 GiB each, in three stages 11 of 32 layers."""
    window, more = smallest_changes(fit(LLAMA, Deployment(kv_memory_bytes=2 * GIB)))
    assert window.change == "--max-model-len 16368"
    assert more.change == "--tp 4 --pp 3"
    half_a_block_short = smallest_changes(fit(LLAMA, Deployment(kv_memory_bytes=GIB)))
    assert [each.change for each in half_a_block_short] == ["--tp 8 --pp 3"], "8,176 is less than a sixteenth"


def test_kv_in_fp8() -> None:
    found = smallest_changes(fit(LLAMA, Deployment(kv_memory_bytes=9 * GIB)))
    assert "--kv-dtype fp8" in [each.change for each in found]
    assert all(each.fit.verdict == FITS for each in found)


@pytest.mark.parametrize(
    ("model", "gpu", "change"),
    [
        ("google/gemma-3-27b-it", "l40s", "--tp 2"),
        ("deepseek-ai/DeepSeek-V3", "l40s", "--tp 8 --pp 3"),
        ("deepseek-ai/DeepSeek-V3", "h100", "--tp 4 --pp 3"),
    ],
)
def test_the_fewest_gpus(model: str, gpu: str, change: str) -> None:
    """What is found fits, and one GPU fewer a stage, or one stage fewer, does not."""
    asked = Deployment(gpu=load_gpu(gpu))
    spec = read_model(model, offline=True)
    (found,) = [each for each in smallest_changes(fit(spec, asked)) if each.change.startswith("--tp")]
    assert found.change == change
    tensor, pipeline = found.fit.deployment.tensor_parallel, found.fit.deployment.pipeline_parallel
    fewer = {(tensor // 2, pipeline), (tensor, pipeline - 1)} - {(tensor, 0)}
    for ranks, stages in fewer:
        smaller = fit(spec, replace(asked, tensor_parallel=ranks, pipeline_parallel=stages))
        assert smaller.verdict != FITS


def test_no_change_where_no_number_of_gpus_is_enough() -> None:
    answer = fit(read_model("deepseek-ai/DeepSeek-V3", offline=True), Deployment(gpu=load_gpu("t4")))
    assert smallest_changes(answer) == ()


def test_shorter_steps_where_a_whole_prompt_takes_the_room() -> None:
    """29,000 tokens in one step leave no room for their own KV on a 3090; in steps of 2,048 they do.

    Source: github.com/vllm-project/vllm/issues/10517
    """
    asked = Deployment(engine=parse_engine("vllm@0.6.3"), gpu=load_gpu("rtx-3090"), max_model_len=29_000)
    changes = [each.change for each in smallest_changes(fit(LLAMA, asked))]
    assert "--chunked-prefill --max-num-batched-tokens 2048" in changes


def test_fewer_sequences_where_sampling_takes_the_room() -> None:
    """Source: github.com/vllm-project/vllm/issues/15105"""
    asked = Deployment(engine=parse_engine("vllm@0.8.2"), gpu=load_gpu("l4"), max_model_len=8192, max_num_seqs=1024)
    assert any(each.change.startswith("--max-num-seqs") for each in smallest_changes(fit(LLAMA, asked)))


def test_no_more_memory_than_is_free() -> None:
    """Of an H100's 79.18 GiB others hold 40: 0.4948 of it is what vLLM may ask for when it starts."""
    asked = Deployment(gpu=load_gpu("h100"), max_model_len=8192, other_processes_bytes=40 * GIB)
    assert smallest_changes(fit(LLAMA, asked))[0].change == "--gpu-memory-utilization 0.4948"
