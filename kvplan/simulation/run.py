"""Plays a traffic file: every strategy on every seed, over the cores, gathered into one answer."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from multiprocessing.context import BaseContext
from pathlib import Path

import numpy as np

from kvplan.admission import DEFAULT_STRATEGIES, STRATEGIES
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.simulation.bounds import (
    expected_outputs,
    judged_strategy,
    provisional_cap,
    reservations,
    sustainable_per_s,
)
from kvplan.simulation.clients import client_table
from kvplan.simulation.doors import Door, door, requests_for
from kvplan.simulation.gather import describe_inputs, gather
from kvplan.simulation.plant import Plant, build_plant
from kvplan.simulation.results import SeedResult, Simulation, Stability, StrategyRows
from kvplan.simulation.statistics import measure
from kvplan.simulation.types import UNLIMITED, ClientRule, EngineSetup, Run, Samples, Watch
from kvplan.traffic.arrivals import Evenly
from kvplan.traffic.distributions import Constant
from kvplan.traffic.kinds import Arrivals, Traffic
from kvplan.traffic.sample import sample

DEFAULT_SEEDS = 10
WARMUP_SHARE = 0.1
MAX_TRUNCATED_SHARE = 0.01
_SAMPLES = 240
_SMALL_RUN_REQUESTS = 4_000
_LONG_RUN_S = 60.0

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One strategy on one seed: everything a worker needs."""

    traffic: Traffic
    plant: Plant
    opened: Door
    seed: int
    scale: float
    warmup_s: float
    clients: tuple[ClientRule, ...]
    client_timeouts_s: tuple[float, ...]
    expected_output_tokens: tuple[int, ...]
    keeps_rows: bool
    takes_samples: bool
    compiled: bool | None


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskResult:
    """What a worker sends back."""

    result: SeedResult
    samples: Samples | None
    rows: StrategyRows | None
    sustainable_per_s: float
    binds: str


def simulate(
    traffic: Traffic,
    *,
    model: ModelSpec | None = None,
    strategies: Sequence[str] = DEFAULT_STRATEGIES,
    seeds: int | None = None,
    seed: int | None = None,
    scale: float = 1.0,
    workers: int | None = None,
    keep_rows: bool = False,
    compiled: bool | None = None,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> Simulation:
    """What each strategy does with this traffic in front of this pool.

    The same requests and random numbers meet every strategy. ``seeds`` runs are made from ``seed`` on (the file's, by
    default); figures leave out the first tenth of the run. ``progress`` is called with (done, all) runs, ``say`` with
    a line when the answer takes long. Overrides of the file's keys belong to ``load_traffic``.
    """
    names = _strategy_names(strategies, traffic)
    if not 0 < scale < inf:
        raise InputError(f"a scale of {scale:g} is not above zero", key="scale")
    first_seed = traffic.seed if seed is None else seed
    count = seeds if seeds is not None else DEFAULT_SEEDS if is_random(traffic) else 1
    if count < 1:
        raise InputError("at least one seed is needed", key="seeds")
    plant = build_plant(traffic, model=model, offline=offline, profiles_folder=profiles_folder)
    arrivals = sample(traffic, first_seed, scale=scale)
    if not len(arrivals):
        raise InputError("no request arrives in this run", hint="raise the rate or the duration", file=traffic.file)
    clients, timeouts_s = client_table(arrivals.clients, profiles_folder=profiles_folder)
    cap, cap_source = _default_cap(traffic, arrivals, plant)
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
    doors = [door(STRATEGIES[name], plant, traffic.admission, traffic.deployment, cap) for name in names]
    tasks = [
        task(opened=opened, seed=first_seed + turn, takes_samples=turn == 0)
        for turn in range(count)
        for opened in doors
    ]
    done = run_tasks(tasks, requests=len(arrivals), workers=workers, progress=progress, say=say)
    by_strategy = {
        name: [result for one, result in zip(tasks, done, strict=True) if one.opened.strategy.name == name]
        for name in names
    }
    judged = judged_strategy(traffic).name
    watched_s = (traffic.duration_s or arrivals.duration_s) - warmup_s
    results = tuple(
        gather(opened, by_strategy[opened.strategy.name], arrivals.classes, watched_s=watched_s) for opened in doors
    )
    bound = next((one for one in results if one.name == judged), results[0])
    first = by_strategy[bound.name][0]
    return Simulation(
        traffic=traffic,
        plant=plant,
        inputs=describe_inputs(
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
        ),
        reservations=reservations(traffic, arrivals, plant, cap),
        stability=Stability(
            strategy=bound.name,
            offered_per_s=float(np.mean([one.result.offered_per_s for one in by_strategy[bound.name]])),
            sustainable_per_s=bound.sustainable_per_s,
            binds=first.binds,
        ),
        strategies=results,
        rows=tuple(one.rows for one in done if one.rows is not None),
    )


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


def is_random(traffic: Traffic) -> bool:
    """Whether anything is drawn: arrivals or lengths of a class, caps of a trace, clients' back-off, cancellation."""
    for entry in traffic.classes:
        lengths = (entry.max_tokens, entry.prompt_tokens, entry.output_tokens)
        drawn = any(law is not None and not isinstance(law, Constant) for law in lengths)
        steady = entry.trace is not None or isinstance(entry.arrivals, Evenly)
        if drawn or not steady or entry.client or entry.cancel_share > 0:
            return True
    return False


def _default_cap(traffic: Traffic, arrivals: Arrivals, plant: Plant) -> tuple[int, str]:
    if traffic.admission.default_max_tokens is not None:
        return min(traffic.admission.default_max_tokens, plant.settings.max_model_len), "the traffic file"
    cap = provisional_cap(arrivals, plant, max_truncated_share=MAX_TRUNCATED_SHARE)
    return cap, f"the least round cap that cuts off at most {MAX_TRUNCATED_SHARE:.0%} of all answers"


def run_tasks(
    tasks: Sequence[Task],
    *,
    requests: int,
    workers: int | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> list[TaskResult]:
    """The tasks' results in their order, over at most ``workers`` processes (default: the cores of this process)."""
    cores = workers if workers is not None else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if cores < 1:
        raise InputError("at least one worker is needed", key="workers")
    cores = min(cores, len(tasks))
    if cores == 1 or requests * len(tasks) < _SMALL_RUN_REQUESTS:
        return list(_watched(map(run_task, tasks), len(tasks), 1, progress, say))
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(cores, mp_context=_process_context()) as pool:
        try:
            return list(_watched(pool.map(run_task, tasks), len(tasks), cores, progress, say))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _process_context() -> BaseContext:
    """Forked workers, which start at once and need no guard in the caller's script; fresh ones where the platform has
    no fork or other threads run, which a fork would leave half copied."""
    import multiprocessing
    import threading

    can_fork = "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
    return multiprocessing.get_context("fork" if can_fork else "spawn")


def _watched(
    results: Iterable[TaskResult],
    total: int,
    cores: int,
    progress: Progress | None,
    say: Callable[[str], None] | None,
) -> Iterator[TaskResult]:
    """The results as they come, with a word of warning once when the whole will take more than a minute."""
    started_s = time.perf_counter()
    for done, result in enumerate(results, start=1):
        if progress is not None:
            progress(done, total)
        elapsed_s = time.perf_counter() - started_s
        if say is not None and done == min(cores, total) and elapsed_s / done * total > _LONG_RUN_S:
            say(
                f"this takes about {elapsed_s / done * total / 60:.0f} min; fewer seeds or a shorter duration is faster"
            )
        yield result


def engine_setup(plant: Plant) -> EngineSetup:
    """The plant as one replica of the kernel's engine."""
    settings = plant.settings
    return EngineSetup(
        blocks=plant.blocks,
        layout=plant.layout,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        step=plant.service.step,
        async_scheduling=settings.async_scheduling,
        prefix_caching=settings.prefix_caching and len(plant.layout.groups) == 1,
        watermark_blocks=plant.watermark_blocks,
        long_prefill_tokens=plant.long_prefill_tokens,
    )


def run_task(task: Task) -> TaskResult:
    """Draw the traffic of the task's seed, play it, and measure it."""
    from kvplan.simulation.engine import run_kernel

    arrivals = sample(task.traffic, task.seed, scale=task.scale)
    requests = requests_for(
        arrivals,
        task.opened,
        task.plant,
        seed=task.seed,
        client_timeouts_s=task.client_timeouts_s,
        expected_output_tokens=task.expected_output_tokens,
    )
    duration_s = task.traffic.duration_s
    until_s = inf if duration_s is None else duration_s
    shown_s = arrivals.duration_s if duration_s is None else duration_s
    watch = Watch(
        from_s=task.warmup_s,
        until_s=until_s,
        stop_s=inf if duration_s is None else max(4.0 * duration_s, duration_s + 3600.0),
        sample_every_s=shown_s / _SAMPLES if task.takes_samples else 0.0,
        sample_until_s=shown_s if task.takes_samples else 0.0,
    )
    run: Run = run_kernel(
        requests, engine_setup(task.plant), task.opened.front, task.clients, watch=watch, compiled=task.compiled
    )
    replicas = task.plant.replicas
    limited = task.opened.capacity < UNLIMITED
    result = measure(
        run,
        requests,
        seed=task.seed,
        class_index=arrivals.class_index,
        classes=len(arrivals.classes),
        from_s=task.warmup_s,
        until_s=until_s,
        pool_blocks=task.plant.usable * replicas,
        ledger_capacity=_reserved_whole(task) * replicas if limited else None,
    )
    sustainable, binds = sustainable_per_s(requests, task.opened, task.plant)
    return TaskResult(
        result=result,
        samples=run.samples if task.takes_samples else None,
        rows=StrategyRows(
            strategy=task.opened.strategy.name,
            seed=task.seed,
            requests=replace(requests, chain=None, chain_start=None),
            rows=run.rows,
            class_names=arrivals.classes,
            class_index=arrivals.class_index,
        )
        if task.keeps_rows
        else None,
        sustainable_per_s=sustainable,
        binds=binds,
    )


def _reserved_whole(task: Task) -> int:
    """What the reserved share is a share of: the usable pool, or a ledger that counts requests."""
    return task.plant.usable if task.opened.strategy.counts == "blocks" else task.opened.capacity
