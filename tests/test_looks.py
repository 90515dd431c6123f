"""How every command looks: at 60 to 200 columns, in old code pages, in colour, and in its help."""

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from kvplan.cli import main
from kvplan.cli.app import COMMANDS, EVERYDAY
from kvplan.cli.help import Grouped
from kvplan.cli.output import encodable
from kvplan.explain import TOPICS
from kvplan.recommend import recommend
from kvplan.recommend.results import Advice
from kvplan.report.page import render
from kvplan.report.recommend_text import text as recommend_text
from kvplan.traffic.load import parse_traffic
from tests.log_lines import vllm_log
from tests.small_pool import small_pool
from tests.test_cli_golden import LOG, TRACE

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
TRAFFIC = f"""\
{small_pool(admission="{policy: worst_case_default_cap, default_max_tokens: 256}", duration="30s")}\
limits: {{refused_share: {{max: 0.9}}, ttft_p99_s: {{max: 60}}}}
"""
PLANS = {
    "model": ["model", LLAMA],
    "model windows": ["model", "google/gemma-3-27b-it", "--tokens", "1024,999999"],
    "model sparse": ["model", "deepseek-ai/DeepSeek-V3.2"],
    "model state": ["model", "Qwen/Qwen3.5-9B"],
    "fit": ["fit", LLAMA, "--gpu", "h100", "--prompt", "4000", "--max-tokens", "1024"],
    "fit windows": ["fit", "google/gemma-3-27b-it", "--gpu", "h100"],
    "fit state": ["fit", "Qwen/Qwen3.5-9B", "--gpu", "h100"],
    "fit too small": ["fit", "google/gemma-3-27b-it", "--gpu", "l40s"],
    "fit ranks": ["fit", "deepseek-ai/DeepSeek-V3.2", "--gpu", "h200", "--tp", "8"],
    "fit sglang": ["fit", LLAMA, "--gpu", "h100", "--engine", "sglang"],
    "fit llama.cpp": ["fit", LLAMA, "--gpu", "4090", "--engine", "llama.cpp"],
    "compare": ["compare", LLAMA, "google/gemma-3-27b-it", "--gpu", "h100", "--gpu", "l40s"],
    "check": ["check", "traffic.yaml", "--seeds", "1"],
    "simulate": ["simulate", "traffic.yaml", "--seeds", "1", "--workers", "1"],
    "check against": ["check", "traffic.yaml", "--seeds", "1", "--against", "traffic.yaml", "--set", "traffic.seed=2"],
    "trace": ["trace", "trace.csv"],
    "init": ["init"],
    "calibrate": ["calibrate", "server.log", "--gpu", "a100"],
    **{f"list {sort}": ["list", sort] for sort in ("gpus", "engines", "models", "clients", "traffic")},
    **{f"explain {topic}": ["explain", topic] for topic in TOPICS},
}
WIDTHS = (60, 80, 120, 200)
OLD_CODE_PAGES = ("ascii", "cp1252", "cp437", "cp850", "cp932")
FILES = ("trace", "init")
"""What prints a YAML file: data, whose lines keep their form, in 80 columns."""
MAX_HELP_LINES = 24
"""A terminal's rows as it opens."""
COLOURS = {"0", "1", "2", "33", "1;36"}
"""Reset, bold, faint, yellow and bold cyan: readable on light and on dark. No colour says what the words do not."""


@pytest.fixture(autouse=True)
def _files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("traffic.yaml").write_text(TRAFFIC, encoding="utf-8")
    Path("trace.csv").write_text(TRACE, encoding="utf-8")
    Path("server.log").write_text(vllm_log(LOG | {"available_kv_gib": 18.2}), encoding="utf-8")


def _shown(name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    command = PLANS[name]
    offline = [] if command[0] in ("list", "explain", "trace") else ["--offline"]
    assert main([*command, *offline]) in (0, 1)
    captured = capsys.readouterr()
    return captured.out + captured.err


def _cannot_wrap(line: str, name: str) -> bool:
    """A name, or an example or formula of an explanation, which stands indented."""
    return len(line.split()) == 1 or (name.startswith("explain") and line.startswith("    "))


@pytest.mark.parametrize("name", PLANS)
def test_no_line_is_wider_than_the_terminal(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for width in WIDTHS:
        text = _shown(name, width, monkeypatch, capsys)
        limit = max(width, 80) if name in FILES else width
        wide = [line for line in text.splitlines() if len(line) > limit]
        assert all(_cannot_wrap(line, name) for line in wide), (width, wide)
        assert width < 80 or not wide or not name.startswith("list"), "a name that 80 columns have no room for"
        assert not [line for line in text.splitlines() if line != line.rstrip()], "spaces at the end of a line"
        assert "\t" not in text
        assert not _lost_signs(text)


def _lost_signs(text: str) -> list[str]:
    """The code pages in which a sign of ``text`` becomes a question mark: each has a spelling in ASCII instead."""
    return [page for page in OLD_CODE_PAGES if encodable(text, page).count("?") != text.count("?")]


@pytest.mark.parametrize(
    ("command", "encoding"),
    [
        (["simulate", "traffic.yaml", "--seeds", "1"], "ascii"),
        (["simulate", "traffic.yaml", "--seeds", "1"], "cp437"),
        (["fit", "no-such-thing-×", "--gpu", "é"], "ascii"),
        (["fit", "no-such-thing-×", "--gpu", "é"], "cp1252"),
    ],
)
def test_a_terminal_of_an_old_code_page(command: list[str], encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    run = [sys.executable, "-m", "kvplan", *command, "--offline"]
    done = subprocess.run(run, env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == (0 if command[0] == "simulate" else 3)
    assert b"Traceback" not in done.stderr
    lines = (done.stdout + done.stderr).decode(encoding).splitlines()
    assert lines
    assert max(map(len, lines)) <= 80, "signs are spelled out before columns are set"


@pytest.mark.parametrize("name", PLANS)
def test_colours_suit_light_and_dark_and_can_be_taken_away(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = _shown(name, 80, monkeypatch, capsys)
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = _shown(name, 80, monkeypatch, capsys)
    assert set(re.findall("\x1b\\[([0-9;]*)m", coloured)) <= COLOURS
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert _shown(name, 80, monkeypatch, capsys) == plain


@pytest.fixture(scope="module")
def advice() -> Advice:
    """One search, shown at every width: playing it anew for each would take long."""
    return recommend(parse_traffic(TRAFFIC, file="my traffic.yaml"), seeds=1, workers=1)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_recommendation_at_every_width(advice: Advice, width: int) -> None:
    text = render(recommend_text(advice), width=width)
    assert not [line for line in text.splitlines() if len(line) > width and not _cannot_wrap(line, "recommend")]
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    assert not _lost_signs(text)
    coloured = render(recommend_text(advice), width=width, colour=True)
    assert set(re.findall("\x1b\\[([0-9;]*)m", coloured)) <= COLOURS
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == text
    assert "'my traffic.yaml'" in text, "a command that can be pasted"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_at_every_width(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the width, its example can be pasted: a shell joins the lines that a backslash ends."""
    name = {"": "app", "list": "list_profiles"}.get(command, command)
    example = import_module(f"kvplan.cli.{name}").EXAMPLE
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        assert main([*filter(None, [command]), "--help"]) == 0
        text = capsys.readouterr().out
        assert not [line for line in text.splitlines() if len(line) > width], width
        assert not [line for line in text.splitlines() if line != line.rstrip()]
        shown = text.partition("Example:\n")[2].replace("\\\n", "")
        assert [shlex.split(line) for line in shown.splitlines() if line] == list(map(shlex.split, example.split("\n")))


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_screen_and_ends_with_an_example(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*filter(None, [command]), "--help"]) == 0
    lines = capsys.readouterr().out.rstrip("\n").split("\n")
    assert max(map(len, lines)) <= 80
    assert len(lines) <= MAX_HELP_LINES
    assert "\n".join(lines).isascii(), "Typer prints it, in UTF-8 even where the terminal knows ASCII alone"
    example = next(place for place, line in enumerate(lines) if line.strip() == "Example:")
    assert lines[example + 1].startswith(f"    kvplan {command or 'fit'} ")
    assert len(lines) - example <= 3, "the example ends the help"


PYTHON_TYPES = re.compile(r"<(str|int|float|bool|path|file|directory|list.*)>|\b(TEXT|INTEGER|FLOAT|PATH|RANGE|None)\b")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_described_in_help_all_by_what_to_write(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = import_module(f"kvplan.cli.{'list_profiles' if command == 'list' else command}").run
    options = []
    assert set(EVERYDAY.get(command, "").split()) <= set(inspect.signature(run).parameters)
    for parameter in inspect.signature(run).parameters.values():
        if parameter.name == "context":
            continue
        _, note = get_args(parameter.annotation)
        # In Annotated, Typer keeps an option's first name as its default.
        names = note.names if isinstance(note, Grouped) else (note.default, *(note.param_decls or ()))
        options.append([str(name).partition("/")[0] for name in names if str(name).startswith("--")])
    options = [names for names in options if names]
    main([command, "--help"])
    everyday = capsys.readouterr().out
    assert main([command, "--help-all"]) == 0
    described = capsys.readouterr().out
    assert set(everyday.split()) - {"Show"} <= set(described.split())
    named = set(described.replace(",", " ").split())
    assert not [name for names in options for name in names if name not in named]
    assert {"--offline", "--profiles"} | ({"--format"} if command != "gateway" else set()) <= named
    assert max(map(len, described.splitlines())) <= 80
    assert not PYTHON_TYPES.search(everyday + described)


def _no_json(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


@pytest.mark.parametrize("name", PLANS)
def test_every_answer_is_json_of_one_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A schema, its version, no NaN nor infinity (published configs hold some)."""
    assert main([*PLANS[name], "--offline", "--format", "json"]) in (0, 1)
    document = json.loads(capsys.readouterr().out, parse_constant=_no_json)
    assert document["schema"].startswith("kvplan.")
    assert isinstance(document["schema_version"], int)
    assert all(re.fullmatch(r"[a-z][a-z_]*", key) for key in document)
    assert name != "init" or document["text"]


@pytest.mark.parametrize(
    "command",
    [
        ["model", "./nowhere"],
        ["fit", LLAMA],
        ["simulate", "nowhere"],
        ["recommend", "nowhere"],
        ["check", "nowhere"],
        ["compare"],
        ["calibrate", "nowhere"],
        ["trace", "nowhere"],
        ["init", "--output", "traffic.yaml"],
        ["list", "stars"],
        ["explain", "everything"],
    ],
    ids=lambda command: command[0],
)
def test_every_error_is_json_of_one_form(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*command, "--format", "json"])
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert list(document) == ["schema", "schema_version", "exit_code", "message", "hint", "file", "line", "key"]
    assert (document["schema"], document["exit_code"]) == ("kvplan.error", code)
    assert code in (2, 3)
    assert document["hint"]
    assert document["message"] in captured.err
