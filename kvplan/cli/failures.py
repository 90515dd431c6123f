"""How errors are reported: text with a hint on stderr, and on stdout also what ``--format json`` or ``github`` asks."""

import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from errno import ENOSPC
from pathlib import Path

import typer

from kvplan.cli.output import discard_output, quietly, remark, talk, unwritable, write_data
from kvplan.errors import InputError, KvplanError

BUG = 70
_NO_NUMBER = re.compile(r"Invalid value for (?P<names>'[^:]+'): Input should be a valid (?P<kind>integer|number)\b")
_NO_PLACE = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((?P<words>.*)\)")
_NO_OPTION = re.compile(r"No such option: (?P<value>\S+) \(Possible options: (?P<all>.*)\)")
_NO_KEY = re.compile(r"No such option: --(?P<name>[a-z-]+)$")
_NO_CHOICE = re.compile(r"'(?P<value>[^']*)' is not one of (?P<all>.*)")


def _wants(form: str, arguments: Sequence[str]) -> bool:
    """Whether ``arguments`` ask for this format. Read from the text, because the command line may not even parse."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=True)
    return any(word == f"--format={form}" or (word == "--format" and value == form) for word, value in pairs)


def report_error(error: KvplanError, arguments: Sequence[str]) -> int:
    """Report ``error`` and return its exit code."""
    _say(error, error.exit_code, arguments)
    return error.exit_code


def report_refused(error: OSError, arguments: Sequence[str]) -> int:
    """Report what the operating system refuses: a path that cannot even be looked up (a name too long, a folder that
    may not be entered), or more output (a full disk). Anything else is a bug."""
    if error.errno == ENOSPC and error.filename is None:  # Typer's own, while it prints a help text
        discard_output(sys.stdout)
        return report_error(unwritable(error), arguments)
    if not isinstance(error.filename, str):
        return report_bug(error, arguments)
    refused = InputError(
        f"{error.filename}: {error.strerror}",
        hint="check the path, and that you may read its folders",
        file=error.filename,
    )
    return report_error(refused, arguments)


def report_usage(error: typer.TyperException, arguments: Sequence[str]) -> int:
    """Report why the command line cannot be parsed. An empty message is Typer's way of asking for the help text."""
    message = error.format_message().replace("\n\t", " ").replace("Value error, ", "").strip()
    if message.startswith("Usage:"):
        talk(message)
        return error.exit_code
    if no_number := _NO_NUMBER.match(message):
        message = _no_number(no_number["names"], no_number["kind"], arguments)
    if option := _NO_OPTION.match(message):
        message = f"No such option: {option['value']}{_nearest(option['value'], option['all'].split(', '))}"
    if choice := _NO_CHOICE.search(message):
        message = message.removesuffix(".") + _nearest(choice["value"], re.findall(r"'([^']+)'", choice["all"]))
    message = _NO_PLACE.sub(lambda found: f"nothing takes the argument {found['words']!r}", message)
    named = next((word for word in arguments if not word.startswith("-")), None)
    from kvplan.cli.app import COMMANDS

    hint = f"kvplan {named} --help" if named in COMMANDS else "kvplan --help"
    wanted = _NO_KEY.match(message) if named == "check" else None
    if wanted is not None:
        hint = _key_of_the_file(wanted["name"]) or hint
    _say(KvplanError(message, hint=hint), error.exit_code, arguments)
    return error.exit_code


def _key_of_the_file(option: str) -> str | None:
    """How to tell ``check`` a key of the file's deployment, which is not an option of its own."""
    from kvplan.engines.options import rows

    key = option.replace("-", "_")
    return f"--set deployment.{key}=VALUE" if any(key in row.keys for row in rows()) else None


def _nearest(given: str, known: Sequence[str]) -> str:
    """Which of ``known`` was probably meant."""
    from difflib import get_close_matches

    bare = {each.lstrip("-"): each for each in known}  # shared dashes do not make words similar
    near = get_close_matches(given.lstrip("-"), bare, 1, 0.65)  # at 0.6 --rate would be --format
    return f". Did you mean {bare[near[0]]!r}?" if near else ""


def _no_number(names: str, kind: str, arguments: Sequence[str]) -> str:
    """Which option has a value that is not a number.

    >>> _no_number("'--tensor-parallel' / '--tp'", "integer", ["fit", "--tp", "2", "--tp", "two"])
    "--tp 'two' is not a whole number"
    """
    options = [each.strip(" '") for each in names.split("/")]
    wanted, read = ("a whole number", int) if kind == "integer" else ("a number", float)
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, joined, value = word.partition("=")
        if name in options and not _reads(read, value if joined else following):
            return f"{name} {(value if joined else following)!r} is not {wanted}"
    return f"{options[0]} is not {wanted}"


def _reads(read: Callable[[str], float], text: str) -> bool:
    try:
        read(text.strip())
    except ValueError:
        return False
    return text.isascii()


def report_bug(error: Exception, arguments: Sequence[str]) -> int:
    """Write the traceback to a file, and report the bug in one line."""
    from kvplan import __version__

    account = "".join(
        [
            f"kvplan {__version__}, Python {sys.version}\n",
            f"arguments: {' '.join(arguments)}\n\n",
            *traceback.format_exception(error),
        ]
    )
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="kvplan-bug-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(account)
        kept, hint = file.name, f"the traceback is in {file.name}; please report it with that file"
    except OSError as refused:
        kept, hint = None, f"the traceback could not be written ({refused}); set TMPDIR to a writable folder"
    summary = f"{type(error).__name__}: {error}".splitlines()[0]
    _say(
        KvplanError(f"a bug in kvplan, not in your input: {summary}", hint=hint, file=kept), BUG, arguments, place=False
    )
    return BUG


def _say(error: KvplanError, code: int, arguments: Sequence[str], *, place: bool = True) -> None:
    """Print where, what and what next to stderr, and to stdout the object or the annotation that was asked for."""
    tell(error, place=place)
    if _wants("json", arguments):
        from kvplan.report.json_text import document

        write_data(document("error", error_object(error, code)))
    elif _wants("github", arguments):
        from kvplan.report.check_ci import github_error

        write_data(github_error(error))


def tell(error: KvplanError, *, place: bool = True) -> None:
    """Print where, what and what next to stderr."""
    with quietly(sys.stderr):
        where = _place(error) if place else ""
        remark("error", f"{where}{error.message}", error.hint)
        sys.stderr.flush()


def _place(error: KvplanError) -> str:
    """``file:line: key: `` as far as known."""
    file = _short(error.file) if error.file else ""
    at = f"{file}:{error.line}" if file and error.line else file
    if file and error.message.startswith((file, str(error.file))):
        return ""
    if at and error.line is None and at in error.message.replace("'", " ").split():
        at = ""  # the message names it already
    key = "" if error.key and error.message.startswith(error.key) else error.key
    return "".join(f"{part}: " for part in (at, key) if part)


def _short(file: str) -> str:
    """``file`` relative to the working folder, if it is inside."""
    try:
        here = Path.cwd()
    except OSError:  # the folder was deleted under us
        return file
    path = Path(file)
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def error_object(error: KvplanError, code: int) -> dict[str, object]:
    """What ``kvplan.error`` holds."""
    found: dict[str, object] = {
        "exit_code": code,
        "message": error.message,
        "hint": error.hint,
        "file": error.file,
        "line": error.line,
        "key": error.key,
    }
    if code == 5:
        found["verdict"] = "cannot_tell"
    return found
