"""Many plans at once: pure tasks over ``concurrent.futures``, on this machine's cores or on a Dask cluster.

A task is a function and one frozen value; it may run anywhere, and twice, with the same result.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from kvplan.errors import InputError
from kvplan.simulation.workers import (
    ATTEMPTS,
    count_workers,
    end_workers,
    killed_too_often,
    play,
    process_context,
    start_worker,
)

if TYPE_CHECKING:
    from kvplan.simulation.workers import Progress

Given = TypeVar("Given")
Found = TypeVar("Found")

_CONNECT_S = 10


def sweep(
    function: Callable[[Given], Found],
    tasks: Sequence[Given],
    *,
    workers: int | None = None,
    cluster: str | None = None,
    progress: "Progress | None" = None,
) -> list[Found]:
    """``function`` of every task, in the tasks' order.

    Over at most ``workers`` processes (default: all cores of this one), or over the workers of the Dask scheduler at
    ``cluster`` (``tcp://host:8786``). What a worker that dies had in hand is done again by the others. ``function``
    must be importable where the workers run. ``progress`` is called with (done, all).
    """
    with cluster_executor(cluster) as executor:
        if executor is not None:
            return _gather([executor.submit(function, task) for task in tasks], progress)
    cores = count_workers(workers)
    if min(cores, len(tasks)) <= 1:
        return [_told(progress, done, len(tasks), function(task)) for done, task in enumerate(tasks, start=1)]
    return _over_processes(function, tasks, cores, progress)


def _told(progress: "Progress | None", done: int, total: int, result: Found) -> Found:
    if progress is not None:
        progress(done, total)
    return result


def _gather(futures: Sequence["Future[Found]"], progress: "Progress | None") -> list[Found]:
    return [_told(progress, done, len(futures), future.result()) for done, future in enumerate(futures, start=1)]


def _over_processes(
    function: Callable[[Given], Found], tasks: Sequence[Given], cores: int, progress: "Progress | None"
) -> list[Found]:
    """A pool breaks as a whole when one of its processes is killed; what it had not answered goes to a new one."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    found: dict[int, Found] = {}
    for _ in range(ATTEMPTS):
        left = [place for place in range(len(tasks)) if place not in found]
        context = process_context()
        workers = min(cores, len(left))
        with ProcessPoolExecutor(workers, context, initializer=start_worker, initargs=(function, tasks)) as pool:
            try:
                places = {pool.submit(play, place): place for place in left}
                for future in as_completed(places):
                    found[places[future]] = future.result()
                    _told(progress, len(found), len(tasks), None)
                return [found[place] for place in range(len(tasks))]
            except BrokenProcessPool:
                continue
            except BaseException:
                end_workers(context.active_children())
                raise
    raise killed_too_often(f"{len(tasks) - len(found)} of {len(tasks)} tasks")


@contextmanager
def cluster_executor(address: str | None) -> Iterator[Executor | None]:
    """The executor of the Dask scheduler at ``address``; None, and so this machine's cores, without one.

    Tasks are pure, so one that loses its worker is sent to another: Dask does that by itself, and ``retries`` covers
    an error on the way. Raises InputError where the extra is missing or nobody answers.
    """
    if address is None:
        yield None
        return
    try:
        import distributed
    except ModuleNotFoundError as error:
        raise InputError(
            "--cluster needs Dask, which is not installed", hint="pip install 'kvplan[cluster]'", key="cluster"
        ) from error
    try:
        connect: Any = distributed.Client  # not typed by its makers
        client = connect(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address}",
            hint="start one with `dask scheduler`, and workers with `dask worker tcp://HOST:8786`",
            key="cluster",
        ) from error
    with client:
        executor: Executor = client.get_executor(retries=ATTEMPTS, pure=False)
        yield executor
