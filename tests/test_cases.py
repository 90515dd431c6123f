"""Situations that practitioners reported, each with its source: what kvplan answers, and what it must never answer.

Where the situation is a config and flags it goes through the real command (``golden/cases.json``); else through the
function behind it, here. Facts are re-expressed from the reports; abbreviated configs stay abbreviated where that does
not change the question.
"""

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvplan.calibration import effective_tokens, misleading_lines
from kvplan.capacity import RequestShape, fit, longest_window, reserved_tokens, usable_blocks
from kvplan.cli import main
from kvplan.engine_logs import read_starts
from kvplan.engine_logs.lines import LogLine
from kvplan.engines.base import CacheGroup, CacheLayout, Deployment
from kvplan.engines.ggml_types import cache_types
from kvplan.engines.graphs import outside_finding
from kvplan.engines.llama_cpp.slots import UBATCH_TOKENS, buffers, divide_context
from kvplan.engines.sglang.findings import window_pool_finding
from kvplan.engines.sglang.rules import smallest_fraction, window_pool_tokens
from kvplan.engines.vllm.budget_terms import requested_bytes
from kvplan.engines.vllm.peaks import RankFacts, sampler_bytes
from kvplan.engines.weights import rank_weights
from kvplan.gguf import read_gguf_metadata
from kvplan.hf_config import read_config
from kvplan.model import ModelSpec, Source, Weights
from kvplan.profiles.loader import load_gpu
from kvplan.units import GB, GIB, MIB, parse_bytes
from tests.gguf_files import gguf_bytes

CASES = [
    case
    for name in ("cases", "cases_found")
    for case in json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text(encoding="utf-8"))
]

FILES = {
    "config": "config.json",
    "gguf": "model.gguf",
    "log": "server.log",
    "traffic": "traffic.yaml",
    "draft": "draft.json",
}
"""What a case brings → the file it is written to; its command names it in capitals."""


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_through_the_command(case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {key.upper(): str(write(tmp_path / name, case[key])) for key, name in FILES.items() if key in case}
    arguments = [files.get(word, word) for word in case["command"]]
    code = main([*arguments, "--format", "json"])
    captured = capsys.readouterr()
    assert code == case["exit"], captured.err
    answer = json.loads(captured.out)
    for path, wanted in case.get("expect", {}).items():
        check(value_at(answer, path), wanted, path)
    for path, wrong in case.get("never", {}).items():
        assert value_at(answer, path) != wrong, path
    if "say" in case:
        main(arguments)
        read = capsys.readouterr()
        for words in case["say"]:
            assert is_said(words, read.out + read.err), words


def write(path: Path, facts: Any) -> Path:
    """``facts`` as the file that a user has: a GGUF header, lines of a log, else JSON, which is YAML as well."""
    if path.suffix == ".gguf":
        path.write_bytes(gguf_bytes(facts))
    else:
        path.write_text("\n".join(facts) if path.suffix == ".log" else json.dumps(facts), encoding="utf-8")
    return path


def is_said(words: str, text: str) -> bool:
    """Whether ``words`` stand in ``text``, however its lines are broken and sentences begin."""
    return " ".join(words.split()).lower() in " ".join(text.split()).lower()


def value_at(answer: object, path: str) -> object:
    """The value at a dotted path; a number picks from a list."""
    for key in path.split("."):
        answer = answer[int(key)] if isinstance(answer, list) else answer[key]  # type: ignore[index]
    return answer


def check(value: object, wanted: Mapping[str, Any], path: str) -> None:
    """``is``; ``min``/``max``; ``gib`` within GiB; ``value`` ``within`` an amount or a ``share`` of it."""
    if "is" in wanted:
        assert value == wanted["is"], path
        return
    assert isinstance(value, int | float), path
    if "gib" in wanted:
        assert abs(value / GIB - wanted["gib"]) <= wanted["within"], f"{path}: {value / GIB} GiB"
    elif "value" in wanted:
        allowed = wanted["within"] if "within" in wanted else wanted["share"] * wanted["value"]
        assert abs(value - wanted["value"]) <= allowed, f"{path}: {value}"
    else:
        assert wanted.get("min", value) <= value <= wanted.get("max", value), f"{path}: {value}"


def plain_layout(token_bytes: int, block_tokens: int = 16, reserved_blocks: int = 1) -> CacheLayout:
    """One full-attention group."""
    group = CacheGroup(
        kind="full attention", layers=1, rule="full", block_tokens=block_tokens, page_bytes=token_bytes * block_tokens
    )
    return CacheLayout(
        block_tokens=block_tokens,
        bytes_per_block=group.page_bytes,
        groups=(group,),
        in_flight_tokens=0,
        reserved_blocks=reserved_blocks,
    )


def test_a_window_longer_than_an_old_pool() -> None:
    """229 blocks hold 3,664 tokens, 1,181 hold 18,896: before one block was reserved.

    Sources: github.com/vllm-project/vllm/issues/2418, github.com/langchain-ai/langchain/issues/17906
    """
    before = plain_layout(131072, reserved_blocks=0)
    assert longest_window(before, 229, 4096) == 3664
    assert longest_window(before, 18896 // 16, 32768) == 18896
    assert longest_window(plain_layout(131072), 229, 4096) == 3648


def test_short_by_ten_mebibytes() -> None:
    """4.26 GiB for 100,000 tokens, 4.25 available: the nearby window that fits.

    Source: github.com/SergiioB/intel-arc-pro-b70-inference-cookbook/issues/4
    """
    layout = plain_layout(round(4.26 * GIB / 100_000))
    assert 99_500 <= longest_window(layout, int(4.25 * GIB) // layout.bytes_per_block, 100_000) <= 99_900


def test_fp8_pool_that_shrank() -> None:
    """What moved was the memory left after profiling, not the KV type.

    Source: github.com/vllm-project/vllm/issues/25350
    """
    layout = plain_layout(49152)
    first, second = (int(amount * GIB) // layout.bytes_per_block for amount in (10.55, 5.59))
    assert abs(first * 16 - 230_528) <= 230
    assert abs(first * 16 / 100_000 - 2.31) <= 0.01
    assert abs(layout.request_blocks(221_000) * layout.bytes_per_block / GIB - 10.12) <= 0.01
    assert abs(longest_window(layout, second, 221_000) - 122_080) <= 122


def test_attention_data_parallelism_gives_a_pool_to_each_rank() -> None:
    """Eight copies under TP, eight pools under DP: 20.43 × becomes 149 to 165.

    Source: github.com/vllm-project/recipes/issues/762
    """
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    model = read_config({**config, "num_attention_heads": 128}, model_id="m", source=Source(name="test"))
    both = [
        fit(model, Deployment(kv_memory_bytes=40 * GIB, max_model_len=65536, tensor_parallel=tp, data_parallel=dp))
        for tp, dp in ((8, 1), (1, 8))
    ]
    ratio = both[1].concurrency_all_replicas / both[0].concurrency_all_replicas
    assert Fraction(73, 10) <= ratio <= Fraction(805, 100)
    assert 149 <= float(ratio) * 20.43 <= 165


def test_layers_split_over_gpus() -> None:
    """27 of 80 layers on the first GPU. Source: github.com/abetlen/llama-cpp-python/issues/1161"""
    model = read_gguf_metadata(
        {
            "general.architecture": "qwen2",
            "qwen2.block_count": 80,
            "qwen2.attention.head_count": 64,
            "qwen2.attention.head_count_kv": 64,
            "qwen2.embedding_length": 8192,
        }
    )
    kv, slots = cache_types(None, None), divide_context(13_000, 1, None)
    whole, first = (
        buffers(model, kv, slots, UBATCH_TOKENS, swa_full=False, part=range(layers)).kv_bytes * 13_000 // slots.cells
        for layers in (80, 27)
    )
    assert whole == 32_500 * MIB
    assert abs(first / MIB - 10_968.75) <= 0.01


def test_a_sliding_pool_smaller_than_a_chunk() -> None:
    """Source: github.com/kvcache-ai/sglang/pull/60"""
    ratio = Fraction(1, 10)
    pool = window_pool_tokens(32768, ratio, 256)
    assert pool == 3072
    finding = window_pool_finding(pool, 8192, ratio, 128)
    assert finding.severity == "error"
    assert "smaller than one prefill chunk" in finding.message


def test_two_capacity_lines_that_disagree() -> None:
    """A hybrid model's token figure is not its capacity. Source: github.com/vllm-project/vllm/issues/40691"""
    text = (
        "Initializing a V1 LLM engine (v0.19.0) with config: model='m', max_seq_len=32768",
        "Available KV cache memory: 30.00 GiB",
        "GPU KV cache size: 290,864 tokens",
        "Maximum concurrency for 32,768 tokens per request: 33.04x",
    )
    (start,) = read_starts(LogLine(number=number, text=line) for number, line in enumerate(text, 1))
    assert abs(effective_tokens(33.04, 32768) - 1_082_655) <= 2_165
    reasons = [line.reason for line in misleading_lines(start)]
    assert any("disagree" in reason and "concurrency × max_model_len = 1,082,654" in reason for reason in reasons)


@pytest.mark.parametrize(("peak", "left"), [(17.06, 3.81), (17.98, 2.89)])
def test_what_a_3090_has_left(peak: float, left: float) -> None:
    """Source: github.com/vllm-project/vllm/issues/10517"""
    requested = requested_bytes(round(23.58 * GIB), Fraction(9, 10))
    assert abs(requested / GIB - 0.35 - peak - left) <= 0.01


def test_what_an_a100_has_left_beside_a_72b() -> None:
    """Source: github.com/vllm-project/vllm/issues/16570"""
    requested = requested_bytes(round(39.38 * GIB), Fraction(95, 100))
    assert abs(requested / GIB - 34.43 - 0.43 - 2.51 - 0.04) <= 0.01


def test_graphs_beside_the_fraction_of_a_4090() -> None:
    """Source: github.com/vllm-project/vllm/issues/7553"""
    requested = requested_bytes(24_564 * MIB, Fraction(9, 10))
    assert abs(requested / MIB - 22_107.6) <= 1
    assert abs((requested + 2464 * MIB) / MIB - 24_571.6) <= 1
    finding = outside_finding(24_564 * MIB, requested, 2464 * MIB)
    assert finding is not None
    assert "budget plus graphs exceeds the card" in finding.message
    assert outside_finding(24_564 * MIB, requested, 2400 * MIB) is None


def test_the_sampler_over_1024_sequences() -> None:
    """One float32 copy is 0.58 GiB, the largest allocation three. Source: github.com/vllm-project/vllm/issues/15105"""
    facts = RankFacts(
        release=(0, 8),
        total_bytes=24 * GIB,
        utilization=Fraction(9, 10),
        weight_bytes=0,
        sequences=1024,
        batched_tokens=8192,
        window_tokens=8192,
        hidden=3584,
        vocabulary=152_064,
        sampler="flashinfer",
    )
    assert abs(sampler_bytes(facts) / 3 / GIB - 0.58) <= 0.005
    assert abs(sampler_bytes(facts) / GIB - 1.74) <= 0.01


@pytest.mark.parametrize(("loaded", "smallest"), [(125.65, 0.9113), (125.65 + 3.07, 0.9335)])
def test_the_smallest_static_share(loaded: float, smallest: float) -> None:
    """Source: github.com/SemiAnalysisAI/InferenceX/issues/2128"""
    share = float(smallest_fraction(round(137.9 * GIB), round(loaded * GIB)))
    assert abs(share - smallest) <= 0.001
    assert share > 0.88


def test_gib_is_not_gb() -> None:
    """70,553,706,496 parameters in bf16. Source: github.com/llm-d/llm-d-benchmark/pull/381"""
    model = plain_model(Weights(parameters=70_553_706_496))
    amount = rank_weights(model, tensor_parallel=1).bytes
    assert abs(amount / GIB - 131.4165) <= 0.001
    assert abs(amount / GB - 141.107) <= 0.01
    per_gpu = rank_weights(model, tensor_parallel=8).bytes
    assert abs(per_gpu / GIB - 16.4) <= 0.1  # source: github.com/ovg-project/kvcached/issues/210


def plain_model(weights: Weights) -> ModelSpec:
    config = {"model_type": "llama", "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
    model = read_config({**config, "hidden_size": 8192}, model_id="m", source=Source(name="test"))
    from dataclasses import replace

    return replace(model, weights=weights)


@pytest.mark.parametrize(
    ("mebibytes", "gibibytes"), [(81559, 79.65), (81920, 80), (40960, 40), (46068, 44.99), (23034, 22.49), (15360, 15)]
)
def test_what_nvidia_smi_prints_in_gib(mebibytes: int, gibibytes: float) -> None:
    """Source: github.com/modal-labs/modal-client/pull/2797"""
    assert abs(parse_bytes(f"{mebibytes}MiB") / GIB - gibibytes) <= 0.01
    assert abs(parse_bytes("81559MiB") / GB - 85.52) <= 0.01


def test_two_servers_on_one_gpu() -> None:
    """Sources: github.com/vllm-project/vllm/issues/14376, github.com/ovg-project/kvcached/issues/210"""
    small, large = Fraction(2, 10), Fraction(9, 10)
    assert small + small <= 1 < large + large
    assert abs(requested_bytes(round(44.5 * GIB), small) / GIB - 8.9) <= 0.05


def test_a_slice_that_is_too_small() -> None:
    """21.09 GiB were asked of a 20 GB slice. Source: github.com/NVIDIA-AI-Blueprints/rag/issues/51"""
    assert abs(22_649_242_112 / GIB - 21.09) <= 0.01
    assert load_gpu("a100-40gb-mig-3g.20gb").memory_bytes < 22_649_242_112


def test_unified_memory_that_is_never_free() -> None:
    """Source: github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47"""
    total = round(121.69 * GIB)
    assert abs(requested_bytes(total, Fraction(87, 100)) / GIB - 105.87) <= 0.01
    largest = round(102.2 * GIB) / total
    assert abs(largest - 0.8398) <= 0.0005
    assert load_gpu("gb10").unified_memory


def test_an_agent_with_a_fixed_cap_overflows_the_window_by_62() -> None:
    """Source: github.com/evalstate/fast-agent/issues/621"""
    window, prompt, cap = 131_072, 122_942, 8192
    assert prompt + cap - window == 62
    shape = RequestShape(name="agent", prompt_tokens=prompt, max_output_tokens=cap)
    assert reserved_tokens(shape, window) == window
    assert window - prompt == 8130


def test_how_many_of_256_clients_fit() -> None:
    """67 blocks each, 71 at once, 185 wait. Source: github.com/Tandemn-Labs/tandemn-system/issues/11"""
    layout = plain_layout(131072)
    blocks = 77_088 // 16
    each = layout.request_blocks(1000 + 64)
    held = usable_blocks(layout, blocks) // each
    assert (each, held, 256 - held) == (67, 71, 185)
    assert round(256 / held, 1) == 3.6


@pytest.mark.parametrize(("blocks", "prompt", "cap", "held"), [(900, 512, 256, 18), (int(4.61 * 512), 700, 100, 47)])
def test_reservations_in_whole_blocks(blocks: int, prompt: int, cap: int, held: int) -> None:
    """Sources: github.com/inference-sim/inference-sim/issues/297, github.com/vllm-project/vllm/issues/8031"""
    layout = plain_layout(131072)
    assert usable_blocks(layout, blocks) // layout.request_blocks(prompt + cap) == held


def test_17_tokens_pay_for_32() -> None:
    """Source: github.com/vllm-project/vllm/pull/57336"""
    layout = plain_layout(131072)
    assert layout.request_blocks(17) == 2
    assert abs(17 / (layout.request_blocks(17) * 16) - 0.531) <= 0.002


def test_an_engine_that_reserves_less_than_the_worst_case() -> None:
    """4,096 new tokens at most are reserved of 120,000. Source: github.com/sgl-project/sglang/pull/14948"""
    shape = RequestShape(name="long", prompt_tokens=8000, max_output_tokens=120_000)
    assert reserved_tokens(shape, 131_072) == 128_000
    model = plain_model(Weights(parameters=1))
    from kvplan.engines import parse_engine

    plan = fit(model, Deployment(engine=parse_engine("sglang"), kv_memory_bytes=40 * GIB, max_model_len=8192)).plan
    assert any("not the worst case" in " ".join(finding.message.split()) for finding in plan.findings)


def test_slots_multiply_or_divide_the_window() -> None:
    """Sources: github.com/ollama/ollama/issues/9246, github.com/ggml-org/llama.cpp/issues/11681 and 23652"""
    ollama = divide_context(4 * 4096, 4, None)
    assert (ollama.window_tokens, ollama.all_cells) == (4096, 16384)
    divided = divide_context(163_840, 6, False)
    assert 27_306 <= divided.window_tokens <= 27_307
    shared = divide_context(1024, None, None)
    assert (shared.window_tokens, shared.all_cells, shared.slots) == (1024, 1024, 4)
