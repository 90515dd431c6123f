"""Reports as Markdown, with foreign text escaped."""

import re
from collections.abc import Iterable, Iterator

from kvplan.report.page import ACCENT, Columns, Labelled, Part, Prose


class Written(str):
    """Text that is Markdown already."""

    __slots__ = ()


def document(command: str, parts: Iterable[Part]) -> str:
    """A report as Markdown: its first sentence is the heading, labelled lines are a list, next steps are left out."""
    lines: list[str] = []
    label = ""
    for part in parts:
        if isinstance(part, Labelled):
            label = part.label or label
            lines += [] if part.is_command else [f"- {strong(label.lower())}: {plain(part.text)}"]
            continue
        if lines and lines[-1].startswith("- "):
            lines.append("")
        if isinstance(part, Columns):
            lines += _table(part)
        elif isinstance(part, Prose):
            said = " ".join(part.text.split())
            shown = strong(said) if lines and part.style == ACCENT else plain(said)
            lines += [shown if lines else f"### {command}: {shown}", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _table(part: Columns) -> Iterator[str]:
    """A table with text columns left and the others right, and an empty line."""
    yield _row(part.headings)
    yield _row([Written(":--" if place in part.texts else "--:") for place in range(len(part.headings))])
    for row in part.rows:
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
