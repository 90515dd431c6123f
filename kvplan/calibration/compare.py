"""A log's figures against the plan of the same deployment, term by term; what is left over is named, not hidden."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from kvplan.calibration.deployment import deployment_of, release_in, with_drafter_of
from kvplan.calibration.misleading import Misleading, misleading_lines
from kvplan.calibration.pool import check_model, measured_pool
from kvplan.calibration.refusals import nothing_measured, way_out
from kvplan.capacity import Fit, fit
from kvplan.engine_logs import EngineStart
from kvplan.engines.base import Budget, Deployment, Finding
from kvplan.engines.memory_share import GRAPHS_DO_NOT_FIT
from kvplan.engines.vllm.budget_constants import FIRST_GRAPHS_INSIDE
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.profiles.kinds import GpuProfile
from kvplan.units import GIB, format_bytes

UNEXPLAINED = "unexplained"
_STATE_POOL = "state_pool"
_ROUNDED_BYTES = GIB // 10
"""What figures of two digits can miss."""


@dataclass(frozen=True, kw_only=True)
class TermDifference:
    """One term: as planned, and as the log printed it (null where it did not). ``names`` are the budget's own."""

    name: str
    names: tuple[str, ...]
    planned_bytes: int
    logged_bytes: int | None

    @property
    def difference_bytes(self) -> int | None:
        """Logged − planned; above zero: the engine takes more than planned."""
        return None if self.logged_bytes is None else self.logged_bytes - self.planned_bytes


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A start compared with its plan. ``corrections`` make ``calibrated``, whose pool is the log's.

    ``kv_bytes_logged`` is the pool as the log's figures pin it down, null where it has none.
    """

    start: EngineStart
    deployment: Deployment
    planned: Fit
    terms: tuple[TermDifference, ...]
    kv_bytes_logged: int | None
    corrections: tuple[tuple[str, int], ...]
    calibrated: Fit
    misleading: tuple[Misleading, ...]
    findings: tuple[Finding, ...]

    @property
    def culprit(self) -> TermDifference | None:
        """The term that differs most, or None where none was printed."""
        known = [term for term in self.terms if term.difference_bytes]
        return max(known, key=lambda term: abs(term.difference_bytes or 0), default=None)


def calibrate(
    start: EngineStart, model: ModelSpec, gpu: GpuProfile | None = None, weight_bytes: int | None = None
) -> Calibration:
    """Compare ``start`` with what kvplan would have said of it.

    Raises InputError where the log is of another model (its pool does not agree with the model's layers), or holds no
    figure of its memory.
    """
    deployment, planned, doubts = _planned(
        start, model, with_drafter_of(start, model, deployment_of(start, gpu, weight_bytes))
    )
    pool = measured_pool(start, planned)
    budget = planned.plan.budget
    assert budget is not None
    terms = _terms(start, budget)
    if pool is None and all(term.logged_bytes is None for term in terms):
        raise nothing_measured(start)
    # llama.cpp's pool is allocated as asked: it says nothing of what is left, so of no term that was not printed
    left = None if start.engine == "llama.cpp" else pool
    inside = _corrections(terms, budget, left)
    corrections = (*inside, *_beside(start, budget))
    calibrated = fit(model, replace(deployment, corrections=corrections))
    terms = _with_rest(terms, budget, left, inside)
    return Calibration(
        start=start,
        deployment=deployment,
        planned=planned,
        terms=terms,
        kv_bytes_logged=pool,
        corrections=corrections,
        calibrated=calibrated,
        misleading=misleading_lines(start, planned),
        findings=(
            *doubts,
            *_findings(start, gpu, deployment),
            *_more_than_there_is(terms, budget),
            *(each for each in calibrated.findings if each.code == GRAPHS_DO_NOT_FIT),
        ),
    )


def _planned(
    start: EngineStart, model: ModelSpec, deployment: Deployment
) -> tuple[Deployment, Fit, tuple[Finding, ...]]:
    """The plan; where an engine does not print its KV type, of the type that its pool agrees with: TensorRT-LLM never
    does, and vLLM's "auto" is what the checkpoint says, which sizes the block of a hybrid."""
    blocks = start.block_tokens if start.engine == "vllm" and deployment.kv_dtype == "auto" else None
    is_open = blocks is not None or (start.engine == "tensorrt-llm" and start.kv_dtype is None)
    plans = [fit(model, replace(deployment, kv_dtype=word)) for word in (("auto", "fp8") if is_open else ())]
    plans = [each for each in plans if blocks in (None, each.plan.layout.block_tokens)] or [fit(model, deployment)]
    refused: InputError | None = None
    for planned in plans:
        try:
            return planned.deployment, planned, check_model(start, planned)
        except InputError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _graphs_inside(start: EngineStart) -> bool:
    seen, release = start.line_of("graphs_inside"), release_in(start.version)
    if seen is not None:
        return bool(seen.value)
    return release is None or release >= FIRST_GRAPHS_INSIDE


def _vllm_figures(start: EngineStart) -> dict[str, int | None]:
    non_torch = start.non_torch_bytes
    if non_torch is None and start.consumed_bytes is not None and start.weight_bytes is not None:
        non_torch = start.consumed_bytes - start.weight_bytes
    return {
        "weights": start.weight_bytes,
        "activation": start.activation_bytes,
        "non_torch": non_torch,
        "cuda_graphs": start.graph_estimate_bytes if _graphs_inside(start) else None,
    }


def _sglang_figures(start: EngineStart) -> dict[str, int | None]:
    loaded = start.weight_bytes
    if start.free_before_bytes is not None and start.free_after_load_bytes is not None:
        loaded = start.free_before_bytes - start.free_after_load_bytes
    return {"weights": loaded, _STATE_POOL: start.state_bytes}


def _other_figures(start: EngineStart) -> dict[str, int | None]:
    return {
        "weights": start.weight_bytes,
        "compute_buffer": start.compute_bytes,
        "recurrent_state": start.state_bytes,
    }


_FIGURES: Mapping[str, Callable[[EngineStart], dict[str, int | None]]] = {
    "vllm": _vllm_figures,
    "sglang": _sglang_figures,
    "tensorrt-llm": _other_figures,
    "llama.cpp": _other_figures,
    "tgi": _other_figures,
}
_NON_TORCH = ("non_torch", "communication", "workspace")


def _group(name: str) -> str:
    """The group of a budget's term: what a log prints as one figure; a load is printed with its drafter's."""
    if name == "speculative":
        return "weights"
    if name.startswith("activation") and name != "activations_and_graphs":
        return "activation"
    return "non_torch" if name.startswith(_NON_TORCH) else name


def _terms(start: EngineStart, budget: Budget) -> tuple[TermDifference, ...]:
    """Inside terms in the budget's order, grouped as the log prints them."""
    figures = _FIGURES[start.engine](start)
    groups: dict[str, list[str]] = {}
    for term in budget.terms:
        if term.inside_fraction:
            groups.setdefault(_group(term.name), []).append(term.name)
    planned = {term.name: term.bytes for term in budget.terms}
    return tuple(
        TermDifference(
            name=group,
            names=tuple(names),
            planned_bytes=sum(planned[name] for name in names),
            logged_bytes=figures.get(group),
        )
        for group, names in groups.items()
    )


def _corrections(terms: tuple[TermDifference, ...], budget: Budget, pool: int | None) -> tuple[tuple[str, int], ...]:
    """Each printed term's difference on its first name; the rest of the pool's difference on the terms not printed.

    ``pool`` is what was left, None where the log does not tell.
    """
    differing = [(term.names[0], term.difference_bytes) for term in terms if term.difference_bytes]
    known = sum(amount for _, amount in differing)
    # a state pool is a share of what is left, not a term before it: it follows from the rest
    found = [(name, amount) for name, amount in differing if name != _STATE_POOL]
    if pool is not None:
        rest = budget.kv_bytes - pool - known
        unseen = [
            term.names[0] for term in terms if term.logged_bytes is None and term.name not in ("weights", "left_free")
        ]
        if rest:
            found.append((unseen[0] if unseen else UNEXPLAINED, rest))
    return tuple(found)


def _beside(start: EngineStart, budget: Budget) -> tuple[tuple[str, int], ...]:
    """What graphs took beside the fraction, against what was planned there; the pool does not know of it."""
    planned = next((term for term in budget.terms if term.name == "cuda_graphs" and not term.inside_fraction), None)
    if start.engine != "vllm" or planned is None or start.graph_bytes is None or start.graph_bytes < 0:
        return ()
    return ((planned.name, start.graph_bytes - planned.bytes),)


def _with_rest(
    terms: tuple[TermDifference, ...], budget: Budget, pool: int | None, corrections: tuple[tuple[str, int], ...]
) -> tuple[TermDifference, ...]:
    """The terms, and what the log's pool says of those that it does not print, as one more."""
    known = sum(term.difference_bytes or 0 for term in terms)
    if pool is None or not corrections:
        return terms
    unseen = tuple(term for term in terms if term.logged_bytes is None)
    names = tuple(name for term in unseen for name in term.names)
    planned = sum(term.planned_bytes for term in unseen)
    rest = budget.kv_bytes - pool - known
    label = " + ".join(term.name for term in unseen) if unseen else UNEXPLAINED
    joined = TermDifference(name=label, names=names, planned_bytes=planned, logged_bytes=planned + rest)
    return (*(term for term in terms if term.logged_bytes is not None), joined)


def _more_than_there_is(terms: tuple[TermDifference, ...], budget: Budget) -> Iterator[Finding]:
    """A rest below nothing, beyond what rounding leaves: the log's figures need more memory than the plan has."""
    missing = max((-(term.logged_bytes or 0) for term in terms), default=0)
    if missing > _ROUNDED_BYTES:
        yield Finding(
            code="log-takes-more-than-there-is",
            severity="warning",
            message=f"the log's own figures are {format_bytes(missing)} more than the "
            f"{format_bytes(budget.requested_bytes)} that the plan may use: it is of a larger GPU, or of another share",
            hint="--gpu NAME, of the GPU that it ran on",
        )


def _findings(start: EngineStart, gpu: GpuProfile | None, deployment: Deployment) -> tuple[Finding, ...]:
    findings = [
        Finding(
            code=f"log-refusal-{refusal.reason.replace('_', '-')}",
            severity="error",
            message=f"line {refusal.line}: the engine refused to start: {refusal.text[:160]}",
            hint=way_out(refusal, start),
        )
        for refusal in start.refusals
    ]
    if gpu is None:
        findings.append(
            Finding(
                code="gpu-not-said",
                severity="info",
                message="the log does not name the GPU: settings that it does not print are those of an H100",
                hint="--gpu NAME",
            )
        )
    elif deployment.gpu_memory_bytes is None:
        findings.append(
            Finding(
                code="total-memory-not-in-log",
                severity="info",
                message=f"total memory is not in the log: the plan has that of the {gpu.name}, "
                f"{format_bytes(gpu.memory_bytes)}",
            )
        )
    if start.layers_on_gpu is not None and start.layers is not None and start.layers_on_gpu < start.layers:
        findings.append(
            Finding(
                code="layers-on-the-host",
                severity="warning",
                message=f"{start.layers_on_gpu} of {start.layers} layers are on the GPU: the plan has all of them "
                "there, and so more weights than the log",
                hint="--n-gpu-layers 999 loads all, where they fit",
            )
        )
    if start.has_speculation and not deployment.speculative_tokens:
        findings.append(
            Finding(
                code="speculation-in-log",
                severity="warning",
                message="the engine ran with speculative decoding: a draft's weights and KV are in its figures",
            )
        )
    return tuple(findings)
