"""The error table of SGLang, TensorRT-LLM, llama.cpp and TGI against recorded start-up logs.

``python tests/engine_table.py`` prints it; it reads golden/starts_of_other_engines.json, and ../shared/data (or the
folder named as its argument) where that exists. A pool is judged where the log printed what the engine's rule needs;
Ascend NPUs show the arithmetic and are not judged, nor is unified memory, of which the operating system takes its share
meanwhile.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from kvplan.engines import engine_plan, parse_engine
from kvplan.engines.base import Deployment, EnginePlan
from kvplan.engines.ggml_types import cache_types
from kvplan.engines.llama_cpp.slots import UBATCH_TOKENS, buffers, divide_context
from kvplan.engines.ranks import keep
from kvplan.engines.sglang.rules import kv_memory, kv_types
from kvplan.engines.tensorrt_llm import FREE_FRACTION
from kvplan.engines.weights import rank_weights
from kvplan.hf_config import read_config
from kvplan.model import ModelSpec, Source
from kvplan.profiles.loader import load_gpu
from kvplan.sources import read_model
from kvplan.units import GIB, MIB

STARTS = Path(__file__).parent / "golden" / "starts_of_other_engines.json"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
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


def published() -> Iterator[Line]:
    """Figures of public logs and reports, each with its source in the file."""
    for row in json.loads(STARTS.read_text(encoding="utf-8")):
        planned, printed = _PUBLISHED[row["kind"]](row)
        engine, within = row["engine"], row["within_gib"]
        yield Line(
            row=row.get("model", "(any)").rpartition("/")[2],
            engine=engine.partition("@")[0],
            gpu=engine.partition("@")[2],
            figure=row["kind"].replace("_", " "),
            planned_gib=planned / GIB,
            printed_gib=printed / GIB,
            judged=within is not None,
            within_gib=within or 0.0,
        )


def _plan(row: Mapping[str, Any], **asked: object) -> EnginePlan:
    deployment = Deployment(engine=parse_engine(row["engine"]))
    return engine_plan(read_model(row["model"], offline=True), replace(deployment, **asked))  # type: ignore[arg-type]


def _tokens(row: Mapping[str, Any]) -> tuple[float, float]:
    """Bytes of the printed tokens, in whole blocks."""
    layout = _plan(row, kv_memory_bytes=GIB, **row["asked"]).layout
    assert row["tokens"] % layout.block_tokens == 0
    return row["tokens"] // layout.block_tokens * layout.bytes_per_block, row["gib"] * GIB


def _buffers(row: Mapping[str, Any]) -> tuple[float, float]:
    """llama.cpp's KV buffers, or the full one alone where the log leaves the window's open."""
    model, asked = read_model(row["model"], offline=True), row["asked"]
    slots = divide_context(asked["context"], asked["slots"], asked["unified"])
    layers = range(len(model.layers))
    found = buffers(model, cache_types(None, None), slots, UBATCH_TOKENS, swa_full=False, part=layers)
    return (found.full_bytes if row["full_only"] else found.kv_bytes), row["mib"] * MIB


def _share(row: Mapping[str, Any]) -> tuple[float, float]:
    """What SGLang's static share leaves for pools."""
    before, after = round(row["before_gib"] * GIB), round(row["after_gib"] * GIB)
    return kv_memory(before, after, Fraction(row["fraction"])), row["pools_gib"] * GIB


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
    "share": _share,
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
        gpu=row.get("gpu") or "?",
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
        kept = keep((kept for layer in model.rank_layers(row.get("tp") or 1) for kept in layer), kv_types(model, word))
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


def main(data: Path) -> None:
    """Print the table, the worst rows last."""
    recorded = list(lines(data)) if data.is_dir() else []
    found = sorted([*published(), *recorded], key=lambda line: (line.engine, line.figure, abs(line.error_gib)))
    print(f"{'row':30}{'engine':14}{'GPU or release':28}{'figure':24}{'planned':>9}{'printed':>9}{'error':>8}")
    for line in found:
        mark = "" if line.judged else "  (not judged)"
        print(
            f"{line.row[:28]:30}{line.engine:14}{line.gpu[:26]:28}{line.figure:24}{line.planned_gib:9.2f}"
            f"{line.printed_gib:9.2f}{line.error_gib:+8.2f}{mark}"
        )
    for engine in sorted({line.engine for line in found}):
        judged = [abs(line.error_gib) for line in found if line.engine == engine and line.judged]
        good = sum(error <= 0.3 for error in judged)
        print(f"{engine}: {len(judged)} judged, worst {max(judged):.2f} GiB, within 0.3 GiB {good}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
