"""The house rules that a linter cannot see: rooms, names, units, and what start-up may import."""

import ast
import dataclasses
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

import kvplan

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(module.name for module in pkgutil.walk_packages(kvplan.__path__, "kvplan."))
OPTIONAL = {"prometheus_client", "aiohttp", "httptools", "uvicorn", "redis", "distributed", "dask"}
LONGEST_MODULE_LINES = 330
WHOLE = {
    "kvplan/simulation/kernel/play.py": "the event loop: compiled as one, so kept as one",
    "kvplan/simulation/kernel/batch.py": "one engine step over arrays, compiled with it",
}
COLLECTORS = {"Fields", "InFlightRequest", "Side", "TraceNotes"}
"""What is filled while foreign text is read, or a request or a demo runs; never a result."""


def test_rooms_import_only_from_rooms_below() -> None:
    """The contract in pyproject.toml; it is exhaustive, so a module that nobody placed fails, too."""
    script = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([script, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def _result_dataclasses() -> Iterator[type]:
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.partition(".")[0] in OPTIONAL:
                continue
            raise
        for value in vars(module).values():
            if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == name:
                yield value


CLASSES = list(_result_dataclasses())


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_values_are_frozen_and_named(kind: type) -> None:
    """Results are frozen and keyword-only, so that no reader depends on an order of fields."""
    if not kind.__name__.startswith("_") and kind.__name__ not in COLLECTORS:
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        assert all(field.kw_only for field in dataclasses.fields(kind) if field.init)


UNITS = ("_bytes", "_tokens", "_s", "_per_s", "_bytes_per_s", "_share", "_per_token", "_per_hour")
WRONG_ENDINGS = (
    "_gb",
    "_gib",
    "_mb",
    "_mib",
    "_kb",
    "_ms",
    "_us",
    "_sec",
    "_secs",
    "_seconds",
    "_time",
    "_pct",
    "_percent",
    "_mem",
    "_memory",
    "_size",
    "_len_tokens",
)
KNOWN_NAMES = {
    "block_size",  # the engines' own option
    "device_memory",  # how a log line is quoted
}
TIME_WORDS = ("latency", "timeout", "duration", "delay", "elapsed", "backoff")
SHARE_WORDS = ("fraction", "utilization", "probability")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_the_unit_ends_the_name(kind: type) -> None:
    """A size is ``_bytes`` or ``_tokens``, a time ``_s``, a share ``_share``; never a unit that hides a factor."""
    for field in dataclasses.fields(kind):
        name, text = field.name, str(field.type)
        numeric = any(word in text for word in ("int", "float", "Fraction")) and "Mapping" not in text
        if not numeric or name in KNOWN_NAMES:
            continue
        assert not name.endswith(WRONG_ENDINGS), f"{kind.__name__}.{name} does not end with its unit"
        if any(word in name for word in TIME_WORDS):
            assert name.endswith(("_s", "_share")), f"{kind.__name__}.{name} is a time without its unit"


def test_modules_are_short() -> None:
    """A module past about 300 lines holds two ideas."""
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "kvplan").rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST_MODULE_LINES
    }
    assert set(long) <= set(WHOLE), long


@pytest.mark.parametrize("name", MODULES)
def test_a_module_opens_with_its_idea(name: str) -> None:
    path = ROOT / Path(*name.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
    assert text, f"{name} does not say what it is for"
    opening = text.split("\n\n")[0]
    assert len(opening.splitlines()) <= 3, f"{name} opens with more than three lines"


THIRD_PARTIES = {
    "typer": ("kvplan.cli",),
    "rich": ("kvplan.cli", "kvplan.report"),
    "huggingface_hub": ("kvplan.hub",),
    "yaml": ("kvplan.profiles", "kvplan.traffic", "kvplan.calibration", "kvplan.cli"),
    "pydantic": ("kvplan.profiles", "kvplan.traffic", "kvplan.calibration"),
    "numpy": (
        "kvplan.traffic",
        "kvplan.simulation",
        "kvplan.recommend",
        "kvplan.check",
        "kvplan.sweep",
        "kvplan.report",
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_third_parties_stay_at_the_edges(name: str) -> None:
    path = ROOT / Path(*name.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for package in _imported(ast.parse(source.read_text(encoding="utf-8"))):
        allowed = THIRD_PARTIES.get(package)
        assert allowed is None or name.startswith(allowed), f"{name} imports {package}"
        assert package != "click", "Typer keeps its Click private"


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_fractions_print_without_loss() -> None:
    """JSON numbers: whole as integers, exact floats, or text; never rounded."""
    from kvplan.report.numbers import json_number

    assert [json_number(Fraction(n, d)) for n, d in ((6, 2), (1, 4), (1, 3))] == [3, 0.25, "1/3"]
