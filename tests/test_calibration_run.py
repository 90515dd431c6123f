"""``kvplan calibrate --run``: from a file of requests to a calibration that a simulation takes its step from."""

import json
from pathlib import Path

import pytest

from kvplan.calibration_file import load_calibration
from kvplan.cli import main
from kvplan.simulation.plant import build_plant
from kvplan.simulation.service import BAND_SHARE, CALIBRATED_BAND_SHARE
from kvplan.traffic.load import load_traffic

TRAFFIC = """\
model: meta-llama/Llama-3.1-8B-Instruct
deployment: {gpu: h100, engine: vllm@0.19, max_model_len: 32768, max_num_seqs: 48}
traffic:
  duration: 60s
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


def test_a_plan_takes_its_step_from_the_calibration(run_file: Path) -> None:
    known, traffic = str(run_file.with_name("known.yaml")), run_file.with_name("traffic.yaml")
    plain = build_plant(load_traffic(traffic), offline=True).service
    same = build_plant(load_traffic(traffic, overrides={"calibration": known}), offline=True).service
    other = build_plant(load_traffic(traffic, overrides={"calibration": known, "gpu": "h200"}), offline=True).service
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--run", "{run}"], "needs the model"),
        (["--run", "{run}", "--model", "meta-llama/Llama-3.1-8B-Instruct"], "needs the GPU"),
        (["server.log", "--run", "{run}"], "one after the other"),
        (["server.log", "--traffic", "{traffic}"], "--traffic belongs to --run"),
        (["--offline"], "neither a log nor a run"),
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
