"""The kernel compiled by numba, from the same source that runs interpreted, and cached on disk.

The kernel's files are joined into one module in the user's cache folder, which is named after their content. So a
changed kernel, numba or Python makes a new module, and every later process finds what was compiled.
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
    "state",
    "clock",
    "blocks",
    "prefix_cache",
    "running",
    "leaving",
    "waiting",
    "batch",
    "advance",
    "front_door",
    "event_loop",
)
_INLINED = (
    "process_ends",
    "end_slot",
    "first_waiting",
    "leave_queue",
    "evict",
    "next_chunk",
    "next_change_s",
    "batches_in_time",
    "batches_with_room",
    "jump",
    "decode_all",
    "schedule_in_order",
    "admit",
    "start_decoding",
    "form_batch",
    "next_event",
    "has_room",
    "admit_request",
)
"""Functions that are called from one place and exist for the reader alone: a call would cost more than the work, since
all arguments are copied."""
_WITH_REFERENCE_COUNTING = (
    "next_key",
    "push_key",
    "pop_key",
    "uncache_block",
    "cache_blocks",
    "find_blocks",
    "admit_request",
    "empty_heaps",
    "split_events",
    "pending_keys",
    "event_loop",
)
"""Functions that create or change lists, or use the table of contents. All others are compiled without reference
counting, which took half of the kernel's time: they keep no reference to their arguments."""
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
    """The same array without reference counting, which takes half of the kernel's time."""
    return carray(_pointer(values.ctypes.data), values.shape, values.dtype)


@njit(cache=True, error_model="numpy")
def event_loop_borrowed(
    asked, rows, fresh, clients, front_door, engines, setup, contents, watch, output, pending, more_s
):
    return event_loop(
        (
            _borrow(asked[0]), _borrow(asked[1]), _borrow(asked[2]), _borrow(asked[3]), _borrow(asked[4]),
            _borrow(asked[5]), _borrow(asked[6]), _borrow(asked[7]), _borrow(asked[8]), _borrow(asked[9]),
        ),
        (_borrow(rows[0]), _borrow(rows[1]), rows[2], rows[3]),
        fresh,
        _borrow(clients),
        (_borrow(front_door[0]), _borrow(front_door[1]), _borrow(front_door[2]), _borrow(front_door[3])),
        (_borrow(engines[0]), _borrow(engines[1]), _borrow(engines[2]), _borrow(engines[3]), _borrow(engines[4])),
        (setup[0], setup[1], setup[2], _borrow(setup[3]), setup[4]),
        (_borrow(contents[0]), contents[1], contents[2]),
        watch,
        (_borrow(output[0]), _borrow(output[1])),
        (
            _borrow(pending[0]), _borrow(pending[1]), _borrow(pending[2]), _borrow(pending[3]), _borrow(pending[4]),
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
    folder = Path(__file__).parent
    parts = [_HEAD]
    for name in _FILES:
        text = _OWN_IMPORT.sub("", (folder / f"{name}.py").read_text(encoding="utf-8"))
        parts.append(re.sub(r"^def (\w+)", _marked, text, flags=re.MULTILINE))
    return "\n\n".join([*parts, _TAIL])


def _marked(start: re.Match[str]) -> str:
    """The start of a function below numba's decorator."""
    options = (
        f"forceinline={start[1] in _INLINED}, _nrt={start[1] in _WITH_REFERENCE_COUNTING}, no_cpython_wrapper=True"
    )
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


def is_cached() -> bool:
    """Whether this kernel has been compiled on this machine, so that it only needs to be loaded."""
    path = _module_path()
    return any((path.parent / "__pycache__").glob(f"{path.stem}.event_loop_borrowed-*.nbc"))


def compiled_event_loop(say: Callable[[str], None] | None = None) -> Callable[..., Any]:
    """``event_loop``, compiled; ``say`` is told when that will take a while."""
    path = _module_path()
    if say is not None and not is_cached():
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
        sys.modules[path.stem] = module  # numba looks the module up when it loads from its cache
        spec.loader.exec_module(module)
    module = sys.modules[path.stem]
    loop: Callable[..., Any] = module.event_loop_borrowed
    return loop


def _write(path: Path) -> None:
    """Write the joined source to ``path`` at once; leave a file that exists, because numba checks its age."""
    if path.exists():
        return
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", encoding="utf-8", delete=False) as file:
        file.write(joined_source())
    Path(file.name).replace(path)
