"""The house rules that a linter cannot see: rooms, names, units, hints, and where third parties may be imported."""

import ast
import dataclasses
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kvplan

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(module.name for module in pkgutil.walk_packages(kvplan.__path__, "kvplan."))
SOURCES = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "kvplan").rglob("*.py"))}
TREES = {str(path.relative_to(ROOT)): ast.parse(text) for path, text in SOURCES.items()}
OPTIONAL = {"prometheus_client", "aiohttp", "httptools", "uvicorn", "redis", "distributed", "dask"}


def test_rooms_import_only_from_rooms_below() -> None:
    """The contract in pyproject.toml; it is exhaustive, so a module that nobody placed fails, too."""
    script = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([script, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


LONGEST_MODULE_LINES = 330


def test_modules_are_short() -> None:
    """A module past about 300 lines holds two ideas."""
    lines = {str(path.relative_to(ROOT)): len(text.splitlines()) for path, text in SOURCES.items()}
    assert not [name for name, count in lines.items() if count > LONGEST_MODULE_LINES]


def test_a_module_opens_with_its_idea() -> None:
    openings = {name: (ast.get_docstring(tree) or "").split("\n\n")[0] for name, tree in TREES.items()}
    assert not [name for name, opening in openings.items() if not opening]
    assert not [name for name, opening in openings.items() if len(opening.splitlines()) > 3]


THIRD_PARTIES = {
    "typer": ("cli",),
    "rich": ("cli", "report"),
    "huggingface_hub": ("hub",),
    "yaml": ("profiles", "traffic", "calibration", "cli"),
    "pydantic": ("traffic",),
    "numpy": ("traffic", "simulation", "recommend", "check", "sweep", "report"),
    "click": (),  # Typer keeps its Click private
}


def test_third_parties_stay_at_the_edges() -> None:
    assert not [
        (name, package)
        for name, tree in TREES.items()
        for package in _imported(tree)
        if package in THIRD_PARTIES and not name.removeprefix("kvplan/").startswith(THIRD_PARTIES[package])
    ]


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


ERRORS = {"InputError", "UnsupportedModelError", "ModelUnavailableError", "HubUnavailableError"}


def test_every_error_has_a_hint() -> None:
    """Every refusal says what to do next."""
    calls = [(name, node) for name, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    errors = [(name, call) for name, call in calls if isinstance(call.func, ast.Name) and call.func.id in ERRORS]
    assert len(errors) > 100
    assert not [
        f"{name}:{call.lineno}" for name, call in errors if not any(word.arg == "hint" for word in call.keywords)
    ]


def _dataclasses() -> Iterator[type]:
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


CLASSES = list(_dataclasses())
COLLECTORS = {"Fields", "InFlightRequest", "Side", "TraceNotes"}
"""What is filled while foreign text is read, or a request or a demo runs; never a result."""


def test_values_are_frozen_and_named() -> None:
    """Results are frozen and keyword-only, so that no reader depends on an order of fields."""
    values = [kind for kind in CLASSES if not kind.__name__.startswith("_") and kind.__name__ not in COLLECTORS]
    assert len(values) > 100
    assert not [kind for kind in values if not kind.__dataclass_params__.frozen]  # type: ignore[attr-defined]
    assert not [kind for kind in values if not all(field.kw_only for field in dataclasses.fields(kind) if field.init)]
    assert {kind.__name__ for kind in CLASSES} >= COLLECTORS


WRONG_ENDINGS = (
    *("_gb", "_gib", "_mb", "_mib", "_kb", "_mem", "_memory", "_size", "_len_tokens"),
    *("_ms", "_us", "_sec", "_secs", "_seconds", "_time"),
    *("_pct", "_percent"),
)
KNOWN_NAMES = {
    "block_size",  # the engines' own option
    "device_memory",  # how a log line is quoted
}
TIME_WORDS = ("latency", "timeout", "duration", "delay", "elapsed", "backoff")


def test_the_unit_ends_the_name() -> None:
    """A size is ``_bytes`` or ``_tokens``, a time ``_s``, a share ``_share``; never a unit that hides a factor."""
    numbers = [
        (kind.__name__, field.name)
        for kind in CLASSES
        for field in dataclasses.fields(kind)
        if any(word in str(field.type) for word in ("int", "float", "Fraction"))
        and "Mapping" not in str(field.type)
        and field.name not in KNOWN_NAMES
    ]
    assert not [field for field in numbers if field[1].endswith(WRONG_ENDINGS)]
    times = [field for field in numbers if any(word in field[1] for word in TIME_WORDS)]
    assert not [field for field in times if not field[1].endswith(("_s", "_share"))]
