"""Where each key of a file stands, so that every complaint names its line."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from kvplan.errors import InputError
from kvplan.traffic.file.yaml_text import KeyPath
from kvplan.units import parse_seconds

Value = TypeVar("Value")


class Places:
    """Where each key of a file stands, and errors that say so."""

    def __init__(self, *, file: str, lines: Mapping[KeyPath, int]) -> None:
        self.file = file
        self.lines = lines

    def error(self, path: KeyPath, message: str, hint: str | None = None) -> InputError:
        """An InputError at ``path``, or at the nearest key around it that the file has."""
        return InputError(message, hint=hint, file=self.file, line=self.line(path), key=".".join(map(str, path)))

    def line(self, path: KeyPath) -> int | None:
        """The line of the longest beginning of ``path`` that stands in the file."""
        lengths = range(len(path), 0, -1)
        return next((self.lines[path[:length]] for length in lengths if path[:length] in self.lines), None)

    def at(self, path: KeyPath, read: Callable[[str], Value], text: str) -> Value:
        """``read(text)``, its complaint placed at ``path``."""
        try:
            return read(text)
        except InputError as error:
            raise self.error(path, f"{'.'.join(map(str, path))}: {error.message}", error.hint) from error

    def seconds(self, path: KeyPath, text: str) -> float:
        """A time above zero."""
        found = self.at(path, parse_seconds, text)
        if found <= 0:
            raise self.error(path, f"{'.'.join(map(str, path))}: {text} is no time at all")
        return found

    def beside(self, path: KeyPath, name: str, what: str) -> str:
        """The path of a file that the traffic file names, taken from its folder."""
        found = Path(self.file).parent / Path(name).expanduser()
        if not found.exists():
            raise self.error(path, f"there is no {what} {found}", "a relative path starts at the traffic file's folder")
        if found.is_dir():
            raise self.error(path, f"{found} is a folder, not a {what}")
        return str(found)
