"""A log's figures against the plan of the same deployment, term by term; whatever is left over gets a name too."""

from dataclasses import dataclass, replace

from kvplan.calibration.deployment import logged_deployment, with_drafter_of
from kvplan.calibration.findings import inferred_kv_type, log_findings, nothing_measured, overdrawn
from kvplan.calibration.misleading import Misleading, graphs_are_inside, misleading_lines
from kvplan.calibration.pool import check_model, measured_pool
from kvplan.calibration_file import PARALLELISM, CalibrationFile, file_text, settings_of
from kvplan.capacity import Fit, fit
from kvplan.engine_logs import EngineStart
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import Budget, Finding
from kvplan.engines.memory_share import GRAPHS_DO_NOT_FIT
from kvplan.engines.option_types import MemoryPart
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.profiles.kinds import GpuProfile

_STATE_POOL = "state_pool"
_NON_TORCH = ("non_torch", "communication", "workspace")
_UNEXPLAINED = "unexplained"
_HEADER = """\
# kvplan calibration: corrections from one start-up log.
# kvplan fit|simulate|check|recommend … --calibration FILE (deployment.calibration in a traffic file) reproduces
# that start; with other settings the same corrections (bytes per GPU, logged − planned) are added to the terms
# planned for them.
"""


@dataclass(frozen=True, kw_only=True)
class TermDifference:
    """One term as planned, and as the log printed it (null where it did not). ``names`` are the budget's own."""

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

    ``kv_bytes_logged`` is the pool as the log's figures determine it, null where it has none.
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
    """Compare ``start`` with what kvplan would have planned.

    Raises InputError where the log is of another model (its pool contradicts the model's layers), or has no figure of
    its memory.
    """
    deployment = with_drafter_of(start, model, logged_deployment(start, gpu, weight_bytes))
    window, native = deployment.max_model_len, model.max_context_tokens
    if start.engine != "llama.cpp" and window is not None and native is not None and window > native:
        model = replace(model, max_context_tokens=window)  # the engine served it, so its config was overridden
    planned, doubts = _plan(start, model, deployment)
    deployment, budget, pool = planned.deployment, planned.plan.budget, measured_pool(start, planned)
    assert budget is not None
    terms = _terms(start, budget)
    if pool is None and all(term.logged_bytes is None for term in terms):
        raise nothing_measured(start)
    # llama.cpp allocates its pool as asked: the pool says nothing of what is left, so of no term that was not printed
    left = None if start.engine == "llama.cpp" else pool
    inside = _corrections(terms, budget, left)
    corrections = (*inside, *_outside_correction(start, budget))
    calibrated = fit(model, replace(deployment, corrections=corrections))
    if inside and left is not None:
        terms = _with_rest(terms, budget, left)
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
            *log_findings(start, gpu, planned),
            *overdrawn([term.logged_bytes or 0 for term in terms], budget.requested_bytes),
            *(each for each in calibrated.findings if each.code == GRAPHS_DO_NOT_FIT),
        ),
    )


def calibration_text(found: Calibration, source: str) -> str:
    """The calibration file's text. ``source`` names the log."""
    asked, start = found.deployment, found.start
    assert not isinstance(asked.memory_utilization, MemoryPart)  # a log prints a share
    calibration = CalibrationFile(
        engine=asked.engine,
        model=found.planned.model.id,
        source=f"{source}, lines {start.first_line} to {start.last_line}",
        **{name: getattr(asked, name) for name in PARALLELISM},
        gpu=None if asked.gpu is None else asked.gpu.name,
        gpu_memory_bytes=asked.gpu_memory_bytes[0] if asked.gpu_memory_bytes else None,
        memory_utilization=asked.memory_utilization,
        settings=settings_of(asked),
        corrections=found.corrections,
        kv_bytes=found.kv_bytes_logged,
    )
    return file_text(calibration, _HEADER)


def _plan(start: EngineStart, model: ModelSpec, deployment: Deployment) -> tuple[Fit, tuple[Finding, ...]]:
    """The plan, with what it leaves in doubt. Where the log does not print the KV type, the plan of the type that
    agrees with its pool: TensorRT-LLM never prints one, and vLLM's "auto" is what the checkpoint says, which sizes the
    block of a hybrid."""
    blocks = start.block_tokens if start.engine == "vllm" and deployment.kv_dtype == "auto" else None
    is_open = blocks is not None or (start.engine == "tensorrt-llm" and start.kv_dtype is None)
    plans = [fit(model, replace(deployment, kv_dtype=word)) for word in (("auto", "fp8") if is_open else ())]
    plans = [each for each in plans if blocks in (None, each.plan.layout.block_tokens)] or [fit(model, deployment)]
    refused: InputError | None = None
    for planned in plans:
        try:
            return planned, (*check_model(start, planned), *inferred_kv_type(deployment, planned.deployment))
        except InputError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _logged(start: EngineStart) -> dict[str, int | None]:
    """What the log prints, by the group of the budget's terms that it is printed for."""
    is_vllm, weights, non_torch = start.engine == "vllm", start.weight_bytes, start.non_torch_bytes
    if start.engine == "sglang" and start.free_before_bytes is not None and start.free_after_load_bytes is not None:
        weights = start.free_before_bytes - start.free_after_load_bytes
    if non_torch is None and start.consumed_bytes is not None and weights is not None:
        non_torch = start.consumed_bytes - weights
    return {
        "weights": weights,
        "activation": start.activation_bytes if is_vllm else None,
        "non_torch": non_torch,
        "cuda_graphs": start.graph_estimate_bytes if is_vllm and graphs_are_inside(start) else None,
        "compute_buffer": start.compute_bytes,
        "recurrent_state": start.state_bytes,
        _STATE_POOL: start.state_bytes,
    }


def _group(name: str) -> str:
    """The group of a budget's term: terms that a log prints as one figure. A load includes its drafter's weights."""
    if name == "speculative":
        return "weights"
    if name.startswith("activation") and name != "activations_and_graphs":
        return "activation"
    return "non_torch" if name.startswith(_NON_TORCH) else name


def _terms(start: EngineStart, budget: Budget) -> tuple[TermDifference, ...]:
    """The terms inside the fraction in the budget's order, grouped as the log prints them."""
    logged = _logged(start)
    groups: dict[str, dict[str, int]] = {}
    for term in budget.terms:
        if term.inside_fraction:
            groups.setdefault(_group(term.name), {})[term.name] = term.bytes
    return tuple(
        TermDifference(
            name=group, names=tuple(planned), planned_bytes=sum(planned.values()), logged_bytes=logged.get(group)
        )
        for group, planned in groups.items()
    )


def _corrections(terms: tuple[TermDifference, ...], budget: Budget, pool: int | None) -> tuple[tuple[str, int], ...]:
    """Each printed term's difference on its first name; the rest of the pool's difference on the terms not printed.

    ``pool`` is what was left, None where the log does not tell.
    """
    differing = [(term.names[0], term.difference_bytes) for term in terms if term.difference_bytes]
    # a state pool is a share of what is left, not a term before it: it follows from the rest
    found = [(name, amount) for name, amount in differing if name != _STATE_POOL]
    rest = 0 if pool is None else _rest(terms, budget, pool)
    if rest:
        hidden = [term for term in terms if term.logged_bytes is None and term.name not in ("weights", "left_free")]
        found.append((hidden[0].names[0] if hidden else _UNEXPLAINED, rest))
    return tuple(found)


def _rest(terms: tuple[TermDifference, ...], budget: Budget, pool: int) -> int:
    """By how much the pool is smaller than planned, beyond what the printed terms explain."""
    return budget.kv_bytes - pool - sum(term.difference_bytes or 0 for term in terms)


def _outside_correction(start: EngineStart, budget: Budget) -> tuple[tuple[str, int], ...]:
    """What vLLM's graphs took outside the fraction, where they were planned there; the pool does not depend on it."""
    planned = next((term for term in budget.terms if term.name == "cuda_graphs" and not term.inside_fraction), None)
    if start.engine != "vllm" or planned is None or start.graph_bytes is None or start.graph_bytes < 0:
        return ()
    return ((planned.name, start.graph_bytes - planned.bytes),)


def _with_rest(terms: tuple[TermDifference, ...], budget: Budget, pool: int) -> tuple[TermDifference, ...]:
    """The printed terms, and one more for all that were not: what the log's pool says of them together."""
    hidden = [term for term in terms if term.logged_bytes is None]
    planned = sum(term.planned_bytes for term in hidden)
    together = TermDifference(
        name=" + ".join(term.name for term in hidden) or _UNEXPLAINED,
        names=tuple(name for term in hidden for name in term.names),
        planned_bytes=planned,
        logged_bytes=planned + _rest(terms, budget, pool),
    )
    return (*(term for term in terms if term.logged_bytes is not None), together)
