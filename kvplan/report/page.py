"""The look of every text report: answer first, evidence under it, what to do last; 80 columns, one accent colour."""

import io
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

ACCENT = "bold cyan"
ACTION = "yellow"
QUIET = "dim"
WIDEST = 110
"""Prose wider than this is hard to read; a table may not need more either."""


def render(parts: Iterable[RenderableType], *, width: int = 80, colour: bool = False) -> str:
    """``parts``, one under the other, as text with or without ANSI colours."""
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=max(40, min(width, WIDEST)),
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def headline(title: str, aside: str = "", *, width: int = 80) -> RenderableType:
    """The subject on the left, and where its facts come from beside it, or under it where that is too narrow."""
    gap = max(4, 40 - len(title))
    if not aside:
        return Text(title, style="bold")
    if len(title) + gap + len(aside) > width:
        return Text.assemble((title, "bold"), "\n", (aside, QUIET))
    return Text.assemble((title, "bold"), " " * gap, (aside, QUIET))


def answer(text: str) -> Text:
    """The one line that was asked for."""
    return Text(text, style=ACCENT)


def paragraph(text: str, *, style: str = "", indent: int = 2) -> RenderableType:
    """Prose under the answer, wrapped."""
    return Padding(Text(text, style=style), (0, 0, 0, indent))


def labelled(label: str, text: str, *, style: str = "", label_width: int = 8) -> RenderableType:
    """A short label and its text, wrapped under itself."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=label_width, no_wrap=True, style=QUIET)
    grid.add_column(overflow="fold")
    grid.add_row(label, Text(text, style=style))
    return Padding(grid, (0, 0, 0, 2))


def columns(
    headings: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    left: int | frozenset[int] = 1,
    wrap: int | None = None,
) -> RenderableType:
    """A table without lines. The first ``left`` columns (or those named) read as text, the others as numbers.

    ``wrap`` names the column that may break; the others keep their words whole.
    """
    texts = frozenset(range(left)) if isinstance(left, int) else left
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style=QUIET, show_header=any(headings)
    )
    for index, heading in enumerate(headings):
        table.add_column(
            heading,
            justify="left" if index in texts else "right",
            no_wrap=index != wrap,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*row)
    return Padding(table, (0, 0, 0, 2))
