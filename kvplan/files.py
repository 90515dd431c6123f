"""Files that a user names: what is accepted as one, the text of a small one, and ranges of a large one."""

import stat
from collections.abc import Callable
from pathlib import Path

from kvplan.errors import InputError, unreadable

RangeReader = Callable[[int, int], bytes]
"""Bytes of a file from an offset: ``read(offset, length)``; fewer where the file ends, none past its end."""


def require_file(path: Path) -> None:
    """Refuses a folder, a device, and a named pipe: a device may never end, a pipe may never begin.

    The shell's own pipes (``/dev/stdin``, ``<(command)``) end with their command, so they are accepted.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise InputError("this is a folder, not a file", hint="give a file", file=str(path))
    if not stat.S_ISREG(mode) and not (stat.S_ISFIFO(mode) and path.is_relative_to("/dev")):
        raise InputError("this is a device or pipe, not a file", hint="give a file", file=str(path))


def read_small_text(path: Path, *, hint: str, max_bytes: int = 64 * 2**20) -> str:
    """The text of a file of at most ``max_bytes``; ``hint`` names the command that writes one."""
    try:
        require_file(path)
        with path.open("rb") as stream:
            body = stream.read(max_bytes + 1)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}", hint=hint, file=str(path)) from error
    except OSError as error:
        raise unreadable(path, error) from error
    if len(body) > max_bytes:
        raise InputError(f"{path} is larger than {max_bytes >> 20} MiB", hint=hint, file=str(path))
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text", hint=hint, file=str(path)) from error
