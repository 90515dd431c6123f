"""What is installed: entry points, metadata and files; opt-in, a wheel from the sdist in an empty environment.

``pytest tests/test_packaging.py -m opt_in`` builds and installs with every Python named in ``KVPLAN_PYTHONS``
(paths joined by ``:``; the running one by default). It asks the package index.
"""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import kvplan
from kvplan.cli import main
from kvplan.errors import InputError
from tests.small_pool import small_pool

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAX_WHEEL_BYTES = 1_500_000
MAX_OWN_PACKAGES = 12
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
GATEWAY = ["gateway", "--upstream", "http://127.0.0.1:9", "--traffic", "traffic.yaml", "--trust-plan"]
EXTRAS = {
    "matplotlib": ["simulate", "traffic.yaml", "--seeds", "1", "--plot", "x.png"],
    "aiohttp": ["gateway", "--demo"],
    "uvicorn": ["gateway", "--demo"],
    "prometheus_client": ["gateway", "--demo"],
    "httptools": ["gateway", "--demo"],
    "redis": [*GATEWAY, "--ledger", "redis://127.0.0.1:9"],
    "granian": [*GATEWAY, "--server", "granian"],
}
"""A package of an extra, and a command that needs it; tests/test_sweep.py has Dask."""
TRAFFIC = small_pool(duration="5s") + "limits: {refused_share: {max: 0.5}}\n"


def _run(*command: str | Path, cwd: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_module_is_the_command(tmp_path: Path) -> None:
    shown = _run(sys.executable, "-m", "kvplan", "--version", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert shown == f"kvplan {kvplan.__version__}\n"


def test_the_entry_point_is_the_command() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="kvplan")
    assert script.load() is main
    assert PROJECT["project"]["scripts"] == {"kvplan": "kvplan.cli:main"}


def test_the_wheel_takes_types_and_profiles_along() -> None:
    assert (ROOT / "kvplan" / "py.typed").is_file()
    build = PROJECT["tool"]["hatch"]["build"]["targets"]
    assert build["wheel"]["force-include"] == {"profiles": "kvplan/_profiles"}
    assert {"kvplan", "profiles", "tests"} <= set(build["sdist"]["include"])
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "kvplan/__init__.py"


def test_every_extra_is_used() -> None:
    """A package that is named and never imported is weight for nothing."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "kvplan").rglob("*.py"))
    indirect = {"uvloop"}  # uvicorn takes them where they are installed
    for extra, packages in PROJECT["project"]["optional-dependencies"].items():
        if extra in ("test", "dev"):
            continue
        for package in packages:
            name = package.split(">")[0].split("[")[-1].rstrip("]").replace("-", "_")
            assert name in indirect or f"import {name}" in source or f"from {name}" in source, f"{extra}: {package}"


@pytest.mark.parametrize("missing", EXTRAS)
def test_a_missing_extra_is_named(missing: str, tmp_path: Path) -> None:
    """In a process of its own, since modules that were imported before stay."""
    (tmp_path / "traffic.yaml").write_text(TRAFFIC, encoding="utf-8")
    program = "import sys; sys.modules[sys.argv[1]] = None; from kvplan.cli import main; sys.exit(main(sys.argv[2:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, missing, *EXTRAS[missing], "--offline"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == InputError.exit_code, done.stderr
    assert "not installed\n  try: pip install " in done.stderr
    assert "kvplan" not in done.stderr.partition("try: ")[2], "another project has that name on the package index"


def test_without_numba_the_answer_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "traffic.yaml").write_text(TRAFFIC, encoding="utf-8")
    arguments = ["simulate", "traffic.yaml", "--seeds", "1", "--workers", "1", "--format", "json", "--offline"]
    shown = [
        _run(
            sys.executable,
            "-c",
            f"import sys; {prepare}; from kvplan.cli import main; sys.exit(main(sys.argv[1:]))",
            *arguments,
            cwd=tmp_path,
            PYTHONPATH=str(ROOT),
        )
        for prepare in ("sys.modules['numba'] = None", "pass")
    ]
    assert shown[0] == shown[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel built from it."""
    pytest.importorskip("build", reason="pip install build")
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.mark.opt_in
@pytest.mark.timeout(900)
def test_the_files_of_sdist_and_wheel(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    assert wheel.stat().st_size <= MAX_WHEEL_BYTES
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"kvplan/py.typed", "kvplan/_profiles/gpus/aliases.json", "kvplan/explain/mla.md"} <= names
    tracked = {
        str(path.relative_to(ROOT))
        for folder in ("kvplan", "profiles", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked | {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"} <= packed


@pytest.mark.opt_in
@pytest.mark.timeout(900)
@pytest.mark.parametrize("python", os.environ.get("KVPLAN_PYTHONS", sys.executable).split(":"))
def test_an_empty_environment(built: tuple[Path, Path], python: str, tmp_path: Path) -> None:
    """Wheels only, so no compiler; few packages beside those of typer and huggingface-hub; answers offline."""

    def environment(name: str, *packages: str | Path) -> tuple[Path, set[str]]:
        _run(python, "-m", "venv", tmp_path / name)
        inside = tmp_path / name / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        _run(inside, "-m", "pip", "install", "-q", "--only-binary", ":all:", *packages)
        listed = _run(inside, "-m", "pip", "list", "--format", "freeze").split()
        return inside, {line.partition("==")[0].lower() for line in listed}

    inside, ours = environment("ours", built[1])
    _, theirs = environment("theirs", "typer", "huggingface-hub")
    assert len(ours - theirs) <= MAX_OWN_PACKAGES, ours - theirs
    assert "131,072 bytes of KV per token" in _run(inside, "-m", "kvplan", "model", LLAMA, "--offline", cwd=tmp_path)
    assert "Recommended" in _run(inside, "-m", "kvplan", "simulate", "chat", "--seeds", "1", "--offline", cwd=tmp_path)
