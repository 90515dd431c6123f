"""How much fits: the longest window, concurrency at the window, and worst-case reservations by shape of request."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from kvplan.engines import engine_plan
from kvplan.engines.base import CacheLayout, Deployment, EnginePlan, Finding, Settings
from kvplan.engines.ranks import rank_stages, sequence_bytes
from kvplan.errors import InputError
from kvplan.layers import KvTypes
from kvplan.model import ModelSpec

FITS, DOES_NOT_FIT, CANNOT_TELL = "fits", "does_not_fit", "cannot_tell"


@dataclass(frozen=True, kw_only=True)
class RequestShape:
    """A prompt and an output cap; without a cap a request may run to the end of the window."""

    name: str
    prompt_tokens: int
    max_output_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What one request of a shape is charged at its worst case, and how many of them the pool holds.

    ``reserved_bytes`` = ``blocks`` × bytes of a block, on one rank; ``logical_bytes`` is what the layers store of
    ``reserved_tokens`` tokens before pages. ``sequences`` = floor((blocks of the pool − 1) × fraction / blocks).
    """

    name: str
    prompt_tokens: int
    max_output_tokens: int | None
    reserved_tokens: int
    reserved_bytes: int
    logical_bytes: int
    blocks: int
    sequences: int


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A model on a deployment: the engine's plan, and what it can carry.

    ``longest_window_tokens`` is by memory, not above the model's own window, 0 if not even one token fits.
    ``concurrency`` = blocks / charge of a full window, of one replica; the reserved block is not subtracted.
    """

    model: ModelSpec
    deployment: Deployment
    plan: EnginePlan
    max_model_len: int
    longest_window_tokens: int
    concurrency: Fraction
    reservations: tuple[Reservation, ...]
    verdict: str
    findings: tuple[Finding, ...]
    default_max_tokens: int | None = None

    @property
    def concurrency_all_replicas(self) -> Fraction:
        """Over the data-parallel replicas of attention."""
        return self.concurrency * self.deployment.data_parallel

    @property
    def pool_tokens(self) -> int:
        """The engine's printed figure: int(concurrency × max_model_len), where a release prints no other."""
        if self.plan.tokens is not None:
            return self.plan.tokens
        return int(self.concurrency * self.max_model_len)

    @property
    def serves_window(self) -> bool:
        """Whether the pool holds one request of the whole window, which is all that vLLM asks of it before it captures
        graphs; ``verdict`` also says whether the engine starts and keeps running."""
        usable = usable_blocks(self.plan.layout, self.plan.blocks)
        return self.plan.layout.request_blocks(self.max_model_len) <= usable

    @property
    def window_bytes(self) -> int:
        """What one request of ``max_model_len`` is charged on one rank."""
        return self.plan.layout.request_blocks(self.max_model_len) * self.plan.layout.bytes_per_block


def usable_blocks(layout: CacheLayout, blocks: int) -> int:
    """Blocks that requests may take: the engine keeps ``reserved_blocks`` of the pool for itself."""
    return max(0, blocks - layout.reserved_blocks)


def longest_window(layout: CacheLayout, blocks: int, limit: int) -> int:
    """The largest L ≤ ``limit`` whose charge is at most the usable blocks; 0 if none.

    Exact: the charge never falls with L, so the border is found by halving.
    """
    usable, fits, beyond = usable_blocks(layout, blocks), 0, limit + 1
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        if layout.request_blocks(middle) <= usable:
            fits = middle
        else:
            beyond = middle
    return fits


def logical_bytes(model: ModelSpec, deployment: Deployment, tokens: int, kv: KvTypes) -> int:
    """Bytes that a sequence of ``tokens`` tokens stores on one rank, of the stage with the most, before pages."""
    return sequence_bytes(rank_stages(model, deployment), tokens, kv, deployment.context_parallel)


def reserved_tokens(shape: RequestShape, max_model_len: int) -> int:
    """Tokens of the worst case: prompt + output cap, at most the window; the window where no cap is sent.

    Raises InputError where the prompt alone fills the window, or is not a length.
    """
    if shape.prompt_tokens < 1 or (shape.max_output_tokens is not None and shape.max_output_tokens < 1):
        raise InputError(
            f"{shape.name}: a request has at least one token of prompt and of output",
            hint="--prompt 4000 --max-tokens 1024",
            key="prompt",
        )
    if shape.prompt_tokens >= max_model_len:
        raise InputError(
            f"{shape.name}: a prompt of {shape.prompt_tokens:,} tokens leaves no room for an answer in a window of "
            f"{max_model_len:,}",
            hint="raise --max-model-len, or shorten the prompt",
            key="prompt",
        )
    if shape.max_output_tokens is None:
        return max_model_len
    return min(max_model_len, shape.prompt_tokens + shape.max_output_tokens)


def fit(
    model: ModelSpec,
    deployment: Deployment,
    shapes: Sequence[RequestShape] = (),
    safety_fraction: Fraction = Fraction(1),
    default_max_tokens: int | None = None,
) -> Fit:
    """What ``deployment`` can carry of ``model``, and how many worst-case requests of each shape.

    Verdict ``fits``: the pool has room for one request of the whole window beside the reserved block, and no finding is
    an error: the engine starts, keeps running, and admits every shape. ``cannot_tell``: an option was asked for that
    the plan is made without, unless the plan does not fit and the option can only take more. ``default_max_tokens`` is
    the output cap of shapes without one, and the engine's flags say it.
    """
    if not 0 < safety_fraction <= 1:
        raise InputError(
            f"a safety fraction of {float(safety_fraction):g} is not in (0, 1]",
            hint="0.9 promises nine tenths of the pool, 1 all of it",
            key="safety_fraction",
        )
    plan = engine_plan(model, deployment)
    layout, window = plan.layout, plan.settings.max_model_len
    charge, usable = layout.request_blocks(window), usable_blocks(layout, plan.blocks)
    longest = longest_window(layout, plan.blocks, max(model.max_context_tokens or window, window))
    capped = [
        shape if shape.max_output_tokens is not None else replace(shape, max_output_tokens=default_max_tokens)
        for shape in shapes
    ]
    reservations = tuple(_reserve(model, deployment, plan, shape, safety_fraction) for shape in capped)
    findings = (
        *plan.findings,
        *_window_findings(window, longest, charge, usable),
        *_shape_findings(reservations, usable),
        *_step_findings(reservations, plan.settings),
        *_sequence_findings(reservations, plan.settings),
    )
    return Fit(
        model=model,
        deployment=deployment,
        plan=plan,
        max_model_len=window,
        longest_window_tokens=longest,
        concurrency=Fraction(plan.blocks, charge),
        reservations=reservations,
        default_max_tokens=default_max_tokens,
        verdict=_verdict(plan, fits=not any(finding.severity == "error" for finding in findings)),
        findings=(*(each.finding for each in plan.unpriced), *findings),
    )


def _verdict(plan: EnginePlan, *, fits: bool) -> str:
    if plan.unpriced and (fits or not all(each.only_takes for each in plan.unpriced)):
        return CANNOT_TELL
    return FITS if fits else DOES_NOT_FIT


def _reserve(
    model: ModelSpec, deployment: Deployment, plan: EnginePlan, shape: RequestShape, safety_fraction: Fraction
) -> Reservation:
    """The worst case of ``shape`` in blocks, and floor(usable × fraction / blocks) of them."""
    tokens = reserved_tokens(shape, plan.settings.max_model_len)
    blocks = plan.layout.request_blocks(tokens)
    is_admitted = plan.settings.chunked_prefill or shape.prompt_tokens <= plan.settings.max_num_batched_tokens
    return Reservation(
        name=shape.name,
        prompt_tokens=shape.prompt_tokens,
        max_output_tokens=shape.max_output_tokens,
        reserved_tokens=tokens,
        reserved_bytes=blocks * plan.layout.bytes_per_block,
        logical_bytes=logical_bytes(plan.loaded or model, deployment, tokens, plan.kv_types),
        blocks=blocks,
        sequences=int(usable_blocks(plan.layout, plan.blocks) * safety_fraction / blocks) if is_admitted else 0,
    )


def _window_findings(window: int, longest: int, charge: int, usable: int) -> tuple[Finding, ...]:
    if charge <= usable:
        return ()
    return (
        Finding(
            code="window-not-servable",
            severity="error",
            message=f"max_model_len is larger than the pool: one request of {window:,} tokens takes {charge:,} blocks, "
            f"{usable:,} are usable",
            hint=f"--max-model-len {longest}, the longest that fits" if longest else "free memory, or take more GPUs",
        ),
    )


def _step_findings(reservations: Sequence[Reservation], settings: Settings) -> tuple[Finding, ...]:
    """Prompts that no step holds, where a prompt cannot be cut into several."""
    longest = settings.max_num_batched_tokens
    return tuple(
        Finding(
            code="prompt-longer-than-step",
            severity="error",
            message=f"{one.name}: a prompt of {one.prompt_tokens:,} tokens is longer than a step, and prefill is not "
            f"chunked: never admitted; the longest prompt is {longest:,}",
            hint="raise max_num_batched_tokens to the prompt length or enable chunked prefill",
        )
        for one in reservations
        if not settings.chunked_prefill and one.prompt_tokens > longest
    )


def _sequence_findings(reservations: Sequence[Reservation], settings: Settings) -> tuple[Finding, ...]:
    """That the engine lets in more sequences than fit at their worst, by the shape of which fewest do."""
    asked = [one for one in reservations if one.max_output_tokens is not None and one.sequences]
    if not asked:
        return ()
    fewest = min(asked, key=lambda one: one.sequences)
    times = settings.max_num_seqs / fewest.sequences
    if times <= 1:
        return ()
    return (
        Finding(
            code="max-num-seqs-above-worst-cases",
            severity="info",
            message=f"max_num_seqs {settings.max_num_seqs:,} is {times:.1f}x the safe concurrency: "
            f"{fewest.sequences:,} worst cases of {fewest.name} fit at once, beyond them requests are preempted",
            hint=f"--max-num-seqs {fewest.sequences}, or a limit in front",
        ),
    )


def _shape_findings(reservations: Sequence[Reservation], usable: int) -> tuple[Finding, ...]:
    findings = [
        Finding(
            code="reservation-larger-than-pool",
            severity="error",
            message=f"{one.name}: one request takes {one.blocks:,} blocks, {usable:,} are usable: never admitted",
            hint="lower its cap or its prompt; trying again does not help" if usable > 0 else "there is no pool at all",
        )
        for one in reservations
        if one.blocks > usable
    ]
    findings += [
        Finding(
            code="cap-beyond-window",
            severity="warning",
            message=f"{one.name}: prompt + cap is {one.prompt_tokens + one.max_output_tokens:,} tokens, "
            f"{one.prompt_tokens + one.max_output_tokens - one.reserved_tokens:,} beyond the window of "
            f"{one.reserved_tokens:,}: most engines refuse the request for good (400), others cut the answer there",
            hint=f"a cap of {one.reserved_tokens - one.prompt_tokens:,} at most",
        )
        for one in reservations
        if one.max_output_tokens is not None and one.prompt_tokens + one.max_output_tokens > one.reserved_tokens
    ]
    return tuple(findings)
