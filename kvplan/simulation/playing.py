"""Plays a run piece by piece: what the kernel is handed, and what became of each request."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

import numpy as np

from kvplan.capacity import usable_blocks
from kvplan.errors import InputError
from kvplan.simulation.kernel import places
from kvplan.simulation.memory import (
    Memory,
    client_table,
    door_numbers,
    engine_rows,
    identities,
    is_one_number,
    layout_numbers,
    no_identities,
    slot_rows,
    watched,
)
from kvplan.simulation.types import (
    UNLIMITED,
    ClientRule,
    Counts,
    EngineSetup,
    Floats,
    FrontDoor,
    Integers,
    Outcome,
    RequestRows,
    Requests,
    Run,
    Samples,
    Totals,
    Watch,
)
from kvplan.simulation.window import Window
from kvplan.traffic.on_disk import forget, pieces, zeros


def play_run(
    requests: Requests,
    engine: EngineSetup,
    door: FrontDoor,
    clients: Sequence[ClientRule],
    *,
    watch: Watch,
    parts: Iterator[slice],
    plays: Callable[..., Any],
    gives_up: Callable[[int], bool],
    compiled: bool = False,
) -> Run | None:
    """A run in ``parts``; None where ``gives_up`` says so after one of them, by the number of rows that were played.

    Counts of blocks are enough, also where prefixes are cached, until prompts share content: then blocks have
    identities.
    """
    groups = engine.layout.groups
    caches = engine.prefix_caching and len(groups) == 1 and groups[0].rule == "full"
    named = caches and requests.chain is not None
    memory = Memory(compiled=compiled)
    count, replicas, step = len(requests.arrival_s), door.replicas, engine.step
    seats = max(1, min(engine.max_num_seqs, engine.max_num_batched_tokens, count))
    usable = usable_blocks(engine.layout, engine.blocks)
    if not engine.reserves_whole_input:
        _check_longest(requests, engine, usable)
    layout = layout_numbers(engine, memory)
    slots, field = slot_rows(seats, layout.kinds, replicas, memory)
    states, clocks = engine_rows(usable, replicas, memory)
    pool = no_identities(seats, replicas, memory)
    if named:
        pool = identities(requests, _answers(requests, slice(None), engine)[0], engine, seats, replicas, memory)
    conf = (
        engine.max_num_batched_tokens,
        seats,
        engine.max_model_len,
        engine.long_prefill_tokens,
        int(engine.chunked_prefill),
        int(engine.reserves_whole_input),
        engine.watermark_blocks,
        usable,
        int(named),
        int(caches and not named),
        int(door.max_queued_tokens < UNLIMITED),
    )
    cost = (
        float(step.base_s),
        float(step.prefill_token_s),
        float(step.decode_sequence_s),
        float(step.kv_token_s),
        float(watch.from_s),
        float(watch.until_s),
    )
    settings, doors, since, waits = door_numbers(door, memory)
    cells = int(watch.sample_until_s / watch.sample_every_s) + 2 if watch.sample_every_s > 0 else 1
    samples = memory.of(np.zeros(cells * places.SAMPLE_COLUMNS))
    totals = memory.of(np.zeros(places.TOTAL_PLACES), np.float64)
    rings = memory.of(np.zeros((replicas, layout.ring_places)))
    rules, window, ended = client_table(clients, memory), Window(memory), Rows(count)
    for piece in parts:
        answer, cap = _answers(requests, piece, engine)
        window.take(piece.start, requests.prompt_tokens[piece], answer, cap)
        del answer, cap  # of a large piece, that is much
        book, pool_numbers = pool.of(window.serial, memory)
        end_s, *coming = plays(
            _asked(requests, window.serial, engine, memory),
            window.fresh,
            rules,
            settings,
            doors,
            since,
            waits,
            watched(watch),
            window.rows,
            (states, clocks, slots, rings, pool.cells),
            book,
            pool.table,
            pool_numbers,
            layout.numbers,
            layout.form,
            field,
            conf,
            cost,
            samples,
            totals,
            window.coming,
            float(requests.arrival_s[piece.stop]) if piece.stop < count else inf,
        )
        last = piece.stop == count
        serial, row, moments = window.rest() if last else window.leave(tuple(coming), states, slots, field)
        ended.add(serial, _rows(row, moments, requests.parent, watch.stop_s))
        forget(requests)
        if not last and gives_up(piece.stop):
            return None
    return Run(
        rows=ended.whole(),
        totals=_totals(states, clocks, since, watch, float(end_s), int(totals[places.MOST_RESERVED])),
        samples=_samples(np.asarray(samples, np.int64), int(totals[places.SAMPLED]), watch.sample_every_s),
        kernel="identities" if named else "counts",
        compiled=memory.compiled,
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


def _asked(requests: Requests, serial: Integers, engine: EngineSetup, memory: Memory) -> tuple[Any, ...]:
    """The rows of the window as the door reads them."""
    count = len(serial)
    rows: Any = serial
    if count and serial[-1] - serial[0] == count - 1:
        rows = slice(int(serial[0]), int(serial[-1]) + 1)
    barred = requests.refused_for_good[rows] | (requests.prompt_tokens[rows] >= engine.max_model_len)
    parent: Any = [] if requests.parent is None else requests.parent
    return (
        memory.of(requests.arrival_s[rows], np.float64),
        memory.of(requests.charge[rows]),
        memory.of(barred, np.int8),
        memory.read_only(requests.client[rows], np.int32),
        memory.read_only(requests.time_out_s[rows], np.float64),
        memory.read_only(requests.cancel_s[rows], np.float64),
        memory.of(requests.client_draw[rows], np.float64),
        memory.of(requests.server_draw[rows], np.float64),
        memory.of(parent),
        memory.of([] if requests.parent is None else np.bincount(parent, minlength=count)),
    )


class Rows:
    """What became of each of ``count`` requests, as they end."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.found: RequestRows | None = None

    def add(self, serial: Integers, rows: RequestRows) -> None:
        """``rows`` of the requests ``serial``; those of a run of one piece are kept as they are."""
        if len(serial) == self.count:
            self.found = rows
            return
        if self.found is None:
            self.found = RequestRows(**{name: zeros(self.count, one.dtype) for name, one in vars(rows).items()})
        for name, column in vars(self.found).items():
            column[serial] = getattr(rows, name)
        forget(self.found)

    def whole(self) -> RequestRows:
        """All rows."""
        assert self.found is not None
        return self.found


def _rows(row: Counts, time: Floats, parent: Integers | None, stop_s: float) -> RequestRows:
    """The kernel's columns; what would have happened after ``stop_s`` did not. The table is cut to those that are kept:
    of millions of requests, a copy beside it is much."""
    count = len(time) // places.TIME_COLUMNS
    outcome = row[places.OUTCOME * count : (places.OUTCOME + 1) * count].astype(np.int8)
    row.resize(places.KEPT_COLUMNS * count, refcheck=False)
    columns = row.reshape(places.KEPT_COLUMNS, count)
    moments = time.reshape(places.TIME_COLUMNS, count)
    entered = moments[places.ADMITTED] >= 0.0
    columns[places.REPLICA][~entered] = -1
    tried = entered | (outcome == Outcome.REJECTED_PERMANENTLY)
    if parent is not None:
        tried &= parent == np.arange(count)
    attempts = columns[places.REFUSALS] + tried
    moments[(moments < 0.0) | (moments > stop_s)] = np.nan
    moments[places.FIRST][moments[places.FIRST] > moments[places.FINISH]] = np.nan  # the client had left by then
    ended = (outcome == Outcome.COMPLETED) | (outcome == Outcome.CANCELLED)
    outcome[ended & np.isnan(moments[places.FINISH])] = Outcome.UNFINISHED
    columns[places.GENERATED][outcome == Outcome.UNFINISHED] = 0
    gave_up = outcome == Outcome.GAVE_UP
    gave_up_s: Floats = np.broadcast_to(np.nan, count)
    if gave_up.any():
        gave_up_s = np.where(gave_up, moments[places.FINISH], np.nan)
        moments[places.FINISH][gave_up] = np.nan
    return RequestRows(
        attempts=np.broadcast_to(attempts[0], count) if count and is_one_number(attempts) else attempts,
        refusals=columns[places.REFUSALS],
        outcome=outcome,
        admitted_s=moments[places.ADMITTED],
        scheduled_s=moments[places.SCHEDULED],
        first_token_s=moments[places.FIRST],
        finish_s=moments[places.FINISH],
        gave_up_s=gave_up_s,
        output_tokens=columns[places.GENERATED],
        preemptions=columns[places.PREEMPTIONS],
        recomputed_tokens=columns[places.RECOMPUTED],
        replica=columns[places.REPLICA],
    )


def _totals(states: Any, clocks: Any, since: Any, watch: Watch, end_s: float, reserved_peak: int) -> Totals:
    def counted(*names: int) -> int:
        return sum(int(state[name]) for state in states for name in names)

    return Totals(
        end_s=end_s,
        watched_s=max(0.0, min(end_s, watch.until_s) - watch.from_s),
        reserved_unit_s=float(sum(times[places.HELD_UNIT_S] for times in since)),
        used_block_s=float(sum(clock[places.USED_BLOCK_S] for clock in clocks)),
        reserved_peak=reserved_peak,
        used_peak_blocks=counted(places.PEAK_USED),
        over_capacity_events=counted(places.SHORTAGES),
        steps=counted(places.STEPS, places.ALL_STEPS),
        busy_s=float(sum(clock[places.BUSY_S] + clock[places.END_S] - clock[places.ORIGIN_S] for clock in clocks)),
        prefill_tokens=counted(places.PREFILL, places.ALL_PREFILL),
        decode_tokens=counted(places.DECODE, places.ALL_DECODE),
    )


def _samples(samples: Any, count: int, every_s: float) -> Samples:
    columns = samples[: count * places.SAMPLE_COLUMNS].reshape(count, places.SAMPLE_COLUMNS)
    return Samples(
        time_s=every_s * np.arange(1, count + 1, dtype=np.float64),
        reserved=columns[:, places.SAMPLED_RESERVED],
        used_blocks=columns[:, places.SAMPLED_USED],
        running=columns[:, places.SAMPLED_RUNNING],
        waiting=columns[:, places.SAMPLED_WAITING],
        refusals=columns[:, places.SAMPLED_REFUSALS],
    )
