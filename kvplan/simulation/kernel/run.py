"""Runs the kernel, interpreted or compiled: whichever is faster for the number of requests and what they take."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from typing import Any

import numpy as np

from kvplan.capacity import usable_blocks
from kvplan.errors import InputError
from kvplan.simulation.kernel import compiled as numba_kernel
from kvplan.simulation.kernel import state
from kvplan.simulation.kernel.arrays import (
    Arrays,
    cache_layout,
    client_rules,
    engine_rows,
    engine_settings,
    front_door,
    identities,
    no_identities,
    slot_rows,
    watched,
)
from kvplan.simulation.kernel.event_loop import event_loop
from kvplan.simulation.kernel.rows import EndedRows, LiveRows, request_rows, request_table
from kvplan.simulation.types import (
    ClientRule,
    EngineSetup,
    FrontDoor,
    Integers,
    Requests,
    Run,
    Samples,
    Totals,
    Watch,
)
from kvplan.traffic.on_disk import forget, pieces

WORTH_LOADING = 200_000
"""Requests from which it pays to load a kernel that was compiled before."""
WORTH_COMPILING = 1_000_000
"""Requests from which compiling it pays as well."""
_LOADING_PAYS_S = 4.0
"""Seconds of running from which it pays to load a compiled kernel from disk (0.7 s)."""
_COMPILING_PAYS_S = 90.0
"""Seconds from which it pays to compile it (28 s of CPU)."""
_PILOT_ROWS = 2_000
"""A run is judged after this many requests, after twice as many, and so on."""

Expect = Callable[[float], None]
"""Called with the seconds that a run is expected to take."""


def worth_compiling(requests: int) -> bool:
    """Whether compiled code pays for this many requests, whatever they do. False without the extra ``fast``."""
    if requests < WORTH_LOADING or not numba_kernel.is_available():
        return False
    return requests >= WORTH_COMPILING or numba_kernel.is_cached()


def compiling_pays(interpreted_s: float) -> bool:
    """Whether compiled code pays for what takes this long without it. False without the extra ``fast``."""
    if interpreted_s < _LOADING_PAYS_S or not numba_kernel.is_available():
        return False
    return interpreted_s > _COMPILING_PAYS_S or numba_kernel.is_cached()


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
    """What becomes of every request at this front door and engine.

    The run is played in pieces of ``piece_rows`` requests, with the same result whatever their number, so that memory
    holds one piece and what is still inside. Requests for several answers are played all at once.

    ``compiled`` None: compiled where that pays, as the number of requests says, or the time that the first of them
    took. ``say`` is told when the kernel is compiled, and ``expect`` how long the run will take once that shows.
    """
    count = len(requests.arrival_s)
    run = partial(_run, requests, engine, door, clients, watch=watch or Watch())
    pilot = partial(_Pilot, count, expect)
    parts = partial(_parts, count, piece_rows) if requests.parent is None else partial(iter, [slice(0, count)])
    if compiled is None and not worth_compiling(count):
        found = run(parts=parts(), loop=event_loop, gives_up=pilot(may_give_up=True).gives_up)
        if found is not None:
            return found
        compiled = True
    compiled = compiled is not False
    loop = numba_kernel.compiled_event_loop(say) if compiled else event_loop
    found = run(parts=parts(), loop=loop, compiled=compiled, gives_up=pilot(may_give_up=False).gives_up)
    assert found is not None
    return found


def _parts(count: int, piece_rows: int | None) -> Iterator[slice]:
    """Pieces of ``piece_rows``; None: a first one, then each as long as all before it, up to the usual length."""
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
    """Watches the pieces of a run as they are played."""

    def __init__(self, count: int, expect: Expect | None, *, may_give_up: bool) -> None:
        self.count, self.expect, self.may_give_up = count, expect, may_give_up
        self.timed_rows, self.started_s = 0, time.process_time()

    def gives_up(self, done: int) -> bool:
        """Whether starting again with the compiled kernel is faster than the rest of this run, after ``done`` requests.

        A run that cannot give up may be the compiled one: its first piece also loads the kernel, so it is not timed.
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


def _run(
    requests: Requests,
    engine: EngineSetup,
    door: FrontDoor,
    clients: Sequence[ClientRule],
    *,
    watch: Watch,
    parts: Iterator[slice],
    loop: Callable[..., Any],
    gives_up: Callable[[int], bool],
    compiled: bool = False,
) -> Run | None:
    """The run in ``parts``; None where ``gives_up`` says so after one of them, given the number of requests played.

    Counts of blocks are enough until prompts share cached content; then blocks have identities.
    """
    groups = engine.layout.groups
    caches = engine.prefix_caching and len(groups) == 1 and groups[0].rule == "full"
    has_identities = caches and requests.chain is not None
    arrays = Arrays(compiled=compiled)
    count, replicas = len(requests.arrival_s), door.replicas
    max_seqs = max(1, min(engine.max_num_seqs, engine.max_num_batched_tokens, count))
    usable = usable_blocks(engine.layout, engine.blocks)
    if not engine.reserves_whole_input:
        _check_longest(requests, engine, usable)
    layout = cache_layout(engine, arrays)
    slots, field = slot_rows(max_seqs, layout.numbers[state.KINDS_NUMBER], replicas, arrays)
    states, clocks = engine_rows(usable, replicas, arrays)
    pool = no_identities(max_seqs, replicas, arrays)
    if has_identities:
        pool = identities(requests, _answers(requests, slice(None), engine)[0], engine, max_seqs, replicas, arrays)
    conf, cost = engine_settings(
        engine, door, watch, usable=usable, max_seqs=max_seqs, identities=has_identities, caches=caches
    )
    engines = (states, clocks, slots, arrays.of(np.zeros((replicas, layout.ring_places))), pool.cells)
    setup = (conf, cost, layout.numbers, layout.form, field)
    cells = int(watch.sample_until_s / watch.sample_every_s) + 2 if watch.sample_every_s > 0 else 1
    samples = arrays.of(np.zeros(cells * state.SAMPLE_COLUMNS))
    totals = arrays.of(np.zeros(state.TOTAL_PLACES), np.float64)
    ledgers, rules, live, ended = (
        front_door(door, arrays),
        client_rules(clients, arrays),
        LiveRows(arrays),
        EndedRows(count),
    )
    for piece in parts:
        answer, cap = _answers(requests, piece, engine)
        live.take(piece.start, requests.prompt_tokens[piece], answer, cap)
        del answer, cap  # of a large piece, that is much
        end_s, pending = loop(
            request_table(requests, live.serial, engine.max_model_len, arrays),
            live.table,
            live.fresh,
            rules,
            ledgers,
            engines,
            setup,
            pool.of(live.serial, arrays),
            watched(watch),
            (samples, totals),
            live.pending,
            float(requests.arrival_s[piece.stop]) if piece.stop < count else inf,
        )
        last = piece.stop == count
        serial, row, moments = live.take_all() if last else live.take_ended(pending, states, slots, field)
        ended.add(serial, request_rows(row, moments, requests.parent, watch.stop_s))
        forget(requests)
        if not last and gives_up(piece.stop):
            return None
    assert ended.found is not None
    return Run(
        rows=ended.found,
        totals=_totals(states, clocks, ledgers[2], watch, float(end_s), int(totals[state.RESERVED_PEAK])),
        samples=_samples(np.asarray(samples, np.int64), int(totals[state.SAMPLED]), watch.sample_every_s),
        kernel="identities" if has_identities else "counts",
        compiled=compiled,
    )


def _check_longest(requests: Requests, engine: EngineSetup, usable: int) -> None:
    """Raises InputError where a request needs more blocks than there are, and nothing stops it at admission."""
    longest = 0
    for piece in pieces(len(requests.arrival_s)):
        answer, _ = _answers(requests, piece, engine)
        longest = max(longest, int((requests.prompt_tokens[piece] + answer).max(initial=0)))
    if engine.layout.request_blocks(longest) > usable:
        raise InputError(
            f"a request of {longest:,} tokens never fits the pool of {usable:,} usable blocks",
            hint="the engine would compute it for ever; make the pool larger or the window shorter",
            key="deployment.max_model_len",
        )


def _answers(requests: Requests, piece: slice, engine: EngineSetup) -> tuple[Integers, Integers]:
    """The tokens at which each request of a piece ends, and its cap within the window."""
    cap = np.maximum(1, np.minimum(requests.cap_tokens[piece], engine.max_model_len - requests.prompt_tokens[piece]))
    return np.minimum(requests.output_tokens[piece], cap), cap


def _totals(states: Any, clocks: Any, since: Any, watch: Watch, end_s: float, reserved_peak: int) -> Totals:
    def counted(*places: int) -> int:
        return sum(int(engine[place]) for engine in states for place in places)

    return Totals(
        end_s=end_s,
        watched_s=max(0.0, min(end_s, watch.until_s) - watch.from_s),
        reserved_unit_s=float(sum(times[state.HELD_UNIT_S] for times in since)),
        used_block_s=float(sum(clock[state.USED_BLOCK_S] for clock in clocks)),
        reserved_peak=reserved_peak,
        used_peak_blocks=counted(state.PEAK_USED),
        over_capacity_events=counted(state.SHORTAGES),
        steps=counted(state.STEPS, state.ALL_STEPS),
        busy_s=float(sum(clock[state.BUSY_S] + clock[state.END_S] - clock[state.ORIGIN_S] for clock in clocks)),
        prefill_tokens=counted(state.PREFILL_TOKENS, state.ALL_PREFILL_TOKENS),
        decode_tokens=counted(state.DECODES, state.ALL_DECODES),
    )


def _samples(samples: Any, count: int, every_s: float) -> Samples:
    columns = samples[: count * state.SAMPLE_COLUMNS].reshape(count, state.SAMPLE_COLUMNS)
    return Samples(
        time_s=every_s * np.arange(1, count + 1, dtype=np.float64),
        reserved=columns[:, state.SAMPLED_RESERVED],
        used_blocks=columns[:, state.SAMPLED_USED],
        running=columns[:, state.SAMPLED_RUNNING],
        waiting=columns[:, state.SAMPLED_WAITING],
        refusals=columns[:, state.SAMPLED_REFUSALS],
    )
