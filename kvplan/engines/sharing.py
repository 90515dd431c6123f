"""A GPU that others use too: what is free when an engine starts, and which part of it the engine takes."""

from collections.abc import Iterator
from fractions import Fraction

from kvplan.engines.base import Budget, BudgetTerm, Deployment, Finding
from kvplan.engines.devices import device_bytes
from kvplan.engines.forms import MemoryPart
from kvplan.errors import InputError
from kvplan.units import GIB, format_bytes

LEAST_CONTEXT_BYTES = GIB // 10
"""The least that CUDA's context of a process takes before the engine looks at what is free: 0.1 GiB on a T4."""
TOO_LITTLE_FREE = "free-memory-below-request"
_OTHERS = "other_processes"
_ONE_BY_ONE = "start one after the other; some versions count the other process's memory and need a cumulative fraction"


def utilization_of_total(deployment: Deployment) -> Fraction | None:
    """The part asked for as a share of the whole device, which is what vLLM and TGI take; None where none was asked.

    Of 100 GiB of which others hold 20: ``0.5free`` is 0.4, and 30 GiB are 0.3.
    """
    asked = deployment.memory_utilization
    if not isinstance(asked, MemoryPart):
        return asked
    total = device_bytes(deployment)
    if asked.free_share is not None:
        return asked.free_share * Fraction(_free(total, deployment), total)
    assert asked.limit_bytes is not None
    if asked.limit_bytes > total:
        raise InputError(
            f"the engine may use {format_bytes(asked.limit_bytes)}, and the device has {format_bytes(total)}",
            hint="leave it out, or name a larger GPU",
            key="gpu_memory_utilization",
        )
    return Fraction(asked.limit_bytes, total)


def utilization_of_free(deployment: Deployment, engine: str) -> Fraction | None:
    """The part asked for as a share of what is free, which is what SGLang and TensorRT-LLM take; bytes are refused."""
    asked = deployment.memory_utilization
    if not isinstance(asked, MemoryPart):
        return asked
    if asked.free_share is None:
        raise InputError(
            f"{engine} takes a share of what is free, not an amount",
            hint=f"say the KV pool itself: --kv-memory {(asked.limit_bytes or 0) / GIB:g}GiB",
            key="gpu_memory_utilization",
        )
    return asked.free_share


def _free(total_bytes: int, deployment: Deployment) -> int:
    return max(0, total_bytes - deployment.other_processes_bytes)


def others_term(deployment: Deployment, *, inside_fraction: bool = True) -> tuple[BudgetTerm, ...]:
    """What others hold, as a line of a rank's budget; none where nobody does."""
    held = deployment.other_processes_bytes
    term = BudgetTerm(name=_OTHERS, bytes=held, formula="held by others on this GPU", inside_fraction=inside_fraction)
    return (term,) if held else ()


def sharing_findings(deployment: Deployment, budget: Budget) -> Iterator[Finding]:
    """What to know of a GPU that others use too. Source: vLLM issue 14376, two servers on one L40S."""
    held, total = deployment.other_processes_bytes, budget.total_bytes
    if held:
        share, others = budget.requested_bytes / total, held / total
        of_all = all(term.name != _OTHERS or not term.inside_fraction for term in budget.terms)
        yield Finding(
            code="gpu-is-shared",
            severity="info",
            message=f"others hold {others:.3g} of the GPU, and this engine asks for "
            + (f"{share:.3g} of it: {share + others:.3g} together, at most 1" if of_all else "a share of what is left"),
            hint=_ONE_BY_ONE,
        )
    elif deployment.engine.name == "vllm" and deployment.memory_utilization and 0 < budget.requested_bytes * 2 <= total:
        yield Finding(
            code="gpu-may-be-shared",
            severity="info",
            message=f"{budget.requested_bytes / total:.3g} of the GPU is asked for: its memory holds "
            f"{total // budget.requested_bytes} such servers",
            hint=_ONE_BY_ONE,
        )


def most_at_start(total_bytes: int, deployment: Deployment) -> Fraction:
    """The largest share, of four digits, with which vLLM starts."""
    return Fraction(_free_at_start(total_bytes, deployment) * 10_000 // total_bytes, 10_000)


def _free_at_start(total_bytes: int, deployment: Deployment) -> int:
    return min(_free(total_bytes, deployment), total_bytes - LEAST_CONTEXT_BYTES)


def start_findings(deployment: Deployment, budget: Budget) -> Iterator[Finding]:
    """Whether what vLLM asks for is free when it starts: requested ≤ total − what others hold − its own context.

    0.87 of 121.69 GiB are 105.87; where 102.2 are free it does not start, and may ask for 0.8398 at most. Source: vLLM
    0.33, ``request_memory``; since 0.9.1.
    """
    total, free = budget.total_bytes, _free_at_start(budget.total_bytes, deployment)
    if budget.requested_bytes > free:
        yield Finding(
            code=TOO_LITTLE_FREE,
            severity="error",
            message=f"vLLM refuses to start: {_gib(budget.requested_bytes)} of {_gib(total)} are asked for, at most "
            f"{_gib(free)} are free",
            hint=f"--gpu-memory-utilization {float(most_at_start(total, deployment)):g} at most, "
            "or end what holds the memory",
        )
    elif deployment.gpu is not None and deployment.gpu.unified_memory and not deployment.other_processes_bytes:
        yield Finding(
            code="unified-memory-must-be-free",
            severity="warning",
            message=f"the system uses this memory too, and vLLM starts only where {_gib(budget.requested_bytes)} of "
            f"{_gib(total)} are free",
            hint="say what is taken: --other-processes 20GiB (free -g, before it starts)",
        )


def _gib(amount: int) -> str:
    """With the digits of a log."""
    return f"{amount / GIB:.2f} GiB"
