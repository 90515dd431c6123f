"""Columns of a run that is too long for memory: arrays mapped to unnamed temporary files.

They read and write like any array, and ``forget`` releases the memory of what was used. A long run is processed in
pieces; a run of one piece stays in memory.
"""

import mmap
import os
import tempfile
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError

PIECE_ROWS = 2**18
"""Rows that are processed at once: about 40 MB of requests, their state and their results."""


def pieces(count: int, rows: int | None = None) -> Iterator[slice]:
    """Slices that cover ``count`` rows in order; one empty slice for no rows.

    >>> list(pieces(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    rows = rows or PIECE_ROWS
    for start in range(0, max(count, 1), rows):
        yield slice(start, min(start + rows, count))


def is_long(count: int) -> bool:
    """Whether ``count`` rows are more than one piece."""
    return count > PIECE_ROWS


def zeros(count: int, dtype: Any) -> NDArray[Any]:
    """``count`` zeros; for a long run in a temporary file, which disappears with the last reference to the array."""
    if not is_long(count):
        return np.zeros(count, dtype)
    size = max(count * np.dtype(dtype).itemsize, 1)
    with _disk_errors(size), tempfile.TemporaryFile() as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, not a signal later
        else:
            file.truncate(size)
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype, count)


@contextmanager
def _disk_errors(size: int) -> Iterator[None]:
    """Turns what the disk refuses into an InputError; ``size`` bytes were asked for, 0: not known."""
    try:
        yield
    except OSError as error:
        more = f"{size / 2**20:,.0f} MiB of " if size else ""
        raise InputError(
            f"no room for {more}a long run in {tempfile.gettempdir()}: {error.strerror or error}",
            hint="set TMPDIR to a folder with more room, or give a shorter duration",
        ) from error


class Growing:
    """A column of unknown length: values are appended to ``rest``, and ``move_to_disk`` moves them to a file."""

    def __init__(self, code: str) -> None:
        self.rest: array[Any] = array(code)
        self._file: IO[bytes] | None = None

    def move_to_disk(self) -> None:
        """Moves the appended values from memory to the file."""
        with _disk_errors(0):
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115 - the mapping outlives it
            self.rest.tofile(self._file)
        del self.rest[:]

    def whole(self) -> NDArray[Any]:
        """All values, after the last one was appended."""
        kind = np.dtype(self.rest.typecode)
        if self._file is None:
            return np.frombuffer(self.rest, kind)
        if self.rest:
            self.move_to_disk()
        self._file.flush()
        return np.frombuffer(mmap.mmap(self._file.fileno(), 0), kind)

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()  # its mappings stay valid


def forget(*held: object) -> None:
    """Releases the memory of columns on disk, given alone or as fields of dataclasses; their values stay on disk."""
    columns = [one for each in held for one in (vars(each).values() if is_dataclass(each) else (each,))]
    for column in columns:
        base: Any = column
        while isinstance(base, np.ndarray):
            base = base.base
        base = base.obj if isinstance(base, memoryview) else base
        if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
            base.madvise(mmap.MADV_DONTNEED)


def filled(
    count: int, make: Callable[[slice], NDArray[Any]], *, dtype: Any, uses: tuple[NDArray[Any], ...] = ()
) -> Any:
    """The column that ``make`` gives for all rows: in memory for one piece, else built on disk piece by piece, while
    the columns it ``uses`` are released."""
    if not is_long(count):
        return make(slice(0, count))
    column = zeros(count, dtype)
    for piece in pieces(count):
        column[piece] = make(piece)
        forget(column, *uses)
    return column
