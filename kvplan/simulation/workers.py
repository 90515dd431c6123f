"""Worker processes: they have their tasks from the start, leave interrupts to their parent, and end with it.

Workers get the tasks when they start, not through the pool's queue: what remains in a full queue when workers are
terminated would block its writer for ever.
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
"""Called with (done, total)."""
ATTEMPTS = 3
"""How often workers may be killed before their parent gives up."""


def count_workers(workers: int | None) -> int:
    """``workers``, or by default the cores that this process may use (a container's share, if the platform tells)."""
    if workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 1:
        raise InputError("at least one worker is needed", hint="--workers 1", key="workers")
    return workers


def over_processes(function: Callable[[Any], Any], tasks: Sequence[Any], cores: int) -> Iterator[Any]:
    """``function`` of every task, in order, by ``cores`` processes; in this one where one is enough.

    A pool breaks as a whole when one of its processes is killed; what it had not returned is then done again, with the
    same result. No process outlives this call, however it ends.
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
    """Forked workers, which start at once and need no guard in the caller's script; spawned ones where the platform has
    no fork, or where other threads run, which a fork would copy in an undefined state."""
    can_fork = "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
    return multiprocessing.get_context("fork" if can_fork else "spawn")


_ANSWER_S = 1.0
"""Long enough to return a result."""


class _Worker:
    """This process as a worker: what it was given, whether it is busy, and whether it was told to end."""

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
        """End at once while busy, or shortly after, since a result may be on its way and its reader would wait for the
        rest of it. It must end: another worker that was killed may have held the lock of the queue."""
        self.is_told_to_end = True
        if self.is_busy:
            os._exit(1)
        ending = threading.Timer(_ANSWER_S, os._exit, (1,))
        ending.daemon = True
        ending.start()


_HERE: list[_Worker] = []
"""The worker that this process is; empty elsewhere."""


def _start_worker(function: Callable[[Any], Any], tasks: Sequence[Any]) -> None:
    """Initialise a worker process."""
    worker = _Worker(function, tasks)
    _HERE[:] = [worker]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, worker.end)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _play(place: int) -> Any:
    """The result of one of this worker's tasks."""
    return _HERE[0].play(place)


def _end_workers(processes: Sequence[Any]) -> None:
    """Terminate workers whose results are no longer needed.

    Their futures are not cancelled first: a cancelled one whose worker then ends raises in the pool's own thread.
    """
    for process in processes:
        process.terminate()


def _end_with_the_parent() -> None:
    """End when the parent process does, even if it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
