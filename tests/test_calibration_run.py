"""``kvplan calibrate --run``: from a file of requests to a calibration that a simulation takes its step from."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.calibration.run import settings_beside
from kvplan.calibration_file import load_calibration
from kvplan.cli import main
from kvplan.simulation.backend import build_backend
from kvplan.simulation.step_time import BAND_SHARE, CALIBRATED_BAND_SHARE
from kvplan.traffic.load import load_traffic

TRAFFIC = """\
model: meta-llama/Llama-3.1-8B-Instruct
deployment: {gpu: h100, engine: vllm@0.19, max_model_len: 32768, max_num_seqs: 48}
traffic:
  duration: 2m
  classes:
    - {name: a, rate: 4/s, prompt_tokens: 900, output_tokens: {lognormal: {p50: 150, p95: 400}}}
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """What a simulation at efficiency 0.5 recorded of itself, and the traffic file beside it."""
    (tmp_path / "traffic.yaml").write_text(TRAFFIC)
    start = "engine: vllm@0.19\nmodel: meta-llama/Llama-3.1-8B-Instruct\ngpu: h100-80gb-sxm\nefficiency: 0.5\n"
    (tmp_path / "known.yaml").write_text(start)
    requests = tmp_path / "requests.csv"
    arguments = ["--strategy", "none", "--seeds", "1", "--requests", str(requests), "--workers", "1", "--offline"]
    known = ["--calibration", str(tmp_path / "known.yaml")]
    assert main(["simulate", str(tmp_path / "traffic.yaml"), *known, *arguments]) == 0
    return requests


def test_a_known_efficiency_comes_back_through_the_command_line(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traffic, written = run_file.with_name("traffic.yaml"), run_file.with_name("written.yaml")
    asked = ["calibrate", "--run", str(run_file), "--traffic", str(traffic), "--offline", "--output", str(written)]
    capsys.readouterr()
    assert main([*asked, "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "kvplan.calibration_run"
    assert answer["efficiency_share"] == pytest.approx(0.5, rel=2e-3)
    assert answer["calibration_file"] == written.read_text()
    for time in ("ttft_s", "e2e_s"):
        assert abs(answer["rest"][time]["mean_error_share"]) < 0.01
    found = load_calibration(written)
    assert (found.gpu, found.settings) == ("h100-80gb-sxm", {"max_model_len": 32768, "max_num_seqs": 48})
    assert main(asked) == 3  # written already
    assert main([*asked, "--force"]) == 0
    assert "efficiency 0.500" in capsys.readouterr().out


def test_a_run_may_come_through_standard_input(run_file: Path) -> None:
    program = [sys.executable, "-c", "import sys; from kvplan.cli import main; sys.exit(main())"]
    asked = ["calibrate", "--run", "-", "--traffic", str(run_file.with_name("traffic.yaml")), "--offline"]
    found = subprocess.run([*program, *asked], input=run_file.read_text(), capture_output=True, text=True, check=True)
    assert "efficiency 0.500" in found.stdout


def test_a_plan_takes_its_step_from_the_calibration(run_file: Path) -> None:
    known, traffic = str(run_file.with_name("known.yaml")), run_file.with_name("traffic.yaml")
    plain = build_backend(load_traffic(traffic), offline=True).service
    same = build_backend(load_traffic(traffic, overrides={"calibration": known}), offline=True).service
    other = build_backend(load_traffic(traffic, overrides={"calibration": known, "gpu": "h200"}), offline=True).service
    assert plain.efficiency is not None
    assert same.step.base_s == pytest.approx(plain.step.base_s * plain.efficiency / 0.5)
    assert (same.efficiency, same.band_share) == (0.5, CALIBRATED_BAND_SHARE)
    assert (other.efficiency, other.band_share) == (0.5, BAND_SHARE)


def test_a_start_up_logs_calibration_is_kept(run_file: Path) -> None:
    logged, written = run_file.with_name("log.yaml"), run_file.with_name("both.yaml")
    text = "engine: vllm@0.19\nmodel: meta-llama/Llama-3.1-8B-Instruct\ngpu: h100-80gb-sxm\nsource: server.log\n"
    logged.write_text(text + "corrections: {activation: -7}\nsettings: {max_num_batched_tokens: 8192}\n")
    asked = ["calibrate", "--run", str(run_file), "--traffic", str(run_file.with_name("traffic.yaml")), "--offline"]
    assert main([*asked, "--set", f"deployment.calibration={logged}", "--output", str(written)]) == 0
    found = load_calibration(written)
    assert found.corrections == (("activation", -7),)
    assert found.settings["max_num_batched_tokens"] == 8192
    assert found.source is not None
    assert found.source.startswith("server.log; requests.csv")
    assert found.efficiency_share == pytest.approx(0.5, rel=2e-3)


def test_simulated_runs_are_not_taken_for_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The requests of two strategies would be served at once, twice as fast as any GPU."""
    traffic, requests = tmp_path / "traffic.yaml", tmp_path / "requests.csv"
    traffic.write_text(TRAFFIC)
    played = ["--strategy", "none", "--strategy", "worst_case", "--seeds", "1", "--requests", str(requests)]
    assert main(["simulate", str(traffic), *played, "--offline"]) == 0
    capsys.readouterr()
    assert main(["calibrate", "--run", str(requests), "--traffic", str(traffic), "--offline"]) == 3
    assert "holds 2 simulated runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--run", "{run}"], "needs the model"),
        (["--run", "{run}", "--model", "meta-llama/Llama-3.1-8B-Instruct"], "needs the GPU"),
        (["server.log", "--run", "{run}"], "cannot be combined"),
        (["server.log", "--traffic", "{traffic}"], "--traffic is only for --run"),
        (["--offline"], "no log or run"),
        (["--run", "{folder}", "--traffic", "{traffic}"], "is a folder"),
        (["--run", "{folder}/none.csv", "--traffic", "{traffic}"], "there is no"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    traffic, run = tmp_path / "traffic.yaml", tmp_path / "run.csv"
    traffic.write_text(TRAFFIC)
    rows = "".join(f"{i},9,9,{i + 0.5},{i + 2}\n" for i in range(40))
    run.write_text("arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s\n" + rows)
    places = {"run": str(run), "traffic": str(traffic), "folder": str(tmp_path)}
    assert main(["calibrate", *(argument.format(**places) for argument in arguments)]) == 3
    assert words in capsys.readouterr().err


META = {
    "model": "not the arguments' one",
    "vllm_version": "0.19.0",
    "engine_kwargs": {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "data_parallel_size": 1,
        "enable_expert_parallel": False,
        "max_num_seqs": 48,
        "max_num_batched_tokens": 2048,
        "max_model_len": 32768,
        "kv_cache_dtype": "auto",
        "seed": 42,
    },
    "kv_cache": {"num_gpu_blocks": 2588, "block_size": 16},
    "hardware": {"device_name": "NVIDIA H100 80GB HBM3"},
    "resolved_config": {
        "scheduler_config": {"async_scheduling": True},
        "cache_config": {"enable_prefix_caching": False},
    },
}


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_the_recorders_settings_are_read_from_beside_the_run(tmp_path: Path, ending: str) -> None:
    run, text = tmp_path / f"a_requests.jsonl{ending}", json.dumps(META).encode()
    assert settings_beside(run) is None
    (tmp_path / f"a_meta.json{ending}").write_bytes(gzip.compress(text) if ending else text)
    found = settings_beside(run)
    assert found is not None
    assert found[1] == {
        "data_parallel": 1,
        "expert_parallel": False,
        "max_num_seqs": 48,
        "max_num_batched_tokens": 2048,
        "max_model_len": 32768,
        "kv_dtype": "auto",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "engine": "vllm@0.19.0",
        "kv_pool": {"blocks": 2588},
        "gpu": "NVIDIA H100 80GB HBM3",
        "async_scheduling": True,
        "prefix_caching": False,
    }
    assert settings_beside(tmp_path / "b.csv") is None


def test_recorded_settings_plan_the_run_and_options_come_first(
    run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    renamed = run_file.with_name("a_requests.csv")
    renamed.write_bytes(run_file.read_bytes())
    meta = run_file.with_name("a_meta.json")
    meta.write_text(json.dumps(META))
    capsys.readouterr()
    assert main(["calibrate", "--run", str(renamed), "--max-num-seqs", "40", "--offline", "--format", "json"]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert captured.err == "settings from a_meta.json\n"
    assert (answer["gpu"], answer["pool"]["blocks"]) == ("h100-80gb-sxm", 2588)
    assert (answer["settings"]["max_num_seqs"], answer["settings"]["prefix_caching"]) == (40, False)
    meta.write_text("{")
    assert main(["calibrate", "--run", str(renamed), "--offline"]) == 3
    assert "a_meta.json is not JSON" in capsys.readouterr().err
