"""Errors of the SGLang, TensorRT-LLM, llama.cpp and TGI plans against recorded start-up logs, by release and GPU.

It also reads golden/starts_of_other_engines.json. A figure is judged where the log printed what the engine's rule
needs: not on Ascend NPUs, which show the arithmetic only, nor on unified memory, part of which the operating system
takes meanwhile.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from kvplan.engines import engine_plan, parse_engine
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import EnginePlan
from kvplan.engines.llama_cpp.cache import UBATCH_TOKENS, Buffers, buffers, cache_types, divide_context
from kvplan.engines.ranks import cache_sizes
from kvplan.engines.sglang.pools import kv_memory
from kvplan.engines.sglang.storage import kv_types
from kvplan.engines.tensorrt_llm import FREE_FRACTION
from kvplan.engines.weights import rank_weights
from kvplan.hf_config import read_config
from kvplan.model import ModelSpec, Source
from kvplan.profiles.loader import load_gpu
from kvplan.sources import read_model
from kvplan.units import GIB, MIB
from tests.golden_files import GOLDEN
from tests.tables import DATA, folder_of

STARTS = GOLDEN / "starts_of_other_engines.json"
GOOD_GIB = 0.3
PRINTED_GIB = 0.02
"""K, V and each of several pools are printed with two digits."""
STORED = ("tokens", "buffers", "slot states", "states", "KV buffers", "state buffers", "bytes of its tokens")
NOT_SAID = "not said"
_FREE_BEFORE = re.compile(r"free before load ([\d.]+) GB")
_FREE_AFTER = re.compile(r"free after load ([\d.]+) GB")
_STATES = re.compile(r"conv_state size: ([\d.]+)GB, ssm_state size: ([\d.]+)GB")
_FREE_BEFORE_KV = re.compile(r"free before KV ([\d.]+) GiB")
_SAME_SHAPE = {
    "Qwen/Qwen2.5-1.5B-Instruct": "Qwen/Qwen2-1.5B-Instruct",
    "Qwen/Qwen3-Reranker-0.6B": "Qwen/Qwen3-0.6B",
}
_LLAMA_STATE = re.compile(r"recurrent state ([\d.]+) MiB")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One figure of one row: what the rule gives and what the log printed, in GiB; ``judged`` rows must be right."""

    row: str
    engine: str
    release: str
    gpu: str
    figure: str
    planned_gib: float
    printed_gib: float
    judged: bool
    within_gib: float = 0.3

    @property
    def error_gib(self) -> float:
        """Planned − printed."""
        return self.planned_gib - self.printed_gib

    @property
    def error_share(self) -> float:
        """The error as a share of what was printed."""
        return self.error_gib / self.printed_gib

    @property
    def is_good(self) -> bool:
        """Whether it lies as near as SGLang's pools must."""
        return abs(self.error_gib) <= GOOD_GIB


def published() -> Iterator[Line]:
    """Figures of public logs and reports, each with its source in the file."""
    for row in json.loads(STARTS.read_text(encoding="utf-8")):
        planned, printed = _PUBLISHED[row["kind"]](row)
        engine, within = row["engine"], row["within_gib"]
        yield Line(
            row=row.get("model", "(any)").rpartition("/")[2],
            engine=engine.partition("@")[0],
            release=engine.partition("@")[2] or NOT_SAID,
            gpu=row["gpu"] or NOT_SAID,
            figure=row["kind"].replace("_", " "),
            planned_gib=planned / GIB,
            printed_gib=printed / GIB,
            judged=within is not None,
            within_gib=within or 0.0,
        )


def _plan(row: Mapping[str, Any], **asked: object) -> EnginePlan:
    deployment = replace(Deployment(engine=parse_engine(row["engine"])), **asked)  # type: ignore[arg-type]
    if "config" in row:
        return engine_plan(read_config(row["config"], model_id=row["model"], source=Source(name="row")), deployment)
    return engine_plan(read_model(row["model"], offline=True), deployment)


def _tokens(row: Mapping[str, Any]) -> tuple[float, float]:
    """Bytes of the printed tokens, in whole blocks."""
    layout = _plan(row, kv_memory_bytes=GIB, **row["asked"]).layout
    assert row["tokens"] % layout.block_tokens == 0
    return row["tokens"] // layout.block_tokens * layout.bytes_per_block, row["gib"] * GIB


def _slot_buffers(row: Mapping[str, Any]) -> Buffers:
    model, asked = read_model(row["model"], offline=True), row["asked"]
    return buffers(
        model,
        cache_types(asked.get("key"), asked.get("value")),
        divide_context(asked["context"], asked["slots"], asked["unified"]),
        asked.get("ubatch", UBATCH_TOKENS),
        swa_full=asked.get("swa_full", False),
        part=range(len(model.layers)),
    )


def _buffers(row: Mapping[str, Any]) -> tuple[float, float]:
    """llama.cpp's KV buffers, or the full one alone where the log leaves the window's open."""
    found = _slot_buffers(row)
    return (found.full_bytes if row["full_only"] else found.kv_bytes), row["mib"] * MIB


def _slot_states(row: Mapping[str, Any]) -> tuple[float, float]:
    """llama.cpp's recurrent state of all slots."""
    return _slot_buffers(row).state_bytes, row["mib"] * MIB


def _share(row: Mapping[str, Any]) -> tuple[float, float]:
    """What SGLang's static share leaves for pools."""
    before, after = round(row["before_gib"] * GIB), round(row["after_gib"] * GIB)
    return kv_memory(before, after, Fraction(row["fraction"])), row["pools_gib"] * GIB


def _free_share(row: Mapping[str, Any]) -> tuple[float, float]:
    """TensorRT-LLM's pool: its fraction of what its profiling run left, the cache of that run counted as free."""
    free = row["total_gib"] - row["peak_gib"] + row["temporary_gib"]
    return free * float(row["fraction"]) * GIB, row["pools_gib"] * GIB


def _budget(row: Mapping[str, Any]) -> tuple[float, float]:
    """All pools of one rank as planned from the config, or from the weights that the log printed."""
    asked, weights, memory = dict(row["asked"]), row["weights_gib"], row["memory_gib"]
    asked["memory_utilization"] = Fraction(asked["memory_utilization"])
    plan = _plan(
        row,
        gpu=None if row["device"] is None else load_gpu(row["device"]),
        gpu_memory_bytes=None if memory is None else (round(memory * GIB),),
        weight_bytes=None if weights is None else round(weights * GIB) * asked.get("tensor_parallel", 1),
        **asked,
    )
    assert plan.budget is not None
    return plan.kv_bytes + sum(term.bytes for term in plan.budget.terms if term.name == "state_pool"), row[
        "pools_gib"
    ] * GIB


def _states(row: Mapping[str, Any]) -> tuple[float, float]:
    """SGLang's states of all slots, and of one that pads a batch."""
    asked = {"kv_memory_bytes": 100 * GIB, "prefix_caching": False, "max_num_seqs": row["slots"]}
    return 100 * GIB - _plan(row, tensor_parallel=row["tensor_parallel"], **asked).kv_bytes, row["gib"] * GIB


def _warm_up(row: Mapping[str, Any]) -> tuple[float, float]:
    """What TGI's warm-up leaves; the printed pool is within the band."""
    plan = _plan(row, gpu_memory_bytes=(round(row["memory_gib"] * GIB),), **row["asked"])
    printed = row["tokens"] * plan.layout.bytes_per_block
    assert plan.budget is not None
    assert plan.budget.kv_bytes_low <= printed <= plan.budget.kv_bytes_high
    return plan.kv_bytes, printed


_PUBLISHED: Mapping[str, Callable[[Mapping[str, Any]], tuple[float, float]]] = {
    "tokens": _tokens,
    "buffers": _buffers,
    "slot_states": _slot_states,
    "share": _share,
    "free_share": _free_share,
    "budget": _budget,
    "states": _states,
    "warm_up": _warm_up,
}
"""Kind of a row → planned and printed bytes."""


def lines(data: Path = DATA) -> Iterator[Line]:
    """Every figure of the recorded rows that can be compared."""
    with (data / "engine_logs.jsonl").open(encoding="utf-8") as file:
        for text in file:
            row = json.loads(text)
            if row["engine"] == "sglang":
                yield from _sglang(row, data)
            elif row["engine"] == "tensorrt-llm":
                yield from _tensorrt(row, data)
            elif row["engine"] == "llama.cpp":
                yield from _llama(row, data)


def _model(data: Path, name: str) -> ModelSpec | None:
    path = data / "models" / f"{name.replace('/', '--')}.json"
    if not path.is_file():
        return None
    return read_config(json.loads(path.read_text(encoding="utf-8"))["config"], model_id=name, source=Source(name="row"))


def _line(row: Mapping[str, Any], figure: str, planned_gib: float, printed_gib: float, *, judged: bool) -> Line:
    return Line(
        row=row["row"],
        engine=row["engine"],
        release=row.get("engine_version") or NOT_SAID,
        gpu=row.get("gpu") or NOT_SAID,
        figure=figure,
        planned_gib=planned_gib,
        printed_gib=printed_gib,
        judged=judged,
    )


def _sglang(row: Mapping[str, Any], data: Path) -> Iterator[Line]:
    """KV = free after loading − free before × (1 − fraction); the printed pools are K + V, and the states."""
    flags = row.get("other_flags") or ""
    before, after, states = (pattern.search(flags) for pattern in (_FREE_BEFORE, _FREE_AFTER, _STATES))
    load, fraction = row.get("model_load_gib"), row["mem_fraction_static"]
    if load is not None and fraction is not None and (before or after):
        free_after = float(after[1]) if after else float(before[1]) - load if before else 0.0
        free_before = float(before[1]) if before else free_after + load
        planned = kv_memory(round(free_before * GIB), round(free_after * GIB), Fraction(str(fraction))) / GIB
        printed = _printed_sglang(row) + (sum(map(float, states.groups())) if states else 0.0)
        on_cuda = "Ascend" not in (row.get("gpu") or "")
        yield _line(row, "pool from free memory", planned, printed, judged=on_cuda and not row.get("speculative"))
    model = _model(data, _SAME_SHAPE.get(row["model"], row["model"]))
    if model is not None and load is None and before and not row.get("speculative"):
        weights = rank_weights(model, tensor_parallel=row.get("tp") or 1).bytes / GIB
        planned = float(before[1]) * fraction - weights
        apart = "GB10" in (row.get("gpu") or "") or "Ascend" in (row.get("gpu") or "")
        pools = _printed_sglang(row) + (sum(map(float, states.groups())) if states else 0.0)
        scales = 8 / 9 if "fp4" in row["kv_cache_dtype"] else 1.0
        yield _line(row, "pool from the config", planned * scales, pools, judged=not apart)
    if model is not None and row.get("kv_tokens"):
        word = {"auto": "auto", "bf16": "bfloat16"}.get(row["kv_cache_dtype"], row["kv_cache_dtype"])
        kept = cache_sizes(
            (kept for layer in model.rank_layers(row.get("tp") or 1) for kept in layer),
            kv_types(model, Deployment(kv_dtype=word)),
        )
        scales = 8 / 9 if "fp4" in word else 1.0
        planned = float(kept.token_bytes) * row["kv_tokens"] * scales / GIB
        yield _line(row, "bytes of its tokens", planned, _printed_sglang(row), judged=True)


def _printed_sglang(row: Mapping[str, Any]) -> float:
    whole = row.get("kv_size_gb")
    return float(whole) if whole is not None else float(row["kv_k_gb"]) + float(row["kv_v_gb"])


def _tensorrt(row: Mapping[str, Any], data: Path) -> Iterator[Line]:
    free = _FREE_BEFORE_KV.search(row.get("other_flags") or "")
    if free:
        yield _line(
            row, "pool from free memory", float(free[1]) * float(FREE_FRACTION), row["available_kv_gib"], judged=True
        )
    model = _model(data, _SAME_SHAPE.get(row["model"], row["model"]))
    if model is not None and row.get("gpu") == "H100":
        asked = Deployment(engine=parse_engine("tensorrt-llm"), gpu=load_gpu("h100"))
        planned = engine_plan(model, asked).kv_bytes / GIB
        yield _line(row, "pool from the config", planned, row["available_kv_gib"], judged=True)


def _llama(row: Mapping[str, Any], data: Path) -> Iterator[Line]:
    """KV and state buffers from the model's own config: static, so exact."""
    aliases = {"nvidia/Nemotron-3-Nano-Omni-30B-A3B-Reasoning": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4"}
    model = _model(data, aliases.get(row["model"], row["model"]))
    if model is None:
        return
    slots = divide_context(row["max_model_len"], row["max_num_seqs"], True)
    found = buffers(
        model,
        cache_types(row["kv_cache_dtype"], row["kv_cache_dtype"]),
        slots,
        row.get("max_num_batched_tokens") or UBATCH_TOKENS,
        swa_full=False,
        part=range(len(model.layers)),
    )
    yield _line(row, "KV buffers", found.kv_bytes / GIB, row["available_kv_gib"], judged=True)
    state = _LLAMA_STATE.search(row.get("other_flags") or "")
    if state:
        yield _line(row, "state buffers", found.state_bytes / GIB, float(state[1]) / 1024, judged=True)


def found(data: Path = DATA) -> list[Line]:
    """All figures, by engine, release and GPU."""
    recorded = list(lines(data)) if data.is_dir() else []
    return sorted([*published(), *recorded], key=lambda line: (line.engine, line.release == NOT_SAID, _place(line)))


def _place(line: Line) -> tuple[str, str]:
    return line.release, line.gpu


def table(found: Iterable[Line]) -> list[list[str]]:
    """One row for each engine, release and GPU. Only judged figures are counted: ``stored`` are bytes of what is kept,
    which follow from the model, and are right to the digits that were printed; the rest are pools, which follow from
    memory."""
    body = [["engine", "release", "GPU", "stored", "pools", "median error", "good", "worst"]]
    judged = [line for line in found if line.judged]
    for (engine, release, gpu), group in groupby(judged, key=lambda line: (line.engine, *_place(line))):
        kept = list(group)
        stored = [line for line in kept if line.figure in STORED]
        exact = sum(abs(line.error_gib) <= PRINTED_GIB for line in stored)
        pools = [line for line in kept if line.figure not in STORED]
        counted = f"{exact} of {len(stored)}" if stored else ""
        body.append([engine, release, gpu, counted, str(len(pools) or ""), *_errors(pools)])
    return body


def _errors(pools: Sequence[Line]) -> tuple[str, str, str]:
    if not pools:
        return "", "", ""
    worst = max(pools, key=lambda line: abs(line.error_gib))
    return (
        f"{median(abs(line.error_share) for line in pools):.1%}",
        f"{sum(line.is_good for line in pools) / len(pools):.0%}",
        f"{worst.error_share:+.1%} ({worst.error_gib:+.2f} GiB)",
    )


def rows(found: Iterable[Line]) -> list[list[str]]:
    """Every figure."""
    head = ["row", "engine", "GPU", "figure", "planned GiB", "printed GiB", "error", ""]
    return [
        head,
        *(
            [
                line.row[:28],
                f"{line.engine} {line.release}".removesuffix(f" {NOT_SAID}"),
                line.gpu[:26],
                line.figure,
                f"{line.planned_gib:.2f}",
                f"{line.printed_gib:.2f}",
                f"{line.error_gib:+.2f}",
                "" if line.judged else "not judged",
            ]
            for line in found
        ),
    ]


def _print(cells: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()


def main(data: Path) -> None:
    """Print the table, every row, and one line an engine."""
    every = found(data)
    _print(table(every))
    _print(rows(every))
    for engine in sorted({line.engine for line in every}):
        judged = [line for line in every if line.engine == engine and line.judged]
        worst = max(abs(line.error_gib) for line in judged)
        good = sum(line.is_good for line in judged)
        print(f"{engine}: {len(judged)} judged, worst {worst:.2f} GiB, within {GOOD_GIB} GiB {good}")


if __name__ == "__main__":
    main(folder_of(sys.argv[1:]))
