"""When a plan does not fit: the smallest single changes under which it would."""

from dataclasses import dataclass, replace

from kvplan.capacity import DOES_NOT_FIT, FITS, Fit, fit
from kvplan.engines.base import Deployment
from kvplan.engines.memory_share import TOO_LITTLE_FREE, most_at_start
from kvplan.errors import KvplanError
from kvplan.model import ModelSpec

MOST_GPUS = 64
_TENSOR_PARALLEL = (1, 2, 4, 8, 16)
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
    """At most one change of each sort that makes ``failed`` fit, the one that keeps most first.

    Tried: a shorter window (the longest that memory allows, where that is at least a sixteenth of the one asked for),
    a share of memory that is free when the engine starts, KV in fp8, fewer sequences (no more than blocks, or 256),
    steps of 2,048 tokens, more GPUs (``MOST_GPUS`` at most; within a node by tensor parallelism, over several by
    pipeline stages where that takes no more). A change that the model or the engine refuses is none.
    """
    if failed.verdict != DOES_NOT_FIT:
        return ()
    deployment, found = failed.deployment, []
    longest = failed.longest_window_tokens
    if longest * 16 >= failed.max_model_len:
        found.append(_try(failed.model, replace(deployment, max_model_len=longest), f"--max-model-len {longest}"))
    if failed.plan.budget is not None and any(finding.code == TOO_LITTLE_FREE for finding in failed.findings):
        share = most_at_start(failed.plan.budget.total_bytes, deployment)
        smaller = replace(deployment, memory_utilization=share)
        found.append(_try(failed.model, smaller, f"--gpu-memory-utilization {float(share):g}"))
    if deployment.kv_dtype == "auto" and failed.plan.kv_bytes > 0:
        found.append(_try(failed.model, replace(deployment, kv_dtype="fp8"), "--kv-dtype fp8"))
    settings = failed.plan.settings
    fewer = failed.plan.blocks or _FEW_SEQUENCES
    if fewer < settings.max_num_seqs:
        found.append(_try(failed.model, replace(deployment, max_num_seqs=fewer), f"--max-num-seqs {fewer}"))
    if failed.plan.budget is not None and settings.max_num_batched_tokens > _SHORT_STEP_TOKENS:
        short = replace(deployment, max_num_batched_tokens=_SHORT_STEP_TOKENS, chunked_prefill=True)
        is_whole = settings.max_num_batched_tokens >= settings.max_model_len
        flags = f"{'--chunked-prefill ' if is_whole else ''}--max-num-batched-tokens {_SHORT_STEP_TOKENS}"
        found.append(_try(failed.model, short, flags))
    found.append(_more_gpus(failed))
    return tuple(remedy for remedy in found if remedy is not None)


def _more_gpus(failed: Fit) -> Remedy | None:
    """The fewest GPUs of this kind that carry the plan; None where ``MOST_GPUS`` do not."""
    deployment = failed.deployment
    if deployment.pipeline_layers is not None:
        return None
    splits = [
        (tensor, pipeline)
        for tensor in _TENSOR_PARALLEL
        for pipeline in _PIPELINE_PARALLEL
        if deployment.tensor_parallel * deployment.pipeline_parallel < tensor * pipeline <= MOST_GPUS
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
