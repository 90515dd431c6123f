"""Columns of a run that is longer than memory should hold: whole arrays, kept in files that nobody else sees.

They read and write like any array; what was used of them leaves memory again when it is told to. A run is worked
through in pieces; one piece or less stays in memory.
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
"""Rows that are worked on at once: about 40 MB of what a request is asked, plays and becomes."""


def pieces(count: int, rows: int | None = None) -> Iterator[slice]:
    """The parts of ``count`` rows, in order; one empty part of none.

    >>> list(pieces(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    rows = rows or PIECE_ROWS
    for start in range(0, max(count, 1), rows):
        yield slice(start, min(start + rows, count))


def is_long(count: int) -> bool:
    """Whether so many rows are more than a piece."""
    return count > PIECE_ROWS


def zeros(count: int, dtype: Any) -> NDArray[Any]:
    """``count`` zeros; of a long run in a file of the temporary folder, which is gone when nobody holds the array."""
    if not is_long(count):
        return np.zeros(count, dtype)
    size = max(count * np.dtype(dtype).itemsize, 1)
    with _told_when_full(size), tempfile.TemporaryFile() as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is told here, not by a signal later
        else:
            file.truncate(size)
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype, count)


@contextmanager
def _told_when_full(size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        more = f"{size / 2**20:,.0f} MiB of " if size else ""
        raise InputError(
            f"no room for {more}a long run in {tempfile.gettempdir()}: {error.strerror or error}",
            hint="set TMPDIR to a folder with more room, or give a shorter duration",
        ) from error


class Growing:
    """A column whose length is not known yet: values join ``rest``, and go to a file when they are ``put_by``."""

    def __init__(self, code: str) -> None:
        self.rest: array[Any] = array(code)
        self._file: IO[bytes] | None = None

    def put_by(self) -> None:
        """What was gathered leaves memory."""
        with _told_when_full(0):
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115 - the mapping outlives it
            self.rest.tofile(self._file)
        del self.rest[:]

    def whole(self) -> NDArray[Any]:
        """All values, once there are no more."""
        kind = np.dtype(self.rest.typecode)
        if self._file is None:
            return np.frombuffer(self.rest, kind)
        if self.rest:
            self.put_by()
        self._file.flush()
        return np.frombuffer(mmap.mmap(self._file.fileno(), 0), kind)

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()  # a mapping of it stays


def forget(*held: object) -> None:
    """What was read or written of columns, given alone or as fields, leaves memory; those on disk keep their values."""
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
    """``make`` of all rows: as it is of one piece, else piece by piece in a column on disk; ``uses`` are forgotten as
    it goes."""
    if not is_long(count):
        return make(slice(0, count))
    column = zeros(count, dtype)
    for piece in pieces(count):
        column[piece] = make(piece)
        forget(column, *uses)
    return column
