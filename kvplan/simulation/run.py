"""Plays a traffic file: every strategy on every seed, over the cores, gathered into one answer."""

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
from kvplan.simulation.bounds import expected_outputs, judged_strategy, provisional_cap, reservations
from kvplan.simulation.clients import client_table
from kvplan.simulation.doors import door
from kvplan.simulation.gather import describe_inputs, gather
from kvplan.simulation.plant import Plant, build_plant
from kvplan.simulation.results import ServiceBand, Simulation, Stability
from kvplan.simulation.tasks import Task, TaskResult, run_tasks
from kvplan.simulation.workers import Progress
from kvplan.traffic.arrival_processes import Evenly
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.distributions import Constant
from kvplan.traffic.sample import enough, sample
from kvplan.traffic.spec import Traffic, TrafficClass

DEFAULT_SEEDS = 10
MOST_SEEDS = 10_000
WARMUP_SHARE = 0.1
MAX_TRUNCATED_SHARE = 0.01
BAND_SEEDS = 3
"""Seeds at which the judged strategy is run at either end of the service time's band."""


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
    """What each strategy does with this traffic in front of this pool.

    The same requests and random numbers meet every strategy. ``seeds`` runs are made from ``seed`` on (the file's, by
    default); figures leave out the first tenth of the run. Where the service time is only a roofline, the judged
    strategy is run at both ends of its band too. ``progress`` is called with (done, all) runs, ``say`` with a line when
    the answer takes long; ``executor`` plays the runs elsewhere (``kvplan.sweep``). Overrides of the file's keys belong
    to ``load_traffic``.
    """
    names = _strategy_names(strategies, traffic)
    first_seed, count = seed_numbers(traffic, seeds=seeds, seed=seed, scale=scale)
    plant = build_plant(traffic, model=model, offline=offline, profiles_folder=profiles_folder)
    arrivals = _drawn(traffic, first_seed, scale)
    clients, timeouts_s = client_table(arrivals.clients, profiles_folder=profiles_folder)
    drawings = enough(traffic, arrivals, seed=first_seed, seeds=count, scale=scale)
    cap, cap_source = _default_cap(traffic, drawings, plant)
    warmup_s = 0.0 if traffic.duration_s is None else WARMUP_SHARE * traffic.duration_s
    task = partial(
        Task,
        traffic=traffic,
        plant=plant,
        scale=scale,
        warmup_s=warmup_s,
        clients=clients,
        client_timeouts_s=timeouts_s,
        expected_output_tokens=expected_outputs(traffic, arrivals),
        keeps_rows=keep_rows,
        compiled=compiled,
    )
    doors = {name: door(STRATEGIES[name], plant, traffic.admission, traffic.deployment, cap) for name in names}
    judged = judged_strategy(traffic).name
    bound = judged if judged in doors else names[0]
    inputs = describe_inputs(
        traffic,
        plant,
        arrivals,
        names=names,
        seed=first_seed,
        seeds=count,
        scale=scale,
        warmup_s=warmup_s,
        default_cap=cap,
        default_cap_source=cap_source,
    )
    rows = reservations(traffic, arrivals, plant, cap)
    classes, requests = arrivals.classes, len(arrivals)
    watched_s = (traffic.duration_s or arrivals.duration_s) - warmup_s
    del arrivals, drawings  # each task draws its own: a large drawing is not kept twice
    played = [
        [task(opened=opened, seed=first_seed + turn, takes_samples=turn == 0) for turn in range(count)]
        for opened in doors.values()
    ]
    place, factors = names.index(bound), _band_factors(plant)
    groups = [*played, *([_at_another_speed(one, factor) for one in played[place][:BAND_SEEDS]] for factor in factors)]
    done = run_groups(groups, requests=requests, workers=workers, executor=executor, progress=progress, say=say)
    gathered = [
        gather(group[0].opened, runs, classes, watched_s=watched_s) for group, runs in zip(groups, done, strict=True)
    ]
    found = gathered[place]
    return Simulation(
        traffic=traffic,
        plant=plant,
        inputs=inputs,
        reservations=rows,
        stability=Stability(
            strategy=bound,
            offered_per_s=float(np.mean([one.offered_per_s for one in found.seeds])),
            sustainable_per_s=found.sustainable_per_s,
            binds=done[place][0].binds,
        ),
        strategies=tuple(gathered[: len(names)]),
        band=tuple(
            ServiceBand(factor=factor, result=result)
            for factor, result in zip(factors, gathered[len(names) :], strict=True)
        ),
        rows=tuple(run.rows for runs in zip(*done[: len(names)], strict=True) for run in runs if run.rows is not None),
    )


def _drawn(traffic: Traffic, seed: int, scale: float) -> Arrivals:
    """The first seed's requests, from which the assumptions are described; InputError where there are none."""
    arrivals = sample(traffic, seed, scale=scale)
    if not len(arrivals):
        raise InputError("no request arrives in this run", hint="raise the rate or the duration", file=traffic.file)
    return arrivals


def run_groups(
    groups: Sequence[Sequence[Task]],
    *,
    requests: int,
    workers: int | None,
    executor: Executor | None,
    progress: Progress | None,
    say: Callable[[str], None] | None,
) -> list[list[TaskResult]]:
    """All groups' tasks as one list, the longest strategies dealt evenly; the results group by group."""
    tasks = [one for group in groups for one in group]
    results = iter(run_tasks(tasks, requests=requests, workers=workers, executor=executor, progress=progress, say=say))
    return [[next(results) for _ in group] for group in groups]


def _band_factors(plant: Plant) -> tuple[float, ...]:
    """How much slower and faster a step may be than assumed; none where it was measured."""
    band = plant.service.band_share
    return (1.0 + band, 1.0 - band) if band else ()


def _at_another_speed(task: Task, factor: float) -> Task:
    service = task.plant.service
    plant = replace(task.plant, service=replace(service, step=service.step.times(factor)))
    return replace(task, plant=plant, takes_samples=False, keeps_rows=False)


def _strategy_names(strategies: Sequence[str], traffic: Traffic) -> tuple[str, ...]:
    """The strategies asked for, known and each once; the judged one is among the default ones."""
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


def seed_numbers(traffic: Traffic, *, seeds: int | None, seed: int | None, scale: float) -> tuple[int, int]:
    """The first seed and how many, as asked for or the usual ones; InputError for what cannot be played."""
    if not 0 < scale < inf:
        raise InputError(f"a scale of {scale:g} is not above zero", hint="--scale 1 is the file's traffic", key="scale")
    first = traffic.seed if seed is None else seed
    count = seeds if seeds is not None else DEFAULT_SEEDS if is_random(traffic) else 1
    if first < 0:
        raise InputError(f"a seed of {first} is below zero", hint="--seed 0 or more", key="seed")
    if count < 1:
        raise InputError("at least one seed is needed", hint="--seeds 1 or more", key="seeds")
    if count > MOST_SEEDS:
        raise InputError(f"{count:,} seeds are more than {MOST_SEEDS:,}", hint="10 are enough for most", key="seeds")
    return first, count


def is_random(traffic: Traffic) -> bool:
    """Whether anything is drawn: arrivals or lengths of a class, caps of a trace, prefixes, back-off, cancellation."""

    def draws(entry: TrafficClass) -> bool:
        laws = (entry.max_tokens, entry.prompt_tokens, entry.output_tokens, entry.answers)
        is_steady = entry.trace is not None or isinstance(entry.arrivals, Evenly)
        is_fixed = all(law is None or isinstance(law, Constant) for law in laws)
        acts_by_chance = bool(entry.client) or entry.cancel_share > 0 or entry.shared_prefix is not None
        return not (is_steady and is_fixed) or acts_by_chance

    return any(map(draws, traffic.classes))


def _default_cap(traffic: Traffic, drawings: Sequence[Arrivals], plant: Plant) -> tuple[int, str]:
    if traffic.admission.default_max_tokens is not None:
        return min(traffic.admission.default_max_tokens, plant.settings.max_model_len), "the traffic file"
    cap = provisional_cap(drawings, plant, max_truncated_share=MAX_TRUNCATED_SHARE)
    return cap, f"the least round cap that cuts off at most {MAX_TRUNCATED_SHARE:.0%} of all answers"
