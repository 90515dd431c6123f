"""Files of the command line: ``-`` is standard input; output is written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvplan.errors import InputError


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """The path to write to; what was written moves to ``path`` when all went well, and vanishes otherwise.

    A device or a pipe is written to directly. What the operating system refuses is an InputError.
    """
    place = path.resolve()
    direct = place.exists() and not place.is_file()
    part = place if direct else place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        yield part
        if not direct:
            part.replace(place)
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror or error}", hint="name another file", file=str(path)
        ) from error
    finally:
        if not direct:
            part.unlink(missing_ok=True)


def readable(path: Path) -> Path:
    """The path to read from: standard input for ``-``."""
    return Path("/dev/stdin") if path == Path("-") else path


def check_free(path: Path, *, force: bool) -> None:
    """Refuse to overwrite a file at ``path``, and a folder that takes none; asked before long work, so that nothing is
    computed in vain. What is written to a terminal, a pipe or /dev/null overwrites nothing."""
    if path == Path("-"):
        raise InputError("- is standard input, and cannot be written to", hint="name a file", file=str(path))
    if path.is_dir():
        raise InputError(f"{path} is a folder", hint="name a file", file=str(path))
    if path.exists() and not (force or path.is_char_device() or path.is_fifo()):
        raise InputError(f"{path} exists", hint="add --force to overwrite it, or name another file", file=str(path))
    folder = path.resolve().parent
    if not folder.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {folder}", hint=f"mkdir -p {folder}", file=str(path))
    if not (path.exists() or os.access(folder, os.W_OK | os.X_OK)):
        raise InputError(f"cannot write {path}: {folder} is read-only", hint="name another folder", file=str(path))
