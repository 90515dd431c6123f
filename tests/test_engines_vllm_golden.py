"""What vLLM 0.33.0 itself answered for models of every kind, their layers written out (``golden/pool_vllm_0_33.json``).

A row's ``keeps`` lists what unlike decoder layers keep, ``order`` which of them each layer is; ``asked`` is the
deployment; ``vllm`` the engine's own figures, groups as (layers, block, bytes of a page of the group).
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvplan.capacity import fit
from kvplan.engines.deployment import Deployment
from kvplan.layers import (
    CompressedKv,
    CompressedWindow,
    CompressorState,
    LightningState,
    RgLruState,
    RwkvState,
    SharedKv,
)
from kvplan.model import ModelSpec
from kvplan.units import GIB
from tests.models import KINDS, layer_of, model_of

ROWS = json.loads((Path(__file__).parent / "golden" / "pool_vllm_0_33.json").read_text(encoding="utf-8"))["rows"]
WITHOUT_A_ROW = {LightningState.kind, RgLruState.kind, RwkvState.kind, SharedKv.kind}
"""Kinds that vLLM 0.33 has no class for (MiniMax-Text's left with 0.23), that keep nothing, or that are refused."""


def label(row: dict[str, Any]) -> str:
    asked = row["asked"]
    return f"{row['model']}-tp{asked['tensor_parallel']}-{asked['kv_dtype']}-{asked['max_model_len']}"


@pytest.mark.parametrize("row", ROWS, ids=map(label, ROWS))
def test_figures_are_vllms(row: dict[str, Any]) -> None:
    layers = [[layer_of(kept) for kept in row["keeps"][int(unlike)]] for unlike in row["order"]]
    facts = dict(row["facts"])
    model = model_of(layers, window=facts.pop("window", None), **facts)
    answer = fit(model, Deployment(**row["asked"]))
    layout, plan = answer.plan.layout, answer.plan
    found: dict[str, object] = {
        "block_tokens": layout.block_tokens,
        "bytes_per_block": layout.bytes_per_block,
        "groups": sorted([group.layers, group.block_tokens, group.page_bytes] for group in layout.groups),
        "blocks": plan.blocks,
        "request_blocks": layout.request_blocks(answer.max_model_len),
        "fits": answer.serves_window,
    }
    if answer.serves_window:
        found |= {"concurrency": float(answer.concurrency), "tokens": answer.pool_tokens}
    else:
        found |= {"longest_window": answer.longest_window_tokens}
    assert found == row["vllm"] | {"groups": sorted(row["vllm"]["groups"])}


def test_every_kind_that_vllm_pages_has_a_row() -> None:
    seen = {kept["kind"] for row in ROWS for layer in row["keeps"] for kept in layer}
    assert seen >= {CompressedKv.kind, CompressedWindow.kind, CompressorState.kind}
    assert set(KINDS) - seen <= WITHOUT_A_ROW


def golden_model(name: str) -> ModelSpec:
    """The model of the first row of that name."""
    row = next(row for row in ROWS if row["model"] == name)
    layers = [[layer_of(kept) for kept in row["keeps"][int(unlike)]] for unlike in row["order"]]
    facts = dict(row["facts"])
    return model_of(layers, window=facts.pop("window", None), **facts)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", [40960, 59578, 81920]),
        ("google/gemma-3-27b-it", [65536, 81920, 109226]),
        ("openai/gpt-oss-120b", [145635, 218453, 262144]),
        ("Qwen/Qwen3.5-9B", [4551, 6068, 9102]),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", [6670, 6670, 10005]),
        ("deepseek-ai/DeepSeek-V3.2", [16859, 24888, 32665]),
        ("deepseek-ai/DeepSeek-V4-Flash", [81940, 112806, 150637]),
    ],
)
def test_the_smallest_stage_of_a_pipeline_decides(name: str, blocks: list[int]) -> None:
    """Blocks of 2, 3 and 4 stages with 40 GiB each (vLLM 0.33.0's planning over each stage's own layers)."""
    model = golden_model(name)
    word = "auto" if "V4" in name else "bfloat16"  # compressed KV has no 16-bit layout
    asked = Deployment(kv_dtype=word, kv_memory_bytes=40 * GIB)
    found = [fit(model, replace(asked, pipeline_parallel=stages)).plan.blocks for stages in (2, 3, 4)]
    assert found == blocks


def test_longer_blocks_of_packed_pages_lie_whole_pieces_apart() -> None:
    """DeepSeek-V4-Flash with blocks of 1,024: 3,962,304 B of pages, raised to 36 × 112,320 (vLLM 0.33.0: 4,043,520)."""
    plan = fit(golden_model("deepseek-ai/DeepSeek-V4-Flash"), Deployment(kv_memory_bytes=8 * GIB, block_size=1024)).plan
    assert (plan.layout.bytes_per_block, plan.blocks) == (4_043_520, 2124)
