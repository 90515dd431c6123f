"""Pieces of Markdown that no foreign name can break out of."""

from collections.abc import Iterable, Iterator


def table(headings: Iterable[str], rows: Iterable[Iterable[str]], *, left: int = 1) -> Iterator[str]:
    """A table whose first ``left`` columns are text, the others numbers; then an empty line."""
    cells = [plain(cell) for cell in headings]
    yield _row(cells)
    yield _row([":--" if place < left else "--:" for place in range(len(cells))])
    for row in rows:
        yield _row([plain(cell) for cell in row])
    yield ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


_WRITTEN = str.maketrans(
    {"\\": "\\\\", "|": "\\|", "<": "&lt;", "[": "\\[", "*": "\\*", "_": "\\_", "`": "\\`", "\r": " ", "\n": " "}
)


def plain(text: str) -> str:
    r"""Text that cannot end a cell, open a tag, a link or an emphasis.

    >>> print(plain("a|b <script> [x](y) worst_case"))
    a\|b &lt;script> \[x](y) worst\_case
    """
    return text.translate(_WRITTEN)
