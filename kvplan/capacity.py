"""How much fits: the longest window, concurrency at the full window, and worst-case reservations per request shape."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from kvplan.engines import engine_plan
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import CacheLayout, EnginePlan, Finding
from kvplan.engines.ranks import sequence_bytes
from kvplan.errors import InputError
from kvplan.model import ModelSpec

FITS, DOES_NOT_FIT, CANNOT_TELL = "fits", "does_not_fit", "cannot_tell"


@dataclass(frozen=True, kw_only=True)
class RequestShape:
    """A prompt and an output cap; without a cap, a request may run to the end of the window."""

    name: str
    prompt_tokens: int
    max_output_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """What one request of a shape is charged in its worst case, and how many of them the pool holds.

    ``reserved_bytes`` = ``blocks`` × bytes of a block, on one rank; ``logical_bytes`` is what the layers store of
    ``reserved_tokens`` tokens before paging. ``sequences`` = floor((blocks of the pool − 1) × fraction / blocks), and
    ``fewest_sequences`` is the same for the smallest pool that the budget's error band allows.
    """

    name: str
    prompt_tokens: int
    max_output_tokens: int | None
    reserved_tokens: int
    reserved_bytes: int
    logical_bytes: int
    blocks: int
    sequences: int
    fewest_sequences: int


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A model on a deployment: the engine's plan, and what fits in it.

    ``longest_window_tokens`` is limited by memory and by the model's own window; 0 if not even one token fits.
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
        """The size that the engine prints: int(concurrency × max_model_len), unless the release prints another."""
        if self.plan.tokens is not None:
            return self.plan.tokens
        return int(self.concurrency * self.max_model_len)

    @property
    def serves_window(self) -> bool:
        """Whether the pool holds one request of the whole window, which is all that vLLM checks before it captures
        graphs; ``verdict`` also says whether the engine starts and keeps running."""
        usable = usable_blocks(self.plan.layout, self.plan.blocks)
        return self.plan.layout.request_blocks(self.max_model_len) <= usable


def usable_blocks(layout: CacheLayout, blocks: int) -> int:
    """Blocks that requests may take; the engine keeps ``reserved_blocks`` of the pool."""
    return max(0, blocks - layout.reserved_blocks)


def longest_window(layout: CacheLayout, blocks: int, limit: int) -> int:
    """The largest L ≤ ``limit`` whose charge is at most the usable blocks; 0 if none.

    Exact, by bisection: the charge never falls as L grows.
    """
    usable, fits, beyond = usable_blocks(layout, blocks), 0, limit + 1
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        if layout.request_blocks(middle) <= usable:
            fits = middle
        else:
            beyond = middle
    return fits


def reserved_tokens(shape: RequestShape, max_model_len: int) -> int:
    """Tokens of the worst case: prompt + output cap, at most the window; the window where there is no cap.

    Raises InputError where the prompt alone fills the window, and for lengths below 1.
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
    """The plan of ``model`` on ``deployment``, and how many worst-case requests of each shape fit.

    Verdict ``fits``: the pool has room for one request of the whole window beside the reserved blocks, and no finding
    is an error: the engine starts, keeps running, and admits every shape. ``cannot_tell``: the plan does not price an
    option that was asked for, unless it does not fit anyway and the option can only take more. ``default_max_tokens``
    is the output cap of shapes without one, and goes into the engine's flags.
    """
    if not 0 < safety_fraction <= 1:
        raise InputError(
            f"a safety fraction of {float(safety_fraction):g} is not in (0, 1]",
            hint="0.9 promises nine tenths of the pool, 1 all of it",
            key="safety_fraction",
        )
    plan = engine_plan(model, deployment)
    layout, window = plan.layout, plan.settings.max_model_len
    longest = longest_window(layout, plan.blocks, max(model.max_context_tokens or window, window))
    capped = (
        shape if shape.max_output_tokens is not None else replace(shape, max_output_tokens=default_max_tokens)
        for shape in shapes
    )
    reservations = tuple(_reserve(model, deployment, plan, shape, safety_fraction) for shape in capped)
    findings = (*plan.findings, *_window_findings(plan, longest), *_reservation_findings(plan, reservations))
    return Fit(
        model=model,
        deployment=deployment,
        plan=plan,
        max_model_len=window,
        longest_window_tokens=longest,
        concurrency=Fraction(plan.blocks, layout.request_blocks(window)),
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
    """The worst case of ``shape`` in blocks, and how many fit."""
    tokens = reserved_tokens(shape, plan.settings.max_model_len)
    blocks = plan.layout.request_blocks(tokens)
    is_admitted = plan.settings.chunked_prefill or shape.prompt_tokens <= plan.settings.max_num_batched_tokens
    share = safety_fraction / blocks if is_admitted else Fraction(0)
    return Reservation(
        name=shape.name,
        prompt_tokens=shape.prompt_tokens,
        max_output_tokens=shape.max_output_tokens,
        reserved_tokens=tokens,
        reserved_bytes=blocks * plan.layout.bytes_per_block,
        logical_bytes=sequence_bytes(plan.loaded or model, deployment, tokens, plan.kv_types),
        blocks=blocks,
        sequences=int(usable_blocks(plan.layout, plan.blocks) * share),
        fewest_sequences=int(usable_blocks(plan.layout, _fewest_blocks(plan)) * share),
    )


def _fewest_blocks(plan: EnginePlan) -> int:
    """Blocks of the smallest pool that the budget's error band allows; the planned ones where the pool is as asked."""
    budget = plan.budget
    if budget is None or budget.kv_bytes != plan.kv_bytes or plan.kv_bytes <= 0:
        return plan.blocks
    return plan.blocks * max(0, budget.kv_bytes_low) // plan.kv_bytes


def _window_findings(plan: EnginePlan, longest: int) -> Iterator[Finding]:
    """Whether the pool holds one request of the whole window."""
    window, usable = plan.settings.max_model_len, usable_blocks(plan.layout, plan.blocks)
    charge = plan.layout.request_blocks(window)
    if charge > usable:
        yield Finding(
            code="window-not-servable",
            severity="error",
            message=f"max_model_len is larger than the pool: one request of {window:,} tokens takes {charge:,} blocks, "
            f"{usable:,} are usable",
            hint=f"--max-model-len {longest}, the longest that fits" if longest else "free memory, or take more GPUs",
        )


def _reservation_findings(plan: EnginePlan, reservations: Sequence[Reservation]) -> Iterator[Finding]:
    """Requests that the engine never admits or cuts short, and more sequences than fit at their worst."""
    usable, settings = usable_blocks(plan.layout, plan.blocks), plan.settings
    for one in reservations:
        if one.blocks > usable:
            yield Finding(
                code="reservation-larger-than-pool",
                severity="error",
                message=f"{one.name}: one request takes {one.blocks:,} blocks, {usable:,} are usable: never admitted",
                hint="lower its cap or its prompt; trying again does not help"
                if usable > 0
                else "there is no pool at all",
            )
    for one in reservations:
        beyond = one.prompt_tokens + (one.max_output_tokens or 0) - one.reserved_tokens
        if one.max_output_tokens is not None and beyond > 0:
            yield Finding(
                code="cap-beyond-window",
                severity="warning",
                message=f"{one.name}: prompt + cap is {one.reserved_tokens + beyond:,} tokens, {beyond:,} beyond the "
                f"window of {one.reserved_tokens:,}: most engines refuse the request for good (400), others cut the "
                "answer there",
                hint=f"a cap of {one.reserved_tokens - one.prompt_tokens:,} at most",
            )
    for one in reservations:
        if not settings.chunked_prefill and one.prompt_tokens > settings.max_num_batched_tokens:
            yield Finding(
                code="prompt-longer-than-step",
                severity="error",
                message=f"{one.name}: a prompt of {one.prompt_tokens:,} tokens is longer than a step, and prefill is "
                f"not chunked: never admitted; the longest prompt is {settings.max_num_batched_tokens:,}",
                hint="raise max_num_batched_tokens to the prompt length or enable chunked prefill",
            )
    capped = [one for one in reservations if one.max_output_tokens is not None and one.sequences]
    fewest = min(capped, key=lambda one: one.sequences, default=None)
    if fewest is not None and settings.max_num_seqs > fewest.sequences:
        times = settings.max_num_seqs / fewest.sequences
        yield Finding(
            code="max-num-seqs-above-worst-cases",
            severity="info",
            message=f"max_num_seqs {settings.max_num_seqs:,} is {times:.1f}x the safe concurrency: "
            f"{fewest.sequences:,} worst cases of {fewest.name} fit at once; with more, requests are preempted",
            hint=f"--max-num-seqs {fewest.sequences}, or a limit on requests in front of the engine",
        )
