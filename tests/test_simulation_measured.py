"""A measured run and its one efficiency: recovered from a run that the simulation made, and held to real ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvplan.capacity import fit
from kvplan.engines.base import Deployment
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.simulation.measured import MeasuredRun, fit_efficiency, play, read_measured_run
from kvplan.simulation.plant import Plant, build_plant, plan_deployment
from kvplan.simulation.service import roofline
from kvplan.traffic.load import parse_traffic

TEXT = """\
model: meta-llama/Llama-3.1-8B-Instruct
deployment:
  gpu: {gpu}
  max_model_len: 32768
  max_num_seqs: {seqs}
  max_num_batched_tokens: 2048
  {pool}
traffic: {{duration: 60s, classes: [{{name: a, rate: 5/s, prompt_tokens: 1000, output_tokens: 200}}]}}
"""


def planned(gpu: str, seqs: int, pool: str) -> tuple[Plant, ModelSpec, Deployment]:
    traffic = parse_traffic(TEXT.format(gpu=gpu, seqs=seqs, pool=pool), file="run.yaml")
    plant = build_plant(traffic, offline=True)
    assert plant.model is not None
    return plant, plant.model, plan_deployment(traffic.deployment)


def test_the_efficiency_of_a_simulated_run_is_found_again() -> None:
    plant, model, deployment = planned("h100", 64, "")
    plan = fit(model, deployment).plan
    rng = np.random.default_rng(3)
    count = 120
    empty = MeasuredRun(
        arrival_s=np.cumsum(rng.exponential(0.08, count)),
        prompt_tokens=rng.integers(50, 3000, count),
        output_tokens=rng.integers(5, 300, count),
        first_token_s=np.zeros(count),
        finish_s=np.zeros(count),
    )
    assert deployment.gpu is not None
    rows = play(empty, replace(plant, service=roofline(model, deployment, deployment.gpu, plan, efficiency=0.61)))
    run = replace(empty, first_token_s=rows.first_token_s, finish_s=rows.finish_s)
    found = fit_efficiency(run, plant, model, deployment, plan)
    assert found.efficiency == pytest.approx(0.61, abs=0.001)
    assert abs(found.rest.e2e_share) < 0.002
    assert (found.requests, found.fitted_requests) == (120, 40)


def test_our_own_requests_file_is_a_measured_run(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(
        "strategy,arrival_s,first_token_s,finish_s,prompt_tokens,output_tokens\n"
        "none,5,6,9,10,3\nnone,4,4.5,5,20,2\nnone,6,,,10,3\nnone,7,8,7.5,10,3\n"
    )
    run = read_measured_run(path)
    assert (run.arrival_s.tolist(), run.finish_s.tolist(), run.skipped) == ([0.0, 1.0], [1.0, 5.0], 2)
    assert run.prompt_tokens.tolist() == [20, 10]
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no request with its times"):
        read_measured_run(path)


@pytest.mark.parametrize(
    ("file", "gpu", "seqs", "pool"),
    [
        ("RTX4090_Llama-3.1-8B", "rtx-4090", 256, "kv_pool: {blocks: 2588}"),
        ("RTXPRO6000_Llama-3.1-8B", "rtx-pro-6000", 128, "kv_pool: {memory: 70GiB}"),
    ],
)
def test_measured_runs_are_predicted_from_their_first_third(
    shared_data: Path, file: str, gpu: str, seqs: int, pool: str
) -> None:
    """Mean time to first and to last token of the other two thirds, within 5 % (vLLM 0.19, measured)."""
    run = read_measured_run(shared_data / "traces" / "vllm_runs" / f"{file}_requests.jsonl.gz")
    plant, model, deployment = planned(gpu, seqs, pool)
    plan = fit(model, replace(deployment, kv_memory_bytes=2**40)).plan
    found = fit_efficiency(run, plant, model, deployment, plan)
    assert len(run) == 300
    assert abs(found.rest.ttft_share) < 0.05, found
    assert abs(found.rest.e2e_share) < 0.05, found
