"""Compares a recorded trace, replayed, with draws from the traffic file that ``kvplan trace`` writes of it.

``--seeds N`` sets the number of draws.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvplan.simulation.results import Simulation
from kvplan.simulation.simulate import simulate
from kvplan.traffic.load import parse_traffic
from kvplan.traffic.sample import sample
from kvplan.traffic.traces.describe import describe_trace
from kvplan.traffic.traces.writer import traffic_text
from tests.tables import folder_of

_SLOW = "{base_s: 0.02, prefill_token_s: 5.0e-5, decode_sequence_s: 3.0e-5, kv_token_s: 1.0e-7}"
_FAST = "{base_s: 0.003, prefill_token_s: 7.0e-6, decode_sequence_s: 1.0e-5, kv_token_s: 4.0e-8}"
TRACES = (
    ("azure_llm_2023_code.csv.gz", None),
    ("azure_llm_2023_conv.csv.gz", None),
    ("azure_llm_2023_conv.csv.gz", _SLOW),
    ("mooncake_fast25_synthetic.jsonl.gz", _FAST),
    ("mooncake_fast25_synthetic.jsonl.gz", None),
)
"""Each on the engine that the written file assumes, or on one of another speed: the assumed one is all but idle with
the conversations, and at its limit with the last."""
SEEDS = 5


@dataclass(frozen=True, kw_only=True)
class Played:
    """What one way of playing a trace offers, and what the engine makes of it (no front door)."""

    rate_per_s: float
    tokens_per_s: float
    prompt_p50_tokens: float
    prompt_p95_tokens: float
    output_p50_tokens: float
    output_p95_tokens: float
    kv_used_share: float
    ttft_p50_s: float
    ttft_p99_s: float
    preemptions: float


def played(text: str, file: str, *, seeds: int) -> Played:
    """The figures of a traffic file, means over its seeds."""
    traffic = parse_traffic(text, file=file)
    run: Simulation = simulate(traffic, strategies=("none",), seeds=seeds, offline=True, workers=1)
    found = run.strategies[0]
    drawn = [sample(traffic, traffic.seed + turn) for turn in range(seeds)]
    prompt = np.concatenate([one.prompt_tokens for one in drawn])
    output = np.concatenate([one.output_tokens for one in drawn])
    span_s = seeds * (traffic.duration_s or drawn[0].duration_s)
    return Played(
        rate_per_s=len(prompt) / span_s,
        tokens_per_s=float(prompt.sum() + output.sum()) / span_s,
        prompt_p50_tokens=float(np.quantile(prompt, 0.5)),
        prompt_p95_tokens=float(np.quantile(prompt, 0.95)),
        output_p50_tokens=float(np.quantile(output, 0.5)),
        output_p95_tokens=float(np.quantile(output, 0.95)),
        kv_used_share=found.kv.used_mean_share,
        ttft_p50_s=found.ttft_s.p50 or 0.0,
        ttft_p99_s=found.ttft_s.p99 or 0.0,
        preemptions=found.preemptions / seeds,
    )


def pair(trace: Path, *, seeds: int = SEEDS, service: str | None = None) -> tuple[Played, Played]:
    """The trace replayed on the deployment that the written file assumes, and the written file drawn."""
    text = traffic_text(describe_trace(trace))
    if service is not None:
        text = text.replace("gpu: h100\n", f"gpu: h100\n  service: {service}\n", 1)
    head = text[: text.index("  classes:")]
    replay = f"{head}  classes:\n    - {{name: replay, trace: {trace}, max_tokens: {{unset: true}}}}\n"
    folder = str(trace.parent / "written.yaml")
    return played(replay, folder, seeds=1), played(text, folder, seeds=seeds)


def lines(data: Path, seeds: int) -> Iterator[str]:
    """A row each way of playing each trace."""
    names = [re.sub(r"_(tokens|share|s|per_s)$", "", name) for name in Played.__annotations__]
    yield f"{'trace':34}" + "".join(f"{name:>12}" for name in names)
    for name, service in TRACES:
        for way, found in zip(
            ("replayed", "drawn"), pair(data / "traces" / name, seeds=seeds, service=service), strict=True
        ):
            cells = "".join(f"{value:12.4g}" for value in vars(found).values())
            yield f"{name[:19]:20}{'' if service is None else 'speed':6}{way:9}{cells}"


def main(arguments: list[str]) -> None:
    """Print the table."""
    seeds = int(arguments[arguments.index("--seeds") + 1]) if "--seeds" in arguments else SEEDS
    print(*lines(folder_of(arguments), seeds), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
