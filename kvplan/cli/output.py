"""Where output goes: data to stdout, or to a file that is not overwritten unless asked; talk and progress to stderr."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kvplan.cli.files import atomic, check_free
from kvplan.errors import InputError
from kvplan.report import report

if TYPE_CHECKING:
    from kvplan.report.page import Part

Step = Callable[[int, int], None]
"""Told how much is done, of how much."""

_ASCII = {"×": "x", "±": "+/-", "·": "-", "−": "-", "≤": "<=", "≥": ">=", "…": "...", "→": "->"}


@contextmanager
def quietly(stream: TextIO | None = None) -> Iterator[None]:
    """Let a reader leave early: on a broken pipe ``stream`` (stdout by default) is redirected to nowhere.

    What is still buffered would otherwise raise again when the interpreter closes the stream. An answer that cannot be
    written for another reason (a full disk) is an InputError; talk that cannot be written is lost.
    """
    target = sys.stdout if stream is None else stream
    try:
        yield
    except OSError as error:
        discard_output(target)
        if not isinstance(error, BrokenPipeError) and target is not sys.stderr:
            raise unwritable(error) from error


def unwritable(error: OSError) -> InputError:
    """What to report when stdout takes no more."""
    return InputError(
        f"the answer cannot be written: {error.strerror or error}", hint="free some space, or write elsewhere"
    )


def discard_output(*streams: TextIO) -> None:
    """Discard what ``streams`` still hold and all that follows."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def write_data(text: str) -> None:
    """Print ``text`` to stdout."""
    with quietly():
        sys.stdout.write(encodable(text, sys.stdout.encoding or "utf-8"))
        sys.stdout.flush()


def encodable(text: str, encoding: str) -> str:
    """``text`` with the signs that ``encoding`` lacks (an old Windows code page) written in ASCII.

    >>> encodable("2 × 3 ± 1 ≤ …", "ascii"), encodable("2 × 3 ± 1 ≤ …", "cp1252"), encodable("×", "utf-8")
    ('2 x 3 +/- 1 <= ...', '2 × 3 ± 1 <= …', '×')
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(
            sign if sign.isascii() else sign.encode(encoding, "ignore").decode(encoding) or _ASCII.get(sign, "?")
            for sign in text
        )
    return text


def talk(text: str) -> None:
    """Print something that is not data to stderr."""
    with quietly(sys.stderr):
        print(encodable(text, sys.stderr.encoding or "utf-8"), file=sys.stderr)


def remark(severity: str, message: str, hint: str | None) -> None:
    """Print to stderr what is wrong and what to try."""
    talk(f"{severity}: {message}" + (f"\n  try: {hint}" if hint else ""))


def write_file(path: Path, text: str, *, force: bool) -> None:
    """Write ``text`` to ``path``; InputError if it exists and ``force`` was not given."""
    check_free(path, force=force)
    with atomic(path) as part:
        part.write_text(text, encoding="utf-8")
    talk(f"wrote {path}")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write ``lines`` to ``path``, which was checked to be free before the work began."""
    with atomic(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        file.writelines(lines)
    talk(f"wrote {path}")


def terminal_width() -> int:
    """Columns of the terminal; 80 through a pipe, unless COLUMNS says otherwise."""
    return shutil.get_terminal_size((80, 24)).columns


def wants_colour() -> bool:
    """Colour on a terminal, unless NO_COLOR; also through a pipe with FORCE_COLOR."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def show_report(name: str, format: str, *result: object, output: Path | None = None, force: bool = False) -> None:
    """Print ``result`` of the command ``name``, or write it to ``output``."""
    made = report(name, format)(*result)
    if output is None:
        (show if format == "text" else write_data)(made)
        return
    if format == "text":
        from kvplan.report.page import render

        made = render(made)
    write_file(output, made, force=force)


def show(parts: "Iterable[Part]") -> None:
    """Print the parts of a text report."""
    from kvplan.report.page import render

    encoding = sys.stdout.encoding or "utf-8"
    spell = partial(encodable, encoding=encoding)
    write_data(render(parts, width=terminal_width(), colour=wants_colour(), spell=spell))


def show_above(parts: "Iterable[Part]", text: str) -> None:
    """Print ``text``, a YAML file, with a report as its opening comment, so that the whole is still that file."""
    from kvplan.report.page import render

    lines = render(parts, width=78).splitlines()
    write_data("".join(f"# {line}".rstrip() + "\n" for line in lines) + f"\n{text}")


@contextmanager
def progress_bar(what: str) -> Iterator[Step | None]:
    """A progress bar on stderr: yields a function to be told (done, all), or None where stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=None)

        def step(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield step
