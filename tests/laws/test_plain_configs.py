"""A plain decoder's price is the formula that everyone knows, whatever its numbers and its file's form are."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kvplan.capacity import fit
from kvplan.engines.deployment import Deployment
from kvplan.model import ModelSpec
from kvplan.pricing import price
from kvplan.sources import read_model
from kvplan.units import GIB

CLASSES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
ENCODINGS = ("utf-8", "utf-8-sig")


@st.composite
def plain(draw: st.DrawFn) -> dict[str, Any]:
    """A config of the Llama kind: GQA, MQA or MHA, any depth and width, in 16 bits."""
    kv_heads = draw(st.sampled_from([1, 2, 4, 8, 16]))
    head_dim = draw(st.sampled_from([64, 96, 128, 256]))
    query_heads = kv_heads * draw(st.integers(1, 8))
    name = draw(st.sampled_from(sorted(CLASSES)))
    return {
        "architectures": [name],
        "model_type": CLASSES[name],
        "num_hidden_layers": draw(st.integers(1, 100)),
        "num_attention_heads": query_heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": query_heads * head_dim,
        "head_dim": head_dim,
        "intermediate_size": draw(st.integers(1, 300)) * 64,
        "vocab_size": draw(st.integers(100, 300_000)),
        "max_position_embeddings": draw(st.integers(1, 2**20)),
        draw(st.sampled_from(["torch_dtype", "dtype"])): draw(st.sampled_from(["bfloat16", "float16"])),
        "a_key_that_says_nothing": draw(
            st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.booleans()))
        ),
    }


def _read(folder: Path, config: dict[str, Any], encoding: str, newline: str) -> ModelSpec:
    path = folder / "config.json"
    path.write_bytes(json.dumps(config, indent=2).replace("\n", newline).encode(encoding))
    return read_model(str(path))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    config=plain(),
    encoding=st.sampled_from(ENCODINGS),
    newline=st.sampled_from(["\n", "\r\n"]),
    ranks=st.sampled_from([1, 2, 4, 8, 16]),
    fp8=st.booleans(),
)
def test_a_token_costs_what_the_formula_says(
    config: dict[str, Any], encoding: str, newline: str, ranks: int, fp8: bool, tmp_path: Path
) -> None:
    """2 × layers × KV heads × head × bytes; on one of R ranks, max(1, KV heads // R) heads."""
    assume(config["num_attention_heads"] % ranks == 0)
    assume(ranks <= config["num_key_value_heads"] or ranks % config["num_key_value_heads"] == 0)
    model = _read(tmp_path, config, encoding, newline)
    paid = price(model, Deployment(tensor_parallel=ranks, kv_dtype="fp8" if fp8 else "auto"), (1000,))
    one_head = 2 * config["num_hidden_layers"] * config["head_dim"] * (1 if fp8 else 2)
    assert paid.bytes_per_token == one_head * config["num_key_value_heads"]
    assert paid.gpu_bytes_per_token == one_head * max(1, config["num_key_value_heads"] // ranks)
    assert paid.windowed_bytes_per_token == 0
    assert paid.fixed_bytes == 0
    assert paid.sequences[0].gpu_bytes == 1000 * paid.gpu_bytes_per_token


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=plain(), pool=st.integers(1, 80 * GIB), blocks_of=st.sampled_from([16, 32, 64, 128]))
def test_a_pool_holds_what_the_formula_says(config: dict[str, Any], pool: int, blocks_of: int, tmp_path: Path) -> None:
    """Pool // (block × bytes of a token) blocks; a window is charged ⌈window / block⌉; one block is vLLM's own."""
    model = _read(tmp_path, config, "utf-8", "\n")
    answer = fit(model, Deployment(kv_memory_bytes=pool, block_size=blocks_of))
    token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 2
    window = config["max_position_embeddings"]
    blocks, charge = pool // (blocks_of * token), -(-window // blocks_of)
    assert (answer.plan.blocks, answer.plan.layout.bytes_per_block) == (blocks, blocks_of * token)
    assert answer.concurrency == Fraction(blocks, charge)
    assert answer.longest_window_tokens == min(window, max(0, blocks - 1) * blocks_of)
    assert (answer.verdict == "fits") == (charge <= blocks - 1)


@settings(max_examples=100, deadline=None)
@given(config=plain(), gpu=st.integers(1, 200), used=st.integers(1, 100))
def test_weights_are_the_sum_of_the_matrices(config: dict[str, Any], gpu: int, used: int) -> None:
    """Embedding and head, and per layer Q, K, V, O, gate, up, down and norms; a budget's parts sum to what is asked."""
    from kvplan.hf_config import read_config
    from kvplan.model import Source

    model = read_config(config, model_id="plain", source=Source(name="test"))
    hidden, head = config["hidden_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    biases = {"qwen2": query + 2 * kv, "qwen3": 2 * head}.get(config["model_type"], 0)
    layer = 2 * hidden * (query + kv) + 3 * hidden * config["intermediate_size"] + 2 * hidden + biases
    total = 2 * config["vocab_size"] * hidden + config["num_hidden_layers"] * layer + hidden
    assert sum(part.parameters for part in model.weights.parts) == total
    plan = fit(model, Deployment(gpu_memory_bytes=(gpu * GIB,), memory_utilization=Fraction(used, 100))).plan
    assert plan.budget is not None
    inside = sum(term.bytes for term in plan.budget.terms if term.inside_fraction)
    assert inside + plan.budget.kv_bytes == plan.budget.requested_bytes
    assert plan.budget.requested_bytes <= plan.budget.total_bytes
    assert plan.blocks == max(0, plan.budget.kv_bytes // plan.layout.bytes_per_block)
