"""The kernel compiled by numba, from the very source that runs uncompiled, with the result kept on disk.

The kernel's files are joined into one module in the user's cache folder, named after their content: so a changed
kernel, numba or Python is a new module, and what was compiled is found again by every later process.
"""

import hashlib
import importlib.util
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_FILES = (
    "places",
    "keys",
    "clock",
    "paging",
    "windows",
    "identities",
    "kept",
    "running",
    "leaving",
    "admitting",
    "batch",
    "advance",
    "door",
    "clients",
    "play",
)
_PARTS = (
    "see_ends",
    "end",
    "first_waiting",
    "leave_queue",
    "evict",
    "next_chunk",
    "next_change_s",
    "batches_in_time",
    "batches_with_room",
    "jump",
    "serve_together",
    "serve_in_order",
    "admit",
    "begin_to_write",
    "form_batch",
    "next_event",
    "has_room",
    "let_in",
)
"""Functions that are called from one place and cut out for the reader alone: the call would cost more than the work,
for all that they are handed is copied."""
_COUNTED = ("next_key", "push_key", "pop_key", "forget", "remember", "find_blocks", "let_in", "taken_apart", "play")
"""Functions that make or change lists, or look into the table of contents. In all others numba does not count who holds
what, which took half of the kernel's time: they keep nothing that they are handed."""
_HEAD = '''"""Written by kvplan: its simulation kernel, to be compiled by numba."""

from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic
'''
_TAIL = '''
@intrinsic
def _pointer(typing_context, address):
    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), code


@njit(cache=True, error_model="numpy")
def _borrow(values):
    """The same array, whose uses are not counted: counting them takes half of the kernel's time."""
    return carray(_pointer(values.ctypes.data), values.shape, values.dtype)


@njit(cache=True, error_model="numpy")
def play_borrowed(
    asked, fresh, rules, door, doors, since, waits, watch, rows, engines, book, table, pool_numbers, shape_numbers,
    form, field, conf, cost, samples, totals, coming, more_s
):
    return play(
        (
            _borrow(asked[0]), _borrow(asked[1]), _borrow(asked[2]), _borrow(asked[3]),
            _borrow(asked[4]), _borrow(asked[5]), _borrow(asked[6]), _borrow(asked[7]), _borrow(asked[8]),
            _borrow(asked[9]),
        ),
        fresh, _borrow(rules), _borrow(door), _borrow(doors), _borrow(since), _borrow(waits), watch,
        (_borrow(rows[0]), _borrow(rows[1]), rows[2], rows[3]),
        (
            _borrow(engines[0]), _borrow(engines[1]), _borrow(engines[2]), _borrow(engines[3]), _borrow(engines[4]),
        ),
        _borrow(book), table, pool_numbers, shape_numbers, _borrow(form), field, conf, cost, _borrow(samples),
        _borrow(totals),
        (
            _borrow(coming[0]), _borrow(coming[1]), _borrow(coming[2]), _borrow(coming[3]), _borrow(coming[4]),
        ),
        more_s,
    )
'''
_OWN_IMPORT = re.compile(r"^from kvplan\.simulation\.kernel\.\w+ import (?:\([^)]*\)|[^\n(]+)\n", re.MULTILINE)


def is_available() -> bool:
    """Whether the extra ``fast`` is installed."""
    return importlib.util.find_spec("numba") is not None


def joined_source() -> str:
    """The kernel as one module whose functions are marked for numba."""
    folder = Path(__file__).parent / "kernel"
    parts = [_HEAD]
    for name in _FILES:
        text = _OWN_IMPORT.sub("", (folder / f"{name}.py").read_text(encoding="utf-8"))
        parts.append(re.sub(r"^def (\w+)", _marked, text, flags=re.MULTILINE))
    return "\n\n".join([*parts, _TAIL])


def _marked(start: re.Match[str]) -> str:
    """A function's first words behind numba's mark."""
    options = f"forceinline={start[1] in _PARTS}, _nrt={start[1] in _COUNTED}, no_cpython_wrapper=True"
    return f'@njit(cache=True, error_model="numpy", {options})\n{start[0]}'


def cache_folder() -> Path:
    """Where compiled kernels are kept: ``$XDG_CACHE_HOME/kvplan`` or ``~/.cache/kvplan``."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "kvplan"


def _module_path() -> Path:
    try:
        numba = version("numba")
    except PackageNotFoundError:
        numba = "none"
    source = joined_source()
    stamp = f"{source}\n{numba}\n{platform.python_version()}\n{platform.machine()}"
    return cache_folder() / f"kernel_{hashlib.sha256(stamp.encode()).hexdigest()[:16]}.py"


def is_kept() -> bool:
    """Whether this kernel was compiled before on this machine, so that it is only loaded."""
    path = _module_path()
    return any((path.parent / "__pycache__").glob(f"{path.stem}.play_borrowed-*.nbc"))


def compiled_play(say: Callable[[str], None] | None = None) -> Callable[..., Any]:
    """``kernel.play`` compiled; ``say`` is told when that will take a while."""
    path = _module_path()
    if say is not None and not is_kept():
        say("compiling the simulation kernel; it is kept for later runs")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path)
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="kvplan-")) / path.name
        _write(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    if path.stem not in sys.modules:
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # numba looks the module up when it loads what it kept
        spec.loader.exec_module(module)
    module = sys.modules[path.stem]
    play: Callable[..., Any] = module.play_borrowed
    return play


def _write(path: Path) -> None:
    """The joined source at ``path``, whole or not at all; left alone where it already is, for its age matters."""
    if path.exists():
        return
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", encoding="utf-8", delete=False) as file:
        file.write(joined_source())
    Path(file.name).replace(path)
