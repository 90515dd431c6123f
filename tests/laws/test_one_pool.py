"""The pool that traffic meets, and the charge that a gateway's ledger takes, are those of ``kvplan fit``."""

import pytest

from kvplan.api import deploy, fit, read_model
from kvplan.gateway.admission import gateway_plan
from kvplan.simulation.backend import build_backend
from kvplan.traffic.load import parse_traffic

MODELS = (
    "Qwen/Qwen3-8B",  # one group
    "google/gemma-3-27b-it",  # windows
    "Qwen/Qwen3-Next-80B-A3B-Instruct",  # states
    "deepseek-ai/DeepSeek-V2-Lite",  # latents
)
TRAFFIC = """\
model: {model}
deployment: {{gpu: h200, max_model_len: 8192, tensor_parallel: 2{caching}}}
traffic:
  duration: 60s
  classes:
    - {{name: a, rate: 1/s, prompt_tokens: 500, output_tokens: 100}}
"""


@pytest.mark.parametrize("caching", [None, False, True])
@pytest.mark.parametrize("model", MODELS)
def test_traffic_meets_the_pool_of_fit(model: str, caching: bool | None) -> None:
    word = "" if caching is None else f", prefix_caching: {str(caching).lower()}"
    traffic = parse_traffic(TRAFFIC.format(model=model, caching=word), file="t.yaml")
    backend = build_backend(traffic, offline=True)
    deployment = deploy("h200", max_model_len=8192, tensor_parallel=2, prefix_caching=caching)
    plan = fit(read_model(model, offline=True), deployment).plan
    assert (backend.blocks, backend.layout) == (plan.blocks, plan.layout)
    charge = gateway_plan(traffic, backend).promise.request_blocks
    assert [charge(tokens) for tokens in (1, 800, 8192)] == [
        plan.layout.request_blocks(tokens) for tokens in (1, 800, 8192)
    ]
