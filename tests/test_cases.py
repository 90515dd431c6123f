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

from kvplan.cli import main
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import Budget, BudgetTerm, Finding
from kvplan.engines.memory_share import share_findings
from kvplan.engines.sglang.findings import window_pool_finding
from kvplan.engines.sglang.pools import smallest_fraction, window_pool_tokens
from kvplan.engines.vllm.budget import requested_bytes
from kvplan.engines.vllm.budget_terms import sampler_bytes
from kvplan.engines.vllm.rank_facts import RankFacts
from kvplan.engines.weights import rank_weights
from kvplan.hf_config import read_config
from kvplan.model import ModelSpec, Source, Weights
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
        text = read.out + read.err
        assert [words for words in case["say"] if not is_said(words, text)] == [], text
        assert [words for words in case.get("silent", []) if is_said(words, text)] == [], text


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


def test_a_sliding_pool_smaller_than_a_chunk() -> None:
    """Source: github.com/kvcache-ai/sglang/pull/60"""
    ratio = Fraction(1, 10)
    pool = window_pool_tokens(32768, ratio, 256)
    assert pool == 3072
    finding = window_pool_finding(pool, 8192, ratio, 128)
    assert finding.severity == "error"
    assert "smaller than one prefill chunk" in finding.message


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

    def found(graphs: int) -> list[Finding]:
        term = BudgetTerm(name="cuda_graphs", bytes=graphs, formula="", inside_fraction=False)
        budget = Budget(
            rank=0,
            total_bytes=24_564 * MIB,
            requested_bytes=requested,
            terms=(term,),
            kv_bytes=0,
            kv_bytes_low=0,
            kv_bytes_high=0,
        )
        return list(share_findings(Deployment(), budget))

    (finding,) = found(2464 * MIB)
    assert "budget plus graphs exceeds the card" in finding.message
    assert found(2400 * MIB) == []


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
