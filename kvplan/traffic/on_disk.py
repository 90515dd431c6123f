"""Columns of a run that is longer than memory should hold: whole arrays, kept in files that nobody else sees.

They read and write like any array; what was used of them leaves memory again when it is told to. A run is worked
through in pieces; one piece or less stays in memory.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError

PIECE_ROWS = 2**19
"""Rows that are worked on at once: about 50 MB of what a request is asked, plays and becomes."""


def pieces(count: int, rows: int = PIECE_ROWS) -> Iterator[slice]:
    """The parts of ``count`` rows, in order; one empty part of none.

    >>> list(pieces(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, max(count, 1), rows):
        yield slice(start, min(start + rows, count))


def on_disk(count: int, dtype: Any) -> NDArray[Any]:
    """``count`` zeros in a file of the temporary folder that is gone when nobody holds the array any more."""
    size = max(count * np.dtype(dtype).itemsize, 1)
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is told here, not by a signal later
            else:
                file.truncate(size)
            return np.frombuffer(mmap.mmap(file.fileno(), size), dtype, count)
    except OSError as error:
        raise InputError(
            f"no room for {size / 2**20:,.0f} MiB of a long run in {tempfile.gettempdir()}: {error.strerror or error}",
            hint="set TMPDIR to a folder with more room, or give a shorter duration",
        ) from error


def forget(*columns: NDArray[Any]) -> None:
    """What was read or written of ``columns`` leaves memory; those on disk keep their values, others are left alone."""
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
    if count <= PIECE_ROWS:
        return make(slice(0, count))
    column = on_disk(count, dtype)
    for piece in pieces(count):
        column[piece] = make(piece)
        forget(column, *uses)
    return column
