"""The share of a GPU that an engine takes: what others hold, and the ways to give it."""

import json
from fractions import Fraction
from typing import Any

import pytest

from kvplan.cli import main
from kvplan.engines import ENGINES
from kvplan.engines.deployment import Deployment
from kvplan.engines.memory_share import utilization_of_free, utilization_of_total
from kvplan.engines.option_types import MEMORY_SHARE, MemoryPart
from kvplan.errors import InputError
from kvplan.units import GIB

LLAMA = ["fit", "meta-llama/Llama-3.1-8B-Instruct", "--offline", "--max-model-len", "1024", "--format", "json"]


def planned(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> dict[str, Any]:
    assert main([*LLAMA, *words]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def said(document: dict[str, Any], code: str) -> str:
    (found,) = [finding for finding in document["findings"] if finding["code"] == code]
    return f"{found['message']}. {found['hint']}"


def test_a_server_beside_another(capsys: pytest.CaptureFixture[str]) -> None:
    """Twice the same small model at 0.2 of an L40S, 8.9 GiB each. Source: github.com/vllm-project/vllm/issues/14376"""
    small = ("--weights-bytes", "2.05GiB", "--gpu-memory", "44.5GiB", "--gpu-memory-utilization", "0.2")
    document = planned(capsys, 0, *small, "--other-processes", "8.9GiB", "--max-num-seqs", "256")
    assert document["budget"]["requested_bytes"] == -(-int(44.5 * GIB) // 5)
    words = said(document, "gpu-is-shared")
    assert "0.4 together" in words
    assert "start one after the other; some versions count the other process's memory and need a cumulative" in words


def test_two_servers_with_default_shares(capsys: pytest.CaptureFixture[str]) -> None:
    """The second of two asks for 0.9 of cards whose 0.9 the first holds: 1.8.
    Source: github.com/ovg-project/kvcached/issues/210"""
    document = planned(
        capsys, 1, "--gpu-memory", "39.4GiB", "--gpu-memory-utilization", "0.9", "--other-processes", "35.46GiB"
    )
    assert "1.8 together" in said(document, "gpu-is-shared")
    assert document["verdict"] == "does_not_fit"


def test_memory_that_is_never_free(capsys: pytest.CaptureFixture[str]) -> None:
    """102.2 of a GB10's 121.69 GiB are free, and 0.87 asks for 105.87: 0.8398 is the most.
    Source: github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47"""
    spark = ("--gpu", "gb10", "--other-processes", "19.49GiB")
    words = said(planned(capsys, 1, *spark, "--gpu-memory-utilization", "0.87"), "free-memory-below-request")
    assert "105.87 GiB of 121.69 GiB are asked for, at most 102.20 GiB are free" in words
    assert "--gpu-memory-utilization 0.8398 at most" in words
    planned(capsys, 0, *spark, "--gpu-memory-utilization", "0.8398")
    assert "--other-processes" in said(planned(capsys, 0, "--gpu", "gb10"), "unified-memory-must-be-free")


def test_a_whole_gpu_is_never_free(capsys: pytest.CaptureFixture[str]) -> None:
    """The process's own context is there before vLLM looks."""
    words = said(planned(capsys, 1, "--gpu", "h100", "--gpu-memory-utilization", "1"), "free-memory-below-request")
    assert "79.08 GiB are free" in words


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_of_other_processes_is_a_term_of_the_budget(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Engines whose share is of what is free, or that have none, have as much less for KV; vLLM's pool stays."""
    alone = planned(capsys, 0, "--gpu", "h100", "--engine", engine)["budget"]
    beside = planned(capsys, 0, "--gpu", "h100", "--engine", engine, "--other-processes", "4GiB")["budget"]
    (term,) = [term for term in beside["terms"] if term["name"] == "other_processes"]
    assert term["bytes"] == 4 * GIB
    assert beside["total_bytes"] == alone["total_bytes"]
    inside = sum(term["bytes"] for term in beside["terms"] if term["inside_fraction"])
    assert beside["requested_bytes"] == inside + beside["kv_bytes"]
    assert (beside["kv_bytes"] == alone["kv_bytes"]) if engine == "vllm" else (beside["kv_bytes"] < alone["kv_bytes"])


@pytest.mark.parametrize(
    ("asked", "share"),
    [
        (None, None),
        (Fraction(9, 10), Fraction(9, 10)),
        (MemoryPart(free_share=Fraction(1, 2)), Fraction(4, 10)),
        (MemoryPart(limit_bytes=30 * GIB), Fraction(3, 10)),
    ],
)
def test_every_kind_of_share_as_a_share_of_the_whole_gpu(
    asked: Fraction | MemoryPart | None, share: Fraction | None
) -> None:
    """Of 100 GiB others hold 20."""
    deployment = Deployment(gpu_memory_bytes=(100 * GIB,), other_processes_bytes=20 * GIB, memory_utilization=asked)
    assert utilization_of_total(deployment) == share


def test_an_amount_is_not_a_share_of_what_is_free() -> None:
    part = MemoryPart(limit_bytes=30 * GIB)
    with pytest.raises(InputError, match="SGLang takes a share of what is free, not an amount") as caught:
        utilization_of_free(Deployment(memory_utilization=part), "SGLang")
    assert caught.value.hint == "give the KV pool itself: --kv-memory 30GiB"
    with pytest.raises(InputError, match=r"30 GiB, but the device has 20 GiB"):
        utilization_of_total(Deployment(gpu_memory_bytes=(20 * GIB,), memory_utilization=part))


def test_all_ways_to_give_one_share_give_one_plan(capsys: pytest.CaptureFixture[str]) -> None:
    card = ("--gpu-memory", "80GiB", "--gpu-memory-utilization")
    pools = [planned(capsys, 0, *card, form)["pool"]["blocks"] for form in ("0.5", "40GiB", "0.5free", "0.5 of free")]
    assert len(set(pools)) == 1


def test_an_empty_pool_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    """No memory for KV is an answer, not a mistake."""
    for nothing in ("0", "0GiB"):
        document = planned(capsys, 1, "--kv-memory", nothing)
        assert (document["pool"]["blocks"], document["verdict"]) == (0, "does_not_fit")


@pytest.mark.parametrize(
    "part", [Fraction(9, 10), MemoryPart(free_share=Fraction(1, 2)), MemoryPart(limit_bytes=30 * GIB + 1)]
)
def test_a_part_is_written_as_it_is_read(part: Fraction | MemoryPart) -> None:
    assert MEMORY_SHARE.read(MEMORY_SHARE.write(part), "--gpu-memory-utilization") == part
