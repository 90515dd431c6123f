"""Configs and GGUF headers that broke a reader once, or would break a careless one; and one model in both forms.

tests/laws/test_plain_configs.py compares random configs with the formula; tests/laws/test_damaged_files.py damages.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.engines.deployment import Deployment
from kvplan.gguf import read_gguf
from kvplan.hf_config import read_config
from kvplan.model import Source
from kvplan.pricing import price
from tests.fuzz import CORPUS, answer, bounded
from tests.gguf_files import gguf_bytes

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


@bounded(100)
@given(
    layers=st.integers(1, 60),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    share=st.integers(1, 8),
    head=st.sampled_from([64, 96, 128, 256]),
    context=st.integers(1, 2**20),
    tokens=st.integers(1, 10_000),
)
def test_a_header_and_a_config_of_one_model_hold_the_same(
    layers: int, kv_heads: int, share: int, head: int, context: int, tokens: int
) -> None:
    """Two readers and the formula: 2 × layers × KV heads × head × 2 bytes a token."""
    heads = kv_heads * share
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * head,
        "head_dim": head,
        "intermediate_size": 256,
        "vocab_size": 1000,
        "max_position_embeddings": context,
        "torch_dtype": "float16",
    }
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.context_length": context,
        "llama.embedding_length": heads * head,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.key_length": head,
        "llama.attention.value_length": head,
        "llama.vocab_size": 1000,
    }
    content = gguf_bytes(metadata)
    by_header = read_gguf(lambda offset, length: content[offset : offset + length])
    by_config = read_config(config, model_id="x", source=Source(name="test"))
    assert by_header.max_context_tokens == by_config.max_context_tokens == context
    for model in (by_header, by_config):
        held = price(model, Deployment(), (tokens,)).sequences[0].sequence_bytes
        assert held == 2 * layers * kv_heads * head * 2 * tokens
