"""One strategy on one seed is a task; tasks run in this process or over the cores, and come back in order."""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from math import inf
from multiprocessing.context import BaseContext

from kvplan.errors import InputError
from kvplan.simulation.bounds import sustainable_per_s
from kvplan.simulation.doors import Door, requests_for
from kvplan.simulation.plant import Plant
from kvplan.simulation.results import SeedResult, StrategyRows
from kvplan.simulation.statistics import measure
from kvplan.simulation.types import UNLIMITED, ClientRule, EngineSetup, Run, Samples, Watch
from kvplan.traffic.kinds import Traffic
from kvplan.traffic.sample import sample

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


def run_tasks(
    tasks: Sequence[Task],
    *,
    requests: int,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> list[TaskResult]:
    """The tasks' results in their order, over ``executor``, or at most ``workers`` processes (default: the cores)."""
    if executor is not None:
        return list(_watched(executor.map(run_task, tasks), len(tasks), len(tasks), progress, say))
    cores = workers if workers is not None else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if cores < 1:
        raise InputError("at least one worker is needed", key="workers")
    cores = min(cores, len(tasks))
    if cores == 1 or requests * len(tasks) < _SMALL_RUN_REQUESTS:
        return list(_watched(map(run_task, tasks), len(tasks), 1, progress, say))
    from concurrent.futures import ProcessPoolExecutor

    context = _process_context()
    with ProcessPoolExecutor(cores, mp_context=context, initializer=_leave_interrupts_to_the_parent) as pool:
        try:
            return list(_watched(pool.map(run_task, tasks), len(tasks), cores, progress, say))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in context.active_children():
                worker.terminate()
            raise


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
    sustainable, binds = sustainable_per_s(requests, task.opened, task.plant)
    class_names, class_index = arrivals.classes, arrivals.class_index
    del arrivals  # what the requests do not share of a large drawing is given back before it is played
    run: Run = run_kernel(
        requests, engine_setup(task.plant), task.opened.front, task.clients, watch=watch, compiled=task.compiled
    )
    replicas = task.plant.replicas
    limited = task.opened.capacity < UNLIMITED
    result = measure(
        run,
        requests,
        seed=task.seed,
        class_index=class_index,
        classes=len(class_names),
        from_s=task.warmup_s,
        until_s=until_s,
        pool_blocks=task.plant.usable * replicas,
        ledger_capacity=_reserved_whole(task) * replicas if limited else None,
    )
    return TaskResult(
        result=result,
        samples=run.samples if task.takes_samples else None,
        rows=StrategyRows(
            strategy=task.opened.strategy.name,
            seed=task.seed,
            requests=replace(requests, chain=None, chain_start=None),
            rows=run.rows,
            class_names=class_names,
            class_index=class_index,
        )
        if task.keeps_rows
        else None,
        sustainable_per_s=sustainable,
        binds=binds,
    )


def _reserved_whole(task: Task) -> int:
    """What the reserved share is a share of: the usable pool, or a ledger that counts requests."""
    return task.plant.usable if task.opened.strategy.counts == "blocks" else task.opened.capacity
