"""Compares the vLLM pool with recorded answers of vLLM 0.33.0, row by row: ``python -m tests.tables.pools [FILE…]``.

Without files it reads all ``vllm_answers*.jsonl``. A row is *equal* where every figure agrees, *refused-equal* where
vLLM and kvplan refuse the window and name the same longest one, *unread* where kvplan refuses the config, else *wrong*.
"""

import copy
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.capacity import Fit, fit
from kvplan.engines.deployment import Deployment
from kvplan.engines.devices import window_of
from kvplan.errors import KvplanError
from kvplan.hf_config import read_config
from kvplan.model import ModelSpec, Source
from tests.tables import DATA

GIVEN_FLAGS = {"vllm_answers_tp2.jsonl": ("max_num_batched_tokens", "async_scheduling")}
"""Settings that were given when a file was recorded; the others are vLLM's own defaults."""
_FIGURES = (
    "block_size",
    "bytes_per_block",
    "num_gpu_blocks",
    "max_request_blocks",
    "fits",
    "max_model_len_native",
    "max_in_flight_tokens",
)
_FLAGS = ("max_num_seqs", "max_num_batched_tokens", "async_scheduling", "prefix_caching")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One row's outcome; ``differs`` maps a figure to (kvplan's, vLLM's)."""

    model: str
    outcome: str
    differs: Mapping[str, tuple[object, object]]


@cache
def read_facts(model_id: str, *, without_quantization: bool = False) -> ModelSpec:
    """The model as kvplan reads it from the recorded config."""
    facts = json.loads((DATA / "models" / f"{model_id.replace('/', '--')}.json").read_text(encoding="utf-8"))
    config, beside = copy.deepcopy(facts["config"]), facts.get("hf_quant_config")
    if without_quantization:
        beside = None
        for part in (config, *(value for value in config.values() if isinstance(value, dict))):
            part.pop("quantization_config", None)
    return read_config(config, model_id=model_id, source=Source(name="recorded config"), quantization=beside)


def deployment_of(row: Mapping[str, Any], flags: tuple[str, ...]) -> Deployment:
    """What was asked of vLLM; ``flags`` are the settings that were given. No graph was captured."""
    given = {flag: row[flag] for flag in flags}
    return Deployment(
        tensor_parallel=row["tensor_parallel_size"],
        kv_dtype=row["kv_cache_dtype_arg"],
        max_model_len=row["max_model_len"],
        kv_memory_bytes=row["available_memory_bytes"],
        hybrid_kv_cache_manager=not row["hybrid_kv_cache_manager_disabled"],
        enforce_eager=True,
        **given,
    )


def figures(answer: Fit) -> dict[str, object]:
    """What kvplan says, by vLLM's names."""
    layout, plan, length = answer.plan.layout, answer.plan, answer.max_model_len
    found: dict[str, object] = {
        "block_size": layout.block_tokens,
        "bytes_per_block": layout.bytes_per_block,
        "groups": sorted((group.layers, group.block_tokens, group.page_bytes) for group in layout.groups),
        "num_gpu_blocks": plan.blocks,
        "max_request_blocks": layout.request_blocks(length),
        "fits": answer.serves_window,
        "max_model_len_native": window_of(answer.model, Deployment()),
        **{flag: getattr(plan.settings, flag) for flag in _FLAGS},
        "max_in_flight_tokens": plan.settings.in_flight_tokens,
    }
    if answer.serves_window:
        found["max_concurrency"] = plan.blocks / layout.request_blocks(length)
        found["kv_cache_size_tokens"] = answer.pool_tokens
    else:
        found["estimated_max_model_len"] = answer.longest_window_tokens
    return found


def expected(row: Mapping[str, Any]) -> dict[str, object]:
    """The same figures as vLLM gave them."""
    wanted: dict[str, object] = {key: row[key] for key in _FIGURES}
    wanted |= {flag: row[flag] for flag in _FLAGS}
    blocks = [row["max_model_len"] if is_uncached_state(row, group) else group["block_size"] for group in row["groups"]]
    wanted["groups"] = sorted(
        (group["layers"], block, group["group_page_size_bytes"])
        for group, block in zip(row["groups"], blocks, strict=True)
    )
    for key in ("max_concurrency", "kv_cache_size_tokens") if row["fits"] else ("estimated_max_model_len",):
        wanted[key] = row[key]
    return wanted


def is_uncached_state(row: Mapping[str, Any], group: Mapping[str, Any]) -> bool:
    """Whether a state's block spans the window; the recorder changed the window after vLLM had set it."""
    return group["kind"] == "MambaSpec" and not row["prefix_caching"]


def compare(row: Mapping[str, Any], flags: tuple[str, ...]) -> Comparison:
    """One recorded answer against kvplan's."""
    try:
        model = read_facts(row["model"], without_quantization=row["quantization_config_dropped"])
        found = figures(fit(model, deployment_of(row, flags)))
    except KvplanError as error:
        return Comparison(model=row["model"], outcome="unread", differs={"error": (error.message, None)})
    wanted = expected(row)
    differs = {key: (found.get(key), value) for key, value in wanted.items() if found.get(key) != value}
    outcome = "wrong" if differs else "equal" if row["fits"] else "refused-equal"
    return Comparison(model=row["model"], outcome=outcome, differs=differs)


def flags_of(path: Path, row: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings to give for ``row``: those that were given; all where vLLM ran it through its generic class."""
    return GIVEN_FLAGS.get(path.name, ()) if row["architectures"] else _FLAGS


def compare_file(path: Path) -> Iterator[Comparison]:
    """Every row of ``path``."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield compare(row, flags_of(path, row))


def main(arguments: list[str]) -> int:
    """Prints totals per file and the first difference of each model; 1 if anything is wrong."""
    paths = [Path(argument) for argument in arguments] or sorted(DATA.glob("vllm_answers*.jsonl"))
    wrong = 0
    for path in paths:
        results = list(compare_file(path))
        totals = Counter(result.outcome for result in results)
        wrong += totals["wrong"]
        print(f"{path.name}: " + ", ".join(f"{totals[name]} {name}" for name in sorted(totals)))
        shown: set[str] = set()
        for result in results:
            if result.differs and result.model not in shown:
                shown.add(result.model)
                print(f"  {result.outcome}: {result.model}: {dict(result.differs)}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
