"""The share of a GPU's memory that an engine takes: what it is a share of, and what has to fit beside it."""

from collections.abc import Iterator
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.devices import device_bytes
from kvplan.engines.engine_plan import Budget, BudgetTerm, Finding
from kvplan.engines.option_types import MemoryPart
from kvplan.errors import InputError
from kvplan.units import GIB, format_bytes

MIN_CONTEXT_BYTES = GIB // 10
"""The least that a process's CUDA context takes before the engine looks at what is free: 0.1 GiB on a T4."""
TOO_LITTLE_FREE = "free-memory-below-request"
GRAPHS_DO_NOT_FIT = "graphs-do-not-fit"
_OTHERS = "other_processes"
_ONE_BY_ONE = "start one after the other; some versions count the other process's memory and need a cumulative fraction"


def utilization_of_total(deployment: Deployment) -> Fraction | None:
    """The part asked for as a share of the whole device, which vLLM and TGI take; None where none was asked for.

    Of 100 GiB of which others hold 20, ``0.5free`` is 0.4 and 30 GiB are 0.3.
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
            f"the engine may use {format_bytes(asked.limit_bytes)}, but the device has {format_bytes(total)}",
            hint="leave it out, or name a larger GPU",
            key="gpu_memory_utilization",
        )
    return Fraction(asked.limit_bytes, total)


def utilization_of_free(deployment: Deployment, engine: str) -> Fraction | None:
    """The part asked for as a share of what is free, which SGLang and TensorRT-LLM take; bytes are refused."""
    asked = deployment.memory_utilization
    if not isinstance(asked, MemoryPart):
        return asked
    if asked.free_share is None:
        raise InputError(
            f"{engine} takes a share of what is free, not an amount",
            hint=f"give the KV pool itself: --kv-memory {(asked.limit_bytes or 0) / GIB:g}GiB",
            key="gpu_memory_utilization",
        )
    return asked.free_share


def _free(total_bytes: int, deployment: Deployment) -> int:
    return max(0, total_bytes - deployment.other_processes_bytes)


def others_term(deployment: Deployment, *, inside_fraction: bool = True) -> tuple[BudgetTerm, ...]:
    """What other processes hold, as a budget term; none where they hold nothing."""
    held = deployment.other_processes_bytes
    term = BudgetTerm(name=_OTHERS, bytes=held, formula="held by others on this GPU", inside_fraction=inside_fraction)
    return (term,) if held else ()


def share_findings(deployment: Deployment, budget: Budget) -> Iterator[Finding]:
    """Whether the share leaves room for other processes and for graphs outside of it, on any engine.

    Sources: vLLM issue 14376 (two servers on one L40S) and 7553: 0.9 of a 4090 (24,564 MiB) and 2,464 MiB of graphs
    are 7.6 MiB more than the card.
    """
    held, total, requested = deployment.other_processes_bytes, budget.total_bytes, budget.requested_bytes
    if held:
        share, others = requested / total, held / total
        of_all = all(term.name != _OTHERS or not term.inside_fraction for term in budget.terms)
        yield Finding(
            code="gpu-is-shared",
            severity="info",
            message=f"others hold {others:.3g} of the GPU, and this engine asks for "
            + (f"{share:.3g} of it: {share + others:.3g} together, at most 1" if of_all else "a share of what is left"),
            hint=_ONE_BY_ONE,
        )
    elif deployment.engine.name == "vllm" and deployment.memory_utilization and 0 < requested * 2 <= total:
        yield Finding(
            code="gpu-may-be-shared",
            severity="info",
            message=f"{requested / total:.3g} of the GPU is asked for: its memory holds "
            f"{total // requested} such servers",
            hint=_ONE_BY_ONE,
        )
    graphs = graph_bytes(budget, inside_fraction=False)
    over = requested + graphs - total
    if graphs > 0 and over > 0:
        most = max(0.0, (total - graphs) / total)
        yield Finding(
            code=GRAPHS_DO_NOT_FIT,
            severity="warning",
            message=f"budget plus graphs exceeds the card: {format_bytes(requested)} asked for and "
            f"{format_bytes(graphs)} of graphs outside of it are {format_bytes(over)} more than {format_bytes(total)}: "
            "the server starts and runs out of memory under load",
            hint=f"--gpu-memory-utilization {int(most * 1000) / 1000:g} at most, fewer graphs, or --enforce-eager",
        )


def graph_bytes(budget: Budget, *, inside_fraction: bool) -> int:
    """CUDA graphs that count inside the share, or that lie outside of it."""
    return sum(
        term.bytes for term in budget.terms if term.name == "cuda_graphs" and term.inside_fraction == inside_fraction
    )


def most_at_start(total_bytes: int, deployment: Deployment) -> Fraction:
    """The largest share with which vLLM starts, rounded down to four digits."""
    return Fraction(_free_at_start(total_bytes, deployment) * 10_000 // total_bytes, 10_000)


def _free_at_start(total_bytes: int, deployment: Deployment) -> int:
    return min(_free(total_bytes, deployment), total_bytes - MIN_CONTEXT_BYTES)


def start_findings(deployment: Deployment, budget: Budget) -> Iterator[Finding]:
    """Whether what vLLM asks for is free when it starts: requested ≤ total − what others hold − its own context.

    0.87 of 121.69 GiB are 105.87; with 102.2 free it does not start, and may ask for 0.8398 at most. Source: vLLM 0.33,
    ``request_memory``; since 0.9.1.
    """
    total, free = budget.total_bytes, _free_at_start(budget.total_bytes, deployment)
    if budget.requested_bytes > free:
        yield Finding(
            code=TOO_LITTLE_FREE,
            severity="error",
            message=f"vLLM refuses to start: {_gib(budget.requested_bytes)} of {_gib(total)} are asked for, at most "
            f"{_gib(free)} are free",
            hint=f"--gpu-memory-utilization {float(most_at_start(total, deployment)):g} at most, "
            "or end the processes that hold the memory",
        )
    elif deployment.gpu is not None and deployment.gpu.unified_memory and not deployment.other_processes_bytes:
        yield Finding(
            code="unified-memory-must-be-free",
            severity="warning",
            message=f"the system uses this memory too, and vLLM starts only where {_gib(budget.requested_bytes)} of "
            f"{_gib(total)} are free",
            hint="say how much is taken: --other-processes 20GiB (free -g, before vLLM starts)",
        )


def _gib(amount: int) -> str:
    """With two digits, as engines log it."""
    return f"{amount / GIB:.2f} GiB"
