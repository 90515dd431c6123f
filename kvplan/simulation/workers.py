"""What a worker process is: it has its tasks from the start, leaves interrupts to its parent, and ends with it.

Tasks go to the workers when these start, not through the pool's queue: what is left in a full queue when workers are
ended would hold its writer for ever.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import BaseContext
from typing import Any

from kvplan.errors import InputError

Progress = Callable[[int, int], None]
"""Is told how many of how many pieces of work are done."""
ATTEMPTS = 3
"""How often workers may be killed before their parent gives up."""


def count_workers(workers: int | None) -> int:
    """``workers``; where None, the cores that this process may use: a container's share, where the platform says it."""
    if workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 1:
        raise InputError("at least one worker is needed", hint="--workers 1", key="workers")
    return workers


def over_processes(function: Callable[[Any], Any], tasks: Sequence[Any], cores: int) -> Iterator[Any]:
    """``function`` of every task in the tasks' order, by ``cores`` processes; here where one is enough.

    A pool breaks as a whole when one of its processes is killed: what it had not handed over is done again, with the
    same result. No process outlives this, however it ends.
    """
    if min(cores, len(tasks)) <= 1:
        yield from map(function, tasks)
        return
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    done = 0
    for _ in range(ATTEMPTS):
        context, left = _process_context(), tasks[done:]
        workers, given = min(cores, len(left)), (function, left)
        with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=given) as pool:
            try:
                for future in [pool.submit(_play, place) for place in range(len(left))]:
                    yield future.result()
                    done += 1
            except BrokenProcessPool:
                continue
            except BaseException:
                _end_workers(context.active_children())
                raise
            return
    raise InputError(
        f"worker processes were killed {ATTEMPTS} times, with {len(tasks) - done} of {len(tasks)} runs left",
        hint="the machine may be out of memory: try --workers 1, or a shorter duration",
        key="workers",
    )


def _process_context() -> BaseContext:
    """Forked workers, which start at once and need no guard in the caller's script; fresh ones where the platform has
    no fork or other threads run, which a fork would leave half copied."""
    can_fork = "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
    return multiprocessing.get_context("fork" if can_fork else "spawn")


_ANSWER_S = 1.0
"""Long enough to hand over an answer."""


class _Worker:
    """This process, where it is a worker: what it was given, whether it is at it, and whether it was told to end."""

    def __init__(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> None:
        self.function = function
        self.tasks = tasks
        self.is_busy = False
        self.is_told_to_end = False

    def play(self, place: int) -> Any:
        self.is_busy = True
        if self.is_told_to_end:
            os._exit(1)
        try:
            return self.function(self.tasks[place])
        finally:
            self.is_busy = False

    def end(self, *_: object) -> None:
        """End at once while playing; later while an answer may be on its way, half of which its reader would wait
        for. Not never: a worker killed beside this one may have taken the queue's lock along."""
        self.is_told_to_end = True
        if self.is_busy:
            os._exit(1)
        ending = threading.Timer(_ANSWER_S, os._exit, (1,))
        ending.daemon = True
        ending.start()


_HERE: list[_Worker] = []
"""The worker that this process is; empty elsewhere."""


def _start_worker(function: Callable[[Any], Any], tasks: Sequence[Any]) -> None:
    """What a worker process does first."""
    worker = _Worker(function, tasks)
    _HERE[:] = [worker]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, worker.end)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _play(place: int) -> Any:
    """The answer of one of this worker's tasks."""
    return _HERE[0].play(place)


def _end_workers(processes: Sequence[Any]) -> None:
    """End workers whose answers nobody waits for.

    Their runs are not cancelled first: one that is, and whose worker then ends, is an error in the pool's own thread.
    """
    for process in processes:
        process.terminate()


def _end_with_the_parent() -> None:
    """A parent that is killed says nothing; its end is seen all the same."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
