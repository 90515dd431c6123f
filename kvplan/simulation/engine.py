"""Runs the kernel: requests, engine and front door become lists or arrays, and what they held becomes a ``Run``."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from kvplan.engines.base import CacheLayout
from kvplan.simulation import kernel
from kvplan.simulation.types import (
    UNLIMITED,
    ClientRule,
    EngineSetup,
    FrontDoor,
    Outcome,
    RequestRows,
    Requests,
    Run,
    Samples,
    Totals,
    Watch,
)

_NO_ONE = -1
_SLIDING, _CHUNKED = 1, 2


def run_kernel(
    requests: Requests,
    engine: EngineSetup,
    door: FrontDoor,
    clients: Sequence[ClientRule],
    *,
    watch: Watch = Watch(),
    compiled: bool | None = None,
    say: Callable[[str], None] | None = None,
) -> Run:
    """What becomes of every request behind this door and engine.

    Counts of blocks are enough until prefix caching matters: when prompts share content, or once something was
    preempted. Then the run is made again with block identities.
    """
    plays = kernel.play
    use_compiled = False
    caches = engine.prefix_caching and len(engine.layout.groups) == 1 and engine.layout.groups[0].rule == "full"
    if not (caches and requests.chain is not None):
        run = _play(plays, requests, engine, door, clients, watch, compiled=use_compiled, caching=False, asks=caches)
        if run is not None:
            return run
    found = _play(plays, requests, engine, door, clients, watch, compiled=use_compiled, caching=True, asks=False)
    assert found is not None
    return found


class _Memory:
    """Makes the kernel's memory: arrays where it is compiled, lists where it is not."""

    def __init__(self, *, compiled: bool) -> None:
        self.compiled = compiled

    def of(self, values: Any, dtype: Any) -> Any:
        array = np.ascontiguousarray(values, dtype)
        return array if self.compiled else array.tolist()

    def many(self, count: int, value: float, dtype: Any) -> Any:
        return np.full(count, value, dtype) if self.compiled else [value] * count

    def table(self, rows: int, count: int, value: float, dtype: Any) -> Any:
        if self.compiled:
            return np.full((rows, count), value, dtype)
        return [[value] * count for _ in range(rows)]

    def places(self) -> Any:
        if not self.compiled:
            return {}
        from numba import types
        from numba.typed import Dict

        return Dict.empty(types.int64, types.int64)


def _shape(layout: CacheLayout, engine: EngineSetup, memory: _Memory, replicas: int) -> tuple[Any, ...]:
    """The layout as numbers: blocks per size of block, what is fixed, and window and chunk groups merged by kind."""
    in_flight, window = layout.in_flight_tokens, engine.max_model_len
    full: dict[int, int] = {}
    every: dict[int, int] = {}
    kinds: dict[tuple[int, int, int], int] = {}
    fixed = 0
    for group in layout.groups:
        size = group.block_tokens * getattr(group, "token_shards", 1)
        if group.rule == "fixed":
            fixed += group.fixed_blocks
            continue
        every[size] = every.get(size, 0) + 1
        if group.rule == "full":
            full[size] = full.get(size, 0) + 1
            continue
        assert group.window_tokens is not None
        key = (_SLIDING if group.rule == "sliding" else _CHUNKED, group.window_tokens, size)
        kinds[key] = kinds.get(key, 0) + 1
    every = every or {layout.block_tokens: 0}
    sizes = list(every)
    starts = np.cumsum([0, *sizes])
    rows, ring = [], 0
    for (rule, span, size), copies in kinds.items():
        held = min(span - 1 + in_flight if rule == _SLIDING else span + in_flight, window)
        rows.append((rule, span, size, copies, -(-held // size) + (rule == _SLIDING), ring))
        ring += size
    return (
        len(sizes),
        memory.of(sizes, np.int64),
        memory.of(list(every.values()), np.int64),
        memory.of([full.get(size, 0) for size in sizes], np.int64),
        memory.of(starts[:-1], np.int64),
        fixed,
        len(rows),
        memory.of(np.array(rows or [(0,) * 6], np.int64).reshape(-1, 6), np.int64),
        memory.table(replicas, int(starts[-1]), 0, np.int64),
        memory.table(replicas, max(ring, 1), 0, np.int64),
        1 if engine.async_scheduling else 0,
    )


def _slots(seats: int, kinds: int, memory: _Memory, replicas: int) -> tuple[Any, ...]:
    """The running list of every replica: one row of numbers per seat."""
    plain = {3: -1, 4: -1}
    fields = [memory.table(replicas, seats, plain.get(field, 0), np.int64) for field in range(16)]
    for field in (11, 12):
        fields[field] = memory.table(replicas, max(1, seats * kinds), 0, np.int64)
    for replica in range(replicas):
        for seat in range(seats):
            fields[8][replica][seat] = seat + 1 if seat + 1 < seats else _NO_ONE
    return tuple(fields)


def _contents(requests: Requests, answer: Any, block: int, memory: _Memory) -> tuple[Any, ...]:
    """Numbers for what blocks hold: (shared blocks per request, first number of its own, chain links) and how many."""
    count = len(requests.arrival_s)
    prompt = np.asarray(requests.prompt_tokens)
    last = -(-(prompt + answer) // block)
    chain_tokens = requests.chain_tokens
    per_node = chain_tokens // block + 2
    if requests.chain is None or requests.chain_start is None:
        tail = np.concatenate(([0], np.cumsum(last + 1)[:-1])) if count else np.zeros(0, np.int64)
        shared = np.zeros(count, np.int64)
        return shared, tail, np.zeros(count, np.int64), np.zeros(1, np.int64), per_node, int((last + 1).sum())
    links: dict[tuple[int, int], int] = {}
    twins: dict[tuple[int, int], int] = {}
    nodes: list[int] = []
    node_start = np.zeros(count, np.int64)
    shared = np.zeros(count, np.int64)
    owner = np.zeros(count, np.int64)
    chain, start = requests.chain.tolist(), requests.chain_start.tolist()
    for i in range(count):
        node_start[i] = len(nodes)
        own = chain[start[i] : start[i + 1]]
        owner[i] = i
        if not own:
            continue
        shared[i] = prompt[i] // block
        node = -1
        for place in range(-(-int(prompt[i]) // chain_tokens)):
            link = own[place] if place < len(own) else -1
            node = links.setdefault((node, link), len(links))
            nodes.append(node)
        owner[i] = twins.setdefault((node, int(prompt[i])), i)
    room = np.zeros(count, np.int64)
    np.maximum.at(room, owner, last - shared + 1)
    first = len(links) * per_node + np.concatenate(([0], np.cumsum(room)[:-1]))
    total = len(links) * per_node + int(room.sum())
    return shared, first[owner], node_start, np.array(nodes or [0], np.int64), per_node, total


def _pools(
    requests: Requests, answer: Any, engine: EngineSetup, seats: int, memory: _Memory, replicas: int, *, caching: bool
) -> tuple[Any, ...]:
    """Blocks with identities; empty shells where counts are enough."""
    block = engine.layout.groups[0].block_tokens
    if caching:
        shared, tail, node_start, nodes, per_node, keys = _contents(requests, answer, block, memory)
        first, root = engine.layout.reserved_blocks, engine.blocks
        width = int((-(-(requests.prompt_tokens + answer) // block)).max()) + 2
    else:
        shared = tail = node_start = nodes = np.zeros(1, np.int64)
        per_node, keys, first, root, width, seats = 1, 0, 0, 0, 1, 1
    cells = root + 1
    behind, ahead = np.arange(1, cells + 1), np.arange(-1, cells - 1)
    if caching:
        behind[root], ahead[root] = (first, root - 1) if root > first else (root, root)
        ahead[first] = root
    table = memory.table

    def rows(values: Any) -> Any:
        return memory.of(np.tile(values, (replicas, 1)), np.int64)

    return (
        rows(behind),
        rows(ahead),
        table(replicas, cells, 0, np.int64),
        table(replicas, cells, -1, np.int64),
        table(replicas, cells, -1, np.int64),
        memory.places(),
        table(replicas, seats * width, 0, np.int64),
        memory.of(shared, np.int64),
        memory.of(tail, np.int64),
        memory.of(node_start, np.int64),
        memory.of(nodes, np.int64),
        table(replicas, seats, 0, np.int64),
        table(replicas, seats, 0, np.int64),
        requests.chain_tokens,
        per_node,
        block,
        width,
        root,
        keys,
    )


def _rules(clients: Sequence[ClientRule], memory: _Memory) -> Any:
    table = [
        (
            float(rule.tries),
            float(rule.honours_retry_after),
            float(rule.whole_seconds),
            rule.longest_honoured_s,
            float(rule.gives_up_when_longer),
            rule.backoff_base_s,
            rule.backoff_max_s,
            rule.jitter_share,
            rule.jitter_add_s,
            float(rule.jitter_on_header),
        )
        for rule in clients
    ]
    return memory.of(np.array(table, np.float64), np.float64)


def _play(
    plays: Callable[..., Any],
    requests: Requests,
    engine: EngineSetup,
    door: FrontDoor,
    clients: Sequence[ClientRule],
    watch: Watch,
    *,
    compiled: bool,
    caching: bool,
    asks: bool,
) -> Run | None:
    """One run with counts or with identities; None where ``asks`` and something was preempted."""
    memory = _Memory(compiled=compiled)
    count = len(requests.arrival_s)
    window, replicas = engine.max_model_len, door.replicas
    cap = np.maximum(1, np.minimum(requests.cap_tokens, window - requests.prompt_tokens))
    answer = np.minimum(requests.output_tokens, cap)
    seats = max(1, min(engine.max_num_seqs, engine.max_num_batched_tokens, count))
    usable = engine.blocks - engine.layout.reserved_blocks
    shape = _shape(engine.layout, engine, memory, replicas)
    slots = _slots(seats, shape[6], memory, replicas)
    pools = _pools(requests, answer, engine, seats, memory, replicas, caching=caching)
    row = (
        memory.of(requests.prompt_tokens, np.int64),
        memory.of(answer, np.int64),
        memory.of(cap, np.int64),
        memory.many(count, 0, np.int32),  # generated
        memory.many(count, 0, np.int32),  # the most that was ever computed
        memory.many(count, _NO_ONE, np.int32),  # the next in its queue
        memory.many(count, _NO_ONE, np.int32),  # slot
        memory.many(count, -1.0, np.float64),  # admitted
        memory.many(count, -1.0, np.float64),  # scheduled
        memory.many(count, -1.0, np.float64),  # first token
        memory.many(count, -1.0, np.float64),  # finish
        memory.many(count, 0, np.int32),  # preemptions
        memory.many(count, 0, np.int32),  # recomputed
        memory.many(count, 0, np.int8),  # outcome
        memory.many(count, _NO_ONE, np.int32),  # the next that walked away
        memory.many(count, _NO_ONE, np.int32),  # the next whose prompt was read
    )
    tries = (
        memory.many(count, 0, np.int32),
        memory.many(count, 0, np.int32),
        memory.many(count, _NO_ONE, np.int32),
    )
    engines = memory.table(replicas, len(range(kernel.STAMP + 1)), 0, np.int64)
    times = memory.table(replicas, kernel.BUSY_S + 1, 0.0, np.float64)
    for r in range(replicas):
        for place in (
            kernel.FIRST_SLOT,
            kernel.LAST_SLOT,
            kernel.QUEUE_HEAD,
            kernel.QUEUE_TAIL,
            kernel.PREEMPTED,
            kernel.DONE_HEAD,
            kernel.LEFT_HEAD,
            kernel.READ_HEAD,
        ):
            engines[r][place] = _NO_ONE
        engines[r][kernel.FREE] = usable
        engines[r][kernel.LATE] = 1
    states = (
        engines,
        memory.many(replicas, 0, np.int64),  # reserved
        memory.many(replicas, 0, np.int64),  # inside
        memory.many(replicas, 0, np.int64),  # prompt tokens being read
        memory.many(replicas, 0.0, np.float64),  # reserved since
        memory.many(replicas, 0.0, np.float64),  # its integral
        memory.many(replicas, 0.0, np.float64),  # rate of release
        memory.many(replicas, -1.0, np.float64),  # and its time
        memory.many(2, 0, np.int64),  # peak, samples
    )
    track = 1 if door.max_queued_tokens < UNLIMITED else 0
    conf = (
        2 if engine.async_scheduling else 1,
        engine.max_num_batched_tokens,
        seats,
        window,
        engine.long_prefill_tokens,
        1 if engine.reserves_whole_input else 0,
        engine.watermark_blocks,
        usable,
        1 if caching else 0,
        1 if caching and requests.chain is not None else 0,
        1 if asks else 0,
        track,
    )
    step = engine.step
    cost = (
        float(step.base_s),
        float(step.prefill_token_s),
        float(step.decode_sequence_s),
        float(step.kv_token_s),
        float(watch.from_s),
        float(watch.until_s),
    )
    cells = int(watch.sample_until_s / watch.sample_every_s) + 2 if watch.sample_every_s > 0 else 1
    samples = (memory.many(cells, 0.0, np.float64), *(memory.many(cells, 0, np.int64) for _ in range(5)))
    asked = (
        memory.of(requests.arrival_s, np.float64),
        memory.of(requests.charge, np.int64),
        memory.of(requests.refused_for_good, np.bool_),
        memory.of(requests.client, np.int64),
        memory.of(requests.time_out_s, np.float64),
        memory.of(requests.cancel_s, np.float64),
        memory.of(requests.client_draw, np.float64),
        memory.of(requests.server_draw, np.float64),
    )
    wait = door.retry_after
    end_s = plays(
        asked,
        _rules(clients, memory),
        (
            door.capacity,
            door.max_inside,
            door.max_queued_tokens,
            replicas,
            int(door.router),
            float(door.round_trip_s),
        ),
        (
            -1.0 if wait.seconds is None else float(wait.seconds),
            float(wait.jitter_share),
            float(wait.longest_s),
            float(wait.horizon_s),
            float(wait.unknown_s),
            1 if wait.seconds is None else 0,
        ),
        (
            float(watch.from_s),
            float(watch.until_s),
            float(watch.stop_s),
            float(watch.sample_every_s),
            float(watch.sample_until_s),
        ),
        row,
        tries,
        states,
        times,
        slots,
        (shape[8], shape[9]),
        pools,
        conf,
        cost,
        shape,
        samples,
    )
    if asks and any(engines[r][kernel.GAVE_IN] for r in range(replicas)):
        return None
    return Run(
        rows=_rows(row, tries, watch.stop_s),
        totals=_totals(engines, times, states, watch, float(end_s)),
        samples=_samples(samples, int(states[8][1])),
        kernel="identities" if caching else "counts",
        compiled=compiled,
    )


def _rows(row: tuple[Any, ...], tries: tuple[Any, ...], stop_s: float) -> RequestRows:
    def times(values: Any) -> Any:
        array = np.array(values, np.float64)
        array[(array < 0.0) | (array > stop_s)] = np.nan
        return array

    outcome = np.array(row[13], np.int8)
    finish_s = times(row[10])
    outcome[np.isnan(finish_s) & (outcome == Outcome.COMPLETED)] = Outcome.UNFINISHED
    return RequestRows(
        attempts=np.array(tries[0], np.int32),
        refusals=np.array(tries[1], np.int32),
        outcome=outcome,
        admitted_s=times(row[7]),
        scheduled_s=times(row[8]),
        first_token_s=times(row[9]),
        finish_s=finish_s,
        output_tokens=np.array(row[3], np.int32),
        preemptions=np.array(row[11], np.int32),
        recomputed_tokens=np.array(row[12], np.int32),
        replica=np.array(tries[2], np.int32),
    )


def _totals(engines: Any, times: Any, states: tuple[Any, ...], watch: Watch, end_s: float) -> Totals:
    def counted(*places: int) -> int:
        return sum(int(engine[place]) for engine in engines for place in places)

    watched_s = max(0.0, min(end_s, watch.until_s) - watch.from_s)
    return Totals(
        end_s=end_s,
        watched_s=watched_s,
        reserved_unit_s=float(sum(states[5])),
        used_block_s=float(sum(time[kernel.USED_BLOCK_S] for time in times)),
        reserved_peak=int(states[8][0]),
        used_peak_blocks=counted(kernel.PEAK_USED),
        over_capacity_events=counted(kernel.SHORTAGES),
        steps=counted(kernel.STEPS, kernel.ALL_STEPS),
        busy_s=float(sum(time[kernel.BUSY_S] + time[kernel.END_S] - time[kernel.ORIGIN_S] for time in times)),
        prefill_tokens=counted(kernel.PREFILL, kernel.ALL_PREFILL),
        decode_tokens=counted(kernel.DECODE, kernel.ALL_DECODE),
    )


def _samples(samples: tuple[Any, ...], count: int) -> Samples:
    columns = [np.array(column[:count]) for column in samples]
    return Samples(
        time_s=columns[0].astype(np.float64),
        reserved=columns[1],
        used_blocks=columns[2],
        running=columns[3],
        waiting=columns[4],
        refusals=columns[5],
    )
