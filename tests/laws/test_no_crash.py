"""Whatever a config says, the answer is a plan, or an error with an exit code of its own: never a crash."""

import copy
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.capacity import fit
from kvplan.engines.deployment import Deployment, EngineVersion
from kvplan.errors import KvplanError
from kvplan.hf_config import read_config
from kvplan.model import ModelSpec, Source
from kvplan.pricing import price
from kvplan.profiles.loader import load_model_facts

MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "google/gemma-3-27b-it",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash",
    "Qwen/Qwen3.5-9B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-VL-8B-Instruct",
    "Qwen/Qwen3-32B-FP8",
    "LiquidAI/LFM2-8B-A1B",
    "openai-community/gpt2",
    "RWKV/rwkv-5-world-3b",
)
WEIRD: tuple[object, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 7, 1.5, 10**6, 10**15, 10**30, float("nan"), float("inf"), "", "x", "8", [], {},
    [None], [0],
    {"x": 1}, ["full_attention"], ["full_attention"] * 500, {"x": {"y": None}}, "fp8", ["sliding_attention", 3],
)  # fmt: skip


def _paths(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of every key in nested mappings."""
    if not isinstance(value, dict):
        return []
    found = []
    for key, inner in value.items():
        found += [(*path, key), *_paths(inner, (*path, key))]
    return found


def _put(config: dict[str, Any], path: tuple[str, ...], value: object, *, drop: bool) -> None:
    for key in path[:-1]:
        inner = config.get(key)
        if not isinstance(inner, dict):
            return
        config = inner
    if drop:
        config.pop(path[-1], None)
    else:
        config[path[-1]] = copy.deepcopy(value)


@pytest.fixture(scope="module")
def facts() -> dict[str, dict[str, Any]]:
    """The bundled configs, as plain dictionaries."""
    found = {}
    for name in MODELS:
        bundled = load_model_facts(name)
        assert bundled is not None
        found[name] = copy.deepcopy(dict(bundled.config))
    return found


def _read(config: dict[str, Any], name: str) -> tuple[ModelSpec | None, KvplanError | None]:
    try:
        return read_config(config, model_id=name, source=Source(name="test")), None
    except KvplanError as refusal:
        return None, refusal


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(MODELS),
    seed=st.integers(0, 2**32),
    changes=st.integers(1, 3),
    ranks=st.sampled_from([1, 2, 3, 8]),
    engine=st.sampled_from(["vllm", "vllm", "vllm", "sglang", "tensorrt-llm", "llama.cpp", "tgi"]),
)
def test_a_damaged_config_is_read_or_refused(
    name: str, seed: int, changes: int, ranks: int, engine: str, facts: dict[str, dict[str, Any]]
) -> None:
    draw = random.Random(seed)
    config = copy.deepcopy(facts[name])
    for _ in range(changes):
        path = draw.choice(_paths(config))
        _put(config, path, draw.choice(WEIRD), drop=draw.random() < 0.2)
    deployment = Deployment(
        engine=EngineVersion(name=engine), tensor_parallel=ranks, kv_memory_bytes=20 * 2**30, max_model_len=2048
    )
    model, refusal = _read(config, name)
    if model is None:
        assert refusal is not None
        assert refusal.hint
        assert refusal.key
        return
    try:
        price(model, deployment)
        fit(model, deployment)
        fit(model, replace(deployment, kv_memory_bytes=None, gpu_memory_bytes=(80 * 2**30,)))
    except KvplanError:
        return
