"""Pieces of Markdown that no foreign name can break out of."""

import re
from collections.abc import Iterable, Iterator


class Written(str):
    """Text that is Markdown already."""

    __slots__ = ()


def table(headings: Iterable[str], rows: Iterable[Iterable[str]], *, left: int = 1) -> Iterator[str]:
    """A table whose first ``left`` columns are text, the others numbers; then an empty line."""
    cells = list(headings)
    yield _row(cells)
    yield _row([Written(":--" if place < left else "--:") for place in range(len(cells))])
    for row in rows:
        yield _row(row)
    yield ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell if isinstance(cell, Written) else plain(cell) for cell in cells)} |"


_SIGNS = re.compile(r"[\\|\[*`$]|(?<![^\W_])_|_(?![^\W_])")
"""What Markdown reads as a sign (GitHub: dollars as formulas); an underscore inside a word is none."""


def plain(text: str) -> str:
    r"""Text that cannot end a cell, open a tag, a link or an emphasis.

    >>> print(plain("a|b <script> [x](y) worst_case __is__"))
    a\|b &lt;script> \[x](y) worst_case \_\_is\_\_
    """
    return _SIGNS.sub(r"\\\g<0>", text).replace("<", "&lt;").replace("\r", " ").replace("\n", " ")


def strong(text: str) -> Written:
    """``text`` in bold."""
    return Written(f"**{plain(text)}**")


def code(text: str) -> Written:
    """``text`` in the letters of code."""
    return Written(f"`{text.replace('`', '').replace('|', '')}`")
