"""Sweeps: order, progress, and nothing lost when a worker dies, on local processes and on a real Dask cluster."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvplan.check.plan_and_play import measure
from kvplan.errors import InputError
from kvplan.simulation.tasks import RunOptions
from kvplan.sweep import cluster_executor, sweep
from kvplan.traffic.load import parse_traffic
from tests.small_pool import small_pool

ROOT = Path(__file__).resolve().parents[1]
TRAFFIC = small_pool(admission="{}", duration="1m", max_tokens="256")


def _square(number: int) -> int:
    return number * number


def _slow_square(number: int) -> int:
    time.sleep(0.05)
    return number * number


@dataclass(frozen=True, kw_only=True)
class _Deadly:
    """A task whose worker is killed, the first time that it is done."""

    number: int
    marker: Path | None


def _die_once(task: _Deadly) -> int:
    if task.marker is not None and not task.marker.exists():
        task.marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task.number * task.number


def _die(_: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_tasks(workers: int) -> None:
    seen: list[tuple[int, int]] = []
    found = sweep(_square, range(7), workers=workers, progress=lambda done, total: seen.append((done, total)))
    assert found == [0, 1, 4, 9, 16, 25, 36]
    assert seen == [(done, 7) for done in range(1, 8)]


def test_no_tasks_give_no_results() -> None:
    assert sweep(_square, []) == []


def test_workers_are_at_least_one() -> None:
    with pytest.raises(InputError, match="at least one worker"):
        sweep(_square, [1, 2], workers=0)


def test_tasks_of_a_killed_process_run_again(tmp_path: Path) -> None:
    tasks = [_Deadly(number=number, marker=tmp_path / "died" if number == 3 else None) for number in range(8)]
    assert sweep(_die_once, tasks, workers=2) == [number * number for number in range(8)]
    assert (tmp_path / "died").exists()


def test_a_task_that_kills_every_worker_is_an_error_with_a_way_out() -> None:
    with pytest.raises(InputError, match="killed 3 times, with 2 of 2 runs left") as caught:
        sweep(_die, [1, 2], workers=2)
    assert caught.value.hint is not None
    assert "--workers 1" in caught.value.hint


def test_an_error_in_a_task_is_raised() -> None:
    with pytest.raises(InputError, match="not an amount of memory"):
        sweep(_refuse, [1, 2, 3], workers=2)


def _refuse(number: int) -> int:
    raise InputError(f"{number} is not an amount of memory")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and three worker processes of one thread, as on a cluster: nothing restarts a worker that dies."""
    pytest.importorskip("distributed", reason="the extra cluster is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__DASHBOARD__LINK": ""}
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"]
    log = (tmp_path / "cluster.log").open("wb")
    started = [
        subprocess.Popen(
            [*dask, "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard"],
            cwd=tmp_path, env=environment, stdout=log, stderr=log,
        )
    ]  # fmt: skip
    started += [
        subprocess.Popen([*worker, "--no-dashboard"], cwd=tmp_path, env=environment, stdout=log, stderr=log)
        for _ in range(3)
    ]
    try:
        _wait_for_workers(address, 3)
        yield address, started[1:]
    finally:
        for process in started:  # workers wait for a scheduler that has left; nothing of theirs is kept
            process.kill()
            process.wait(10)
        log.close()


def _wait_for_workers(address: str, workers: int) -> None:
    from distributed import Client

    with Client(address, timeout=30, set_as_default=False) as client:  # type: ignore[no-untyped-call,unused-ignore]
        client.wait_for_workers(workers, timeout=30)  # type: ignore[no-untyped-call,unused-ignore]


@pytest.mark.filterwarnings("default")
def test_a_cluster_loses_a_worker_and_nothing_else(cluster: tuple[str, list[subprocess.Popen[bytes]]]) -> None:
    """One of three workers is killed while tasks run: the same results, in the same order, every one."""
    address, workers = cluster
    killed: list[int] = []

    def kill_one(done: int, total: int) -> None:
        if done == 4 and not killed:
            workers[0].kill()
            killed.append(done)

    found = sweep(_slow_square, range(40), cluster=address, progress=kill_one)
    assert killed
    assert found == [number * number for number in range(40)]
    assert workers[0].wait(10) == -signal.SIGKILL
    traffic = parse_traffic(TRAFFIC, file="traffic.yaml")
    with cluster_executor(address) as executor:
        far = measure(traffic, RunOptions(seeds=4, executor=executor))
    near = measure(traffic, RunOptions(seeds=4, workers=1))
    assert far.simulation is not None
    assert near.simulation is not None
    figures = [[seed.figures for seed in found.strategies[0].seeds] for found in (far.simulation, near.simulation)]
    assert figures[0] == figures[1]


@pytest.mark.filterwarnings("default")
def test_an_unreachable_cluster_is_named() -> None:
    pytest.importorskip("distributed", reason="the extra cluster is not installed")
    import kvplan.sweep

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kvplan.sweep, "_CONNECT_S", 1)
        with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
            sweep(_square, [1, 2], cluster="tcp://127.0.0.1:9")


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match="Dask, which is not installed") as caught:
        sweep(_square, [1, 2], cluster="tcp://127.0.0.1:8786")
    assert caught.value.hint == "pip install 'dask[distributed]'"
