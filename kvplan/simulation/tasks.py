"""One strategy on one seed is a task; tasks run in this process or over the cores, and come back in order."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import inf
from operator import itemgetter

from kvplan.simulation.answers import fan_out, gathered
from kvplan.simulation.bounds import sustainable_per_s
from kvplan.simulation.doors import Door, requests_for
from kvplan.simulation.plant import Plant
from kvplan.simulation.request_lines import StrategyRows
from kvplan.simulation.results import SeedResult
from kvplan.simulation.statistics import measure
from kvplan.simulation.types import UNLIMITED, ClientRule, EngineSetup, Run, Samples, Watch
from kvplan.simulation.workers import Progress, count_workers, over_processes
from kvplan.traffic.sample import sample
from kvplan.traffic.spec import Traffic

_SAMPLES = 240
_SMALL_RUN_REQUESTS = 4_000
_LONG_RUN_S = 60.0
_REQUEST_S, _COMPILED_REQUEST_S = 6e-5, 8e-7
"""The least that one request takes to play (worst case in front, an idle engine), uncompiled and compiled."""
_SO_MUCH_LONGER = 2.0
"""An estimate of the rest is told where it is so many times what was told first."""
_HARDEST_FIRST = {"nothing": 0, "requests": 1, "blocks": 2}
"""What admits most meets preemption first, and preemption is what takes time to play."""


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
    """The tasks' results in their order, over ``executor``, or at most ``workers`` processes (default: the cores).

    Of many tasks the hardest is played first, here: it tells how long the rest takes, which ``say`` is told beyond a
    minute, and whether the compiled kernel pays.
    """
    watched = partial(_watched, total=len(tasks), progress=progress)
    if executor is not None:
        return list(watched(executor.map(run_task, tasks)))
    cores = min(count_workers(workers), len(tasks))
    told = _Told(say)
    told.least(_least_seconds(requests) * len(tasks) / cores)
    here = partial(run_task, say=say, expect=lambda each_s: told.about(each_s * len(tasks) / cores))
    if len(tasks) == 1 or requests * len(tasks) < _SMALL_RUN_REQUESTS:
        return list(watched(map(here, tasks)))
    order = sorted(range(len(tasks)), key=lambda place: _HARDEST_FIRST[tasks[place].opened.strategy.counts])
    started_s = time.process_time()
    first = [here(tasks[order[0]])]
    rest_s = (time.process_time() - started_s) * (len(tasks) - 1) / cores
    rest = [tasks[place] for place in order[1:]]
    if _compiling_pays(rest, rest_s):
        rest = [replace(task, compiled=True) for task in rest]
        started_s = time.process_time()
        first.append(here(rest.pop(0)))  # compiled or loaded here, so that forked workers have it too
        rest_s = min(rest_s, (time.process_time() - started_s) * len(rest) / cores)
    told.about(rest_s)
    played = list(watched(chain(first, over_processes(run_task, rest, cores))))
    return [result for _, result in sorted(zip(order, played, strict=True), key=itemgetter(0))]


class _Told:
    """Says how long it takes: beyond a minute, and again where that is so many times what was told before."""

    def __init__(self, say: Callable[[str], None] | None) -> None:
        self.say, self.told_s = say, 0.0

    def least(self, seconds: float) -> None:
        self._tell(seconds, "at least")

    def about(self, seconds: float) -> None:
        self._tell(seconds, "about")

    def _tell(self, seconds: float, how: str) -> None:
        if self.say is not None and seconds > max(_LONG_RUN_S, self.told_s * _SO_MUCH_LONGER):
            self.say(f"this takes {how} {seconds / 60:.0f} min; fewer seeds or a shorter duration is faster")
            self.told_s = seconds


def _least_seconds(requests: int) -> float:
    """How long one run of so many requests takes at the least, before anything was played."""
    from kvplan.simulation import compiled
    from kvplan.simulation.engine import WORTH_COMPILING

    fast = requests >= WORTH_COMPILING and compiled.is_available()
    return requests * (_COMPILED_REQUEST_S if fast else _REQUEST_S)


def _compiling_pays(tasks: Sequence[Task], plain_s: float) -> bool:
    """Whether the tasks, which take about ``plain_s`` seconds uncompiled, are worth the compiled kernel."""
    from kvplan.simulation.engine import compiling_pays

    return all(task.compiled is None for task in tasks) and compiling_pays(plain_s)


def _watched(results: Iterable[TaskResult], *, total: int, progress: Progress | None) -> Iterator[TaskResult]:
    """The results as they come, counted aloud."""
    for done, result in enumerate(results, start=1):
        if progress is not None:
            progress(done, total)
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
        chunked_prefill=settings.chunked_prefill,
    )


def run_task(
    task: Task, say: Callable[[str], None] | None = None, expect: Callable[[float], None] | None = None
) -> TaskResult:
    """Draw the traffic of the task's seed, play it, and measure it; ``say`` hears of a kernel being compiled, and
    ``expect`` how many seconds a run will take."""
    from kvplan.simulation.engine import run_kernel

    arrivals = sample(task.traffic, task.seed, scale=task.scale)
    requests = requests_for(
        arrivals,
        task.opened,
        task.plant,
        seed=task.seed,
        client_timeouts_s=task.client_timeouts_s,
        expected_output_tokens=task.expected_output_tokens,
        tries_again=any(rule.tries > 1 for rule in task.clients),
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
    setup, played = engine_setup(task.plant), requests
    if arrivals.answers is not None and arrivals.answer_tokens is not None:
        played = fan_out(requests, arrivals.answers, arrivals.answer_tokens)
    sustainable, binds = sustainable_per_s(played, task.opened, task.plant)
    class_names, class_index = arrivals.classes, arrivals.class_index
    del arrivals  # what the requests do not share of a large drawing is given back before it is played
    run: Run = run_kernel(
        played,
        setup,
        task.opened.front,
        task.clients,
        watch=watch,
        compiled=task.compiled,
        say=say,
        expect=expect,
    )
    if played.parent is not None:
        run = replace(run, rows=gathered(run.rows, played.parent))
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
