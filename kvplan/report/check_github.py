"""``kvplan check`` as GitHub's workflow commands: an annotation at the file and line of each limit that needs a look.

Source of the form and its escapes: github.com/actions/toolkit, packages/core/src/command.ts.
"""

from collections.abc import Iterator
from pathlib import Path

from kvplan.check.results import Check, LimitResult
from kvplan.report.check_words import UNSURE, failure, message, summary, title


def text(check: Check) -> str:
    """One command a line; limits that surely hold need none. The last line is for the log."""
    return "".join(f"{line}\n" for line in _lines(check))


def _lines(check: Check) -> Iterator[str]:
    for limit in check.limits:
        if not limit.passed:
            yield _command("error", limit, check.traffic.file, failure(limit, check))
        elif limit.certainty in UNSURE:
            yield _command("warning", limit, check.traffic.file, message(limit))
    yield f"kvplan check: {' '.join(check.traffic.file.split())} {summary(check)}"


def _command(level: str, limit: LimitResult, file: str, said: str) -> str:
    properties = {"file": _in_repository(file), "line": limit.line, "title": f"kvplan check: {title(limit)}"}
    given = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items() if value is not None)
    return f"::{level} {given}::{_data(said)}"


def _in_repository(file: str) -> str:
    """The path as the repository sees it, which is where a workflow runs; with slashes."""
    path = Path(file)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return path.as_posix()


def _data(text: str) -> str:
    r"""The text of a command.

    >>> _data("50%\nof it")
    '50%25%0Aof it'
    """
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """A property's value: two more signs would end it.

    >>> _property("a,b: 5%")
    'a%2Cb%3A 5%25'
    """
    return _data(text).replace(":", "%3A").replace(",", "%2C")
