"""One strategy on one seed is a task. Tasks run in this process or over the cores; their results keep their order."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import inf
from operator import itemgetter
from pathlib import Path

from kvplan.simulation.backend import Backend, engine_setup
from kvplan.simulation.bounds import expected_outputs, sustainable_per_s
from kvplan.simulation.figures import measure
from kvplan.simulation.front_door import AppliedStrategy, client_table, requests_for
from kvplan.simulation.kernel import compiled
from kvplan.simulation.kernel.run import WORTH_COMPILING, compiling_pays, run_kernel
from kvplan.simulation.parallel_sampling import fan_out, merge_sequences
from kvplan.simulation.results import SeedResult, StrategyRows
from kvplan.simulation.types import UNLIMITED, ClientRule, Samples, Watch
from kvplan.simulation.workers import Progress, count_workers, over_processes
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.sample import sample
from kvplan.traffic.spec import Traffic

_SAMPLES = 240
"""Points of a chart over time."""
_SMALL_RUN_REQUESTS = 4_000
"""Fewer are played in this process: starting workers would take longer."""
_LONG_RUN_S = 60.0
"""What takes longer is announced."""
_REQUEST_S, _COMPILED_REQUEST_S = 6e-5, 8e-7
"""The least time that a request takes (worst-case admission, an idle engine), interpreted and compiled."""
_LONGER_FACTOR = 2.0
"""A later estimate is reported where it is at least this many times the last one."""
_HARDEST_FIRST = {"nothing": 0, "requests": 1, "blocks": 2}
"""What admits most preempts most, and preemption is what takes time to simulate."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How runs are made, as ``simulate``, ``check`` and ``recommend`` take it: on which seeds, over which workers, with
    which catalogues, and how progress is reported."""

    seeds: int | None = None
    seed: int | None = None
    scale: float = 1.0
    workers: int | None = None
    executor: Executor | None = None
    offline: bool = False
    profiles_folder: str | Path | None = None
    progress: Progress | None = None
    say: Callable[[str], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """One strategy on one seed: everything that a worker needs."""

    traffic: Traffic
    backend: Backend
    applied: AppliedStrategy
    seed: int
    scale: float
    warmup_s: float
    clients: tuple[ClientRule, ...]
    client_timeouts_s: tuple[float, ...]
    expected_output_tokens: tuple[int, ...]
    takes_samples: bool
    keeps_rows: bool = False
    compiled: bool | None = None


WARMUP_SHARE = 0.1
"""Of the run: figures leave out the time in which the empty system fills."""


def warmup_s(traffic: Traffic) -> float:
    """Seconds at the start of a run that figures leave out; none of a trace."""
    return 0.0 if traffic.duration_s is None else WARMUP_SHARE * traffic.duration_s


def watched_s(traffic: Traffic, arrivals: Arrivals) -> float:
    """Seconds of a run that figures cover."""
    return (traffic.duration_s or arrivals.duration_s) - warmup_s(traffic)


def tasks_of(
    traffic: Traffic, backend: Backend, arrivals: Arrivals, *, scale: float, profiles_folder: str | Path | None
) -> partial[Task]:
    """What the tasks of all strategies and seeds have in common; ``arrivals`` are those of the first seed."""
    clients, timeouts_s = client_table(arrivals.clients, profiles_folder=profiles_folder)
    return partial(
        Task,
        traffic=traffic,
        backend=backend,
        scale=scale,
        warmup_s=warmup_s(traffic),
        clients=clients,
        client_timeouts_s=timeouts_s,
        expected_output_tokens=expected_outputs(traffic, arrivals),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskResult:
    """What a worker sends back."""

    result: SeedResult
    samples: Samples | None
    rows: StrategyRows | None
    sustainable_per_s: float
    binds: str


def run_groups(groups: Sequence[Sequence[Task]], *, requests: int, options: RunOptions) -> list[list[TaskResult]]:
    """The results of all groups of tasks, played as one list; ``requests`` is the usual number in one."""
    results = iter(run_tasks([one for group in groups for one in group], requests=requests, options=options))
    return [[next(results) for _ in group] for group in groups]


def run_tasks(tasks: Sequence[Task], *, requests: int, options: RunOptions) -> list[TaskResult]:
    """The results of the tasks in their order, from the executor or at most ``workers`` processes (default: the cores).

    Of many tasks the hardest is played first, in this process. It shows how long the rest takes, which is reported
    beyond a minute, and whether the compiled kernel pays.
    """
    reported = partial(_reported, total=len(tasks), progress=options.progress)
    if options.executor is not None:
        return list(reported(options.executor.map(run_task, tasks)))
    cores = min(count_workers(options.workers), len(tasks))
    estimate = _Estimate(options.say)
    fast = requests >= WORTH_COMPILING and compiled.is_available()
    estimate((_COMPILED_REQUEST_S if fast else _REQUEST_S) * requests * len(tasks) / cores, "at least")
    here = partial(run_task, say=options.say, expect=lambda each_s: estimate(each_s * len(tasks) / cores))
    if len(tasks) == 1 or requests * len(tasks) < _SMALL_RUN_REQUESTS:
        return list(reported(map(here, tasks)))
    order = sorted(range(len(tasks)), key=lambda place: _HARDEST_FIRST[tasks[place].applied.strategy.counts])
    started_s = time.process_time()
    first = [here(tasks[order[0]])]
    rest_s = (time.process_time() - started_s) * (len(tasks) - 1) / cores
    rest = [tasks[place] for place in order[1:]]
    if all(task.compiled is None for task in rest) and compiling_pays(rest_s):
        rest = [replace(task, compiled=True) for task in rest]
        started_s = time.process_time()
        first.append(here(rest.pop(0)))  # compiled or loaded here, so that forked workers inherit it
        rest_s = min(rest_s, (time.process_time() - started_s) * len(rest) / cores)
    estimate(rest_s)
    played = list(reported(chain(first, over_processes(run_task, rest, cores))))
    return [result for _, result in sorted(zip(order, played, strict=True), key=itemgetter(0))]


class _Estimate:
    """Says how long the tasks take: beyond a minute, and again where that is much longer than said before."""

    def __init__(self, say: Callable[[str], None] | None) -> None:
        self.say, self.said_s = say, 0.0

    def __call__(self, seconds: float, how: str = "about") -> None:
        if self.say is not None and seconds > max(_LONG_RUN_S, self.said_s * _LONGER_FACTOR):
            self.say(f"this takes {how} {seconds / 60:.0f} min; fewer seeds or a shorter duration is faster")
            self.said_s = seconds


def _reported(results: Iterable[TaskResult], *, total: int, progress: Progress | None) -> Iterator[TaskResult]:
    """The results as they come, reported to ``progress``."""
    for done, result in enumerate(results, start=1):
        if progress is not None:
            progress(done, total)
        yield result


def run_task(
    task: Task, say: Callable[[str], None] | None = None, expect: Callable[[float], None] | None = None
) -> TaskResult:
    """Draw the traffic of the task's seed, play it and measure it. ``say`` is told when the kernel is compiled, and
    ``expect`` how many seconds the run will take."""
    arrivals = sample(task.traffic, task.seed, scale=task.scale)
    requests = requests_for(
        arrivals,
        task.applied,
        task.backend,
        seed=task.seed,
        client_timeouts_s=task.client_timeouts_s,
        expected_output_tokens=task.expected_output_tokens,
        tries_again=any(rule.tries > 1 for rule in task.clients),
    )
    watch = _watch(task, arrivals.duration_s)
    played = requests
    if arrivals.answers is not None and arrivals.answer_tokens is not None:
        played = fan_out(requests, arrivals.answers, arrivals.answer_tokens)
    applied, backend = task.applied, task.backend
    sustainable, binds = sustainable_per_s(played, applied, backend)
    class_names, class_index = arrivals.classes, arrivals.class_index
    del arrivals  # frees what the requests do not share of a large drawing
    run = run_kernel(
        played,
        engine_setup(backend),
        applied.front_door,
        task.clients,
        watch=watch,
        compiled=task.compiled,
        say=say,
        expect=expect,
    )
    if played.parent is not None:
        run = replace(run, rows=merge_sequences(run.rows, played.parent))
    whole = backend.usable if applied.strategy.counts == "blocks" else applied.capacity
    result = measure(
        run,
        requests,
        seed=task.seed,
        class_index=class_index,
        classes=len(class_names),
        from_s=watch.from_s,
        until_s=watch.until_s,
        pool_blocks=backend.usable * backend.replicas,
        ledger_capacity=whole * backend.replicas if applied.capacity < UNLIMITED else None,
    )
    rows = StrategyRows(
        strategy=applied.strategy.name,
        seed=task.seed,
        requests=replace(requests, chain=None, chain_start=None),
        rows=run.rows,
        class_names=class_names,
        class_index=class_index,
    )
    return TaskResult(
        result=result,
        samples=run.samples if task.takes_samples else None,
        rows=rows if task.keeps_rows else None,
        sustainable_per_s=sustainable,
        binds=binds,
    )


def _watch(task: Task, drawn_s: float) -> Watch:
    """What is measured: all but the warm-up of the run. After the last arrival it drains, for an hour or three times
    its length, whichever is more; a trace without a duration runs out. ``drawn_s``: up to when requests arrive."""
    duration_s = task.traffic.duration_s
    sampled_s = 0.0 if not task.takes_samples else drawn_s if duration_s is None else duration_s
    return Watch(
        from_s=task.warmup_s,
        until_s=inf if duration_s is None else duration_s,
        stop_s=inf if duration_s is None else max(4.0 * duration_s, duration_s + 3600.0),
        sample_every_s=sampled_s / _SAMPLES,
        sample_until_s=sampled_s,
    )
