"""The look of every text report: answer first, then the evidence, then what to do; 80 columns, one accent colour.

A report is a sequence of parts, which ``render`` lays out. It does without Rich, whose import takes a third of the time
of an empty command-line app: ``kvplan model`` must cost little more than such an app.
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

ACCENT = "1;36"
ACTION = "33"
QUIET = "2"
BOLD = "1"
WIDEST = 110
"""Wider terminals get no wider prose, nor wider tables."""

_GAP = 2
_MARGIN = 2
_NARROWEST = 12
_LABEL = 8
"""Columns of the labels of a block, unless one of them is longer."""
_WORD = 24
"""A longer word in a column that breaks may stick out."""
_UNDER = 2
"""How much further in the rest of a row stands when it goes under its first cell."""


@dataclass(frozen=True, kw_only=True)
class Prose:
    """Text that is wrapped, with lines after the first indented by ``hanging`` more columns."""

    text: str
    style: str = ""
    indent: int = 0
    hanging: int = 0


@dataclass(frozen=True, kw_only=True)
class Verbatim:
    """Lines that keep their form, whatever the width."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A subject with the source of its facts beside it, or under it if that is too wide."""

    title: str
    aside: str = ""


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A short quiet label and wrapped text beside it; a command is broken so that it can still be pasted."""

    label: str
    text: str
    style: str = ""
    is_command: bool = False


@dataclass(frozen=True, kw_only=True)
class Columns:
    """A table without lines. Columns in ``texts`` are aligned left, the others right, as numbers; the column ``wrap``
    may break, and the last column, if it is a drawing, is dropped if there is no room."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: frozenset[int]
    wrap: int | None = None
    marked: frozenset[int] = frozenset()
    last_is_drawn: bool = False


Part = Prose | Verbatim | Headline | Labelled | Columns
BLANK = Verbatim(text="")
"""One empty line, however many follow each other; none at the beginning."""


def answer(text: str) -> Prose:
    """The answer to what was asked."""
    return Prose(text=text, style=ACCENT, hanging=2)


def paragraph(text: str, *, style: str = "", indent: int = _MARGIN) -> Prose:
    """Prose under the answer."""
    return Prose(text=text, style=style, indent=indent)


def headline(title: str, aside: str = "") -> Headline:
    """What the report is about."""
    return Headline(title=title, aside=aside)


def labelled(label: str, text: str, *, style: str = "") -> Labelled:
    """A labelled line or paragraph."""
    return Labelled(label=label, text=text, style=style)


def next_steps(*commands: str) -> Iterator[Labelled]:
    """What to do next, one command per line."""
    for number, command in enumerate(commands):
        yield Labelled(label="" if number else "Next", text=command, is_command=True)


def columns(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int | Iterable[int] = 1,
    wrap: int | None = None,
    marked: Iterable[int] = (),
    last_is_drawn: bool = False,
) -> Columns:
    """A table whose first ``left`` columns (or those named) are text. Rows in ``marked`` carry the accent."""
    texts = range(left) if isinstance(left, int) else left
    return Columns(
        headings=tuple(headings),
        rows=tuple(tuple(row) for row in rows),
        texts=frozenset(texts),
        wrap=wrap,
        marked=frozenset(marked),
        last_is_drawn=last_is_drawn,
    )


def render(parts: Iterable[Part], *, width: int = 80, colour: bool = False, spell: Callable[[str], str] = str) -> str:
    """``parts`` one under the other as text, with or without ANSI colours; ``spell`` replaces characters that a
    terminal lacks before columns are laid out."""
    usable = max(40, min(width, WIDEST))
    lines: list[str] = []
    for _, block in groupby(parts, lambda part: isinstance(part, Labelled)):
        shown = [part if part is BLANK else _escaped(part, spell) for part in block]
        label_width = max([_LABEL, *(len(part.label) for part in shown if isinstance(part, Labelled))])
        for part in shown:
            if part is not BLANK or (lines and lines[-1]):
                lines += _set(part, usable, label_width)
    text = "".join(f"{line.rstrip()}\n" for line in lines)
    return text if colour else _ANSI.sub("", text)


_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _escaped(part: Part, spell: Callable[[str], str]) -> Part:
    """``part`` with control characters escaped, because names come from foreign files."""

    def clean(text: str) -> str:
        return spell(_escape_controls(text))

    if isinstance(part, Verbatim):
        return Verbatim(text="\n".join(map(clean, part.text.split("\n"))))
    if isinstance(part, Columns):
        rows = tuple(tuple(map(clean, row)) for row in part.rows)
        return replace(part, headings=tuple(map(clean, part.headings)), rows=rows)
    if isinstance(part, Headline):
        return Headline(title=clean(part.title), aside=clean(part.aside))
    if isinstance(part, Labelled):
        return replace(part, label=clean(part.label), text=clean(part.text.replace("\n", " ")))
    return replace(part, text=clean(part.text.replace("\n", " ")))


def _escape_controls(text: str) -> str:
    r"""Control characters as escape sequences.

    >>> print(_escape_controls("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


_ANSI = re.compile("\x1b\\[[0-9;]*m")


def _styled(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if style and text.strip() else text


def _set(part: Part, width: int, label_width: int) -> list[str]:
    match part:
        case Verbatim():
            return part.text.split("\n")
        case Prose():
            lines = _wrap(part.text, width - part.indent, hanging=part.hanging)
            return [" " * part.indent + _styled(line, part.style) for line in lines]
        case Headline():
            return _set_headline(part, width)
        case Labelled():
            start = label_width + _GAP
            set_lines = wrap_command if part.is_command else _wrap
            lines = set_lines(part.text, width - _MARGIN - start)
            label = _styled(part.label, QUIET) + " " * (start - len(part.label))
            heads = [label, *[" " * start] * (len(lines) - 1)]
            return [" " * _MARGIN + head + _styled(line, part.style) for head, line in zip(heads, lines, strict=True)]
        case Columns():
            return _set_columns(part, width)


def _set_headline(part: Headline, width: int) -> list[str]:
    title, gap = _styled(part.title, BOLD), max(4, 40 - len(part.title))
    if not part.aside:
        return [title]
    if len(part.title) + gap + len(part.aside) <= width:
        return [title + " " * gap + _styled(part.aside, QUIET)]
    return [title, *(_styled(line, QUIET) for line in _wrap(part.aside, width))]


_BOUND = re.compile(r"(?<=[±≤≥]) (?=[\d.])|(?<=\d) (?=(?:[KMGT]iB|B|m?s|min|h)\b)")
"""The space between a number and its unit or sign, where a line does not end."""


def _wrap(text: str, width: int, *, hanging: int = 0) -> list[str]:
    lines = textwrap.wrap(
        _BOUND.sub("\xa0", text),
        max(width, _NARROWEST),
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\xa0", " ") for line in lines] or [""]


_ARGUMENT = re.compile(r"(?:-\S+ (?!-))?(?:[^\s']|'[^']*')+")


def wrap_command(text: str, width: int) -> list[str]:
    r"""A command over several lines for a shell to join; an option stays beside its value.

    >>> for line in wrap_command("kvplan check 'my traffic.yaml' --seeds 40", 24): print(line)
    kvplan check \
      'my traffic.yaml' \
      --seeds 40
    """
    lines = [""]
    for word in _ARGUMENT.findall(text):
        longer = f"{lines[-1]} {word}".lstrip() if len(lines) == 1 else f"{lines[-1]} {word}"
        if lines[-1] and len(longer) + 2 > width:
            lines[-1] += " \\"
            longer = f"  {word}"
            lines.append("")
        lines[-1] = longer
    return lines


def _set_columns(table: Columns, width: int) -> list[str]:
    """Every column is as wide as its widest cell; the one that may break gets the rest.

    If that is too wide, the gaps close to one space; if it still is, the first cell gets a line of its own.
    """
    headed = [table.headings, *table.rows] if any(table.headings) else list(table.rows)
    widths = [max(map(len, column), default=0) for column in zip(*headed, strict=True)]
    least = list(widths)
    if table.wrap is not None:
        words = (word for row in headed for word in row[table.wrap].split())
        least[table.wrap] = min(widths[table.wrap], max(_NARROWEST, *map(len, words)), _WORD)
    spare = width - _MARGIN - sum(least)
    gap = _GAP if spare >= _GAP * (len(widths) - 1) else 1
    stacked = spare < len(widths) - 1 and len(widths) > 2
    if stacked and table.last_is_drawn:
        rows = tuple(row[:-1] for row in table.rows)
        return _set_columns(replace(table, headings=table.headings[:-1], rows=rows, last_is_drawn=False), width)
    if stacked:
        spare += least[0] - _UNDER
        gap = _GAP if spare >= _GAP * (len(widths) - 2) else 1
    if table.wrap is not None:
        room = least[table.wrap] + spare - gap * (len(widths) - 1 - stacked)
        widths[table.wrap] = min(widths[table.wrap], max(_NARROWEST, room))
    lines = []
    for number, row in enumerate(headed):
        first = number - (len(headed) - len(table.rows))
        style = QUIET if first < 0 else ACCENT if first in table.marked else ""
        cells = [_wrap(cell, widths[at]) if at == table.wrap else [cell] for at, cell in enumerate(row)]
        for line in range(max(map(len, cells))):
            texts = (cell[line] if line < len(cell) else "" for cell in cells)
            placed = [
                text.ljust(widths[at]) if at in table.texts else text.rjust(widths[at]) for at, text in enumerate(texts)
            ]
            indent = _MARGIN
            if stacked:
                lines += [" " * indent + _styled(row[0], style)] if line == 0 and row[0] else []
                placed, indent = placed[1:], _MARGIN + _UNDER
            lines.append(" " * indent + _styled((" " * gap).join(placed).rstrip(), style))
    return lines
