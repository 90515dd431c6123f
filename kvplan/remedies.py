"""When a plan does not fit: the smallest single changes under which it would."""

from dataclasses import dataclass, replace

from kvplan.capacity import DOES_NOT_FIT, FITS, Fit, fit
from kvplan.engines.base import Deployment
from kvplan.errors import KvplanError
from kvplan.model import ModelSpec

_RANKS = (2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change (the flag to add) and the plan under it."""

    change: str
    fit: Fit


def smallest_changes(failed: Fit) -> tuple[Remedy, ...]:
    """At most one change of each sort that makes ``failed`` fit, the one that keeps most first.

    Tried: a shorter window (the longest that memory allows, where that is at least a sixteenth of the one asked for),
    KV in fp8, more tensor-parallel ranks. A change that the model or the engine refuses is none.
    """
    if failed.verdict != DOES_NOT_FIT:
        return ()
    deployment, found = failed.deployment, []
    longest = failed.longest_window_tokens
    if longest * 16 >= failed.max_model_len:
        found.append(_try(failed.model, replace(deployment, max_model_len=longest), f"--max-model-len {longest}"))
    if deployment.kv_dtype == "auto" and failed.plan.kv_bytes > 0:
        found.append(_try(failed.model, replace(deployment, kv_dtype="fp8"), "--kv-dtype fp8"))
    for ranks in _RANKS:
        if ranks > deployment.tensor_parallel:
            more = _try(failed.model, replace(deployment, tensor_parallel=ranks), f"--tp {ranks}")
            if more is not None:
                found.append(more)
                break
    return tuple(remedy for remedy in found if remedy is not None)


def _try(model: ModelSpec, deployment: Deployment, change: str) -> Remedy | None:
    try:
        changed = fit(model, deployment)
    except KvplanError:
        return None
    return Remedy(change=change, fit=changed) if changed.verdict == FITS else None
