"""The explanations: every topic has its page, and what a page tells the reader to run can be run."""

import re
from importlib.resources import files

import pytest

from kvplan.cli import main
from kvplan.errors import InputError
from kvplan.explain import TOPICS, load_page


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
    from kvplan.traffic.shapes.file import FileShape

    def keys(schema: object) -> set[str]:
        if isinstance(schema, list):
            return {key for part in schema for key in keys(part)}
        if not isinstance(schema, dict):
            return set()
        return set(schema.get("properties", {})) | {key for part in schema.values() for key in keys(part)}

    words = set(re.findall(r"\w+", load_page("traffic").text))
    assert keys(FileShape.model_json_schema()) <= words
