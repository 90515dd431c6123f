"""A run on the kernel, compiled or not: as many requests say, or as the first of them show."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kvplan.simulation import compiled as numba_kernel
from kvplan.simulation.kernel import play
from kvplan.simulation.playing import play_run
from kvplan.simulation.types import ClientRule, EngineSetup, FrontDoor, Requests, Run, Watch
from kvplan.traffic.on_disk import pieces

WORTH_LOADING = 200_000
"""Requests from which loading a kernel that was compiled before pays."""
WORTH_COMPILING = 1_000_000
"""Requests from which compiling it pays as well."""
_LOADING_PAYS_S = 4.0
"""Seconds of playing from which a compiled kernel that lies on disk is loaded (0.7 s)."""
_COMPILING_PAYS_S = 90.0
"""The same from which one is compiled (28 s of CPU)."""
_PILOT_ROWS = 2_000
"""A run is judged after so many requests, twice as many, and so on."""

Expect = Callable[[float], None]
"""Is told how many seconds a run will take."""


def worth_compiling(requests: int) -> bool:
    """Whether compiled code pays for this many requests, whatever they do. False without the extra ``fast``."""
    if requests < WORTH_LOADING or not numba_kernel.is_available():
        return False
    return requests >= WORTH_COMPILING or numba_kernel.is_kept()


def compiling_pays(plain_s: float) -> bool:
    """Whether what takes so many seconds uncompiled is worth compiled code. False without the extra ``fast``."""
    if plain_s < _LOADING_PAYS_S or not numba_kernel.is_available():
        return False
    return plain_s > _COMPILING_PAYS_S or numba_kernel.is_kept()


def run_kernel(
    requests: Requests,
    engine: EngineSetup,
    door: FrontDoor,
    clients: Sequence[ClientRule],
    *,
    watch: Watch | None = None,
    compiled: bool | None = None,
    say: Callable[[str], None] | None = None,
    expect: Expect | None = None,
    piece_rows: int | None = None,
) -> Run:
    """What becomes of every request behind this door and engine.

    Played in pieces of ``piece_rows``, whatever their number with the same result, so that memory holds one of them and
    what is still inside; all at once where requests ask for several answers.

    ``compiled``: None compiles where that pays, which the number of requests says, or how long the first of them took;
    ``say`` is told when it does, and ``expect`` how long the run will take, as soon as it shows.
    """
    count = len(requests.arrival_s)
    play_with = partial(play_run, requests, engine, door, clients, watch=watch or Watch())
    pilot = partial(_Pilot, count, expect)
    parts = partial(_parts, count, piece_rows) if requests.parent is None else partial(iter, [slice(0, count)])
    if compiled is None and not worth_compiling(count):
        run = play_with(parts=parts(), plays=play.play, gives_up=pilot(may_give_up=True).gives_up)
        if run is not None:
            return run
        compiled = True
    compiled = compiled is not False
    plays = numba_kernel.compiled_play(say) if compiled else play.play
    run = play_with(parts=parts(), plays=plays, compiled=compiled, gives_up=pilot(may_give_up=False).gives_up)
    assert run is not None
    return run


def _parts(count: int, piece_rows: int | None) -> Iterator[slice]:
    """Pieces of so many rows; None: a first one, and others that double what was played, while they are not long."""
    if piece_rows is not None:
        yield from pieces(count, piece_rows)
        return
    most = next(pieces(count)).stop
    done = min(most, _PILOT_ROWS)
    yield slice(0, done)
    while done < count:
        size = min(done, most, count - done)
        yield slice(done, done + size)
        done += size


class _Pilot:
    """Looks at the pieces of a run as they are played."""

    def __init__(self, count: int, expect: Expect | None, *, may_give_up: bool) -> None:
        self.count, self.expect, self.may_give_up = count, expect, may_give_up
        self.timed_rows, self.started_s = 0, time.process_time()

    def gives_up(self, done: int) -> bool:
        """Whether the compiled kernel, from the start, is quicker than the rest of this run, after ``done`` rows.

        A run that cannot give up may be the compiled one: its first piece also loads the kernel, and tells nothing.
        """
        if not self.may_give_up and self.timed_rows == 0:
            self.timed_rows, self.started_s = done, time.process_time()
            return False
        left_s = (time.process_time() - self.started_s) * (self.count - done) / max(done - self.timed_rows, 1)
        if self.may_give_up and compiling_pays(left_s):
            return True
        if self.expect is not None:
            self.expect(left_s)
        return False
