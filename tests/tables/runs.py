"""Errors of measured runs: one efficiency fitted on the first third of a run, the rest predicted.

``--markdown`` prints it as the README shows it.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvplan.calibration.run import calibrate_run
from kvplan.simulation.efficiency import EfficiencyFit
from kvplan.simulation.measured_run import read_measured_run
from kvplan.traffic.load import parse_traffic
from tests.tables import DATA, folder_of


@dataclass(frozen=True, kw_only=True)
class Run:
    """One recorded run: its file's stem, and the deployment that its configuration says."""

    file: str
    model: str
    deployment: str


RUNS = (
    Run(
        file="RTX4090_Llama-3.1-8B",
        model="meta-llama/Llama-3.1-8B",
        deployment="gpu: rtx-4090, max_model_len: 32768, max_num_seqs: 256, kv_pool: {blocks: 2588}",
    ),
    Run(
        file="RTXPRO6000_Llama-3.1-8B",
        model="meta-llama/Llama-3.1-8B",
        deployment="gpu: rtx-pro-6000, max_num_seqs: 128",
    ),
    Run(
        file="RTXPRO6000_Qwen3-30B-A3B-Instruct-2507",
        model="Qwen/Qwen3-30B-A3B-Instruct-2507",
        deployment="gpu: rtx-pro-6000, max_num_seqs: 128, data_parallel: 2, expert_parallel: true",
    ),
)


def calibrated(run: Run, data: Path = DATA) -> EfficiencyFit:
    """The run's efficiency and what it predicts (vLLM 0.19, 2,048 tokens a step)."""
    text = f"model: {run.model}\ndeployment: {{engine: vllm@0.19, max_num_batched_tokens: 2048, {run.deployment}}}\n"
    text += "traffic: {duration: 9s, classes: [{name: a, rate: 1/s, prompt_tokens: 9, output_tokens: 9}]}\n"
    measured = read_measured_run(data / "traces" / "vllm_runs" / f"{run.file}_requests.jsonl.gz")
    return calibrate_run(measured, parse_traffic(text, file="run.yaml"), offline=True)


def cells(run: Run, found: EfficiencyFit) -> tuple[str, ...]:
    """One row: the constant, the rest's means and quantiles, and what the roofline alone says."""
    rest = found.rest
    quantiles = (
        f"{getattr(times.predicted, name) / getattr(times.measured, name) - 1.0:+.1%}"
        for name in ("p50_s", "p99_s")
        for times in (rest.ttft, rest.e2e)
    )
    low, high = (part.e2e.predicted.mean_s for part in (found.unfitted_fast, found.unfitted_slow))
    return (
        run.file.replace("_", ", "),
        f"{found.efficiency:.3f}",
        f"{rest.ttft.measured.mean_s:.2f} s",
        f"{rest.ttft.error_share:+.1%}",
        f"{rest.e2e.measured.mean_s:.2f} s",
        f"{rest.e2e.error_share:+.1%}",
        *quantiles,
        f"{low:.0f} to {high:.0f} s",
    )


TITLES = (
    "run",
    "efficiency",
    "mean TTFT",
    "error",
    "mean E2E",
    "error",
    "TTFT p50",
    "E2E p50",
    "TTFT p99",
    "E2E p99",
    "uncalibrated E2E",
)


def lines(data: Path = DATA, *, markdown: bool = False) -> Iterator[str]:
    """The table's lines."""
    rows = [TITLES, *(cells(run, calibrated(run, data)) for run in RUNS)]
    if markdown:
        yield f"| {' | '.join(TITLES)} |"
        yield f"|{'---|' * len(TITLES)}"
        yield from (f"| {' | '.join(row)} |" for row in rows[1:])
        return
    widths = [max(len(row[place]) for row in rows) for place in range(len(TITLES))]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


if __name__ == "__main__":
    for line in lines(folder_of(sys.argv[1:]), markdown="--markdown" in sys.argv):
        print(line)
