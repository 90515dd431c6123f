"""The simulation against vLLM's own scheduler on recorded scenarios.

Every scenario has the slice of a trace, the pool, the settings and the cost of a step; the answers are preemptions and
times of each request. Cache groups are those that kvplan plans for the models' configs. ``--markdown`` prints the table
as the README shows it.
"""

import csv
import gzip
import json
import sys
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from kvplan.engines import engine_plan
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import CacheGroup, CacheLayout
from kvplan.hf_config import read_config
from kvplan.model import Source
from kvplan.simulation.kernel.run import run_kernel
from kvplan.simulation.types import ClientRule, EngineSetup, FrontDoor, Requests, Run
from kvplan.traffic.spec import StepCost
from tests.tables import DATA, folder_of

_ANY_MEMORY = 2**44


@dataclass(frozen=True, kw_only=True)
class Line:
    """One scenario: how many requests, and how far the simulation is from vLLM."""

    name: str
    what: str
    requests: int
    preemptions: int
    wrong_preemptions: int
    first_token_off_s: float
    finish_off_s: float

    @property
    def equal(self) -> bool:
        return self.wrong_preemptions == 0 and max(self.first_token_off_s, self.finish_off_s) <= 1e-6


def plain_requests(
    arrival_s: Any, prompt_tokens: Any, output_tokens: Any, max_tokens: Any, window: int, chains: list[list[int]]
) -> Requests:
    """Uncharged requests with their caps cut to the window; ``chains`` are the ids of their shared content, if any."""
    prompt = np.array(prompt_tokens, np.int64)
    shared = any(chains)
    return Requests.uncharged(
        arrival_s,
        prompt,
        output_tokens,
        np.minimum(np.array(max_tokens, np.int64), window - prompt),
        chain=np.array([link for chain in chains for link in chain], np.int64) if shared else None,
        chain_start=np.cumsum([0, *map(len, chains)]) if shared else None,
    )


def open_door(requests: Requests, setup: EngineSetup) -> Run:
    """Everything is admitted; the engine queues and preempts."""
    return run_kernel(requests, setup, FrontDoor(), [ClientRule()], compiled=False)


def _layout(answer: dict[str, Any], data: Path) -> CacheLayout:
    in_flight = (2 if answer["async"] else 1) * answer["max_num_batched_tokens"]
    if answer["model"] is None:
        (group,) = answer["groups"]
        block = group["block_size"]
        full = CacheGroup(kind="full", layers=1, rule="full", block_tokens=block, page_bytes=1)
        return CacheLayout(block_tokens=block, bytes_per_block=1, groups=(full,), in_flight_tokens=in_flight)
    name = answer["model"]
    facts = json.loads((data / "models" / f"{name.replace('/', '--')}.json").read_text())
    model = read_config(facts["config"], model_id=name, source=Source(name="recorded"), parameters=facts.get("params"))
    plan = engine_plan(
        model,
        Deployment(
            max_model_len=answer["max_model_len"],
            max_num_seqs=answer["max_num_seqs"],
            max_num_batched_tokens=answer["max_num_batched_tokens"],
            async_scheduling=answer["async"],
            prefix_caching=answer["prefix_caching"],
            kv_memory_bytes=_ANY_MEMORY,
        ),
    )
    sizes = sorted(group.block_tokens for group in plan.layout.groups)
    assert sizes == sorted(group["block_size"] for group in answer["groups"])
    return plan.layout


def setup_of(answer: dict[str, Any], data: Path = DATA) -> EngineSetup:
    base_s, prefill_token_s, decode_sequence_s, kv_token_s = answer["step_time"]
    return EngineSetup(
        blocks=answer["num_gpu_blocks"],
        layout=_layout(answer, data),
        max_model_len=answer["max_model_len"],
        max_num_seqs=answer["max_num_seqs"],
        max_num_batched_tokens=answer["max_num_batched_tokens"],
        step=StepCost(
            base_s=base_s,
            prefill_token_s=prefill_token_s,
            decode_sequence_s=decode_sequence_s,
            kv_token_s=kv_token_s,
        ),
        async_scheduling=answer["async"],
        prefix_caching=answer["prefix_caching"],
        watermark_blocks=answer["watermark_blocks"],
        reserves_whole_input=answer["reserve_full_isl"],
    )


def _read(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.DictReader(file))


def line(path: Path, data: Path = DATA) -> Line:
    """One scenario, played and compared."""
    answer = json.loads(path.read_text())
    trace = _read(path.parent / "traces" / f"{answer['trace']}.gz")
    told = sorted(_read(path.with_suffix(".csv.gz")), key=lambda row: int(row["id"][1:]))
    setup = setup_of(answer, data)
    requests = plain_requests(
        [float(row["arrival_s"]) for row in trace],
        [int(row["prompt_tokens"]) for row in trace],
        [int(row["output_tokens"]) for row in trace],
        [int(row["max_tokens"] or row["output_tokens"]) for row in trace],
        setup.max_model_len,
        [[int(link) for link in (row.get("hash_ids") or "").split()] for row in trace],
    )
    rows = open_door(requests, setup).rows
    preemptions = np.array([int(row["preemptions"]) for row in told])
    return Line(
        name=path.stem,
        what=", ".join(
            [
                answer["model"] or "one full group",
                "async" if answer["async"] else "sync",
                *(["prefix caching"] if answer["prefix_caching"] else []),
            ]
        ),
        requests=len(trace),
        preemptions=int(preemptions.sum()),
        wrong_preemptions=int((rows.preemptions != preemptions).sum()),
        first_token_off_s=_off(rows.first_token_s, [row["first_token_s"] for row in told]),
        finish_off_s=_off(rows.finish_s, [row["finish_s"] for row in told]),
    )


def _off(mine: Any, told: list[str]) -> float:
    """The largest difference; infinite where one side has a time and the other has none."""
    theirs = np.array([float(value or "nan") for value in told])
    if (np.isnan(mine) != np.isnan(theirs)).any():
        return inf
    return float(np.nanmax(np.abs(mine - theirs), initial=0.0))


def lines(data: Path = DATA) -> list[Line]:
    """Every recorded scenario."""
    return [line(path, data) for path in sorted((data / "scheduler_answers").glob("*.json"))]


def text(rows: list[Line], *, markdown: bool) -> str:
    """The table, aligned or in Markdown."""
    head = ["scenario", "what", "requests", "preemptions", "wrong", "first token off", "finish off"]
    cells = [
        [
            row.name,
            row.what,
            f"{row.requests:,}",
            f"{row.preemptions:,}",
            str(row.wrong_preemptions),
            f"{row.first_token_off_s:.0e} s",
            f"{row.finish_off_s:.0e} s",
        ]
        for row in rows
    ]
    widths = [max(len(line[column]) for line in [head, *cells]) for column in range(len(head))]
    if markdown:
        marks = ["---", "---", *["---:"] * 5]
        return "\n".join("| " + " | ".join(line) + " |" for line in [head, marks, *cells])
    return "\n".join(
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in numbered)
        for numbered in (list(enumerate(zip(line, widths, strict=True))) for line in [head, *cells])
    )


if __name__ == "__main__":
    print(text(lines(folder_of(sys.argv[1:])), markdown="--markdown" in sys.argv))
