"""A measured run of an engine, and the one efficiency that makes the simulation take its time.

The constant is fitted on the first third of the run; what it predicts of the rest says how far to trust it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvplan.engines.base import Deployment, EnginePlan
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.simulation.plant import Plant
from kvplan.simulation.service import roofline
from kvplan.simulation.tasks import engine_setup
from kvplan.simulation.types import ClientRule, Floats, FrontDoor, Integers, RequestRows, Requests

FITTED_SHARE = 1 / 3
_SLOWEST, _FASTEST = 0.02, 2.0

# The names that known recorders give each figure: our own --requests first, then vLLM's request statistics.
_ARRIVAL = ("arrival_s", "queued_ts", "arrival_time")
_PROMPT = ("prompt_tokens", "input_tokens", "input_toks", "prompt_len")
_OUTPUT = ("output_tokens", "output_toks", "output_len")
_FIRST = ("first_token_s", "first_token_ts", "first_token_time")
_FINISH = ("finish_s", "last_token_ts", "finished_ts", "finished_time")


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredRun:
    """Requests that an engine really served, by arrival; times in seconds since the first arrival."""

    arrival_s: Floats
    prompt_tokens: Integers
    output_tokens: Integers
    first_token_s: Floats
    finish_s: Floats
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True, kw_only=True)
class RunErrors:
    """Predicted over measured, less one: of the mean time to the first token, and of the mean time to the last."""

    ttft_share: float
    e2e_share: float


@dataclass(frozen=True, kw_only=True)
class EfficiencyFit:
    """The constant, and its errors on the part it was fitted on and on the rest."""

    efficiency: float
    requests: int
    fitted_requests: int
    fitted: RunErrors
    rest: RunErrors
    preemptions: int


def read_measured_run(path: str | Path) -> MeasuredRun:
    """A CSV or JSONL file with arrival, tokens, first-token and finish time of every request (gzip or not).

    Names as in ``--requests``, or as vLLM's benchmark records them. Rows without a finish are skipped and counted.
    """
    from kvplan.traffic.traces import read_records

    rows, skipped = [], 0
    for record in read_records(path):
        row = _row(record)
        if row is None:
            skipped += 1
        else:
            rows.append(row)
    if not rows:
        raise InputError(
            f"{path} holds no request with its times",
            hint="it needs arrival_s, prompt_tokens, output_tokens, first_token_s and finish_s, as --requests writes",
            file=str(path),
        )
    table = np.array(sorted(rows), np.float64)
    start_s = table[0, 0]
    return MeasuredRun(
        arrival_s=table[:, 0] - start_s,
        prompt_tokens=table[:, 1].astype(np.int64),
        output_tokens=table[:, 2].astype(np.int64),
        first_token_s=table[:, 3] - start_s,
        finish_s=table[:, 4] - start_s,
        skipped=skipped,
    )


def _row(record: Mapping[str, object]) -> tuple[float, float, float, float, float] | None:
    found = [_first(record, names) for names in (_ARRIVAL, _PROMPT, _OUTPUT, _FIRST, _FINISH)]
    if any(value is None for value in found):
        return None
    arrival_s, prompt, output, first_s, finish_s = (value for value in found if value is not None)
    in_order = arrival_s <= first_s <= finish_s and prompt >= 1 and output >= 1
    return (arrival_s, prompt, output, first_s, finish_s) if in_order else None


def _first(record: Mapping[str, object], names: tuple[str, ...]) -> float | None:
    for name in names:
        value = record.get(name)
        if isinstance(value, int | float | str) and value != "":
            try:
                number = float(value)
            except ValueError:
                return None
            return number if math.isfinite(number) else None
    return None


def fit_efficiency(
    run: MeasuredRun, plant: Plant, model: ModelSpec, deployment: Deployment, plan: EnginePlan
) -> EfficiencyFit:
    """The efficiency at which the first third's mean time from arrival to last token is the measured one.

    The whole run is simulated each time, since later requests slow the first ones down too. A higher efficiency never
    takes longer in the mean, so the constant is found by halving.
    """
    if deployment.gpu is None:
        raise InputError("a measured run is compared with a roofline, which needs the GPU", hint="name it: --gpu h100")
    gpu = deployment.gpu
    part = max(1, round(len(run) * FITTED_SHARE))
    first, rest = slice(0, part), slice(part, len(run)) if part < len(run) else slice(0, part)

    def played(efficiency: float) -> RequestRows:
        service = roofline(model, deployment, gpu, plan, efficiency=efficiency)
        return play(run, replace(plant, service=service))

    low, high = _SLOWEST, _FASTEST
    for _ in range(18):
        middle = math.sqrt(low * high)
        if errors(run, played(middle), first).e2e_share > 0:
            low = middle
        else:
            high = middle
    efficiency = round(math.sqrt(low * high), 4)
    rows = played(efficiency)
    return EfficiencyFit(
        efficiency=efficiency,
        requests=len(run),
        fitted_requests=part,
        fitted=errors(run, rows, first),
        rest=errors(run, rows, rest),
        preemptions=int(rows.preemptions.sum()),
    )


def play(run: MeasuredRun, plant: Plant) -> RequestRows:
    """The run's requests through the simulated engine, without a front door."""
    from kvplan.simulation.engine import run_kernel

    count = len(run)
    never, none = np.full(count, math.inf), np.zeros(count)
    asked = Requests(
        arrival_s=run.arrival_s,
        prompt_tokens=run.prompt_tokens,
        output_tokens=run.output_tokens,
        cap_tokens=run.output_tokens,
        charge=np.zeros(count, np.int64),
        refused_for_good=run.prompt_tokens >= plant.settings.max_model_len,
        client=np.zeros(count, np.int64),
        time_out_s=never,
        cancel_s=never,
        client_draw=none,
        server_draw=none,
    )
    return run_kernel(asked, engine_setup(plant), FrontDoor(replicas=plant.replicas), (ClientRule(),)).rows


def errors(run: MeasuredRun, rows: RequestRows, part: slice) -> RunErrors:
    """How far the simulated means of a part of the run lie from the measured ones."""

    def off(simulated_s: Floats, measured_s: Floats) -> float:
        served = ~np.isnan(simulated_s[part])
        ours = (simulated_s[part] - run.arrival_s[part])[served]
        theirs = (measured_s[part] - run.arrival_s[part])[served]
        return float(ours.mean() / theirs.mean() - 1.0) if served.any() and theirs.mean() > 0 else math.inf

    return RunErrors(ttft_share=off(rows.first_token_s, run.first_token_s), e2e_share=off(rows.finish_s, run.finish_s))
