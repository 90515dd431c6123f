"""Start-up against an empty Typer app of two commands, turn by turn in one run.

``pytest tests/benchmarks --benchmark-enable --benchmark-json=out.json``; the ratios are in ``extra_info``.
The reference pays for Python, Typer and what Typer itself imports; the ratio is what kvplan adds. Bytecode is compiled
first, as pip does when it installs.
"""

import compileall
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvplan

EMPTY_APP = """\
import typer

app = typer.Typer()


@app.command()
def first() -> None:
    print("first")


@app.command()
def second() -> None:
    print("second")


app()
"""
COMMANDS = {
    "help": ["--help"],
    "version": ["--version"],
    "model": ["model", "meta-llama/Llama-3.1-8B-Instruct", "--offline"],
    "fit": ["fit", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--offline"],
}
ROUNDS = 15


def _cpu_s(command: list[str], folder: Path) -> float:
    """CPU seconds of one run: user and system."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("name", COMMANDS)
def test_start_up_against_an_empty_app(name: str, benchmark: Any, tmp_path: Path) -> None:
    compileall.compile_dir(Path(kvplan.__file__).parent, quiet=2)
    (tmp_path / "empty_app.py").write_text(EMPTY_APP, encoding="utf-8")
    reference = [sys.executable, "empty_app.py", "first"]
    ours = [sys.executable, "-c", "import sys; from kvplan.cli import main; sys.exit(main())", *COMMANDS[name]]
    measured: dict[str, list[float]] = {"reference": [], "kvplan": []}

    def one_round() -> None:
        measured["reference"].append(_cpu_s(reference, tmp_path))
        measured["kvplan"].append(_cpu_s(ours, tmp_path))

    rounds: Callable[..., object] = benchmark.pedantic
    rounds(one_round, rounds=1 if benchmark.disabled else ROUNDS, warmup_rounds=0 if benchmark.disabled else 1)
    medians = {who: statistics.median(times) for who, times in measured.items()}
    benchmark.extra_info.update(
        {f"{who}_median_cpu_s": value for who, value in medians.items()},
        ratio=medians["kvplan"] / medians["reference"],
    )
