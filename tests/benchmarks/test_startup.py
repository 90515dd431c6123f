"""What starting kvplan costs, as a ratio to an empty Typer app of two commands, measured in turns in one run.

``pytest tests/benchmarks/test_startup.py --benchmark-enable -s`` measures; without the option each command runs once,
and nothing is timed. With ``-m opt_in`` it is measured beside kvfit and hf-mem, each in an environment of its own:
their help beside ours, and a first answer about one model from the same Hub on this machine.
"""

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kvplan.profiles.loader import load_model_facts
from tests.benchmarks.comparison import compare
from tests.hub_server import HubServer, Repository, serve

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
LARGEST_RATIO = 1.6
ROUNDS = 25
RIVALS = {
    "kvfit": (
        "import sys, kvfit.hf as hub; hub.HF_BASE = sys.argv.pop(1); from kvfit.cli import main; sys.exit(main())",
        (MODEL, "--hardware", "h100-80"),
        ("fit", MODEL, "--gpu", "h100"),
    ),
    "hf-mem": (
        (
            "import sys, httpx2; hub = sys.argv.pop(1); ask = httpx2.AsyncClient.build_request; "
            "httpx2.AsyncClient.build_request = lambda self, method, url, **more: "
            "ask(self, method, str(url).replace('https://huggingface.co', hub), **more); "
            "from hf_mem.cli import main; sys.exit(main())"
        ),
        ("--model-id", MODEL),
        ("model", MODEL),
    ),
}
"""A program that asks another Hub than the one whose address is fixed in it, its words, and ours that ask as much."""
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


def run(command: Sequence[str], **changes: str) -> str:
    """The command's output; it must end well."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", **changes}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else a checkout is compiled anew at every start
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def cpu_s(action: Callable[[], object]) -> float:
    """CPU seconds that the processes started by ``action`` used."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    action()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def measure(actions: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """CPU milliseconds of each action, round by round: taken in turns, each first every other time."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(ROUNDS + 1):
        for name in list(actions) if turn % 2 else list(actions)[::-1]:
            spent = cpu_s(actions[name])
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
    spent = measure({name: partial(run, command) for name, command in commands.items()})
    what = f"start-up, `kvplan {ours[0]}`"
    assert (
        compare(benchmark, what, "empty Typer app", "ms of CPU", spent["kvplan"], spent["empty app"]) <= LARGEST_RATIO
    )


@pytest.mark.timeout(600)
def test_importing_costs_less_than_importing_typer(benchmark: BenchmarkFixture) -> None:
    """Names are loaded when the first of them is used."""
    commands = {name: (sys.executable, "-c", f"import {name}; print({name}.__name__)") for name in ("typer", "kvplan")}
    assert run(commands["kvplan"]) == "kvplan\n"
    benchmark.pedantic(run, args=(commands["kvplan"],), rounds=1)  # type: ignore[no-untyped-call]
    if benchmark.enabled:
        spent = measure({name: partial(run, command) for name, command in commands.items()})
        compare(benchmark, "`import kvplan`", "import typer", "ms of CPU", spent["kvplan"], spent["typer"])


@pytest.mark.opt_in
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rival", RIVALS)
def test_starting_beside_other_programs(benchmark: BenchmarkFixture, rival: str, tmp_path: Path) -> None:
    """The help, and the first answer about a model of which nothing is cached, from a Hub on this machine."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "other"], check=True)
    folder = tmp_path / "other" / ("Scripts" if sys.platform == "win32" else "bin")
    subprocess.run([folder / "python", "-m", "pip", "install", "-q", rival], check=True)
    program, asked, ours = RIVALS[rival]
    with serve() as hub:
        hub.repositories[MODEL] = _llama()
        help_texts = {
            "kvplan": partial(run, (*KVPLAN, "--help")),
            rival: partial(run, (str(folder / rival), "--help")),
        }
        answers = {
            "kvplan": partial(_first_answer, hub, ours),
            rival: partial(run, (str(folder / "python"), "-c", program, hub.endpoint, *asked)),
        }
        assert "16" in answers[rival]()  # GiB of weights
        assert "bf16" in answers["kvplan"]()
        benchmark.pedantic(answers["kvplan"], rounds=1)  # type: ignore[no-untyped-call]
        if benchmark.enabled:
            for what, actions in (("`kvplan --help`", help_texts), (f"`kvplan {ours[0]}`, nothing cached", answers)):
                spent = measure(actions)
                their = f"{rival} --help" if actions is help_texts else f"{rival}, the same model"
                compare(benchmark, f"start-up, {what}", their, "ms of CPU", spent["kvplan"], spent[rival])


def _first_answer(hub: HubServer, words: Sequence[str]) -> str:
    """What kvplan answers with an empty cache."""
    with tempfile.TemporaryDirectory() as home:
        return run((*KVPLAN, *words), HF_HUB_OFFLINE="0", HF_ENDPOINT=hub.endpoint, HF_HOME=home)


def _llama() -> Repository:
    """Llama-3.1-8B as its repository describes it, in one weight file of which only the header is there."""
    facts = load_model_facts(MODEL)
    assert facts is not None
    hidden, keys, inner, vocabulary = 4096, 1024, 14336, 128256
    shapes = {"model.embed_tokens": [vocabulary, hidden], "lm_head": [vocabulary, hidden], "model.norm": [hidden]}
    for layer in range(32):
        here = f"model.layers.{layer}."
        shapes |= {f"{here}self_attn.{name}_proj": [hidden, hidden] for name in "qo"}
        shapes |= {f"{here}self_attn.{name}_proj": [keys, hidden] for name in "kv"}
        shapes |= {f"{here}mlp.{name}_proj": [inner, hidden] for name in ("gate", "up")}
        shapes |= {f"{here}mlp.down_proj": [hidden, inner]}
        shapes |= {f"{here}{name}_layernorm": [hidden] for name in ("input", "post_attention")}
    offset, header = 0, {}
    for name, shape in shapes.items():
        end = offset + 2 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    return Repository(
        files={
            "config.json": json.dumps(facts.config).encode(),
            "model.safetensors": len(text).to_bytes(8, "little") + text,
        },
        sizes={"model.safetensors": 8 + len(text) + offset},
        elements={"BF16": offset // 2},
    )
