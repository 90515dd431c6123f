"""``kvplan explain`` as text or JSON: prose is wrapped, lists hang, indented lines keep their form."""

import re
from collections.abc import Iterator, Mapping

from kvplan.explain import Page
from kvplan.report.json_text import document
from kvplan.report.page import BLANK, Part, Prose, Verbatim, answer, columns, next_steps


def text(page: Page | None, topics: Mapping[str, str]) -> Iterator[Part]:
    """The page, or the list of topics."""
    if page is None:
        yield answer(f"{len(topics)} topics")
        yield BLANK
        yield columns(("", ""), list(topics.items()), left=2, wrap=1)
        yield BLANK
        yield from next_steps(f"kvplan explain {next(iter(topics))}")
        return
    yield answer(page.title)
    for block in page.text.split("\n\n"):
        yield BLANK
        yield from _block(block)


def _block(block: str) -> Iterator[Part]:
    if block.startswith("    "):
        yield Verbatim(text=block)
    elif block.startswith("See it: "):
        yield from next_steps(*re.findall("`([^`]+)`", block))
    elif block.startswith("- "):
        for item in block.split("\n"):
            yield Prose(text=item.replace("`", ""), hanging=2)
    else:
        yield Prose(text=block.replace("`", "").replace("\n", " "))


def json(page: Page | None, topics: Mapping[str, str]) -> str:
    """The page, or null, and the topics."""
    content = None if page is None else {"topic": page.topic, "title": page.title, "text": page.text}
    return document("explain", {"page": content, "topics": list(topics)})
