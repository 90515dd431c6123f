"""A measured run and its one efficiency: recovered from a run that the simulation made, and held to real ones."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvplan.errors import InputError
from kvplan.simulation.backend import Backend, build_backend
from kvplan.simulation.efficiency import fit_efficiency, replay
from kvplan.simulation.measured_run import MeasuredRun, read_measured_run
from kvplan.simulation.step_time import at_efficiency
from kvplan.traffic.load import parse_traffic
from tests.tables.runs import RUNS, Run, calibrated

HEADER = "arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s\n"


def planned(deployment: str, model: str = "meta-llama/Llama-3.1-8B-Instruct") -> Backend:
    text = f"model: {model}\ndeployment: {{{deployment}}}\n"
    text += "traffic: {duration: 9s, classes: [{name: a, rate: 1/s, prompt_tokens: 9, output_tokens: 9}]}\n"
    return build_backend(parse_traffic(text, file="run.yaml"), offline=True)


def served(backend: Backend, efficiency: float, count: int = 120) -> MeasuredRun:
    """A run that the simulation itself served at a known efficiency."""
    rng = np.random.default_rng(3)
    empty = MeasuredRun(
        arrival_s=np.cumsum(rng.exponential(0.08, count)),
        prompt_tokens=rng.integers(50, 3000, count),
        output_tokens=rng.integers(5, 300, count),
        first_token_s=np.zeros(count),
        finish_s=np.zeros(count),
    )
    rows = replay(empty, replace(backend, service=at_efficiency(backend.service, efficiency)))
    return replace(empty, first_token_s=rows.first_token_s, finish_s=rows.finish_s)


@pytest.mark.parametrize(
    ("deployment", "model"),
    [
        ("gpu: h100, max_model_len: 32768, max_num_seqs: 64", "meta-llama/Llama-3.1-8B-Instruct"),
        ("gpu: rtx-4090, max_model_len: 4096, kv_pool: {blocks: 600}", "meta-llama/Llama-3.1-8B-Instruct"),
        ("gpu: l40s, tensor_parallel: 2, max_model_len: 8192", "meta-llama/Llama-3.1-8B-Instruct"),
        ("gpu: rtx-pro-6000, data_parallel: 2, max_num_seqs: 32", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
    ],
    ids=["few-sequences", "small-pool", "tensor-parallel", "shared-experts"],
)
@pytest.mark.parametrize("efficiency", [0.31, 0.61, 1.2])
def test_the_efficiency_of_a_simulated_run_is_found_again(deployment: str, model: str, efficiency: float) -> None:
    backend = planned(deployment, model)
    found = fit_efficiency(served(backend, efficiency), backend)
    assert found.efficiency == pytest.approx(efficiency, rel=2e-3)
    assert abs(found.rest.e2e.error_share) < 3e-3
    assert (found.requests, found.fitted.requests, found.rest.requests) == (120, 40, 80)
    assert not found.ran_otherwise


def test_the_band_lies_on_both_sides_of_the_rooflines_own_answer() -> None:
    backend = planned("gpu: h100, max_model_len: 32768, max_num_seqs: 64")
    found = fit_efficiency(served(backend, 0.7), backend)
    parts = (found.unfitted, found.unfitted_slow, found.unfitted_fast)
    middle, slow, fast = (part.e2e.predicted.mean_s for part in parts)
    assert fast < middle < slow
    assert fast < found.rest.e2e.measured.mean_s < slow


def test_another_cap_on_sequences_is_seen() -> None:
    run = served(planned("gpu: h100, max_model_len: 32768, max_num_seqs: 8"), 0.7)
    found = fit_efficiency(run, planned("gpu: h100, max_model_len: 32768, max_num_seqs: 64"))
    assert found.running_peak_measured <= 8
    assert found.ran_otherwise


def test_a_run_of_another_unit_or_size_is_refused() -> None:
    backend = planned("gpu: h100, max_model_len: 32768")
    run = served(backend, 0.7)
    with pytest.raises(InputError, match="slower than 2%"):
        fit_efficiency(replace(run, **{name: getattr(run, name) * 1000 for name in ("finish_s",)}), backend)
    with pytest.raises(InputError, match="faster than 150%"):
        fit_efficiency(replace(run, finish_s=run.first_token_s), backend)
    with pytest.raises(InputError, match="do not fit the window of 1,024"):
        fit_efficiency(run, planned("gpu: h100, max_model_len: 1024"))
    with pytest.raises(InputError, match="in the run: 12, too few"):
        fit_efficiency(served(backend, 0.7, count=12), backend)


def test_our_own_requests_file_is_a_measured_run(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(
        "strategy,arrival_s,first_token_s,finish_s,prompt_tokens,output_tokens\n"
        "none,5,6,9,10,3\nnone,4,4.5,5,20,2\nnone,6,,,10,3\nnone,4,4.5,6,20,2\n"
    )
    run = read_measured_run(path)
    assert (run.arrival_s.tolist(), run.finish_s.tolist(), run.skipped) == ([0.0, 0.0, 1.0], [1.0, 2.0, 5.0], 1)
    assert run.prompt_tokens.tolist() == [20, 20, 10]


def test_two_clocks_are_laid_on_each_other(tmp_path: Path) -> None:
    """queued_ts is stamped at the end of a step: the smallest difference to the wall clock is the clocks' offset."""
    path = tmp_path / "run.jsonl"
    row = '{{"input_toks": 9, "output_toks": 2, "arrival_time": {}, "queued_ts": {}, "first_token_ts": 8, '
    row += '"last_token_ts": 9}}\n'
    path.write_text(row.format(1000.0, 5.5) + row.format(1001.0, 6.25) + row.format(1002.0, 7.5))
    run = read_measured_run(path)
    assert run.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert run.first_token_s.tolist() == [2.75, 2.75, 2.75]


EXPECTED = ([0.0, 0.5], [10, 20], [3, 4], [0.25, 1.0], [2.0, 3.0])


@pytest.mark.parametrize(
    "text",
    [
        "extra,finish_s,output_tokens,arrival_s,first_token_s,prompt_tokens\n,3,3,1,1.25,10\nx,4,4,1.5,2,20\n",
        (
            "Start Time,ISL,OSL,TTFT_ms,e2e_latency_ms\n2026-05-10T07:00:00Z,10,3,250,2000\n"
            "2026-05-10T07:00:00.5Z,20,4,500,2500\n"
        ),
        (
            "timestamp_ns,input_len,output_len,first_token_time_ns,end_time_ns\n"
            "1000000000,10,3,1250000000,3000000000\n1500000000,20,4,2000000000,4000000000\n"
        ),
        (
            "arrival_time,prompt_len,completion_tokens,ttft,latency\n1787267980.0,10,3,0.25,2\n1787267980.5,20,4,0.5,2.5\n"
            "1787267981.5,20,0,,\n"
        ),
        json.dumps(
            {"input_lens": [10, 20, 9], "output_lens": [3, 4, 0], "start_times": [7.0, 7.5, 8.0]}
            | {"ttfts": [0.25, 0.5, 0.0], "itls": [[1.0, 0.75], [1.0, 0.5, 0.5], []]}
        ),
    ],
    ids=["any order", "since the arrival, in ms", "in ns", "wall clock", "a benchmark's result"],
)
def test_times_have_many_names_and_units(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.csv"
    path.write_text(text)
    run = read_measured_run(path)
    found = (run.arrival_s, run.prompt_tokens, run.output_tokens, run.first_token_s, run.finish_s)
    for values, expected in zip(found, EXPECTED, strict=True):
        assert values.tolist() == pytest.approx(expected, abs=1e-6)
    assert run.skipped == (",,\n" in text or "[]" in text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "no column arrival_s"),
        (HEADER, "holds no request"),
        (HEADER + "1,2,3,4,nan\n", "a figure is missing"),
        (HEADER + "1,0,3,4,5\n", "no tokens"),
        (HEADER + "1,2,3,0,5\n", "times out of order"),
        (HEADER + "one,2,3,4,5\n", "a figure is missing"),
    ],
)
def test_an_unreadable_run_says_why(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "run.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_measured_run(path)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.file)
def test_measured_runs_are_predicted_from_their_first_third(shared_data: Path, run: Run) -> None:
    """Mean time to first and to last token of the other two thirds, within 5 % (vLLM 0.19, measured)."""
    found = calibrated(run, shared_data)
    assert found.requests == 300
    assert abs(found.rest.ttft.error_share) < 0.05
    assert abs(found.rest.e2e.error_share) < 0.05
    assert not found.ran_otherwise
    measured = found.rest.e2e.measured.mean_s
    assert found.unfitted_fast.e2e.predicted.mean_s < measured < found.unfitted_slow.e2e.predicted.mean_s
