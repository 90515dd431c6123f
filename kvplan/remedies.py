"""The smallest single changes that make a plan fit."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvplan.capacity import DOES_NOT_FIT, FITS, Fit, fit
from kvplan.engines.deployment import Deployment
from kvplan.engines.memory_share import TOO_LITTLE_FREE, most_at_start
from kvplan.errors import KvplanError
from kvplan.model import ModelSpec

MAX_GPUS = 64
"""Eight nodes; beyond that another GPU is the better change."""
_TENSOR_PARALLEL = (1, 2, 4, 8, 16)
"""Ranks that divide the heads of most models."""
_PIPELINE_PARALLEL = (1, 2, 3, 4, 6, 8)
_GPUS_OF_A_NODE = 8
_FEW_SEQUENCES, _SHORT_STEP_TOKENS = 256, 2048
"""vLLM's own defaults on small GPUs."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change (the flag to add) and the plan under it."""

    change: str
    fit: Fit


def smallest_changes(failed: Fit) -> tuple[Remedy, ...]:
    """At most one change of each kind that makes ``failed`` fit.

    Tried in this order: a shorter window (the longest that fits, if that is at least a sixteenth of the one asked for);
    a share of memory that is free when the engine starts; KV in fp8; fewer sequences (as many as blocks, or 256); steps
    of 2,048 tokens; more GPUs (at most ``MAX_GPUS``; tensor parallelism within a node, pipeline stages over several
    where that takes no more). Changes that the model or the engine refuses are left out.
    """
    if failed.verdict != DOES_NOT_FIT:
        return ()
    tried = (_try(failed.model, replace(failed.deployment, **fields), flags) for fields, flags in _changes(failed))
    return tuple(remedy for remedy in (*tried, _more_gpus(failed)) if remedy is not None)


def _changes(failed: Fit) -> Iterator[tuple[dict[str, Any], str]]:
    """Fields of the deployment to change, and the flags that ask for it."""
    plan, longest = failed.plan, failed.longest_window_tokens
    if longest * 16 >= failed.max_model_len:
        yield {"max_model_len": longest}, f"--max-model-len {longest}"
    if plan.budget is not None and any(finding.code == TOO_LITTLE_FREE for finding in failed.findings):
        share = most_at_start(plan.budget.total_bytes, failed.deployment)
        yield {"memory_utilization": share}, f"--gpu-memory-utilization {float(share):g}"
    if failed.deployment.kv_dtype == "auto" and plan.kv_bytes > 0:
        yield {"kv_dtype": "fp8"}, "--kv-dtype fp8"
    fewer = plan.blocks or _FEW_SEQUENCES
    if fewer < plan.settings.max_num_seqs:
        yield {"max_num_seqs": fewer}, f"--max-num-seqs {fewer}"
    if plan.budget is not None and plan.settings.max_num_batched_tokens > _SHORT_STEP_TOKENS:
        is_whole = plan.settings.max_num_batched_tokens >= plan.settings.max_model_len
        flags = f"{'--chunked-prefill ' if is_whole else ''}--max-num-batched-tokens {_SHORT_STEP_TOKENS}"
        yield {"max_num_batched_tokens": _SHORT_STEP_TOKENS, "chunked_prefill": True}, flags


def _more_gpus(failed: Fit) -> Remedy | None:
    """The fewest GPUs of this kind on which the plan fits; None where ``MAX_GPUS`` are not enough."""
    deployment = failed.deployment
    if deployment.pipeline_layers is not None:
        return None
    splits = [
        (tensor, pipeline)
        for tensor in _TENSOR_PARALLEL
        for pipeline in _PIPELINE_PARALLEL
        if deployment.tensor_parallel * deployment.pipeline_parallel < tensor * pipeline <= MAX_GPUS
    ]
    for tensor, pipeline in sorted(
        splits, key=lambda split: (split[0] * split[1], split[0] > _GPUS_OF_A_NODE, split[1])
    ):
        stages = f" --pp {pipeline}" if pipeline > 1 or deployment.pipeline_parallel > 1 else ""
        asked = replace(deployment, tensor_parallel=tensor, pipeline_parallel=pipeline)
        found = _try(failed.model, asked, f"--tp {tensor}{stages}")
        if found is not None:
            return found
    return None


def _try(model: ModelSpec, deployment: Deployment, change: str) -> Remedy | None:
    try:
        changed = fit(model, deployment)
    except KvplanError:
        return None
    return Remedy(change=change, fit=changed) if changed.verdict == FITS else None
