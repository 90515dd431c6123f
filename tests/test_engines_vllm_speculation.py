"""Speculative decoding on vLLM: its own figures with each drafter (``golden/speculation_vllm_0_33.json``), what the
drafter's weights are, and the pairs that it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvplan.capacity import RequestShape, fit
from kvplan.engines.deployment import Deployment
from kvplan.engines.drafting import METHODS, Drafter, draft_weights
from kvplan.engines.vllm.drafting import drafter_of, with_drafter
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.hf_config import read_config
from kvplan.layers import FullAttention, Mamba1State, SlidingAttention
from kvplan.model import ModelSpec, Shape, Source
from kvplan.profiles.loader import load_gpu
from kvplan.sources import read_model
from kvplan.units import GIB
from tests.models import model_of

ROWS = json.loads((Path(__file__).parent / "golden" / "speculation_vllm_0_33.json").read_text(encoding="utf-8"))["rows"]
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
SHORT = "Meta-Llama-3-8B-Instruct"
FULL = FullAttention(kv_heads=8, head_dim=128, value_head_dim=128)


def label(row: dict[str, Any]) -> str:
    asked = row["asked"]
    draft = row["draft"] if isinstance(row["draft"], str) else ""
    words = (row["model"], draft, asked["speculative_method"], asked["speculative_tokens"], asked["kv_dtype"])
    return "-".join(map(str, (*words, asked["tensor_parallel"], asked.get("prefix_caching", True))))


def drafting(asked: str | dict[str, Any] | None) -> ModelSpec | None:
    """A draft model by its bundled name, or by its config."""
    if isinstance(asked, dict):
        return read_config(asked, model_id="a draft", source=Source(name="a test"))
    return None if asked is None else read_model(asked, offline=True)


@pytest.mark.parametrize("row", ROWS, ids=map(label, ROWS))
def test_figures_are_vllms(row: dict[str, Any]) -> None:
    model = read_model(row["model"], offline=True)
    plan = fit(model, Deployment(**row["asked"], draft_model=drafting(row["draft"]))).plan
    layout, wanted = plan.layout, row["vllm"]
    assert [layout.block_tokens, layout.bytes_per_block] == [wanted["block_tokens"], wanted["bytes_per_block"]]
    assert [[group.layers, group.block_tokens, group.page_bytes] for group in layout.groups] == wanted["groups"]
    assert layout.request_blocks(row["asked"]["max_model_len"]) == wanted["request_blocks"]
    assert (plan.blocks, plan.tokens) == (wanted["blocks"], wanted["tokens"])
    assert layout.in_flight_tokens == wanted["in_flight_tokens"]


def test_every_method_has_a_row() -> None:
    assert {row["asked"]["speculative_method"] for row in ROWS} == set(METHODS)


def test_the_method_follows_from_the_models() -> None:
    own, plain, small = read_model("deepseek-ai/DeepSeek-V3", offline=True), read_model(LLAMA, offline=True), model_of
    implied = drafter_of(own, Deployment(speculative_tokens=3))
    assert implied is not None
    assert (implied.method, len(implied.layers), implied.retained_tokens) == ("mtp", 1, 0)
    draft = small([[FULL]], id="test/draft")
    given = drafter_of(plain, Deployment(speculative_tokens=3, draft_model=draft))
    assert given == Drafter(method="draft_model", tokens=3, layers=draft.layers, model=draft)
    with pytest.raises(UnsupportedModelError, match="cannot tell what drafts tokens"):
        drafter_of(plain, Deployment(speculative_tokens=3))
    assert drafter_of(plain, Deployment()) is None


def test_several_modules_keep_what_they_read_back() -> None:
    """Three modules one after the other read two tokens further back; their windows keep those."""
    window = SlidingAttention(kv_heads=8, head_dim=128, value_head_dim=128, window=128)
    model = replace(model_of([[FULL], [window]]), next_token_layers=((window,),) * 3)
    drafter = drafter_of(model, Deployment(speculative_tokens=3, speculative_method="mtp"))
    assert drafter is not None
    assert (drafter.retained_tokens, drafter.lookahead_tokens) == (2, 3)
    planned = fit(model, Deployment(kv_memory_bytes=GIB, speculative_tokens=3))
    assert {group.retained_tokens for group in planned.plan.layout.groups if group.rule == "sliding"} == {2}
    with pytest.raises(InputError, match=r"not a multiple of .* 3 next-token layers"):
        drafter_of(model, Deployment(speculative_tokens=4))


@pytest.mark.parametrize(
    ("asked", "kind", "said"),
    [
        ({"speculative_method": "suffix"}, UnsupportedModelError, "by 'suffix' is not modelled"),
        ({"speculative_method": "draft_model"}, InputError, "needs a draft model"),
        ({"speculative_method": "ngram", "draft_model": model_of([[FULL]])}, InputError, "takes no draft model"),
        ({"speculative_method": "mtp"}, InputError, "no next-token layers"),
        ({"draft_model": model_of([[FULL]], shape=Shape(hidden=64, vocabulary=9))}, InputError, "vocabulary of 9"),
        ({"draft_model": model_of([[FULL]]), "context_parallel": 2}, UnsupportedModelError, "context parallelism"),
        (
            {"draft_model": model_of([[Mamba1State(inner=8, state=8, conv_kernel=4)]])},
            UnsupportedModelError,
            "recurrent states larger than the model's own",
        ),
        (
            {"speculative_method": "eagle", "draft_model": model_of([[FULL]]), "max_num_batched_tokens": 3},
            InputError,
            "leave no room",
        ),
    ],
)
def test_refused_and_unknown_drafters(asked: dict[str, Any], kind: type[Exception], said: str) -> None:
    deployment = Deployment(kv_memory_bytes=40 * GIB, speculative_tokens=3, max_num_seqs=1)
    with pytest.raises(kind, match=said):
        fit(read_model(LLAMA, offline=True), replace(deployment, **asked))


def test_a_draft_model_of_a_short_context_shortens_the_window() -> None:
    """Of vLLM 0.33 at TP 8 in 40 GiB: a window of 8,192, blocks of 917,504 B, 46,811 of them; the target alone has
    131,072."""
    large, small = (read_model(f"meta-llama/{name}", offline=True) for name in ("Llama-3.1-70B-Instruct", SHORT))
    asked = Deployment(kv_memory_bytes=40 * GIB, tensor_parallel=8, speculative_tokens=3, draft_model=small)
    answer = fit(large, asked)
    assert (answer.max_model_len, answer.plan.layout.bytes_per_block, answer.plan.blocks) == (8192, 917_504, 46_811)
    assert "window-cut-to-draft" in {finding.code for finding in answer.findings}
    shared = fit(large, replace(asked, speculative_method="eagle"))
    assert shared.max_model_len == 131_072, "EAGLE shares the target's positions"


def test_what_is_stored_includes_the_drafter() -> None:
    """28 layers of Qwen3-0.6B beside 64 of Qwen3-32B, 4,096 B a token and layer."""
    model, draft = (read_model(f"Qwen/Qwen3-{size}", offline=True) for size in ("32B", "0.6B"))
    asked = Deployment(kv_memory_bytes=40 * GIB, speculative_tokens=3, draft_model=draft)
    (one,) = fit(model, asked, [RequestShape(name="one", prompt_tokens=999, max_output_tokens=1)]).reservations
    assert one.logical_bytes == 1000 * 4096 * (64 + 28) <= one.reserved_bytes


def test_mamba_1_keeps_its_own_steps() -> None:
    state = Mamba1State(inner=8192, state=16, conv_kernel=4)
    model = model_of([[state]])
    assert with_drafter(model, Drafter(method="ngram", tokens=4)).layers == model.layers


EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 2048,
    "torch_dtype": "float16",
}


def test_weights_of_drafters() -> None:
    """By hand: EAGLE-3 joins three hidden states, and its queries, keys and values see two vectors; the embedding is
    the model's. A draft model is whole. vLLM's modules hold these parameters (norms aside): 1,900,308,480 B with the
    embedding of 128,256 × 4,096 for EAGLE-3, 1,192,099,840 B for Qwen3-0.6B."""
    eagle, small = drafting(EAGLE3), read_model("Qwen/Qwen3-0.6B", offline=True)
    assert eagle is not None
    target = read_model(LLAMA, offline=True)

    def weight_bytes(**asked: Any) -> int:
        return draft_weights(target, drafter_of(target, Deployment(speculative_tokens=3, **asked)), 1).bytes

    attention, mlp = 2 * (4096 * 4096 + 2 * 4096 * 1024) + 4096 * 4096, 3 * 4096 * 14336
    by_hand = attention + mlp + 3 * 4096 * 4096 + 32000 * 4096
    assert 0 <= weight_bytes(draft_model=eagle) - 2 * by_hand <= 2 * 8 * 4096
    assert abs(weight_bytes(draft_model=eagle) + 2 * 128256 * 4096 - 1_900_308_480) < 2**20
    same = replace(small, shape=replace(small.shape, vocabulary=128_256))
    assert abs(weight_bytes(draft_model=same) - 1_192_099_840) < 2**20
    assert weight_bytes(speculative_method="ngram") == 0


@pytest.mark.parametrize(
    ("name", "module_bytes"),
    [
        ("Qwen/Qwen3.5-9B", 4_555_056_128),
        ("Qwen/Qwen3.5-35B-A3B", 3_723_518_976),
        ("zai-org/GLM-4.5-Air", 7_234_195_968),
    ],
)
def test_weights_of_next_token_layers(name: str, module_bytes: int) -> None:
    """Bytes of vLLM's own module at TP 1, embedding and head included, which it then shares with the model."""
    model = read_model(name, offline=True)
    drafter = drafter_of(model, Deployment(speculative_tokens=1))
    assert model.shape.vocabulary is not None
    tables = 2 * model.shape.vocabulary * model.shape.hidden * 2
    assert abs(draft_weights(model, drafter, 1).bytes / (module_bytes - tables) - 1) < 0.01


def test_the_drafter_is_a_term_of_the_last_stages_budget() -> None:
    model = read_model("zai-org/GLM-4.5-Air", offline=True)
    deployment = Deployment(gpu=load_gpu("h200"), tensor_parallel=2, max_model_len=8192)
    plain, guessing = (fit(model, replace(deployment, speculative_tokens=tokens)).plan.budget for tokens in (0, 2))
    assert plain is not None
    assert guessing is not None
    (term,) = [term for term in guessing.terms if term.name == "speculative"]
    assert term.bytes > GIB
    assert "next-token" in term.formula
    assert not [term for term in plain.terms if term.name == "speculative"]


def test_a_captured_drafter_has_its_own_graphs() -> None:
    """16 sequences of 4 tokens a step: 19 + 11 graphs, as many again for MTP's first token and 5 of one token a
    sequence for the others, 0.0042 GiB each. N-grams are looked up, a draft model runs without graphs."""

    def graphs(model: str, method: str, draft: str | None = None) -> float:
        asked = Deployment(
            gpu=load_gpu("h200"),
            tensor_parallel=8,
            max_num_seqs=16,
            speculative_method=method,
            speculative_tokens=3,
            draft_model=drafting(draft),
        )
        budget = fit(read_model(model, offline=True), asked).plan.budget
        assert budget is not None
        return next(term.bytes for term in budget.terms if term.name == "cuda_graphs") / GIB

    alone = 0.10 + 30 * 0.0042
    assert graphs("deepseek-ai/DeepSeek-V3", "mtp") == pytest.approx(alone + 35 * 0.0042, abs=1e-6)
    assert graphs("deepseek-ai/DeepSeek-V3", "ngram") == pytest.approx(alone, abs=1e-6)
    assert graphs(LLAMA, "draft_model", "meta-llama/Llama-3.2-1B-Instruct") == pytest.approx(alone, abs=1e-6)
