"""``kvplan explain`` as text: prose wrapped, lists hanging, indented lines as they stand."""

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvplan.explain import Page
from kvplan.report.page import answer, columns, labelled

_MEASURE = 80
"""Prose is set no wider than this."""


def text(page: Page | None, topics: Mapping[str, str], *, width: int = 80) -> Iterator[RenderableType]:
    """The page, or the topics there are."""
    if page is None:
        yield answer(f"{len(topics)} topics")
        yield ""
        yield columns(("", ""), list(topics.items()), left=2, wrap=1)
        yield ""
        yield labelled("Next", f"kvplan explain {next(iter(topics))}")
        return
    margin = max(0, width - _MEASURE)
    yield answer(page.title)
    for block in page.text.split("\n\n"):
        yield ""
        yield Padding(_block(block), (0, margin, 0, 0))


def _block(block: str) -> RenderableType:
    if block.startswith("    "):
        return Text(block, no_wrap=True, overflow="ignore")
    if not block.startswith("- "):
        return Text(block.replace("`", "").replace("\n", " "))
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for item in block.removeprefix("- ").split("\n- "):
        grid.add_row("-", item.replace("`", ""))
    return grid
