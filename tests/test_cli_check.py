"""``kvplan check`` through ``main``: verdicts, exit codes, every format, what a change does, 80 columns."""

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from kvplan.cli import main
from tests.golden_files import check_golden
from tests.small_pool import small_pool

CAPPED = "{choices: [{unset: true, share: 0.1}, {value: 512, share: 0.9}]}"
TRAFFIC = f"""\
# A pool small enough that a default cap matters.
{small_pool(admission="{policy: worst_case}", rate="2/s", max_tokens=CAPPED)}limits:
  preemptions: {{max: 0}}
  completed_share: {{min: 0.5}}
  worst_case_reservations: {{class: chat, min: 3}}
  e2e_p99_s: {{max: 60}}
"""


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traffic.yaml").write_text(TRAFFIC, encoding="utf-8")
    changed = TRAFFIC.replace("max_model_len: 2048", "max_model_len: 6000").replace("# A pool", "# The pool")
    (tmp_path / "changed.yaml").write_text(changed, encoding="utf-8")


def _run(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert main(["check", *arguments, "--seeds", "3", "--workers", "1"]) == code
    return capsys.readouterr().out


def _rounded(value: Any) -> Any:
    """Floats to nine digits: the last ones belong to the machine's arithmetic."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def test_limits_that_hold(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _run(capsys, 0, "traffic.yaml")
    assert max(map(len, shown.splitlines())) <= 80
    check_golden("cli/check_holds.txt", shown)


def test_a_change_that_raises_the_window(capsys: pytest.CaptureFixture[str]) -> None:
    """What a reviewer sees of a pull request that raises max_model_len: requests without a cap now reserve the pool."""
    shown = _run(capsys, 1, "changed.yaml", "--against", "traffic.yaml")
    assert max(map(len, shown.splitlines())) <= 80
    assert "deployment.max_model_len: 2048 → 6000" in shown
    assert "; the base meets it" in " ".join(shown.split())
    check_golden("cli/check_change.txt", shown)


def test_markdown_for_a_pull_request(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _run(capsys, 1, "changed.yaml", "--against", "traffic.yaml", "--format", "markdown")
    check_golden("cli/check_change.md", shown)
    tables = [line for line in shown.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in tables} == {5, 6}


def test_json_whole(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _run(capsys, 1, "changed.yaml", "--against", "traffic.yaml", "--format", "json")
    document = json.loads(shown)
    check_golden("cli/check_change.json", json.dumps(_rounded(document), indent=2, ensure_ascii=False) + "\n")
    assert (document["schema"], document["schema_version"], document["passed"]) == ("kvplan.check", 1, False)
    for limit in document["limits"]:
        assert {"name", "class", "passed", "measured", "limit", "message"} <= set(limit)
    by_name = {limit["name"]: limit for limit in document["limits"]}
    assert (by_name["worst_case_reservations"]["class"], by_name["worst_case_reservations"]["limit"]) == ("chat", 3)


def test_junit_is_a_case_per_limit(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _run(capsys, 1, "changed.yaml", "--format", "junit")
    assert shown.isascii(), "≤ would become <= on the way through an old code page, and that would end the document"
    root = ET.fromstring(shown)
    cases = root.findall("testsuite/testcase")
    assert [case.get("classname") for case in cases] == [
        "kvplan.preemptions",
        "kvplan.completed_share",
        "kvplan.worst_case_reservations",
        "kvplan.e2e_p99_s",
    ]
    assert [case.get("line") for case in cases] == ["20", "21", "22", "23"]
    failures = root.findall("testsuite/testcase/failure")
    assert root.get("failures") == root[0].get("failures") == str(len(failures))
    assert all(case.get("file") == "changed.yaml" for case in cases)
    assert "below its limit ≥ 3" in (failures[-1].get("message") or "")


def test_github_annotates_the_limit_s_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _run(capsys, 1, "changed.yaml", "--format", "github").splitlines()
    commands = [line for line in lines if line.startswith("::")]
    assert commands[-1].startswith(
        "::error file=changed.yaml,line=22,title=kvplan check%3A worst_case_reservations of chat::"
    )
    assert all("%25" in line or "%" not in line.partition("::")[2].replace("%3A", "") for line in commands)
    assert lines[-1].startswith("kvplan check: changed.yaml fails")


def test_github_annotates_a_mistake_in_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(TRAFFIC.replace("duration:", "duraton:"), encoding="utf-8")
    assert main(["check", "wrong.yaml", "--format", "github"]) == 3
    shown, said = capsys.readouterr()
    line = 1 + TRAFFIC[: TRAFFIC.index("duration:")].count("\n")
    assert shown == (
        f"::error file=wrong.yaml,line={line},title=kvplan check::unknown key 'duraton' in traffic; "
        "did you mean 'duration'?\n"
    )
    assert said.startswith(f"error: wrong.yaml:{line}: ")


def test_a_file_s_name_cannot_break_an_annotation(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "changed.yaml").rename(tmp_path / "a,b%:c.yaml")
    shown = _run(capsys, 1, "a,b%:c.yaml", "--format", "github")
    assert "file=a%2Cb%25%3Ac.yaml,line=" in shown


def test_names_are_escaped_in_every_format(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = TRAFFIC.replace("name: chat", """name: 'a|b<i>&"'""").replace("class: chat", """class: 'a|b<i>&"'""")
    (tmp_path / "strange.yaml").write_text(text, encoding="utf-8")
    root = ET.fromstring(_run(capsys, 0, "strange.yaml", "--format", "junit"))
    assert any('a|b<i>&"' in (case.get("name") or "") for case in root.iter("testcase"))
    marked = _run(capsys, 0, "strange.yaml", "--format", "markdown")
    assert "a\\|b&lt;i>" in marked
    json.loads(_run(capsys, 0, "strange.yaml", "--format", "json"))


def test_a_file_without_limits_is_a_mistake_not_a_pass(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "free.yaml").write_text(TRAFFIC.partition("limits:")[0], encoding="utf-8")
    assert main(["check", "free.yaml"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "nothing to check" in captured.err
    assert "refused_share: {max: 0.01}" in captured.err


def test_what_does_not_start_is_a_broken_limit(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _run(capsys, 1, "traffic.yaml", "--set", "deployment.max_model_len=8192")
    assert shown.startswith("traffic.yaml fails: the engine would not start")
    assert max(map(len, shown.splitlines())) <= 80
    root = ET.fromstring(_run(capsys, 1, "traffic.yaml", "--set", "deployment.max_model_len=8192", "--format", "junit"))
    assert root.get("failures") == root.get("tests") == "5"


def test_an_earlier_answer_is_the_base_of_the_next(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = _run(capsys, 0, "traffic.yaml", "--format", "json", "--output", "plan.json")
    assert text.startswith("traffic.yaml passes")
    assert json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))["passed"]
    same = _run(capsys, 0, "traffic.yaml", "--baseline", "plan.json")
    assert "change by less" not in same
    assert "figures do not change" in same
    shown = _run(capsys, 1, "changed.yaml", "--baseline", "plan.json")
    assert "against plan.json" in shown


def test_against_and_baseline_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "traffic.yaml", "--against", "changed.yaml", "--baseline", "plan.json"]) == 3
    assert "cannot be combined" in capsys.readouterr().err


def test_strict_fails_what_is_within_noise(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wide = TRAFFIC.replace("completed_share: {min: 0.5}", "refused_share: {max: 1}")
    (tmp_path / "wide.yaml").write_text(wide, encoding="utf-8")
    found = json.loads(_run(capsys, 0, "wide.yaml", "--format", "json"))
    refused = next(limit for limit in found["limits"] if limit["name"] == "refused_share")
    assert refused["interval"][0] < refused["measured"]
    edge = (max(refused["interval"][0], 0) + refused["measured"]) / 2
    (tmp_path / "edge.yaml").write_text(wide.replace("max: 1}", f"max: {edge}}}"), encoding="utf-8")
    shown = _run(capsys, 0, "edge.yaml")
    assert "unsure  refused_share" in shown
    assert "which reaches across the limit" in " ".join(shown.split())
    assert "broken" in _run(capsys, 1, "edge.yaml", "--strict")
    assert "::warning file=edge.yaml,line=21" in _run(capsys, 0, "edge.yaml", "--format", "github")


def test_a_bundled_mix_is_called_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "chat", "--offline"])
    assert capsys.readouterr().out.startswith("chat passes" if code == 0 else "chat fails")


def test_a_pinned_model_repeats_offline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The commit's config lies in the Hub's cache; nothing else is needed, and the answer names that commit."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = Path(os.environ["HF_HOME"]) / "hub" / "models--some--model" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
        "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6,
    }  # fmt: skip
    (snapshot / "config.json").write_text(json.dumps(config), encoding="utf-8")
    text = TRAFFIC.replace("  kv_pool: {blocks: 400, block_tokens: 16}\n", "  gpu: l4\n")
    text = f"model: some/model@{commit}\n{text}"
    (tmp_path / "pinned.yaml").write_text(text, encoding="utf-8")
    first = _run(capsys, 0, "pinned.yaml", "--offline", "--format", "json")
    assert first == _run(capsys, 0, "pinned.yaml", "--offline", "--format", "json")
    assert json.loads(first)["model"]["revision"] == commit
