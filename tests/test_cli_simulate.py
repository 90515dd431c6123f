"""``kvplan simulate`` through ``main``: text, JSON, every request, the page, the picture, overrides, interruption."""

import csv
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kvplan.admission import DEFAULT_STRATEGIES
from kvplan.cli import main
from kvplan.cli.files import atomic
from kvplan.report.over_time import BARS
from tests.golden_files import check_golden
from tests.small_pool import small_pool

TRAFFIC = f"# Small enough that every strategy shows its weakness.\n{small_pool()}"


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traffic.yaml").write_text(TRAFFIC, encoding="utf-8")


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["simulate", "traffic.yaml", "--seeds", "2", "--workers", "1", *arguments]) == 0
    return capsys.readouterr().out


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _run(capsys)
    assert max(map(len, shown.splitlines())) <= 80
    check_golden("cli/simulate.txt", shown)


def test_attention_replicas_are_counted_once_and_a_check_without_limits_is_not_suggested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = ["--set", "model=meta-llama/Llama-3.1-8B-Instruct", "--set", "deployment.kv_pool={memory: 10GiB}"]
    shown = _run(capsys, *model, "--gpu", "h100", "--dp", "2", "--tp", "4", "--replicas", "3", "--offline")
    assert shown.startswith("Llama-3.1-8B-Instruct on 6 replicas, each 4 × h100-80gb-sxm, ")
    assert "kvplan check" not in shown
    assert main(["simulate", "chat", "--seeds", "1", "--workers", "1", "--duration", "30s", "--offline"]) == 0
    assert "kvplan check chat" in capsys.readouterr().out


def test_a_time_and_its_interval_have_one_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "chat", "--seeds", "2", "--workers", "1", "--duration", "2m", "--offline"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    units = re.findall(r"p99 [\d.,]+ (\w+) ±[\d.,]+ (\w+)", shown)
    assert units == [("s", "s")] * 2  # steps longer and shorter


def test_classes_that_are_charged_alike_share_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "chat", "--seeds", "1", "--workers", "1", "--duration", "30s", "--offline"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^  chat \(70%\) and endless, no cap sent +4,083  20,493", shown, re.MULTILINE)
    assert re.search(r"^  chat, cap 1,024 \(30%\) +4,083   1,024", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        ("simulate - --seeds 2 --workers 1 --format json", TRAFFIC, '"blocks": 400'),
        ("trace - --format json", "arrival_s,prompt_tokens,output_tokens\n0,5,6\n1,7,8\n", '"requests": 2'),
        ("recommend - --write", TRAFFIC, "--write needs a traffic file"),
    ],
)
def test_a_file_may_come_by_standard_input(arguments: str, given: str, said: str) -> None:
    command = [sys.executable, "-m", "kvplan", *arguments.split(), "--offline"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert said in done.stdout + done.stderr
    assert done.returncode == (3 if said.startswith("--write") else 0), done.stderr


def test_json_has_every_key_and_the_books_balance(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(_run(capsys, "--format", "json"))
    assert (document["schema"], document["schema_version"]) == ("kvplan.simulation", 2)
    assert document["pool"]["blocks"] == 400
    assert [strategy["name"] for strategy in document["strategies"]] == list(DEFAULT_STRATEGIES)
    for strategy in document["strategies"]:
        requests = strategy["requests"]
        ends = ("completed", "rejected_permanently", "gave_up", "timed_out", "cancelled", "unfinished")
        assert requests["offered"] == sum(requests[name] for name in ends)
        assert requests["truncated"] <= requests["completed"]
        assert set(strategy["kv"]) >= {"reserved_mean_share", "used_mean_share", "used_peak_share"}
        assert all(set(strategy[name]) == {"mean", "p50", "p90", "p99"} for name in ("queue_s", "ttft_s", "e2e_s"))
    by_name = {strategy["name"]: strategy for strategy in document["strategies"]}
    assert by_name["worst_case"]["preemptions"] == 0
    assert by_name["none"]["refusals"] == 0
    assert document["stability"]["offered_per_s"] > 0
    assert {"safety_fraction", "default_max_tokens", "per_class", "binds", "reason"} <= set(document["recommendation"])


def test_every_request_is_a_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = json.loads(_run(capsys, "--requests", "requests.csv", "--strategy", "worst_case", "--format", "json"))
    with (tmp_path / "requests.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert ",".join(rows[0]) == (
        "strategy,seed,id,class,arrival_s,attempts,outcome,admitted_s,scheduled_s,first_token_s,finish_s,"
        "prompt_tokens,max_output_tokens,output_tokens,preemptions"
    )
    assert {row["seed"] for row in rows} == {"3", "4"}
    assert [int(row["id"]) for row in rows if row["seed"] == "3"] == list(
        range(sum(row["seed"] == "3" for row in rows))
    )
    assert len(rows) >= shown["strategies"][0]["requests"]["offered"]
    done = [row for row in rows if row["outcome"] == "completed"]
    assert all(float(row["arrival_s"]) <= float(row["admitted_s"]) <= float(row["finish_s"]) for row in done)


def test_an_override_is_for_this_run(capsys: pytest.CaptureFixture[str]) -> None:
    shown = json.loads(
        _run(
            capsys, "--strategy", "worst_case", "--format", "json", "--safety-fraction", "0.5",
            "--set", "traffic.seed=9", "--duration", "1m",
        )
    )  # fmt: skip
    assert (shown["inputs"]["seed"], shown["inputs"]["safety_fraction"]) == (9, 0.5)
    assert shown["pool"]["ledger_blocks"] == 399 // 2
    assert shown["inputs"]["duration_s"] == 60


def test_what_may_be_promised_is_what_the_ledger_holds(capsys: pytest.CaptureFixture[str]) -> None:
    """400 × 0.29 as it was written: binary rounding makes it 115.99…"""
    fraction = ("--strategy", "worst_case", "--set", "deployment.kv_pool.blocks=401", "--safety-fraction", "0.29")
    document = json.loads(_run(capsys, *fraction, "--duration", "10s", "--format", "json"))
    assert document["pool"]["ledger_blocks"] == document["strategies"][0]["ledger_capacity"] == 116


TITLES = (
    "Memory of one GPU",
    "Worst-case reservations",
    "Strategies",
    "Which default cap",
    "The pool and the refusals over time",
    "Assumed",
)


class _Page(HTMLParser):
    """Collects what a page would fetch, and its headings."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.charts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.charts += tag == "svg"
        for name, value in attrs:
            if name in ("src", "href") and value and not value.startswith("data:"):
                self.fetched.append(value)


def test_the_page_fetches_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _run(capsys, "--report", "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.fetched == []
    assert page.charts == 2 * 5 + 1, "the pool and the refusals of each strategy, and the curves over the cap"
    assert "<script" not in text
    assert [title for title in TITLES if f"<h2>{title}</h2>" not in text] == []
    assert "The traffic file gives the KV pool" in text


def test_a_foreign_name_is_only_text_on_the_page_and_in_the_ticket(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = "<script>alert(1)</script>|$x_1$"
    text = TRAFFIC.replace("name: chat", f'name: "{name}"')
    (tmp_path / "traffic.yaml").write_text(text, encoding="utf-8")
    _run(capsys, "--report", "report.html", "--strategy", "none")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;|$x_1$" in page
    ticket = _run(capsys, "--report", "report.md", "--strategy", "none", "--format", "markdown")
    assert "<script" not in ticket
    assert "&lt;script>alert(1)&lt;/script>\\|\\$x_1\\$" in ticket
    assert "| default cap | cuts off |" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_the_page_of_a_planned_pool_has_its_budget(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = ("--report", "report.html", "--strategy", "none")
    assert main(["simulate", "chat", "--seeds", "1", "--duration", "60s", "--offline", *report]) == 0
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "the driver reports" in text
    assert capsys.readouterr().err == "wrote report.html\n"


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_picture(kind: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    _run(capsys, "--plot", f"pool.{kind}", "--strategy", "worst_case")
    drawn = (tmp_path / f"pool.{kind}").read_bytes()
    assert len(drawn) > 1000
    if kind == "svg":
        assert all(
            word in drawn.decode()
            for word in ("refusals/min", "% of pool", "s since the start", "max_tokens default, tokens")
        ), "text stays text"
    _run(capsys, "--plot", f"pool.{kind}", "--strategy", "worst_case", "--force")
    assert (tmp_path / f"pool.{kind}").read_bytes() == drawn, "the same run draws the same file"


def _interrupted(place: Path) -> None:
    with atomic(place) as part:
        part.write_text("half", encoding="utf-8")
        raise KeyboardInterrupt


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    place = tmp_path / "kept.csv"
    place.write_text("old", encoding="utf-8")
    with pytest.raises(KeyboardInterrupt):
        _interrupted(place)
    assert [(file.name, file.read_text()) for file in tmp_path.glob("*kept*")] == [("kept.csv", "old")]
    with atomic(place) as part:
        part.write_text("new", encoding="utf-8")
    assert [(file.name, file.read_text()) for file in tmp_path.glob("*kept*")] == [("kept.csv", "new")]


def test_a_full_disk_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    assert main(["simulate", "traffic.yaml", "--seeds", "1", "--requests", "/dev/full", "--force"]) == 3
    assert "cannot write /dev/full: No space left on device" in capsys.readouterr().err


def test_a_terminal_gets_the_pool_over_time_and_a_pipe_does_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    piped = _run(capsys)
    assert not set(BARS) & set(piped)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    shown = _run(capsys)
    assert shown.endswith(piped)
    chart = shown.removesuffix(piped).splitlines()
    assert max(map(len, chart)) <= 80
    assert [line.split()[0] for line in chart if set(BARS) & set(line)] == list(DEFAULT_STRATEGIES)
    assert any(set(line) == {" ", "x"} for line in chart)


def test_remarks_name_what_the_table_does_not_show(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = TRAFFIC.replace(
        "{lognormal: {p50: 200, p95: 600}}", "{choices: [{value: 100, share: 0.5}, {value: 3000, share: 0.5}]}"
    )
    (tmp_path / "traffic.yaml").write_text(text, encoding="utf-8")
    shown = " ".join(_run(capsys, "--strategy", "none").split())
    assert re.search(r"Oversize (4\d|5\d)% \(none\) of requests can never be served", shown)
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,10,5\n", encoding="utf-8")
    replay = TRAFFIC[: TRAFFIC.index("    - name")] + "    - {name: r, trace: t.csv}\n"
    (tmp_path / "traffic.yaml").write_text(replay, encoding="utf-8")
    assert "no request arrives after the first 12 s" in " ".join(_run(capsys, "--strategy", "none").split())


def test_rows_that_are_not_replayed_as_recorded_are_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = "0,10,5\n2,10,0\n5,10,5\n3,10,5\nx,1,1\n40,10,5\n"
    (tmp_path / "t.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}", encoding="utf-8")
    replay = TRAFFIC[: TRAFFIC.index("    - name")] + "    - {name: r, trace: t.csv}\n"
    (tmp_path / "traffic.yaml").write_text(replay, encoding="utf-8")
    shown = " ".join(_run(capsys, "--strategy", "none").split())
    assert "Trace r: 1 row skipped: no output (a failed request)" in shown
    assert "Trace r: 1 row skipped: a value that is not a number" in shown
    assert "Trace r: 1 row with a time before that of the row above: sorted for replay" in shown


def test_time_outs_are_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "traffic.yaml").write_text(TRAFFIC + "      timeout: 2s\n", encoding="utf-8")
    shown = " ".join(_run(capsys, "--strategy", "none").split())
    assert re.search(r"Time-out \d+% \(none\) of requests time out; some clients would send them again", shown)


def test_every_figure_has_its_interval_and_every_strategy_its_bound(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(_run(capsys, "--strategy", "worst_case", "--strategy", "none", "--format", "json"))
    shown = _run(capsys, "--strategy", "worst_case", "--strategy", "none").splitlines()
    for strategy in document["strategies"]:
        place = next(number for number, line in enumerate(shown) if line.split()[:1] == [strategy["name"]])
        figures, reaches = shown[place].split()[1:], shown[place + 1].split()
        assert len(figures) == len(reaches) == 8
        assert all(reach.startswith("±") for reach in reaches)
        low, high = strategy["intervals"]["sustainable_per_s"]
        assert low <= strategy["sustainable_per_s"] <= high
        assert (figures[-1], reaches[-1]) == (
            f"{strategy['sustainable_per_s']:.2f}",
            f"±{(high - low) / 2:.2f}" if high - low < 2 else f"±{(high - low) / 2:.1f}",
        )
        low, high = strategy["intervals"]["preemptions"]
        mean = strategy["preemptions"] / document["inputs"]["seeds"]
        assert reaches[3] == f"±{round(2 * max(mean - low, high - mean)):,}"  # two seeds
    assert "±" not in _run(capsys, "--seeds", "1").partition("Columns")[0]


def test_an_endless_queue_and_a_limit_above_the_worst_case_are_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    heavy = TRAFFIC.replace("rate: 4/s", "rate: 40/s")
    assert heavy != TRAFFIC
    (tmp_path / "traffic.yaml").write_text(heavy, encoding="utf-8")
    shown = " ".join(_run(capsys, "--strategy", "none", "--strategy", "concurrency").split())
    assert "no 429/503 from the engine; the wait grows without bound; put the limit in front" in shown
    assert "no 429/503" not in _run(capsys, "--strategy", "none", "--scale", "0.1")
    assert re.search(r"\d+ at once is [\d.]+ × the safe concurrency; only \d+ worst cases? of", shown)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--seed", "-5", "a seed of -5 is below zero"),
        ("--seeds", "1000000000", "more than 10,000"),
        ("--report", "report.docx", "name it *.html or *.md"),
        ("--plot", "nowhere/pool.png", "there is no folder"),
        ("--plot", "pool.bmp", "pool.bmp is not a kind of picture"),
        ("--requests", "traffic.yaml", "traffic.yaml exists"),
    ],
)
def test_bad_arguments_are_reported_before_the_work(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "traffic.yaml", option, value]) == 3
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert Path("traffic.yaml").read_text(encoding="utf-8") == TRAFFIC


def test_an_interrupt_in_the_middle_is_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvplan.simulation.tasks.run_task", interrupt)
    assert main(["simulate", "traffic.yaml", "--workers", "1"]) == 130
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "interrupted\n")
