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
