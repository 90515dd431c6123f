"""``kvplan check`` for a CI server: GitHub's workflow commands, and JUnit XML as GitLab, Jenkins and Azure read it.

Source of GitHub's form and its escapes: github.com/actions/toolkit, packages/core/src/command.ts.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

from kvplan.check.results import Check, LimitResult
from kvplan.errors import KvplanError
from kvplan.report.check_text import UNSURE, bound, failure, message, summary, title


def github(check: Check) -> str:
    """An annotation at the line of each limit that needs a look, one command a line; the last is for the log."""
    return "".join(f"{line}\n" for line in _lines(check))


def _lines(check: Check) -> Iterator[str]:
    for limit in check.limits:
        if not limit.passed:
            yield _of_limit("error", limit, check.traffic.file, failure(limit, check))
        elif limit.certainty in UNSURE:
            yield _of_limit("warning", limit, check.traffic.file, message(limit))
    yield f"kvplan check: {' '.join(check.traffic.file.split())} {summary(check)}"


def _of_limit(level: str, limit: LimitResult, file: str, said: str) -> str:
    return _command(level, said, title=f"kvplan check: {title(limit)}", file=file, line=limit.line)


def github_error(error: KvplanError) -> str:
    """An annotation where a check could not be made, at the line that is wrong."""
    said = error.message if error.hint is None else f"{error.message}; {error.hint}"
    return f"{_command('error', said, title='kvplan check', file=error.file, line=error.line)}\n"


def _command(level: str, said: str, *, title: str, file: str | None, line: int | None) -> str:
    properties = {"file": None if file is None else _in_repository(file), "line": line, "title": title}
    given = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items() if value is not None)
    return f"::{level} {given}::{_data(said)}"


def _in_repository(file: str) -> str:
    """The path relative to the repository's root, where a workflow runs, with forward slashes."""
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
    """A property's value, in which two more characters are escaped.

    >>> _property("a,b: 5%")
    'a%2Cb%3A 5%25'
    """
    return _data(text).replace(":", "%3A").replace(",", "%2C")


_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no way to write."""


def junit(check: Check) -> str:
    """A test case per limit. What is within noise passes and says so in ``system-out``."""
    file = _printable(check.traffic.file)
    counts = {"tests": str(len(check.limits)), "failures": str(len(check.broken)), "errors": "0", "skipped": "0"}
    suites = ET.Element("testsuites", {"name": "kvplan", **counts})
    suite = ET.SubElement(suites, "testsuite", {"name": f"kvplan check {file}", **counts})
    for limit in check.limits:
        name = title(limit) if limit.name == "fits" else f"{title(limit)} {bound(limit)}"
        place = {"file": file} if limit.line is None else {"file": file, "line": str(limit.line)}
        case = ET.SubElement(
            suite, "testcase", {"name": _printable(name), "classname": f"kvplan.{limit.name}", **place}
        )
        said = _printable(message(limit))
        if not limit.passed:
            where = file if limit.line is None else f"{file}:{limit.line}"
            failure = ET.SubElement(case, "failure", {"message": said, "type": limit.certainty})
            failure.text = f"{where}: {said}"
        else:
            ET.SubElement(case, "system-out").text = said
    ET.SubElement(suite, "system-out").text = _printable(summary(check))
    ET.indent(suites)
    # Signs beyond ASCII are written as references, so that no terminal's encoding can spoil the document.
    written: bytes = ET.tostring(suites, encoding="us-ascii", xml_declaration=True)
    return f"{written.decode('ascii')}\n"


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("?", text)
