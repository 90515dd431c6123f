"""Through the command line, as a user would: vLLM's own scheduler on slices of public traces, request by request."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from kvplan.cli import main

SCENARIOS = (
    "sh_code_a_1500",
    "sh_code_a_gptoss",
    "sh_conv_a_gemma3",
    "sh_conv_a_prefix",
    "sh_conv_a_qwen35",
    "sh_conv_a_tight",
    "sh_conv_b_2588",
    "sh_conv_b_async",
    "sh_conv_b_prefix_async",
    "sh_moon_syn_prefix",
)


def traffic_text(settings: dict[str, object], trace: Path) -> str:
    """The scenario as a traffic file; a model is a folder beside it."""
    step = settings["step_time"]
    assert isinstance(step, list)
    model = settings["model"]
    named = "" if model is None else "model: ./model\n"
    blocks = f"blocks: {settings['num_gpu_blocks']}" + (", block_tokens: 16" if model is None else "")
    return f"""{named}
deployment:
  max_model_len: {settings["max_model_len"]}
  max_num_seqs: {settings["max_num_seqs"]}
  max_num_batched_tokens: {settings["max_num_batched_tokens"]}
  async_scheduling: {str(settings["async"]).lower()}
  prefix_caching: {str(settings["prefix_caching"]).lower()}
  kv_pool: {{{blocks}}}
  service: {{base_s: {step[0]}, prefill_token_s: {step[1]}, decode_sequence_s: {step[2]}, kv_token_s: {step[3]}}}
traffic:
  classes:
    - name: slice
      trace: {trace}
"""


def test_every_recorded_scenario_is_here(shared_data: Path) -> None:
    assert {path.stem for path in (shared_data / "scheduler_answers").glob("*.json")} == set(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_request_as_vllm_served_it(
    shared_data: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Preemptions equal; first-token and finish times within a microsecond (vLLM 0.33.0, V1 scheduler)."""
    folder = shared_data / "scheduler_answers"
    settings = json.loads((folder / f"{name}.json").read_text())
    with gzip.open(folder / f"{name}.csv.gz", "rt") as stream:
        answers = list(csv.DictReader(stream))
    monkeypatch.chdir(tmp_path)
    if settings["model"] is not None:
        facts = json.loads((shared_data / "models" / f"{settings['model'].replace('/', '--')}.json").read_text())
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text(json.dumps(facts["config"]))
    trace = folder / "traces" / f"{settings['trace']}.gz"
    (tmp_path / "slice.yaml").write_text(traffic_text(settings, trace))
    command = ["simulate", "slice.yaml", "--strategy", "none", "--requests", "out.csv", "--format", "json", "--offline"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [answer["id"].removeprefix("r") for answer in answers]
    assert [row["preemptions"] for row in rows] == [answer["preemptions"] for answer in answers]
    for column in ("first_token_s", "finish_s"):
        off_s = [abs(float(row[column]) - float(answer[column])) for row, answer in zip(rows, answers, strict=True)]
        assert max(off_s) < 1e-6
    (found,) = document["strategies"]
    assert (found["requests"]["completed"], found["preemptions"]) == (settings["finished"], settings["preemptions"])
    assert found["e2e_s"]["mean"] == pytest.approx(settings["e2e_mean"], abs=1e-5)
    assert document["inputs"]["warmup_s"] == 0
