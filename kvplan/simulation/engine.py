"""Runs the kernel on one strategy and one seed, compiled or not, with block identities only where they matter."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvplan.capacity import usable_blocks
from kvplan.errors import InputError
from kvplan.simulation import compiled as numba_kernel
from kvplan.simulation.kernel import places, play
from kvplan.simulation.memory import (
    Memory,
    client_table,
    door_numbers,
    engine_rows,
    identities,
    is_one_number,
    layout_numbers,
    no_identities,
    offsets,
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
    Outcome,
    RequestRows,
    Requests,
    Run,
    Samples,
    Totals,
    Watch,
)

WORTH_LOADING = 200_000
"""Requests from which loading a kernel that was compiled before pays."""
WORTH_COMPILING = 1_000_000
"""Requests from which compiling it pays as well."""
BLOCKS_OF_A_REQUEST = 150
"""Blocks with identities that take as long to play as one more request: 0.4 µs each, 60 µs a request."""
_REQUEST_S = 6e-5
_LONG_RUN_S = 60.0


def worth_compiling(requests: int) -> bool:
    """Whether compiled code pays for this many requests: a kept kernel is loaded in half a second, one that is not
    takes about half a minute to compile. False where the extra ``fast`` is not installed."""
    if requests < WORTH_LOADING or not numba_kernel.is_available():
        return False
    return requests >= WORTH_COMPILING or numba_kernel.is_kept()


def run_kernel(
    requests: Requests,
    engine: EngineSetup,
    door: FrontDoor,
    clients: Sequence[ClientRule],
    *,
    watch: Watch | None = None,
    compiled: bool | None = None,
    say: Callable[[str], None] | None = None,
) -> Run:
    """What becomes of every request behind this door and engine.

    Counts of blocks are enough, also where prefixes are cached, until prompts share content: then blocks have
    identities. ``compiled``: None compiles where that pays; ``say`` is told when it does.
    """
    watch = watch or Watch()
    groups = engine.layout.groups
    caches = engine.prefix_caching and len(groups) == 1 and groups[0].rule == "full"
    named = caches and requests.chain is not None
    work = len(requests.arrival_s)
    if named:
        work += int(requests.prompt_tokens.sum()) // (groups[0].block_tokens * BLOCKS_OF_A_REQUEST)
    if compiled is None:
        compiled = worth_compiling(work)
    if named and not compiled and say is not None and work * _REQUEST_S > _LONG_RUN_S:
        say(
            f"a run takes about {work * _REQUEST_S / 60:.0f} min: the blocks of shared prefixes are followed one by one"
        )
    plays: Callable[..., Any] = numba_kernel.compiled_play(say) if compiled else play.play
    memory = Memory(compiled=compiled)
    count, replicas, step = len(requests.arrival_s), door.replicas, engine.step
    cap = np.maximum(1, np.minimum(requests.cap_tokens, engine.max_model_len - requests.prompt_tokens))
    answer = np.minimum(requests.output_tokens, cap)
    seats = max(1, min(engine.max_num_seqs, engine.max_num_batched_tokens, count))
    usable = usable_blocks(engine.layout, engine.blocks)
    longest = int((requests.prompt_tokens + answer).max(initial=0))
    if not engine.reserves_whole_input and engine.layout.request_blocks(longest) > usable:
        raise InputError(
            f"a request of {longest:,} tokens never fits the pool of {usable:,} usable blocks",
            hint="the engine would compute it for ever; make the pool larger or the window shorter",
            key="deployment.max_model_len",
        )
    layout = layout_numbers(engine, memory)
    slots, field = slot_rows(seats, layout.kinds, replicas, memory)
    states, clocks = engine_rows(usable, replicas, memory)
    pool = no_identities(seats, replicas, memory)
    if named:
        pool = identities(requests, answer, engine, seats, replicas, memory)
    starts = {
        places.PROMPT: requests.prompt_tokens,
        places.ANSWER: answer,
        places.CAP: cap,
        places.SLOT_OF: -1,
    }
    row = memory.columns(places.ROW_COLUMNS, count, starts, np.int32)
    del starts, cap, answer  # of millions of requests, that is much
    never = dict.fromkeys(range(places.TIME_COLUMNS), -1.0)
    time = memory.columns(places.TIME_COLUMNS, count, never, np.float64)
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
    totals = memory.of(np.zeros(2), np.float64)
    end_s = plays(
        (
            memory.of(requests.arrival_s, np.float64),
            memory.of(requests.charge),
            memory.of(requests.refused_for_good | (requests.prompt_tokens >= engine.max_model_len), np.int8),
            memory.read_only(requests.client, np.int32),
            memory.read_only(requests.time_out_s, np.float64),
            memory.read_only(requests.cancel_s, np.float64),
            memory.of(requests.client_draw, np.float64),
            memory.of(requests.server_draw, np.float64),
            memory.of([] if requests.parent is None else requests.parent),
            memory.of([] if requests.parent is None else np.bincount(requests.parent, minlength=count)),
        ),
        client_table(clients, memory),
        settings,
        doors,
        since,
        waits,
        watched(watch),
        (row, time, offsets(places.ROW_COLUMNS, count), offsets(places.TIME_COLUMNS, count)),
        (states, clocks, slots, memory.of(np.zeros((replicas, layout.ring_places))), pool.cells),
        pool.book,
        pool.table,
        pool.numbers,
        layout.numbers,
        layout.form,
        field,
        conf,
        cost,
        samples,
        totals,
    )
    return Run(
        rows=_rows(np.asarray(row, np.int32), np.asarray(time, np.float64), requests, watch.stop_s),
        totals=_totals(states, clocks, since, watch, float(end_s), int(totals[0])),
        samples=_samples(np.asarray(samples, np.int64), int(totals[1]), watch.sample_every_s),
        kernel="identities" if named else "counts",
        compiled=memory.compiled,
    )


def _rows(row: Counts, time: Floats, requests: Requests, stop_s: float) -> RequestRows:
    """The kernel's columns; what would have happened after ``stop_s`` did not. The table is cut to those that are kept:
    of millions of requests, a copy beside it is much."""
    count = len(requests.arrival_s)
    outcome = row[places.OUTCOME * count : (places.OUTCOME + 1) * count].astype(np.int8)
    row.resize(places.KEPT_COLUMNS * count, refcheck=False)
    columns = row.reshape(places.KEPT_COLUMNS, count)
    moments = time.reshape(places.TIME_COLUMNS, count)
    entered = moments[places.ADMITTED] >= 0.0
    columns[places.REPLICA][~entered] = -1
    tried = entered | (outcome == Outcome.REJECTED_PERMANENTLY)
    if requests.parent is not None:
        tried &= requests.parent == np.arange(count)
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
