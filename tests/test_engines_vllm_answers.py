"""Every recorded answer of vLLM 0.33.0, where the recordings lie beside the checkout: none may differ."""

from pathlib import Path

import pytest

from tests.tables.pools import compare_file

FILES = ("vllm_answers.jsonl", "vllm_answers_fp8.jsonl", "vllm_answers_tp2.jsonl", "vllm_answers_tp8.jsonl")


@pytest.mark.parametrize("name", FILES)
def test_the_pool_is_vllms_own(shared_data: Path, name: str) -> None:
    results = list(compare_file(shared_data / name))
    assert len(results) > 100
    assert [result for result in results if result.outcome not in ("equal", "refused-equal")] == []
