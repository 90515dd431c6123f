"""What vLLM 0.33.0 itself answered for models of every kind, their layers written out (``golden/pool_vllm_0_33.json``).

A row's ``keeps`` lists what unlike decoder layers keep, ``order`` which of them each layer is; ``asked`` is the
deployment; ``vllm`` the engine's own figures, groups as (layers, block, bytes of a page of the group).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.capacity import FITS, fit
from kvplan.engines.base import Deployment
from kvplan.layers import (
    CompressedKv,
    CompressedWindow,
    CompressorState,
    LightningState,
    RgLruState,
    RwkvState,
    SharedKv,
)
from tests.models import KINDS, layer_of, model_of

ROWS = json.loads((Path(__file__).parent / "golden" / "pool_vllm_0_33.json").read_text(encoding="utf-8"))["rows"]
WITHOUT_A_ROW = {LightningState.kind, RgLruState.kind, RwkvState.kind, SharedKv.kind}
"""Kinds that vLLM 0.33 has no class for (MiniMax-Text's left with 0.23), and the one that keeps nothing."""


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
        "fits": answer.verdict == FITS,
    }
    if answer.verdict == FITS:
        found |= {"concurrency": float(answer.concurrency), "tokens": answer.pool_tokens}
    else:
        found |= {"longest_window": answer.longest_window_tokens}
    assert found == row["vllm"] | {"groups": sorted(row["vllm"]["groups"])}


def test_every_kind_that_vllm_pages_has_a_row() -> None:
    seen = {kept["kind"] for row in ROWS for layer in row["keeps"] for kept in layer}
    assert seen >= {CompressedKv.kind, CompressedWindow.kind, CompressorState.kind}
    assert set(KINDS) - seen <= WITHOUT_A_ROW
