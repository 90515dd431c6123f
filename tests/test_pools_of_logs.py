"""The requests of a whole window that public start-up logs print, from the KV memory that they print beside it."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest

from kvplan.capacity import fit
from kvplan.engines.deployment import Deployment, EngineVersion
from kvplan.hf_config import read_config
from kvplan.model import ModelSpec, Source
from kvplan.sources import read_model
from kvplan.units import GIB

GATED_DELTA_92: dict[str, Any] = {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "dtype": "bfloat16",
    "num_hidden_layers": 92,
    "full_attention_interval": 4,
    "hidden_size": 6144,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 128,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "bfloat16",
    "max_position_embeddings": 262144,
}
"""The layers of the model in NVIDIA's srt-slurm ``memory_report`` tests, whose log is of 16 data-parallel GB300."""


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What a log printed: GiB and requests to two places."""

    model: str
    release: tuple[int, ...]
    window: int
    gib: str
    requests: str
    asked: dict[str, Any]


LOGS = (
    Printed(model="Qwen/Qwen3-0.6B", release=(0, 27), window=2048, gib="2.14", requests="9.78", asked={}),
    Printed(model="google/gemma-3-1b-it", release=(0, 13), window=2048, gib="25.39", requests="461.21", asked={}),
    Printed(model="google/gemma-3-4b-it", release=(0, 23), window=8192, gib="162.84", requests="148.63", asked={}),
    Printed(
        model="google/gemma-4-E4B-it",
        release=(0, 22, 1),
        window=32768,
        gib="4.1",
        requests="6.85",
        asked={"max_num_batched_tokens": 2048},
    ),
    Printed(
        model="Qwen/Qwen3-Next-80B-A3B-Instruct",
        release=(0, 13),
        window=32768,
        gib="17.58",
        requests="84.29",
        asked={"tensor_parallel": 2, "kv_dtype": "fp8", "max_num_seqs": 8},
    ),
    Printed(
        model="Qwen/Qwen3.5-35B-A3B",
        release=(0, 17, 1),
        window=32768,
        gib="5.69",
        requests="12.91",
        asked={"kv_dtype": "fp8", "max_num_seqs": 3, "prefix_caching": True},
    ),
    Printed(
        model="Qwen/Qwen3.5-122B-A10B",
        release=(0, 17),
        window=32768,
        gib="33.02",
        requests="25.20",
        asked={"speculative_tokens": 2, "speculative_method": "mtp"},
    ),
    Printed(
        model="92 layers",
        release=(0, 27),
        window=10240,
        gib="46.50",
        requests="38.54",
        asked={"prefix_caching": False, "max_num_seqs": 64},
    ),
)


def named(model: str) -> ModelSpec:
    if model == "92 layers":
        return read_config(GATED_DELTA_92, model_id="example/gated-delta-92", source=Source(name="its test"))
    return read_model(model, offline=True)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.model)
def test_printed_memory_gives_the_printed_requests(log: Printed) -> None:
    half = Fraction(1, 200)
    least, most = (
        fit(
            named(log.model),
            Deployment(
                engine=EngineVersion(release=log.release),
                max_model_len=log.window,
                kv_memory_bytes=int((Fraction(log.gib) + rounding) * GIB),
                **log.asked,
            ),
        ).concurrency
        for rounding in (-half, half)
    )
    assert float(least) - 0.005 <= float(log.requests) <= float(most) + 0.005
