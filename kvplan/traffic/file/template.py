"""The commented traffic file of ``kvplan init``, which runs unchanged, filled in for a model, a GPU and an engine."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kvplan.capacity import FITS, fit
from kvplan.engines import parse_engine
from kvplan.engines.deployment import Deployment
from kvplan.engines.options import read_options
from kvplan.errors import KvplanError
from kvplan.model import ModelSpec
from kvplan.profiles.loader import load_gpu
from kvplan.sources import read_model

_TENSOR_PARALLEL = (1, 2, 4, 8, 16)
_PLAIN = re.compile(r"[\w./][\w./@+~-]*")
"""Text that needs no quotes in YAML."""

TEMPLATE = """\
# A kvplan traffic file. It runs as it stands: kvplan simulate FILE, check FILE.
# Every key and its unit:  kvplan explain traffic

model: meta-llama/Llama-3.1-8B-Instruct   # or a folder, or a .gguf file

deployment:
  gpu: h100                  # kvplan list gpus
  tensor_parallel: 1
  replicas: 1                # engines behind a router
  engine: vllm               # or vllm@0.20
  max_model_len: 32768       # prompt + answer; shorter makes room for more
  max_num_seqs: 256
  max_num_batched_tokens: 8192
  # kv_pool: {blocks: 26569, block_tokens: 16}   # measured, as a log says
  # service:                   # a step's time, measured
  #   base_s: 0.008
  #   prefill_token_s: 2.5e-5
  #   decode_sequence_s: 4.0e-5
  #   kv_token_s: 4.0e-8

admission:
  policy: worst_case_default_cap   # what kvplan check judges
  safety_fraction: 0.95            # share of the pool that may be promised
  default_max_tokens: 1024         # given to requests that come without one
  retry_after: {estimate: drain, jitter: 0.25}

traffic:
  duration: 10m
  seed: 7
  classes:
    - name: chat
      rate: 4/s
      arrivals: poisson            # or {gamma: {cv: 2.5}}, {diurnal: …}
      prompt_tokens: {lognormal: {p50: 1020, p95: 4083}}
      output_tokens: {lognormal: {p50: 129, p95: 451}}
      # No trace records what clients ask for; most SDKs send nothing.
      max_tokens:
        choices: [{unset: true, share: 0.55}, {value: 4096, share: 0.45}]
      # n: 4                       # answers that each request asks for
      client: openai-python        # kvplan list clients: how it retries
      timeout: 600s
    # - name: replay
    #   trace: azure_conv.csv      # Azure, BurstGPT, Mooncake, Bailian, plain
    #   max_tokens: {value: 1024}

reservation_quantile: 0.95         # the prompt that prices a worst case

limits:                            # kvplan check: exit 0 when all hold, else 1
  refused_share: {max: 0.05}
  truncated_share: {max: 0.02}
  preemptions: {max: 0}
  ttft_p99_s: {max: 10}
  worst_case_reservations: {class: chat, min: 10}
"""


def template_for(
    model: str | None,
    gpu: str | None,
    engine: str | None,
    *,
    tensor_parallel: int | None = None,
    max_model_len: int | str | None = None,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
) -> str:
    """The template for a model, a GPU and an engine; where one is None, the template's own stays.

    Unless they are given, the number of GPUs is raised or the window shortened until the plan fits. An engine other
    than vLLM keeps its own batch limits.
    """
    sizes = read_options({"tensor_parallel": tensor_parallel, "max_model_len": max_model_len})
    ranks, given_window = sizes.get("tensor_parallel"), sizes.get("max_model_len")
    wanted = {"model": model, "gpu": gpu, "engine": engine}
    given = {key: value for key, value in wanted.items() if value is not None}
    if not given and not sizes:
        return TEMPLATE
    said = {key: given.get(key, _value(key)) for key in wanted}
    window = given_window or int(_value("max_model_len"))
    asked = Deployment(
        engine=parse_engine(said["engine"]),
        gpu=load_gpu(said["gpu"], extra_folder=profiles_folder),
        tensor_parallel=ranks or 1,
        max_model_len=window,
        max_num_seqs=int(_value("max_num_seqs")),
        max_num_batched_tokens=int(_value("max_num_batched_tokens")),
    )
    text = TEMPLATE
    if asked.engine.name != "vllm":
        asked = replace(asked, max_num_seqs=None, max_num_batched_tokens=None)
        text = re.sub(r"^  (max_num_\w+: \d+)$", r"  # \1", text, flags=re.MULTILINE)
    spec = read_model(said["model"], offline=offline, profiles_folder=profiles_folder)
    if given_window is None and spec.max_context_tokens is not None and spec.max_context_tokens < window:
        asked = replace(asked, max_model_len=spec.max_context_tokens)
    planned = _carried(spec, asked, (ranks,) if ranks else _TENSOR_PARALLEL, keeps_window=given_window is not None)
    found = {name: str(getattr(planned, name)) for name in ("max_model_len", "tensor_parallel")}
    plain = {key: value if _PLAIN.fullmatch(value) else json.dumps(value) for key, value in given.items()}
    return _filled(text, plain | found)


def _carried(model: ModelSpec, asked: Deployment, choices: Sequence[int], *, keeps_window: bool) -> Deployment:
    """``asked`` with the fewest GPUs of ``choices`` that fit, or with at least half of its window; else unchanged."""
    for ranks in choices:
        try:
            found = fit(model, replace(asked, tensor_parallel=ranks))
        except KvplanError:  # this model cannot be split over so many ranks; other errors the file's first run reports
            continue
        if found.verdict == FITS:
            return found.deployment
        if not keeps_window and found.longest_window_tokens * 2 >= found.max_model_len:
            return replace(found.deployment, max_model_len=found.longest_window_tokens)
    return asked


def _value(key: str) -> str:
    """The value of ``key`` in the template."""
    found = re.search(rf"^ *{key}: (\S+)", TEMPLATE, re.MULTILINE)
    assert found is not None, key
    return found[1]


def _filled(text: str, values: Mapping[str, str]) -> str:
    r"""``text`` with ``values`` filled in; comments stay in their column where there is room.

    >>> _filled("gpu: h100   # one of many\n", {"gpu": "l4"})
    'gpu: l4     # one of many\n'
    """
    for key, value in values.items():
        found = re.search(rf"^ *{key}: (\S+ *)(?=#|$)", text, re.MULTILINE)
        assert found is not None, key
        room = len(found[1]) - 1 if found[1].endswith(" ") else 0
        text = text[: found.start(1)] + (f"{value:{room}} " if room else value) + text[found.end(1) :]
    return text
