"""Options of ``kvplan fit`` that an engine alone understands: how they are written, and what they print."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvplan.cli import main
from kvplan.traffic.load import load_traffic

POOL = ["fit", "Qwen/Qwen3-32B", "--kv-memory", "40GiB", "--offline"]


def answer(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--format", "json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_draft_model_is_part_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen3-32B has 64 layers, Qwen3-0.6B 28, of the same 8 KV heads of 128: 92 × 65,536 B a block (vLLM 0.33)."""
    plan = answer([*POOL, "--speculative-tokens", "3", "--draft-model", "Qwen/Qwen3-0.6B"], capsys)
    assert plan["pool"]["bytes_per_block"] == 92 * 65_536
    assert json.loads(plan["flags"]["--speculative-config"]) == {
        "model": "Qwen/Qwen3-0.6B",
        "method": "draft_model",
        "num_speculative_tokens": 3,
    }


def test_next_token_layers_by_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    mtp = ["fit", "Qwen/Qwen3.5-9B", "--kv-memory", "40GiB", "--offline", "--speculative-tokens", "2"]
    plan = answer(mtp, capsys)
    assert json.loads(plan["flags"]["--speculative-config"]) == {"method": "mtp", "num_speculative_tokens": 2}


@pytest.mark.parametrize(("written", "tokens"), [("16K", 16_384), ("16k", 16_000), ("25.6k", 25_600)])
def test_tokens_are_written_as_vllm_takes_them(
    written: str, tokens: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """VLLM 0.33, utils/argparse_utils.py: k is 1,000, K 1,024, and a fraction goes with k alone."""
    asked = ["--max-model-len", written, "--max-num-batched-tokens", written]
    flags = answer([*POOL, *asked], capsys)["flags"]
    assert (flags["--max-model-len"], flags["--max-num-batched-tokens"]) == (tokens, tokens)
    file = tmp_path / "traffic.yaml"
    file.write_text(
        f"model: Qwen/Qwen3-32B\ndeployment: {{kv_pool: {{memory: 40GiB}}, gpu: h100, max_model_len: {written}}}\n"
        "traffic: {duration: 10s, classes: [{name: a, rate: 1/s, prompt_tokens: 9, output_tokens: 9}]}\n"
    )
    assert load_traffic(str(file)).deployment.max_model_len == tokens
    found = answer(["compare", "Qwen/Qwen3-32B", "--gpu", "h200", "--max-model-len", written, "--offline"], capsys)
    assert {plan["max_model_len"] for plan in found["candidates"]} == {tokens}


def test_the_lengths_of_requests_are_written_so_too(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ["--prompt", "8k", "--prompt", "9", "--max-tokens", "2K", "--default-max-tokens", "1K", "--tokens", "4K,5"]
    found = answer([*POOL, *shapes], capsys)["capacity"]["reservations"]
    assert [row["reserved_tokens"] for row in found] == [8000 + 2048, 9 + 1024, 4096, 5]
    assert main([*POOL, "--prompt", "8kB"]) == 3
    assert "--prompt '8kB' is not a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("written", ["25.6K", "32kB", "auto", "0.0001k", "k", "٣٢k"])
def test_a_window_that_is_no_number_of_tokens(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*POOL, "--max-model-len", written]) == 3
    assert "--max-model-len 32768, which is 32K; 32k is 32,000" in capsys.readouterr().err


def test_uneven_stages(capsys: pytest.CaptureFixture[str]) -> None:
    plan = answer([*POOL, "--pp-layers", "56,8"], capsys)
    assert plan["pool"]["bytes_per_block"] == 56 * 65_536
    assert main([*POOL, "--pp-layers", "56,8", "--flags", "cli"]) == 0
    assert capsys.readouterr().out.startswith("VLLM_PP_LAYER_PARTITION=56,8 vllm serve Qwen/Qwen3-32B")


def test_media_and_whole_prompts_reach_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--limit-mm-per-prompt", '{"image": {"count": 2, "tokens": 256}, "video": 0}']
    flags = answer([*POOL, *limits, "--no-chunked-prefill"], capsys)["flags"]
    assert json.loads(flags["--limit-mm-per-prompt"]) == {"image": 2, "video": 0}
    assert flags["--no-enable-chunked-prefill"] is True


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--limit-mm-per-prompt", "two images"], 3, "how many items of what"),
        (["--limit-mm-per-prompt", '{"image": -1}'], 3, "how many items of what"),
        (["--limit-mm-per-prompt", '{"image": {"count": 1, "tokens": 0}}'], 3, "how many items of what"),
        (["--limit-mm-per-prompt", "[3]"], 3, "how many items of what"),
        (["--pp-layers", "60,8"], 3, "do not divide 64 layers into 2 stages"),
        (["--pp-layers", "32,32", "--pp", "3"], 3, "do not divide 64 layers into 3 stages"),
        (["--speculative-tokens", "3"], 5, "cannot tell what drafts tokens"),
        (["--speculative-method", "ngram"], 3, "but not how many"),
        (["--draft-model", "Qwen/Qwen3-0.6B"], 3, "but not how many"),
        (["--engine", "tgi", "--pp-layers", "56,8"], 3, "pp_layers is an option of"),
        (["--engine", "llama.cpp", "--gpu-memory-utilization", "0.5"], 3, "gpu_memory_utilization is an option of"),
    ],
)
def test_what_cannot_be_is_said(options: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*POOL, *options]) == code
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_default_cap_is_charged_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A request without a cap gets the default one; lengths of ``--tokens`` are no caps, and say none."""
    shapes = ["--prompt", "4000", "--prompt", "500", "--max-tokens", "2000", "--default-max-tokens", "1024"]
    plan = answer([*POOL, *shapes], capsys)
    assert [each["reserved_tokens"] for each in plan["capacity"]["reservations"]] == [6000, 1524]
    assert json.loads(plan["flags"]["--override-generation-config"]) == {"max_new_tokens": 1024}
    plan = answer([*POOL, "--prompt", "4000", "--max-tokens", "2000"], capsys)
    assert json.loads(plan["flags"]["--override-generation-config"]) == {"max_new_tokens": 2000}
    for shapes in (["--tokens", "1024,8192"], ["--prompt", "4000", "--prompt", "500", "--max-tokens", "2000"], []):
        assert "--override-generation-config" not in answer([*POOL, *shapes], capsys)["flags"]
    assert main([*POOL, "--default-max-tokens", "0"]) == 3


def test_flags_do_not_shorten_a_window_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen3-32B keeps 256 KiB a token: 4 GiB hold 1,023 blocks of 16 beside the reserved one."""
    asked = ["fit", "Qwen/Qwen3-32B", "--kv-memory", "4GiB", "--offline", "--max-model-len", "32768", "--flags", "cli"]
    assert main(asked) == 1
    out, err = capsys.readouterr()
    assert "--max-model-len 16368" in out
    assert "warning: the flags say a window of 16,368, not 32,768" in err


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "tgi", "ollama"])
def test_a_container_is_told_all_that_the_shell_is(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The image runs the program; the model, the flags and what stands before the command are its own."""
    split = ["--pp-layers", "56,8"] if engine in ("vllm", "sglang") else []
    asked = [*POOL, "--engine", engine, "--max-model-len", "4096", *split]
    assert main([*asked, "--flags", "cli"]) == 0
    spoken = shlex.split(capsys.readouterr().out.replace("\\\n", " "))
    assert main([*asked, "--flags", "k8s"]) == 0
    out = capsys.readouterr().out
    container = yaml.safe_load(out)
    variables = [f"{each['name']}={each['value']}" for each in container.get("env", [])]
    program = out.splitlines()[0].partition(": ")[2].split()
    assert [*variables, *program, *container["args"]] == spoken
    assert any("Qwen3-32B" in each for each in container["args"]) or engine == "ollama"


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        (["--kv-offload", "20GiB"], {"--kv-offloading-size": "20"}),  # GiB, all ranks together: vLLM 0.33, CacheConfig
        (["--chunked-prefill"], {"--enable-chunked-prefill": True}),
        (["--async-scheduling"], {"--async-scheduling": True}),
        # Qwen3-32B: 256 KiB a token, so that 40 GiB are 163,840 tokens
        (["--engine", "sglang"], {"--max-total-tokens": 163_840}),
        (["--engine", "sglang", "--no-async-scheduling"], {"--disable-overlap-schedule": True}),
        (["--engine", "tgi"], {"--max-batch-total-tokens": 163_840}),
        (["--engine", "llama.cpp", "--kv-dtype", "fp16"], {"--cache-type-k": "f16", "--cache-type-v": "f16"}),
        (["--engine", "llama.cpp", "--kv-dtype", "bf16"], {"--cache-type-k": "bf16", "--cache-type-v": "bf16"}),
    ],
)
def test_what_is_asked_for_is_a_flag(
    options: list[str], flags: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    said = answer([*POOL, "--max-model-len", "4096", *options], capsys)["flags"]
    assert {name: said.get(name) for name in flags} == flags


def test_ollama_is_told_a_type_by_its_word(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*POOL, "--engine", "ollama", "--max-model-len", "4096", "--kv-dtype", "float16", "--flags", "cli"]
    assert main(asked) == 0
    assert "OLLAMA_KV_CACHE_TYPE=f16 " in capsys.readouterr().out


def test_what_an_engine_has_no_flag_for_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--max-model-len", "4096", "--no-prefix-caching", "--flags", "cli"]
    assert main([*POOL, *asked, "--engine", "tgi", "--block-size", "16"]) == 0
    assert capsys.readouterr().out.startswith("ATTENTION=paged PREFIX_CACHING=0 text-generation-launcher --model-id")
    assert main([*POOL, *asked, "--engine", "tensorrt-llm", "--block-size", "64", "--no-async-scheduling"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "{tokens_per_block: 64, enable_block_reuse: false, max_gpu_total_bytes: 42949672960}" in said
    assert "disable_overlap_scheduler: true" in said
