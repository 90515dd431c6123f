"""Many plans at once: pure tasks on this machine's cores or on a Dask cluster.

A task is a function and one frozen value, so it may run anywhere, even twice, with the same result.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, TypeVar

from kvplan.errors import InputError
from kvplan.simulation.workers import ATTEMPTS, Progress, count_workers, over_processes

Given = TypeVar("Given")
Found = TypeVar("Found")

_CONNECT_S = 10
"""How long a scheduler may take to answer."""


def sweep(
    function: Callable[[Given], Found],
    tasks: Sequence[Given],
    *,
    workers: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
) -> list[Found]:
    """``function`` of every task, in the tasks' order.

    Runs on at most ``workers`` processes (default: one per core), or on the workers of the Dask scheduler at
    ``cluster`` (``tcp://host:8786``). Tasks of a worker that dies run again on the others. ``function`` must be
    importable on the workers. ``progress`` is called with (done, all).
    """
    found: list[Found] = []
    with cluster_executor(cluster) as executor:
        if executor is None:
            results = over_processes(function, tasks, count_workers(workers))
        else:
            futures = [executor.submit(function, task) for task in tasks]
            results = (future.result() for future in futures)
        for result in results:
            found.append(result)
            if progress is not None:
                progress(len(found), len(tasks))
    return found


@contextmanager
def cluster_executor(address: str | None) -> Iterator[Executor | None]:
    """The executor of the Dask scheduler at ``address``, or None without an address.

    Dask itself reruns a pure task that loses its worker; ``retries`` covers errors on the way. Raises InputError where
    Dask is not installed or no scheduler answers.
    """
    if address is None:
        yield None
        return
    try:
        import distributed
    except ModuleNotFoundError as error:
        raise InputError(
            "--cluster needs Dask, which is not installed", hint="pip install 'dask[distributed]'", key="cluster"
        ) from error
    try:
        connect: Any = distributed.Client  # untyped
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
