"""Whole outputs at 80 columns, text and JSON, on bundled facts: what a person and a script see."""

import json
from pathlib import Path

import pytest

from kvplan.cli import main
from tests.golden_files import check_golden
from tests.log_lines import vllm_log

CASES: dict[str, tuple[list[str], int]] = {
    "model_gqa": (["model", "meta-llama/Llama-3.1-8B-Instruct"], 0),
    "model_windows": (["model", "google/gemma-3-27b-it", "--tp", "4"], 0),
    "model_latent": (["model", "deepseek-ai/DeepSeek-V3", "--tp", "8", "--kv-dtype", "fp8"], 0),
    "model_hybrid": (["model", "Qwen/Qwen3.5-9B", "--tokens", "1000,20000"], 0),
    "fit_pool": (
        ["fit", "meta-llama/Llama-3.1-8B-Instruct", "--kv-memory", "40GiB", "--prompt", "4000", "--max-tokens", "1024"],
        0,
    ),
    "fit_windows": (["fit", "google/gemma-3-27b-it", "--kv-memory", "20GiB", "--max-model-len", "32768"], 0),
    "fit_too_small": (["fit", "meta-llama/Llama-3.1-8B-Instruct", "--kv-memory", "1GiB"], 1),
    "fit_cannot_tell": (
        [
            "fit",
            "meta-llama/Llama-3.1-8B-Instruct",
            "--engine",
            "tensorrt-llm",
            "--gpu",
            "h100",
            "--kv-offload",
            "9GiB",
        ],
        5,
    ),
    "fit_flags_cli": (["fit", "Qwen/Qwen3-32B", "--kv-memory", "20GiB", "--tp", "2", "--flags", "cli"], 0),
    "fit_flags_k8s": (["fit", "Qwen/Qwen3-32B", "--kv-memory", "20GiB", "--tp", "2", "--flags", "k8s"], 0),
    "fit_help": (["fit", "--help"], 0),
    "init": (["init"], 0),
    "list_h100": (["list", "gpus", "h100", "sxm"], 0),
    "trace": (["trace", "trace.csv"], 0),
    "calibrate": (["calibrate", "server.log", "--gpu", "a100-80gb-sxm"], 0),
    "explain_topics": (["explain"], 0),
    "explain_windows": (["explain", "windows"], 0),
}
TEXTS = ("fit_flags_cli", "fit_flags_k8s", "fit_help", "init", "explain_topics", "explain_windows")
"""What is text by nature: its JSON has no figures to keep."""

TRACE = "arrival_s,prompt_tokens,output_tokens,max_tokens\n" + "".join(
    f"{i},{i % 97 * 31 + 1},{i % 53 * 7 + 1},{1024 if i % 3 else ''}\n" for i in range(300)
)
LOG = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "engine_version": "0.11.0",
    "model_load_gib": 14.99,
    "available_kv_gib": 54.1,
    "gpu_memory_utilization": 0.9,
    "max_model_len": 8192,
}


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text(TRACE, encoding="utf-8")
    Path("server.log").write_text(vllm_log(LOG), encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, code = CASES[name]
    assert main([*arguments, "--offline"]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= 80
    check_golden(f"cli/{name}.txt", captured.out)


@pytest.mark.parametrize("name", [name for name in CASES if name not in TEXTS])
def test_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, code = CASES[name]
    assert main([*arguments, "--offline", "--format", "json"]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out)["schema"].startswith("kvplan.")
    check_golden(f"cli/{name}.json", captured.out)
