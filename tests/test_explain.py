"""The explanations: every topic has its page, and what a page tells the reader to run can be run."""

import doctest
import json
import re
from importlib.resources import files
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from kvplan.admission import STRATEGIES
from kvplan.check.measures import MEASURES
from kvplan.cli import main
from kvplan.errors import InputError
from kvplan.explain import TOPICS, load_page
from kvplan.report.json_text import VERSIONS

GOLDEN = Path(__file__).parent / "golden" / "cli"


def test_every_topic_has_a_page_and_every_page_a_topic() -> None:
    pages = {path.name.removesuffix(".md") for path in files("kvplan.explain").iterdir() if path.name.endswith(".md")}
    assert pages == set(TOPICS)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_page_opens_with_its_title_and_keeps_verbatim_lines_narrow(topic: str) -> None:
    page = load_page(topic)
    assert page.title
    assert not page.title.startswith("#")
    assert all(len(line) <= 80 for line in page.text.splitlines() if line.startswith("    "))


def test_an_unknown_topic_names_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        load_page("safety_fraction")
    assert caught.value.hint == "did you mean safety-fraction?"


def test_the_page_on_simulations_explains_every_strategy() -> None:
    page = load_page("simulation").text
    assert [name for name in STRATEGIES if not re.search(rf"\b{name}\b", page)] == []


_SEE_IT = [
    command
    for topic in TOPICS
    for command in re.findall(
        r"`(kvplan (?:model|fit|list|init)[^`]*)`", load_page(topic).text.rpartition("See it:")[2]
    )
]


@pytest.mark.parametrize("command", _SEE_IT)
def test_what_a_page_says_to_run_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split()[1:], "--offline"]) in (0, 1)
    assert capsys.readouterr().err == ""


def test_the_page_on_traffic_names_every_key_of_the_file() -> None:
    """Every key of the schema stands on the page, so that none is known to the schema alone."""
    from kvplan.traffic.file.schema import FileShape

    def keys(schema: object) -> set[str]:
        if isinstance(schema, list):
            return {key for part in schema for key in keys(part)}
        if not isinstance(schema, dict):
            return set()
        return set(schema.get("properties", {})) | {key for part in schema.values() for key in keys(part)}

    words = set(re.findall(r"\w+", load_page("traffic").text))
    assert keys(FileShape.model_json_schema()) <= words


def test_the_page_on_traffic_names_every_limit() -> None:
    text = load_page("traffic").text
    times = {f"{time}_{point}_s" for time in ("queue", "ttft", "e2e") for point in ("mean", "p50", "p90", "p99")}
    assert times < MEASURES.keys()
    assert {name for name in MEASURES if not re.search(rf"\b{name}\b", text)} <= times
    assert "queue, ttft (time to first token) and e2e (to the last), each with _mean_s, _p50_s, _p90_s and _p99" in text


def test_the_page_on_json_lists_every_document_its_version_and_its_keys() -> None:
    """Compared with the golden documents, key by key and in their order."""
    listed = re.split(r"^    kvplan\.", load_page("json").text.partition("\n\nVersion 2")[0], flags=re.MULTILINE)[1:]
    versions, keys = {}, {}
    for entry in listed:
        name, words = entry.split(maxsplit=1)
        said = re.search(r"version (\d)", words)
        versions[name] = int(said[1]) if said else 1
        keys[f"kvplan.{name}"] = [word for word in re.findall(r"\w+", words) if word not in ("version", "2")]
    assert versions == VERSIONS
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(GOLDEN.glob("*.json"))]
    plain = [document for document in documents if document.get("verdict") != "cannot_tell"]
    assert len({document["schema"] for document in plain}) >= 7
    for document in plain:
        assert list(document)[2:] == keys[document["schema"]]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_page_ends_with_what_to_run(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert load_page(topic).text.rpartition("\n\n")[2].startswith("See it: `kvplan ")
    assert main(["explain", topic]) == 0
    assert re.search(r"\n  Next      kvplan \w+", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("topic", "command", "figures"),
    [
        (
            "windows",
            "google/gemma-3-27b-it --kv-memory 40GiB --max-num-batched-tokens 2048",
            {"block_tokens": (16,), "blocks_per_request": (321, 8192)},
        ),
        ("hybrid", "Qwen/Qwen3.5-9B --kv-memory 40GiB", {"block_tokens": (576,)}),
        ("hybrid", "Qwen/Qwen3.5-9B --kv-memory 40GiB --kv-dtype fp8", {"block_tokens": (1088,)}),
        (
            "ledger",
            "meta-llama/Llama-3.1-8B-Instruct --kv-memory 40GiB --prompt 4000 --max-tokens 1024",
            {"reserved_tokens": (5024,), "blocks": (20480, 314), "sequences": (65,)},
        ),
        (
            "mla",
            "deepseek-ai/DeepSeek-V3 --kv-memory 40GiB --prompt 1000 --max-tokens 24",
            {"reserved_bytes": (1024 * 70272,)},
        ),
    ],
)
def test_the_worked_numbers_are_what_fit_answers(
    topic: str, command: str, figures: dict[str, tuple[int, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes the arithmetic on the page, the answer kvplan's: they cannot drift apart."""
    assert main(["fit", *command.split(), "--offline", "--format", "json"]) in (0, 1)
    plan = json.loads(capsys.readouterr().out)
    places = [plan["pool"], *plan["pool"]["groups"], *plan["capacity"]["reservations"]]
    text = load_page(topic).text
    for key, values in figures.items():
        assert set(values) <= {place[key] for place in places if key in place}
        assert topic == "mla" or all(f"{value:,}" in text for value in values)


def test_the_budget_page_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--offline", "--format", "json"]) == 0
    budget = json.loads(capsys.readouterr().out)["budget"]
    total, asked, weights = (budget[key] / 2**30 for key in ("total_bytes", "requested_bytes", "weight_bytes"))
    text = load_page("budget").text
    assert f"{total:.2f} GiB reported" in text
    assert f"{asked:.2f} requested" in text
    assert f"take {weights:.2f} of them" in text
    assert f"leaves {round(asked, 2) - round(weights, 2):.2f} GiB" in text


def test_the_python_on_the_page_about_the_ledger_runs() -> None:
    examples = doctest.DocTestParser().get_doctest(load_page("ledger").text, {}, "ledger", "ledger.md", 0)
    assert doctest.DocTestRunner().run(examples) == doctest.TestResults(failed=0, attempted=9)


def test_the_recipes_for_pipelines_are_yaml_that_calls_kvplan() -> None:
    blocks = [block for block in load_page("ci").text.split("\n\n") if block.startswith("    ")]
    recipes = [yaml.safe_load(dedent(block)) for block in blocks]
    assert [next(iter(recipe)) for recipe in recipes] == ["jobs", "kvplan", "repos"]
    assert all("kvplan check traffic.yaml" in block for block in blocks)
