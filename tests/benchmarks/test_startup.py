"""What starting kvplan costs, as a ratio to an empty Typer app of two commands, measured in turns in one run.

``pytest tests/benchmarks/test_startup.py --benchmark-enable -s`` measures; without the option each command runs once,
and nothing is timed. With ``-m opt_in`` it is measured beside kvfit and hf-mem, each in an environment of its own.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.benchmarks.comparison import compare

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
LARGEST_RATIO = 1.6
ROUNDS = 25
OFFLINE = {"kvfit": (MODEL, "--hardware", "h100-80", "--timeout", "5"), "hf-mem": ("--model-id", MODEL)}
"""What asks the other programs about a model."""
KVPLAN = (sys.executable, "-c", "import sys; from kvplan.cli import main; sys.exit(main())")
EMPTY_APP = '''
import typer

app = typer.Typer()


@app.command()
def one(name: str = "x") -> None:
    """The first."""
    print(name)


@app.command()
def two(name: str = "x") -> None:
    """The second."""
    print(name)


app()
'''


@pytest.fixture
def empty_app(tmp_path: Path) -> tuple[str, str]:
    """The rival, as a script."""
    path = tmp_path / "empty_app.py"
    path.write_text(EMPTY_APP)
    return (sys.executable, str(path))


def run(command: Sequence[str]) -> str:
    """The command's output; it must end well."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else a checkout is compiled anew at every start
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def cpu_s(action: Callable[[], object]) -> float:
    """CPU seconds that the processes started by ``action`` used."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    action()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def measure(commands: Mapping[str, Sequence[str]]) -> dict[str, list[float]]:
    """CPU milliseconds of each command, round by round: taken in turns, each first every other time."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(ROUNDS + 1):
        for name in list(commands) if turn % 2 else list(commands)[::-1]:
            command = commands[name]
            spent = cpu_s(lambda command=command: run(command))  # type: ignore[misc]
            if turn:  # the first turn compiles and warms the disk's cache
                times[name].append(spent * 1e3)
    return times


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("ours", "rival"), [(("--help",), ("--help",)), (("model", MODEL), ("one",))], ids=["help", "model"]
)
def test_starting_costs_little_more_than_an_empty_app(
    benchmark: BenchmarkFixture, empty_app: tuple[str, str], ours: tuple[str, ...], rival: tuple[str, ...]
) -> None:
    commands = {"empty app": (*empty_app, *rival), "kvplan": (*KVPLAN, *ours)}
    assert "kvplan" in run(commands["kvplan"])
    assert run(commands["empty app"])
    benchmark.pedantic(run, args=(commands["kvplan"],), rounds=1)  # type: ignore[no-untyped-call]
    if not benchmark.enabled:
        return
    spent = measure(commands)
    what = f"start-up, `kvplan {ours[0]}`"
    assert (
        compare(benchmark, what, "empty Typer app", "ms of CPU", spent["kvplan"], spent["empty app"]) <= LARGEST_RATIO
    )


@pytest.mark.opt_in
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rival", ["kvfit", "hf-mem"])
def test_starting_beside_other_programs(benchmark: BenchmarkFixture, rival: str, tmp_path: Path) -> None:
    """Their ``--help`` beside ours, and beside our answer about a model.

    Neither answers without the Hub (its address is fixed in both, nothing is cached), which is tested here: so what an
    answer of theirs costs at least is what their help costs.
    """
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "other"], check=True)
    folder = tmp_path / "other" / ("Scripts" if sys.platform == "win32" else "bin")
    subprocess.run([folder / "python", "-m", "pip", "install", "-q", rival], check=True)
    theirs = str(folder / rival)
    commands = {rival: (theirs, "--help"), "help": (*KVPLAN, "--help"), "model": (*KVPLAN, "model", MODEL)}
    assert run(commands[rival])
    nowhere = {**os.environ, "HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_PROXY": ""}
    asked = subprocess.run([theirs, *OFFLINE[rival]], env=nowhere, capture_output=True, timeout=60, check=False)
    assert asked.returncode != 0
    benchmark.pedantic(run, args=(commands["help"],), rounds=1)  # type: ignore[no-untyped-call]
    if benchmark.enabled:
        spent = measure(commands)
        for ours in ("help", "model"):
            what = f"start-up, `kvplan {'--help' if ours == 'help' else ours}`"
            compare(benchmark, what, f"{rival} --help", "ms of CPU", spent[ours], spent[rival])
