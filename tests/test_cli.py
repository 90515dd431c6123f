"""The command line as a person and a script meet it: through ``main``, exit codes, errors, help, streams."""

import json
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import kvplan
from kvplan.cli import app, main


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kvplan {kvplan.__version__}\n"


def test_help_names_every_command_and_ends_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert all(any(line.strip().startswith(f"{name} ") for line in lines) for name in app.COMMANDS)
    assert lines[-1].strip().startswith("kvplan ")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", ["model", "fit", "compare", "list_profiles", "explain", "init"])
def test_the_worked_example_works(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that need no file; what the others name is their user's."""
    monkeypatch.chdir(tmp_path)
    example = import_module(f"kvplan.cli.{name}").EXAMPLE.replace("\\\n", "")
    assert main([*shlex.split(example)[1:], "--offline"]) == 0
    assert capsys.readouterr().out or (tmp_path / "traffic.yaml").is_file()


def test_an_error_in_json_goes_to_both_streams(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "widows", "--format", "json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "schema": "kvplan.error",
        "schema_version": 1,
        "exit_code": 3,
        "message": "there is no page on 'widows'",
        "hint": "did you mean windows?",
        "file": None,
        "line": None,
        "key": "topic",
    }
    assert captured.err == "error: topic: there is no page on 'widows'\n  try: did you mean windows?\n"


def test_a_parse_error_in_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "gpu", "--format=json"]) == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


def _raise(error: BaseException) -> None:
    raise error


def test_a_bug_is_70_and_its_traceback_is_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("kvplan.explain.load_page", lambda topic: _raise(ZeroDivisionError("by zero")))
    assert main(["explain", "mla"]) == 70
    captured = capsys.readouterr()
    (kept,) = tmp_path.iterdir()
    assert captured.err == (
        "error: a bug in kvplan, not in your input: ZeroDivisionError: by zero\n"
        f"  try: the traceback is in {kept}; please report it with that file\n"
    )
    assert captured.out == ""
    assert "ZeroDivisionError: by zero" in kept.read_text(encoding="utf-8")


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvplan.explain.load_page", lambda topic: _raise(KeyboardInterrupt()))
    assert main(["explain", "mla"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_colour_only_where_it_is_wanted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["explain", "mla"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["explain", "mla"]) == 0
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["explain", "mla"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_shell_completion_knows_commands_and_their_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_KVPLAN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "kvplan model --")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 0
    assert {"--kv-dtype", "--pipeline-parallel", "--help-all"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_a_shell_is_shown_though_help_does_not_name_it(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert main(["--show-completion", shell]) == 0
    assert f"complete_{shell}" in capsys.readouterr().out


def test_what_a_light_command_does_not_import() -> None:
    """Start-up stays cheap because nothing heavy is imported for it."""
    code = (
        "import sys; from kvplan.cli import main; main(['--version']); main(['--help']); "
        "print([name for name in ('rich', 'pydantic', 'numpy', 'yaml', 'kvplan.cli.model') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
