"""What start-up logs print beside the pool: the concurrency that follows from it, and the weights that were loaded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from kvplan.capacity import fit
from kvplan.engines.base import Deployment, EngineVersion
from kvplan.engines.vllm.budget_terms import gib
from kvplan.engines.weights import rank_weights
from kvplan.errors import UnsupportedModelError
from kvplan.model import ModelSpec
from tests.budget_table import device_of, read_lines, read_model

OTHER_POOL = {
    "vl-0480bfa2": "draft tokens: the MTP layer has KV and states of its own",
    "vl-2c29d66a": "draft tokens: the MTP layer has KV of its own",
    "vl-509faa81": "the same",
    "vl-741930e2": "the same",
    "vl-c0159c03": "the same",
}
"""Rows whose concurrency does not follow from the printed memory, and why."""
OTHER_RANK = {"vl-04e94367": 111.23}
"""The log of 8 ranks prints each one's capacity, 111.23 six times, 111.42 and 112.17, and the smallest memory; the row
has another rank's concurrency than the smallest."""
ASKED: dict[str, dict[str, Any]] = {"vl-7e762b0c": {"async_scheduling": False, "block_size": 64}}
"""Settings that the row leaves out and its log prints: ``'async_scheduling': False, 'block_size': 128``. 0.29 gave that
block to the layers with the small page and half of it to the others; 0.33 gives it to those, and doubles it here."""
ON_ROCM = {"vl-c115f347"}
"""0.17 on ROCm ("Using legacy triton_kernels on ROCm") prints what left the device while loading
(``RocmPlatform.get_current_memory_usage``: total − free of ``mem_get_info``), not what torch allocated for weights:
14.37 GiB where the same model on CUDA prints 14.25."""


def usable(folder: Path) -> dict[str, dict[str, Any]]:
    return {line["row"]: line for line in read_lines(folder / "engine_logs_usable.jsonl")}


def rows_with_model(folder: Path) -> list[tuple[dict[str, Any], ModelSpec]]:
    """Rows of vLLM whose model is known."""
    base = usable(folder)
    found = []
    for row in read_lines(folder / "engine_logs.jsonl"):
        if row["engine"] != "vllm":
            continue
        name = base.get(row["row"], {}).get("base_model") or row["model"]
        try:
            model = read_model(name, folder)
        except (FileNotFoundError, UnsupportedModelError):
            continue
        found.append((row, model))
    return found


def release_of_row(row: dict[str, Any], folder: Path) -> tuple[int, ...]:
    said = usable(folder).get(row["row"], {}).get("engine", f"vllm@{row['engine_version']}")
    return tuple(int(part) for part in said.removeprefix("vllm@").split(".")[:2])


def test_concurrency_follows_from_the_printed_memory(shared_data: Path) -> None:
    """Both figures are rounded: memory to 0.01 GiB, concurrency to 0.01."""
    differ, compared = set(), 0
    for row, read in rows_with_model(shared_data):
        if not row["available_kv_gib"] or not row["max_concurrency"]:
            continue
        window = row["max_concurrency_len"] or row["max_model_len"]
        model = replace(read, max_context_tokens=max(read.max_context_tokens or 0, window))
        asked = Deployment(
            engine=EngineVersion(release=release_of_row(row, shared_data)),
            gpu=device_of(row["gpu"] or "", gib(80)),
            tensor_parallel=row["tp"] or 1,
            context_parallel=row["context_parallel_dcp"] or 1,
            kv_dtype=row["kv_cache_dtype"] or "auto",
            max_model_len=window,
            max_num_seqs=row["max_num_seqs"],
            max_num_batched_tokens=row["max_num_batched_tokens"],
            **ASKED.get(row["row"], {}),
        )
        printed = OTHER_RANK.get(row["row"], row["max_concurrency"])
        low, high = (
            fit(model, replace(asked, kv_memory_bytes=gib(row["available_kv_gib"] + change))).concurrency
            for change in (-0.005, 0.005)
        )
        compared += 1
        if not float(low) - 0.0051 <= printed <= float(high) + 0.0051:
            differ.add(row["row"])
    assert compared >= 35
    assert differ <= set(OTHER_POOL)


def test_weights_of_16_bit_models_are_what_was_loaded(shared_data: Path) -> None:
    """Text models without quantisation and adapters: within 1 % of the printed load.

    Above the parameters a load counts rotary tables, and 2 MiB blocks of the allocator where matrices do not fill them.
    """
    errors = {}
    for row, model in rows_with_model(shared_data):
        if row["quantization"] or row["lora"] or model.weights.quantization or model.shape.has_vision:
            continue
        if row["model_load_gib"] and row["row"] not in ON_ROCM:
            counted = rank_weights(model, tensor_parallel=row["tp"] or 1, pipeline_parallel=row["pp"] or 1).bytes
            errors[row["row"]] = counted / gib(row["model_load_gib"]) - 1
    outside = {name for name, error in errors.items() if abs(error) > 0.01}
    assert len(errors) >= 15
    assert not outside, {name: errors[name] for name in outside}
