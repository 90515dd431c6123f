"""``kvplan recommend`` through ``main``: text and JSON whole, exit codes, the file it writes, what it refuses."""

import json
from pathlib import Path

import pytest

from kvplan.cli import main
from kvplan.traffic.load import load_traffic
from tests.golden_files import check_golden

TRAFFIC = """\
# Two kinds of clients in front of a pool that was measured.
deployment:
  kv_pool: {blocks: 801, block_tokens: 16}
  service: {base_s: 0.01, prefill_token_s: 2.0e-5, decode_sequence_s: 1.0e-4, kv_token_s: 1.0e-7}
  max_model_len: 2048
  max_num_seqs: 32
  max_num_batched_tokens: 512
admission:
  policy: worst_case  # the promise
  safety_fraction: 0.5  # from the first week
traffic:
  duration: 60s
  seed: 3
  classes:
    - name: chat
      rate: 4/s
      prompt_tokens: {lognormal: {p50: 200, p95: 600, max: 1500}}
      output_tokens: {lognormal: {p50: 60, p95: 240}}
      max_tokens: {choices: [{unset: true, share: 0.5}, {value: 256, share: 0.5}]}
      client: openai-python
    - name: titles
      rate: 1/s
      prompt_tokens: 300
      output_tokens: {lognormal: {p50: 10, p95: 20}}
      client: httpx
"""
METRICS = 'vllm:cache_config_info{num_gpu_blocks="761"} 1\nvllm:num_preemptions_total 0\n'


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traffic.yaml").write_text(TRAFFIC, encoding="utf-8")
    (tmp_path / "metrics.txt").write_text(METRICS, encoding="utf-8")


def _run(*arguments: str, seeds: int = 1) -> int:
    return main(["recommend", "traffic.yaml", "--seeds", str(seeds), "--workers", "1", *arguments])


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--max-e2e-p99", "30s", seeds=2) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert max(map(len, captured.out.splitlines())) <= 80
    check_golden("cli/recommend.txt", captured.out)


def test_json_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--format", "json", "--observed", "metrics.txt") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["schema_version"]) == ("kvplan.recommendation", 2)
    keys = (
        "schema schema_version feasible failed recommendation constraints safety curves answer check sensitivity price "
        "reservations engine retry_after replicas autoscaling observed inputs model pool traffic_yaml"
    )
    assert set(document) == set(keys.split())
    assert document["feasible"] is True
    assert document["recommendation"]["safety_fraction"] == 0.95
    assert [one["name"] for one in document["recommendation"]["per_class"]] == ["chat", "titles"]
    curve = document["curves"]["caps"]
    assert document["recommendation"]["default_max_tokens"] in [point["default_max_tokens"] for point in curve]
    assert {"truncated_share", "played", "feasible"} <= set(curve[0])
    assert {point["safety_fraction"] for point in document["curves"]["fractions"]} >= {0.5, 0.95, 1.0, 1.5}
    assert document["observed"]["pool_blocks"] == 761
    assert document["check"]["first_seed"] == 4
    assert document["inputs"]["seed"] == 3
    assert "vllm:kv_cache_usage_perc" in [rule["metric"] for rule in document["autoscaling"]]
    assert document["traffic_yaml"] is None


def test_a_constraint_that_cannot_be_met_is_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--scale", "8", "--duration", "20s", "--write") == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("No setting meets the constraints")
    assert "would do (now 1)" in captured.out
    assert "nothing was written" in captured.err
    assert max(map(len, captured.out.splitlines())) <= 80


def test_write_keeps_the_comments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert _run("--write", "--output", "new.yaml") == 0
    shown = capsys.readouterr()
    assert "wrote new.yaml" in shown.err
    assert shown.out.split()[-7:] == ["Next", *["kvplan", "check", "new.yaml", "kvplan", "simulate", "new.yaml"]]
    written = (tmp_path / "new.yaml").read_text(encoding="utf-8")
    assert "# Two kinds of clients" in written
    assert "policy: worst_case  # the promise" in written
    assert "safety_fraction: 1  # from the first week" in written
    traffic = load_traffic(tmp_path / "new.yaml")
    assert traffic.admission.default_max_tokens is not None
    assert traffic.classes == load_traffic(tmp_path / "traffic.yaml").classes
    assert _run("--write", "--output", "new.yaml") == 3
    assert "exists" in capsys.readouterr().err


def test_write_without_a_file_prints_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert _run("--write") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Recommended")
    (tmp_path / "printed.yaml").write_text(shown, encoding="utf-8")
    assert load_traffic(tmp_path / "printed.yaml").admission.safety_fraction == 1.0
    assert (tmp_path / "traffic.yaml").read_text(encoding="utf-8") == TRAFFIC


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--max-refused", "lots"], 3, "--max-refused lots is not a share"),
        (["--max-refused", "150%"], 3, "is not a share"),
        (["--max-truncated", "-1"], 3, "is not a share"),
        (["--max-e2e-p99", "soon"], 3, "soon"),
        (["--max-e2e-p99", "0s"], 3, "not above zero"),
        (["--max-e2e-p99", "nan"], 3, "not above zero"),
        (["--count-error", "100%"], 3, "below 1"),
        (["--observed", "none.txt"], 3, "there is no file none.txt"),
        (["--output", "x.yaml"], 3, "add --write"),
        (["--scale", "-1"], 3, "not above zero"),
        (["--max-model-len", "1000000"], 3, "would not start"),
        (["--nothing"], 2, "--nothing"),
    ],
)
def test_bad_input(arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(*arguments) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err


def test_a_share_is_written_either_way(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for text in ("2%", "0.02"):
        assert _run("--max-truncated", text, "--format", "json") == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert found[0]["constraints"]["max_truncated_share"] == 0.02


PLANNED = """\
model: Qwen/Qwen3-32B
deployment: {gpu: l40s, tensor_parallel: 2, max_model_len: 32768}
traffic:
  duration: 60s
  classes:
    - {name: agent, rate: 6/m, prompt_tokens: 4000, output_tokens: 300, max_tokens: {unset: true}}
"""


def _next_steps(shown: str) -> list[list[str]]:
    """The commands at the end of a report, as words."""
    lines = shown.partition("  Next  ")[2].replace("\\\n", " ").splitlines()
    return [line.split() for line in lines]


def test_an_answer_ends_with_the_engine_s_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The command that is shown runs, and what it prints has the recommended numbers."""
    (tmp_path / "traffic.yaml").write_text(PLANNED, encoding="utf-8")
    assert _run("--offline") == 0
    (command,) = [words for words in _next_steps(capsys.readouterr().out) if words[:2] == ["kvplan", "fit"]]
    assert main([*command[1:], "--offline"]) == 0
    flags = capsys.readouterr().out
    assert flags.startswith("vllm serve Qwen/Qwen3-32B")
    for name in ("--max-num-seqs", "--max-num-batched-tokens", "--max-model-len"):
        assert f"{name} {command[command.index(name) + 1]} " in flags


def test_where_no_replicas_help_larger_hardware_is_the_next_step(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    longer = PLANNED.replace("prompt_tokens: 4000", "prompt_tokens: 40000")  # no window of 32,768 holds them
    (tmp_path / "traffic.yaml").write_text(longer, encoding="utf-8")
    assert _run("--offline") == 1
    step = ["kvplan", "compare", "Qwen/Qwen3-32B", "--traffic", "traffic.yaml", "--gpu", "l40s", "--tp", "4,8"]
    assert _next_steps(capsys.readouterr().out)[0] == step
