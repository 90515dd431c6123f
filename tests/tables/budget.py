"""Compares the vLLM budget with start-up logs of real engines: ``python -m tests.tables.budget [--markdown] [--rows]``.

Total memory, utilisation, settings and the printed weights of ``engine_logs*.jsonl`` go in; the pool that is left is
compared with the printed one. Good: within 6 % of the pool or 0.3 GiB; tight: within 2 % or 0.3 GiB.
``--leave-one-out`` refits the constants without each row in turn.
"""

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from kvplan.engines.deployment import Deployment, EngineVersion
from kvplan.engines.vllm import budget_constants, budget_terms
from kvplan.engines.vllm.budget import rank_budget
from kvplan.engines.vllm.rank_facts import RankFacts, rank_facts
from kvplan.engines.vllm.settings import resolve_settings
from kvplan.hf_config import read_config
from kvplan.model import ModelSpec, Source
from kvplan.profiles.kinds import GpuProfile
from kvplan.sources import read_model as read_reference
from kvplan.units import GIB
from tests.tables import DATA

BASE_MODELS: Mapping[str, str] = {
    "AEON-7/Qwen3.6-35B-A3B-heretic-NVFP4": "Qwen/Qwen3.6-35B-A3B",
    "DeepSeek-V3/R1 family (exact id not printed)": "deepseek-ai/DeepSeek-V3",
    "Qwen3-30B-A3B-Instruct-2507-Int4-W4A16": "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "Qwen3.6-27B-AutoRound-INT4": "Qwen/Qwen3.6-27B",
    "Qwen3.6-35B-A3B-NVFP4": "nvidia/Qwen3.6-35B-A3B-NVFP4",
    "RedHatAI/Qwen3.6-35B-A3B-NVFP4": "Qwen/Qwen3.6-35B-A3B",
    "RedHatAI/gemma-4-26B-A4B-it-NVFP4": "google/gemma-4-26B-A4B-it",
    "cyankiwi/gemma-4-26B-A4B-it-qat-AWQ-INT4": "google/gemma-4-26B-A4B-it",
    "huihui-ai/Huihui-gpt-oss-20b-mxfp4-abliterated-v2": "openai/gpt-oss-20b",
    "moonshotai/Kimi-K2-Thinking": "moonshotai/Kimi-K2-Instruct",
    "scb10x/typhoon-ocr-7b": "Qwen/Qwen2.5-VL-7B-Instruct",
    "typhoon-ai/typhoon-s-thaillm-8b-instruct-research-preview": "Qwen/Qwen3-8B",
    "unsloth/Qwen3.8-27B-NVFP4": "Qwen/Qwen3.8-27B",
    "vrfai/Qwen3.6-27B-FP8": "Qwen/Qwen3.6-27B",
}
"""Fine-tunes and quantisations in the logs, and the model of the catalogue whose widths they have."""
DOTS_OCR: Mapping[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151936,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "vision_config": {},
}
"""The decoder of rednote-hilab/dots.ocr (its config.json on the Hub); the catalogue does not hold the model."""


def gib(amount: float | str) -> int:
    """Bytes of a figure printed in GiB.

    >>> gib("0.5")
    536870912
    """
    return int(Fraction(str(amount)) * GIB)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One start-up: what went in, and what the log printed. ``core``: a text model on NVIDIA GPUs of one node."""

    name: str
    release: tuple[int, ...]
    gpu: str
    model: str
    core: bool
    facts: RankFacts
    printed_kv_bytes: int


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A row with kvplan's answer."""

    row: Row
    kv_bytes: int
    half_width_bytes: int

    @property
    def error_bytes(self) -> int:
        return self.kv_bytes - self.row.printed_kv_bytes

    @property
    def error_share(self) -> float:
        return self.error_bytes / self.row.printed_kv_bytes

    def within(self, share: float) -> bool:
        return abs(self.error_bytes) <= max(share * self.row.printed_kv_bytes, gib("0.3"))

    @property
    def covered(self) -> bool:
        return abs(self.error_bytes) <= self.half_width_bytes


def read_rows(folder: Path = DATA) -> list[Row]:
    """The rows that can be judged."""
    logs = {row["row"]: row for row in read_lines(folder / "engine_logs.jsonl")}
    usable = [line for line in read_lines(folder / "engine_logs_usable.jsonl") if line["base_model"]]
    return [_row(line, logs[line["row"]]) for line in usable if line["engine"].startswith("vllm@")]


def judge(row: Row) -> Judged:
    """The pool that kvplan computes for the row."""
    answer = rank_budget(row.facts)
    half = (answer.kv_bytes_high - answer.kv_bytes_low) // 2
    return Judged(row=row, kv_bytes=answer.kv_bytes, half_width_bytes=half)


def totals(judged: Sequence[Judged]) -> dict[str, float]:
    """The figures that the bars are set on."""
    old = [each for each in judged if each.row.release < (0, 19)]
    return {
        "rows": len(judged),
        "median_error_share": statistics.median(abs(each.error_share) for each in judged),
        "good_share": _share(judged, lambda each: each.within(0.06)),
        "tight_share_below_0_19": _share(old, lambda each: each.within(0.02)),
        "covered_share": _share(judged, lambda each: each.covered),
        "median_half_width_share": statistics.median(
            each.half_width_bytes / each.row.printed_kv_bytes for each in judged
        ),
    }


def _share(judged: Sequence[Judged], holds: Callable[[Judged], bool]) -> float:
    return sum(map(holds, judged)) / len(judged)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _row(line: Mapping[str, Any], log: Mapping[str, Any]) -> Row:
    release = tuple(int(part) for part in line["engine"].removeprefix("vllm@").split("."))
    model = read_model(line["base_model"])
    # a fine-tune in a log may have a longer window than the base model's config
    model = replace(model, max_context_tokens=max(model.max_context_tokens or 0, log["max_model_len"] or 0))
    ranks = log["tp"] or 1
    gpu = device_of(log["gpu"] or "", gib(line["total_gib"]))
    speculative = int(str(log["speculative"]).partition("num_spec_tokens=")[2].strip(")") or 0)
    deployment = Deployment(
        engine=EngineVersion(release=release),
        gpu=gpu,
        tensor_parallel=ranks,
        max_model_len=log["max_model_len"],
        max_num_seqs=log["max_num_seqs"],
        max_num_batched_tokens=log["max_num_batched_tokens"],
        memory_utilization=Fraction(str(line["utilization"])),
        enforce_eager=bool(log["enforce_eager"]),
        speculative_tokens=speculative,
    )
    flags = log["other_flags"] or ""
    facts = replace(
        rank_facts(model, deployment, resolve_settings(model, deployment)),
        total_bytes=gpu.memory_bytes,
        weight_bytes=gib(log["model_load_gib"]),
    )
    if "language-model-only" in flags or "'image': 0" in flags:
        facts = replace(facts, encoder=None)
    if "Embedding" in log["model"]:
        facts = replace(facts, runs_sampler=False)
    if "flashinfer" in flags:
        facts = replace(facts, sampler="flashinfer")
    elif "pytorch-native" in flags:
        facts = replace(facts, sampler="torch")
    return Row(
        name=line["row"],
        release=release,
        gpu=(log["gpu"] or "not said") + (f" × {ranks}" if ranks > 1 else ""),
        model=line["base_model"],
        core=bool(line["core"]),
        facts=facts,
        printed_kv_bytes=gib(log["available_kv_gib"]),
    )


def read_model(name: str) -> ModelSpec:
    """The model of a log row, or the catalogue's of the same widths."""
    if name == "rednote-hilab/dots.ocr":
        return read_config(DOTS_OCR, model_id=name, source=Source(name="its config.json"))
    return read_reference(BASE_MODELS.get(name, name), offline=True)


CAPABILITIES = {
    "T4": (7, 5),
    "L4": (8, 9),
    "4090": (8, 9),
    "H100": (9, 0),
    "H200": (9, 0),
    "Blackwell": (12, 0),
    "5090": (12, 0),
    "GB10": (12, 1),
}
"""By a word of the card's name; the others of the logs are Ampere's, or not said."""


LINKED = ("A100", "H100", "H200")
"""Cards of the logs that NVLink joins; a log does not say which of them sat in PCIe slots."""


def device_of(name: str, memory_bytes: int) -> GpuProfile:
    """The device as far as a budget asks: memory, compute capability, whether it is an A100."""
    capability = next((found for word, found in CAPABILITIES.items() if word in name), (8, 0))
    return GpuProfile(
        name=name,
        vendor="NVIDIA",
        family=name,
        memory_bytes=memory_bytes,
        bandwidth_bytes_per_s=0,
        flops_per_s={},
        sources=("the log",),
        checked="",
        compute_capability=capability,
        link_bytes_per_s=1 if any(word in name for word in LINKED) else None,
    )


# --- leave one out: each fitted constant again, from all rows but one ---

_FITTED: Mapping[str, Sequence[float]] = {
    "SAMPLER_COPIES_TORCH": [9.0 + 0.1 * step for step in range(13)],
    "SAMPLER_COPIES_TRITON": [2.5 + 0.5 * step for step in range(9)],
    "SAMPLER_COPIES_FLASHINFER": [2.0 + 0.5 * step for step in range(7)],
    "NON_TORCH_BEFORE_CONTEXT_SMALL": [0.02 * step * GIB for step in range(8)],
    "NON_TORCH_BEFORE_CONTEXT_LARGE": [0.03 * step * GIB for step in range(10)],
    "NON_TORCH_WITH_CONTEXT": [(0.1 + 0.05 * step) * GIB for step in range(14)],
}


def leave_one_out(rows: Sequence[Row]) -> list[Judged]:
    """Every row judged with constants that were fitted, one after the other, to the other rows (least sum of
    |error| / (pool × 2 % + 0.3 GiB), which an outlier cannot dominate)."""
    judged = []
    for row in rows:
        others = [each for each in rows if each.model != row.model or each.release != row.release]
        fitted: dict[str, Any] = {}
        for name, candidates in _FITTED.items():
            best = min(candidates, key=lambda value, name=name: _loss(others, {**fitted, name: value}))  # type: ignore[misc]
            fitted[name] = best
        with _constants(fitted):
            judged.append(judge(row))
    return judged


@contextmanager
def _constants(values: Mapping[str, Any]) -> Iterator[None]:
    """The budget's constants with other values for a while."""
    before = {name: getattr(budget_constants, name) for name in values}
    for name, value in values.items():
        whole = Fraction(value).limit_denominator(100) if name.startswith("SAMPLER") else int(value)
        setattr(budget_constants, name, whole)
    # the sampler's table is built from the constants once
    copies = {
        "torch": budget_constants.SAMPLER_COPIES_TORCH,
        "triton": budget_constants.SAMPLER_COPIES_TRITON,
        "flashinfer": budget_constants.SAMPLER_COPIES_FLASHINFER,
    }
    table_before = dict(budget_terms.SAMPLERS)
    budget_terms.SAMPLERS.update(copies)
    try:
        yield
    finally:
        budget_terms.SAMPLERS.update(table_before)
        for name, value in before.items():
            setattr(budget_constants, name, value)


def _loss(rows: Iterable[Row], values: Mapping[str, Any]) -> float:
    with _constants(values):
        return sum(
            min(3.0, abs(each.error_bytes) / (0.02 * each.row.printed_kv_bytes + gib("0.3")))
            for each in map(judge, rows)
        )


# --- printing ---


def table(judged: Sequence[Judged]) -> list[tuple[str, ...]]:
    """Errors by release and GPU."""
    head = ("vLLM", "GPU", "rows", "median error", "good", "worst")
    keys = sorted({(each.row.release, each.row.gpu) for each in judged})
    lines: list[tuple[str, ...]] = [head]
    for release, gpu in keys:
        mine = [each for each in judged if (each.row.release, each.row.gpu) == (release, gpu)]
        worst = max(mine, key=lambda each: abs(each.error_share))
        lines.append(
            (
                ".".join(map(str, release)),
                gpu,
                str(len(mine)),
                f"{statistics.median(abs(each.error_share) for each in mine):.1%}",
                f"{sum(each.within(0.06) for each in mine)} of {len(mine)}",
                f"{worst.error_share:+.1%} ({worst.error_bytes / GIB:+.2f} GiB)",
            )
        )
    return lines


def summary(figures: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """Each figure beside its bar."""
    return [
        ("measure", "measured", "bar"),
        (f"median error of {figures['rows']:.0f} rows", f"{figures['median_error_share']:.2%}", "≤ 1%"),
        ("within 6% or 0.3 GiB", f"{figures['good_share']:.0%}", "≥ 85%"),
        ("below 0.19: within 2% or 0.3 GiB", f"{figures['tight_share_below_0_19']:.0%}", "≥ 90%"),
        ("inside the band", f"{figures['covered_share']:.0%}", "≥ 90%"),
        ("median half width of the band", f"{figures['median_half_width_share']:.1%} of the pool", "≤ 8%"),
    ]


def _print(lines: Sequence[Sequence[str]], *, markdown: bool) -> None:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for place, line in enumerate(lines):
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print(f"| {' | '.join(cells)} |" if markdown else "  ".join(cells).rstrip())
        if markdown and place == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print()


def main(arguments: Sequence[str]) -> int:
    """Print the tables; 0 also where the recorded logs are not at hand."""
    if not DATA.is_dir():
        print("the recorded start-up logs (../shared/data) are not beside this checkout", file=sys.stderr)
        return 0
    markdown = "--markdown" in arguments
    rows = [row for row in read_rows() if row.core]
    judged = leave_one_out(rows) if "--leave-one-out" in arguments else [judge(row) for row in rows]
    _print(table(judged), markdown=markdown)
    if "--rows" in arguments:
        head = ("row", "vLLM", "GPU", "model", "printed GiB", "kvplan GiB", "error", "band ± GiB")
        body = [
            (
                each.row.name,
                ".".join(map(str, each.row.release)),
                each.row.gpu,
                each.row.model,
                f"{each.row.printed_kv_bytes / GIB:.2f}",
                f"{each.kv_bytes / GIB:.2f}",
                f"{each.error_share:+.1%}",
                f"{each.half_width_bytes / GIB:.2f}{'' if each.covered else ' (outside)'}",
            )
            for each in sorted(judged, key=lambda each: each.row.release)
        ]
        _print([head, *body], markdown=markdown)
    _print(summary(totals(judged)), markdown=markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
