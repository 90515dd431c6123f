"""Configs and GGUF headers that broke a reader once, or would break a careless one; tests/laws draws random ones."""

from pathlib import Path

import pytest

from tests.fuzz import CORPUS, answer

ANSWERED = {"layer_types_of_another_length.json", "quantization_block_that_is_no_number.json"}
"""vLLM takes the first of too many layer types; KV does not depend on how weights are quantized."""
MODELS = sorted([*CORPUS.glob("configs/*.json"), *CORPUS.glob("gguf/*.gguf")])


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_a_kept_model_is_answered_or_refused_with_its_reason(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["model", str(path)], ["fit", str(path), "--kv-memory", "1GiB"]):
        code, out, err = answer(command, capsys)
        assert (code == 0) == (path.name in ANSWERED), out + err
        assert code == 0 or "try: " in err


def test_the_corpus_has_both_kinds() -> None:
    assert {path.suffix for path in MODELS} == {".json", ".gguf"}
