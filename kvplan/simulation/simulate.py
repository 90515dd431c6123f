"""Plays a traffic file: every strategy on every seed, over the cores, combined into one result."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

import numpy as np

from kvplan.admission import DEFAULT_STRATEGIES, STRATEGIES
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.simulation.aggregate import over_seeds
from kvplan.simulation.assumptions import describe_inputs
from kvplan.simulation.backend import Backend, build_backend
from kvplan.simulation.bounds import default_cap, reservations
from kvplan.simulation.front_door import apply_strategy, judged_strategy
from kvplan.simulation.results import ServiceBand, Simulation, Stability
from kvplan.simulation.tasks import RunOptions, Task, run_groups, tasks_of, warmup_s, watched_s
from kvplan.simulation.workers import Progress
from kvplan.traffic.arrival_processes import Evenly
from kvplan.traffic.distributions import Constant
from kvplan.traffic.sample import enough_drawings, sample
from kvplan.traffic.spec import Traffic, TrafficClass

DEFAULT_SEEDS = 10
"""With ten the 95% interval is 2.26 standard errors wide on each side, against 1.96 with many."""
MAX_SEEDS = 10_000
BAND_SEEDS = 3
"""Seeds on which the judged strategy is also played at either end of the band of the step time."""


def simulate(
    traffic: Traffic,
    *,
    model: ModelSpec | None = None,
    strategies: Sequence[str] = DEFAULT_STRATEGIES,
    seeds: int | None = None,
    seed: int | None = None,
    scale: float = 1.0,
    workers: int | None = None,
    executor: Executor | None = None,
    keep_rows: bool = False,
    compiled: bool | None = None,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Simulation:
    """What each admission strategy does with this traffic in front of this KV pool.

    All strategies meet the same requests and random numbers. Runs are made on ``seeds`` seeds from ``seed`` on (by
    default the file's); figures leave out the first tenth of each run. Where the step time is only a roofline, the
    judged strategy is also played at both ends of its band.

    ``model`` replaces the one the file names; its other keys are overridden in ``load_traffic``. ``scale`` multiplies
    the traffic, ``keep_rows`` keeps every request, and ``compiled`` forces or forbids the compiled kernel. Runs go over
    ``workers`` processes, or to an ``executor`` (see ``kvplan.sweep``). ``progress`` is called with (done, all) runs,
    ``say`` with a line of text when the result will take long.
    """
    options = RunOptions(
        seeds=seeds,
        seed=seed,
        scale=scale,
        workers=workers,
        executor=executor,
        offline=offline,
        profiles_folder=profiles_folder,
        progress=progress,
        say=say,
    )
    return run_simulation(traffic, options, model=model, strategies=strategies, keep_rows=keep_rows, compiled=compiled)


def run_simulation(
    traffic: Traffic,
    options: RunOptions,
    *,
    model: ModelSpec | None = None,
    strategies: Sequence[str] = DEFAULT_STRATEGIES,
    keep_rows: bool = False,
    compiled: bool | None = None,
) -> Simulation:
    """``simulate`` with its options as one value."""
    names = _strategy_names(strategies, traffic)
    first_seed, seeds = seed_numbers(traffic, options)
    scale, profiles_folder = options.scale, options.profiles_folder
    backend = build_backend(traffic, model=model, offline=options.offline, profiles_folder=profiles_folder)
    arrivals = sample(traffic, first_seed, scale=scale)
    if not len(arrivals):
        raise InputError("no request arrives in this run", hint="raise the rate or the duration", file=traffic.file)
    drawings = enough_drawings(traffic, arrivals, seed=first_seed, seeds=seeds, scale=scale)
    cap, cap_source = default_cap(traffic, drawings, backend)
    judged = judged_strategy(traffic).name
    banded = names.index(judged if judged in names else names[0])
    inputs = describe_inputs(
        traffic,
        backend,
        arrivals,
        names=names,
        seed=first_seed,
        seeds=seeds,
        scale=scale,
        warmup_s=warmup_s(traffic),
        default_cap=cap,
        default_cap_source=cap_source,
    )
    rows = reservations(traffic, arrivals, backend, cap)
    shared = tasks_of(traffic, backend, arrivals, scale=scale, profiles_folder=profiles_folder)
    task = partial(shared, keeps_rows=keep_rows, compiled=compiled)
    classes, requests, span_s = arrivals.classes, len(arrivals), watched_s(traffic, arrivals)
    del arrivals, drawings  # each task draws its own: a large drawing is not kept twice
    groups = []
    for name in names:
        applied = apply_strategy(STRATEGIES[name], backend, traffic.admission, traffic.deployment, cap)
        groups.append([task(applied=applied, seed=first_seed + turn, takes_samples=turn == 0) for turn in range(seeds)])
    factors = _band_factors(backend)
    groups += [[_at_another_speed(one, factor) for one in groups[banded][:BAND_SEEDS]] for factor in factors]
    done = run_groups(groups, requests=requests, options=options)
    results = [
        over_seeds(group[0].applied, runs, classes, watched_s=span_s) for group, runs in zip(groups, done, strict=True)
    ]
    found = results[banded]
    return Simulation(
        traffic=traffic,
        backend=backend,
        inputs=inputs,
        reservations=rows,
        stability=Stability(
            strategy=found.name,
            offered_per_s=float(np.mean([one.offered_per_s for one in found.seeds])),
            sustainable_per_s=found.sustainable_per_s,
            binds=done[banded][0].binds,
        ),
        strategies=tuple(results[: len(names)]),
        band=tuple(
            ServiceBand(factor=factor, result=result)
            for factor, result in zip(factors, results[len(names) :], strict=True)
        ),
        rows=tuple(run.rows for runs in zip(*done[: len(names)], strict=True) for run in runs if run.rows is not None),
    )


def _band_factors(backend: Backend) -> tuple[float, ...]:
    """How much slower and faster a step may be than assumed; empty where it was measured."""
    band = backend.service.band_share
    return (1.0 + band, 1.0 - band) if band else ()


def _at_another_speed(task: Task, factor: float) -> Task:
    service = task.backend.service
    backend = replace(task.backend, service=replace(service, step=service.step.times(factor)))
    return replace(task, backend=backend, takes_samples=False, keeps_rows=False)


def _strategy_names(strategies: Sequence[str], traffic: Traffic) -> tuple[str, ...]:
    """The strategies to play, each once; the judged strategy is added to the default ones."""
    for name in strategies:
        if name not in STRATEGIES:
            from difflib import get_close_matches

            near = get_close_matches(name, STRATEGIES, 1, 0.4)
            hint = f"did you mean {near[0]}?" if near else f"strategies: {', '.join(STRATEGIES)}"
            raise InputError(f"there is no strategy {name!r}", hint=hint, key="strategy")
    names = tuple(dict.fromkeys(strategies))
    if not names:
        raise InputError("no strategy was named", hint=f"strategies: {', '.join(STRATEGIES)}", key="strategy")
    judged = judged_strategy(traffic).name
    return (*names, judged) if names == DEFAULT_STRATEGIES and judged not in names else names


def seed_numbers(traffic: Traffic, options: RunOptions) -> tuple[int, int]:
    """The first seed and how many; InputError where they or the scale are out of range."""
    seeds, scale = options.seeds, options.scale
    if not 0 < scale < inf:
        raise InputError(f"a scale of {scale:g} is not above zero", hint="--scale 1 is the file's traffic", key="scale")
    first = traffic.seed if options.seed is None else options.seed
    count = seeds if seeds is not None else DEFAULT_SEEDS if is_random(traffic) else 1
    if first < 0:
        raise InputError(f"a seed of {first} is below zero", hint="--seed 0 or more", key="seed")
    if count < 1:
        raise InputError("at least one seed is needed", hint="--seeds 1 or more", key="seeds")
    if count > MAX_SEEDS:
        raise InputError(f"{count:,} seeds are more than {MAX_SEEDS:,}", hint="10 are enough for most", key="seeds")
    return first, count


def is_random(traffic: Traffic) -> bool:
    """Whether anything is random: arrivals or lengths of a class, caps of a trace, prefixes, back-off, cancellation."""

    def draws(entry: TrafficClass) -> bool:
        distributions = (entry.max_tokens, entry.prompt_tokens, entry.output_tokens, entry.answers)
        is_steady = entry.trace is not None or isinstance(entry.arrivals, Evenly)
        is_fixed = all(distribution is None or isinstance(distribution, Constant) for distribution in distributions)
        acts_by_chance = bool(entry.client) or entry.cancel_share > 0 or entry.shared_prefix is not None
        return not (is_steady and is_fixed) or acts_by_chance

    return any(map(draws, traffic.classes))
