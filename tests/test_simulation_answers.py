"""Through a traffic file, as a user would: vLLM's own scheduler on slices of public traces, request by request."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kvplan.simulation.run import simulate
from kvplan.traffic.load import parse_traffic

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
    step = settings["step_time"]
    assert isinstance(step, list)
    model = settings["model"]
    named = "" if model is None else f"model: {model}\n"
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


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_request_as_vllm_served_it(shared_data: Path, name: str) -> None:
    """Preemptions equal; first-token and finish times within a microsecond (vLLM 0.33.0, V1 scheduler)."""
    folder = shared_data / "scheduler_answers"
    settings = json.loads((folder / f"{name}.json").read_text())
    with gzip.open(folder / f"{name}.csv.gz", "rt") as stream:
        answers = list(csv.DictReader(stream))
    text = traffic_text(settings, folder / "traces" / f"{settings['trace']}.gz")
    result = simulate(parse_traffic(text, file="slice.yaml"), strategies=["none"], keep_rows=True, offline=True)
    (found,) = result.strategies
    rows = result.rows[0].rows
    assert rows.preemptions.tolist() == [int(answer["preemptions"]) for answer in answers]
    for column, ours in (("first_token_s", rows.first_token_s), ("finish_s", rows.finish_s)):
        theirs = np.array([float(answer[column]) for answer in answers])
        assert float(np.abs(ours - theirs).max()) < 1e-6
    assert (found.requests.completed, found.preemptions) == (settings["finished"], settings["preemptions"])
    assert found.e2e_s.mean == pytest.approx(settings["e2e_mean"], abs=1e-5)
    assert result.inputs.warmup_s == 0
