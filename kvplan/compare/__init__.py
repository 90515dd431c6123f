"""The smallest GPU and parallelism that carries a load: every candidate planned, and played where there is traffic;
smallest first, with the reason why each of the others falls short."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from kvplan.capacity import FITS, Fit, fit
from kvplan.check.against import figures
from kvplan.check.judge import judge_limits, read
from kvplan.check.plan_and_play import measure
from kvplan.check.results import Measured
from kvplan.compare.results import Candidate, Choice, Comparison, ShapeLoad, Verdict
from kvplan.engines.deployment import Deployment, EngineVersion
from kvplan.errors import InputError, KvplanError, UnsupportedModelError
from kvplan.model import ModelSpec
from kvplan.profiles.kinds import GpuProfile
from kvplan.simulation.tasks import RunOptions
from kvplan.simulation.workers import Progress
from kvplan.sweep import sweep
from kvplan.traffic.spec import MAX_REPLICAS, Limit, PlannedDeployment, Traffic
from kvplan.units import GIB

__all__ = ["DEFAULT_LIMITS", "DEFAULT_SEEDS", "TENSOR_PARALLEL", "Comparison", "ShapeLoad", "compare"]

TENSOR_PARALLEL = (1, 2, 4, 8)
DEFAULT_SEEDS = 5
DEFAULT_LIMITS = (Limit(name="refused_share", maximum=0.01), Limit(name="gave_up_share", maximum=0.001))
"""What traffic is held to where its file has no limits of its own."""
_WINDOW_STEP_TOKENS = 1024
"""Windows are usually set in whole 1,024s."""


def compare(
    models: Sequence[ModelSpec],
    gpus: Sequence[GpuProfile],
    load: ShapeLoad | Traffic,
    *,
    tensor_parallel: Sequence[int] = TENSOR_PARALLEL,
    kv_dtypes: Sequence[str] = ("auto",),
    windows: Sequence[int] = (),
    replicas: Sequence[int] = (),
    engine: EngineVersion | None = None,
    prices_per_hour: Mapping[str, float] | None = None,
    seeds: int = DEFAULT_SEEDS,
    workers: int | None = None,
    cluster: str | None = None,
    profiles_folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Models × GPUs × parallelism × KV types × windows × replicas under one load.

    Without ``windows``: the traffic file's window, or what the shape needs. Without ``replicas``: the file's, or one.
    ``prices_per_hour`` are of one GPU, by the profile's name, and win over the profile's own.
    """
    if not models or not gpus:
        raise InputError("nothing to compare: at least one model and one GPU are needed", hint="--gpu h100 --gpu l40s")
    if max(replicas, default=1) > MAX_REPLICAS:
        raise InputError(
            f"{max(replicas):,} replicas are more than {MAX_REPLICAS:,}", hint="--replicas 1,2,4", key="replicas"
        )
    prices = {gpu.name: (prices_per_hour or {}).get(gpu.name, gpu.price_per_hour) for gpu in gpus}
    known = {name: price for name, price in prices.items() if price is not None}
    notes: tuple[str, ...] = ()
    if isinstance(load, Traffic):
        load, notes = _comparable(load)
        _check_prices(load, [name for name in prices if name not in known])
    if unused := sorted(set(prices_per_hour or {}) - prices.keys()):
        notes += (f"the price of {', '.join(unused)} is not used: no such GPU is compared",)
    asked: Sequence[int | None] = tuple(windows) or (_window(load),)
    choices = [
        Choice(
            model=model,
            gpu=gpu,
            tensor_parallel=ranks,
            kv_dtype=kv_dtype,
            max_model_len=_within(window, model),
            replicas=count,
            engine=engine or EngineVersion(),
        )
        for model, gpu, ranks, kv_dtype, window, count in product(
            models, gpus, tensor_parallel, kv_dtypes, asked, tuple(replicas) or (_replicas(load),)
        )
    ]
    answer = partial(_answer, load=load, prices_per_hour=known, seeds=seeds, profiles_folder=profiles_folder)
    found = sweep(answer, choices, workers=workers, cluster=cluster, progress=progress)
    _check_the_load(load, found)
    carriers = [one for one in found if one.carries]
    by_price = bool(carriers) and all(one.price_per_hour is not None for one in carriers)
    order = partial(_order, by_price=by_price)
    return Comparison(load=load, candidates=tuple(sorted(found, key=order)), by_price=by_price, notes=notes)


def _comparable(traffic: Traffic) -> tuple[Traffic, tuple[str, ...]]:
    """The traffic without what was measured on its own hardware, and notes that say so."""
    deployment, notes = traffic.deployment, []
    for name, words in (
        ("kv_pool", "its measured pool"),
        ("service", "its measured step time"),
        ("calibration", "its calibration"),
        ("gpu_memory_bytes", "its driver's figure of memory"),
    ):
        if getattr(deployment, name) is not None:
            notes.append(f"{words} is of the file's own hardware and is not used for other GPUs")
    deployment = replace(deployment, kv_pool=None, service=None, calibration=None, gpu_memory_bytes=None)
    if not traffic.limits:
        notes.append("the file has no limits: held to refused ≤ 1% and gave up ≤ 0.1%")
    return replace(traffic, deployment=deployment, limits=traffic.limits or DEFAULT_LIMITS), tuple(notes)


def _check_prices(traffic: Traffic, unpriced: Sequence[str]) -> None:
    """InputError unless a limit on cost can judge every candidate."""
    limit = next((one for one in traffic.limits if one.name == "cost_per_hour"), None)
    if limit is not None and unpriced:
        raise InputError(
            f"limits.cost_per_hour cannot be judged: no price is known for {', '.join(unpriced)}",
            hint=" ".join(f"--price {name}=2.50" for name in unpriced),
            file=traffic.file,
            line=limit.line,
            key="limits.cost_per_hour",
        )


def _check_the_load(load: ShapeLoad | Traffic, found: Sequence[Candidate]) -> None:
    """What makes every candidate impossible is a mistake in the file, not an answer."""
    details = {one.detail for one in found if one.verdict == "impossible"}
    if isinstance(load, Traffic) and len(details) == 1 and all(one.verdict == "impossible" for one in found):
        raise InputError(
            f"no candidate can be played: {details.pop()}",
            hint=f"correct {load.file}, or name another file with --traffic",
            file=load.file,
        )


def _window(load: ShapeLoad | Traffic) -> int | None:
    """The file's window; for a shape, what it needs, in multiples of 1,024."""
    if isinstance(load, Traffic):
        return load.deployment.max_model_len
    if load.prompt_tokens is None or load.max_output_tokens is None:
        return None
    return -(-(load.prompt_tokens + load.max_output_tokens) // _WINDOW_STEP_TOKENS) * _WINDOW_STEP_TOKENS


def _within(window: int | None, model: ModelSpec) -> int | None:
    longest = model.max_context_tokens
    return window if window is None or longest is None else min(window, longest)


def _replicas(load: ShapeLoad | Traffic) -> int:
    return load.deployment.replicas if isinstance(load, Traffic) else 1


def _order(one: Candidate, *, by_price: bool) -> tuple[float | int, ...]:
    """Carriers first; then by price or memory, fewer GPUs, KV type left alone, longer window, more work.

    Memory in whole GiB: what the driver keeps for itself differs between cards of one size.
    """
    choice = one.choice
    size = one.price_per_hour if by_price and one.price_per_hour is not None else round(choice.memory_bytes / GIB)
    work = one.figures.get("sustainable_per_s") or one.sequences or 0
    return (not one.carries, size, choice.gpus, choice.kv_dtype != "auto", -(one.max_model_len or 0), -work)


def _answer(
    choice: Choice,
    *,
    load: ShapeLoad | Traffic,
    prices_per_hour: Mapping[str, float],
    seeds: int,
    profiles_folder: str | Path | None,
) -> Candidate:
    """One candidate: planned, and played where the load is traffic. A refusal is an answer too."""
    price = prices_per_hour.get(choice.gpu.name)
    try:
        if isinstance(load, Traffic):
            measured = measure(
                replace(load, deployment=_deployed(load, choice)),
                RunOptions(seeds=seeds, workers=1, profiles_folder=profiles_folder),
                model=choice.model,
                prices_per_hour=prices_per_hour,
            )
            found = _under_traffic(choice, measured)
        else:
            found = _under_shape(choice, load)
    except KvplanError as error:
        verdict: Verdict = "cannot_tell" if isinstance(error, UnsupportedModelError) else "impossible"
        found = Candidate(choice=choice, verdict=verdict, detail=error.message, max_model_len=choice.max_model_len)
    return replace(found, price_per_hour=None if price is None else price * choice.gpus)


def _deployed(traffic: Traffic, choice: Choice) -> PlannedDeployment:
    return replace(
        traffic.deployment,
        gpu_name=choice.gpu.name,
        tensor_parallel=choice.tensor_parallel,
        kv_dtype=choice.kv_dtype,
        max_model_len=choice.max_model_len,
        replicas=choice.replicas,
    )


def _under_shape(choice: Choice, load: ShapeLoad) -> Candidate:
    deployment = Deployment(
        engine=choice.engine,
        gpu=choice.gpu,
        tensor_parallel=choice.tensor_parallel,
        kv_dtype=choice.kv_dtype,
        max_model_len=choice.max_model_len,
    )
    planned = fit(choice.model, deployment, load.shapes, load.safety_fraction)
    candidate = _planned(choice, planned)
    if planned.verdict != FITS:
        return candidate
    held = [reservation.sequences for reservation in planned.reservations] or [int(planned.concurrency)]
    sequences = held[0] * choice.replicas
    enough = sequences >= load.concurrency
    detail = "" if enough else f"holds {sequences:,} of {load.concurrency:,} at once"
    return replace(candidate, verdict="carries" if enough else "too_small", detail=detail, sequences=sequences)


def _planned(choice: Choice, planned: Fit) -> Candidate:
    """The plan's figures; the verdict is ``does_not_fit`` until more is known."""
    said = [finding.message for finding in planned.findings if finding.severity == "error"]
    return Candidate(
        choice=choice,
        verdict="does_not_fit",
        detail=said[0] if said else "",
        max_model_len=planned.max_model_len,
        kv_pool_bytes=planned.plan.kv_bytes,
        longest_window_tokens=planned.longest_window_tokens,
        concurrency_at_max_model_len=float(planned.concurrency),
    )


def _under_traffic(choice: Choice, measured: Measured) -> Candidate:
    assert measured.fit is not None
    candidate = _planned(choice, measured.fit)
    if measured.trouble is not None:
        return candidate
    broken = tuple(limit for limit in judge_limits(measured) if not limit.passed)
    held = read("worst_case_reservations", measured).value
    return replace(
        candidate,
        verdict="limits_broken" if broken else "carries",
        detail="",
        figures=figures(measured),
        broken=broken,
        sequences=None if held is None else int(held),
    )
