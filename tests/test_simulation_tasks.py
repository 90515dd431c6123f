"""Runs over processes: a killed worker costs time and nothing else, and an interrupted simulation leaves nothing."""

import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.simulation import tasks
from kvplan.simulation.kernel import compiled as numba_kernel
from kvplan.simulation.kernel import run as kernel_run
from kvplan.simulation.kernel.arrays import Arrays
from kvplan.simulation.kernel.event_loop import event_loop
from kvplan.simulation.simulate import simulate
from kvplan.simulation.tasks import Task, TaskResult
from kvplan.traffic.load import parse_traffic

TRAFFIC = """\
deployment:
  max_model_len: 1024
  max_num_seqs: 8
  max_num_batched_tokens: 256
  kv_pool: {blocks: 101, block_tokens: 16}
  service: {base_s: 0.01, prefill_token_s: 1.0e-5, decode_sequence_s: 1.0e-4, kv_token_s: 1.0e-7}
traffic:
  duration: 10m
  classes:
    - name: a
      rate: 2/s
      prompt_tokens: {lognormal: {p50: 60, p95: 200}}
      output_tokens: {lognormal: {p50: 30, p95: 90}}
"""
_KVPLAN = "import sys; sys.modules['numba'] = None; from kvplan.cli import main; sys.exit(main())"
"""Without numba: a signal shall not meet its compiler."""
play = tasks.run_task
needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="the stand-ins reach forked workers only"
)


def killed_once(task: Task, **more: object) -> TaskResult:
    """Plays a task, but the first worker that gets one is killed, as by the kernel where memory runs out."""
    marker = Path(os.environ["KVPLAN_TEST_MARKER"])
    if multiprocessing.parent_process() is not None and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    assert set(more) <= {"say", "expect"}
    return play(task)


@pytest.mark.parametrize(("strategies", "seeds"), [(("none",), 1), (("worst_case", "none"), 3)])
def test_a_long_run_says_so_before_it_plays(
    monkeypatch: pytest.MonkeyPatch, strategies: tuple[str, ...], seeds: int
) -> None:
    """A single run too, which no other tells how long it takes."""
    events: list[str] = []

    def noted(task: Task, **more: object) -> TaskResult:
        assert "say" in more or "played" in events, "the first one, so that a kernel compiled for it is told of"
        events.append("played")
        return play(task)

    monkeypatch.setattr(tasks, "run_task", noted)
    monkeypatch.setattr(tasks, "_REQUEST_S", 1.0)  # 1,200 requests: 20 minutes a run
    traffic = parse_traffic(TRAFFIC, file="t.yaml")
    simulate(traffic, strategies=strategies, seeds=seeds, workers=1, say=events.append)
    runs = seeds * len(strategies)
    minutes = int(events[0].split()[4])
    assert events[0] == f"this takes at least {minutes} min; fewer seeds or a shorter duration is faster"
    assert minutes == pytest.approx(20 * runs, rel=0.15)
    assert events[1:].count("played") >= 1


def test_a_run_whose_first_requests_take_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of its requests does not tell: an overload, in which each is preempted again and again. A clock that
    goes forward a hundred seconds whenever it is read stands for the time that this takes."""
    clock = itertools.count(0.0, 100.0)
    monkeypatch.setattr(kernel_run, "_PILOT_ROWS", 300)
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    monkeypatch.setattr(kernel_run, "compiling_pays", lambda _: False)
    events: list[str] = []
    traffic = parse_traffic(TRAFFIC, file="t.yaml")
    simulate(traffic, strategies=["none"], seeds=1, say=events.append)
    minutes = int(events[0].split()[3])
    assert events == [f"this takes about {minutes} min; fewer seeds or a shorter duration is faster"]
    assert minutes == pytest.approx(100 * (1200 - 300) / 300 / 60, rel=0.2)


def test_how_long_the_kernel_loads_is_not_taken_for_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes forward a hundred seconds with the first piece, and not at all after it."""
    clock = itertools.chain([0.0], itertools.repeat(100.0))
    monkeypatch.setattr(kernel_run, "_PILOT_ROWS", 300)
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    events: list[str] = []
    traffic = parse_traffic(TRAFFIC, file="t.yaml")
    simulate(traffic, strategies=["none"], seeds=1, compiled=False, say=events.append)
    assert events == []


def test_a_run_whose_first_requests_take_long_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the start, with the same answer."""
    traffic = parse_traffic(TRAFFIC, file="t.yaml")
    plain = simulate(traffic, strategies=["none"], seeds=1, compiled=False)
    monkeypatch.setattr(kernel_run, "_PILOT_ROWS", 300)
    monkeypatch.setattr(kernel_run, "compiling_pays", lambda _: True)
    asked: list[object] = []

    def compiled_event_loop(say: object) -> object:
        asked.append(say)
        return event_loop

    monkeypatch.setattr(numba_kernel, "compiled_event_loop", compiled_event_loop)
    monkeypatch.setattr(kernel_run, "Arrays", lambda *, compiled: Arrays(compiled=False))
    again = simulate(traffic, strategies=["none"], seeds=1)
    assert len(asked) == 1
    assert again.strategies[0].seeds == plain.strategies[0].seeds


def always_killed(task: Task, **more: object) -> TaskResult:
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    assert set(more) <= {"say", "expect"}
    return play(task)


@needs_fork
def test_a_killed_worker_s_runs_are_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = parse_traffic(TRAFFIC, file="t.yaml")
    whole = simulate(traffic, strategies=["none"], seeds=5, workers=1)
    monkeypatch.setenv("KVPLAN_TEST_MARKER", str(tmp_path / "killed"))
    monkeypatch.setattr("kvplan.simulation.tasks.run_task", killed_once)
    again = simulate(traffic, strategies=["none"], seeds=5, workers=2)
    assert (tmp_path / "killed").exists()
    assert again.strategies[0].seeds == whole.strategies[0].seeds


@needs_fork
def test_workers_that_are_always_killed_are_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvplan.simulation.tasks.run_task", always_killed)
    with pytest.raises(InputError, match="worker processes were killed 3 times, with 4 of 4 runs left") as caught:
        simulate(parse_traffic(TRAFFIC, file="t.yaml"), strategies=["none"], seeds=5, workers=2)
    assert caught.value.hint is not None
    assert "--workers 1" in caught.value.hint


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for the workers in /proc")


def _interrupted(folder: Path, number: int, *, everyone: bool) -> tuple[int, bytes, str, list[int]]:
    """A simulation that got a signal once its workers ran: exit code, both streams, and the workers it had."""
    (folder / "t.yaml").write_text(TRAFFIC.replace("10m", "4h"), encoding="utf-8")
    command = [sys.executable, "-c", _KVPLAN, "simulate", "t.yaml", "--workers", "2", "--seeds", "40"]
    asked = ["--requests", "r.csv", "--report", "r.html"]
    with (folder / "err").open("wb") as err, (folder / "out").open("wb") as out:
        started = subprocess.Popen([*command, *asked], cwd=folder, start_new_session=True, stdout=out, stderr=err)
    deadline_s = time.monotonic() + 60
    while len(_children(started.pid)) < 2 and time.monotonic() < deadline_s and started.poll() is None:
        time.sleep(0.05)
    workers = _children(started.pid)
    time.sleep(0.3)
    (os.killpg if everyone else os.kill)(started.pid, number)
    code = started.wait(60)
    assert len(workers) >= 2
    said = (folder / "err").read_text(encoding="utf-8"), (folder / "out").read_bytes()
    for name in ("err", "out"):
        (folder / name).unlink()
    return code, said[1], said[0], workers


def _still_there(workers: list[int]) -> list[int]:
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        left = [worker for worker in workers if Path(f"/proc/{worker}/cmdline").exists() and not _is_dead(worker)]
        if not left:
            return []
        time.sleep(0.05)
    return left


def _is_dead(worker: int) -> bool:
    """Whether it has ended and only waits to be asked for its exit code."""
    try:
        return Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@needs_proc
@pytest.mark.parametrize("everyone", [True, False])
def test_an_interrupt_ends_every_process_and_leaves_no_file(tmp_path: Path, *, everyone: bool) -> None:
    """Ctrl-C at a terminal reaches all processes of the group; ``kill -INT`` the first one alone."""
    code, out, err, workers = _interrupted(tmp_path, signal.SIGINT, everyone=everyone)
    assert (code, out) == (130, b"")
    assert re.fullmatch(r"(this takes (about|at least) \d+ min.*\n)*interrupted\n", err)
    assert [file.name for file in tmp_path.iterdir()] == ["t.yaml"]
    assert _still_there(workers) == []


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent(tmp_path: Path, number: int) -> None:
    code, out, _, workers = _interrupted(tmp_path, number, everyone=False)
    assert (code, out) == (-number, b"")
    assert _still_there(workers) == []
    assert [file.name for file in tmp_path.iterdir()] == ["t.yaml"]


def _children(pid: int) -> list[int]:
    """The worker processes of ``pid``."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in listed.read_text().split()] if listed.exists() else []
