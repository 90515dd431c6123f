"""What the kernel is given: plain lists, or arrays where it is compiled, filled from requests, engine and clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.simulation.kernel import state
from kvplan.simulation.types import UNLIMITED, ClientRule, EngineSetup, Floats, FrontDoor, Integers, Requests, Watch

_SLIDING, _CHUNKED = 1, 2


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """Makes arrays for the compiled kernel, and lists for the interpreted one."""

    compiled: bool

    def of(self, values: Any, dtype: Any = np.int64) -> Any:
        """The values of an array or sequence; always writable, because a read-only array is another type to numba."""
        array = np.require(values, dtype, ("C", "W"))
        return array if self.compiled else array.tolist()

    def read_only(self, values: Floats | Integers, dtype: Any) -> Any:
        """A column that is not written to: its first entry where all are equal."""
        return self.of(values[:1] if is_constant(values) else values, dtype)

    def table(self) -> Any:
        """An empty table from integers to integers."""
        if not self.compiled:
            return {}
        from numba import types
        from numba.typed import Dict

        return Dict.empty(types.int64, types.int64)


def is_constant(values: Floats | Integers) -> bool:
    """Whether all entries of an array are equal."""
    return values.strides == (0,) or (len(values) > 0 and bool((values == values[0]).all()))


def offsets(columns: int, count: int) -> tuple[int, ...]:
    """Where each of ``columns`` columns of ``count`` entries begins."""
    return tuple(column * count for column in range(columns))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A cache layout as the kernel reads it; its rings have ``ring_places`` entries."""

    numbers: state.LayoutNumbers
    form: Any
    ring_places: int


def cache_layout(engine: EngineSetup, arrays: Arrays) -> Layout:
    """Groups merged by block size, and windows by kind; the cap of a window is that of vLLM's admission.

    Raises InputError for groups that the engine clock does not know.
    """
    layout, window = engine.layout, engine.max_model_len
    full: dict[int, int] = {}
    every: dict[int, int] = {}
    kinds: dict[tuple[int, int, int], int] = {}
    fixed = 0
    for group in layout.groups:
        size = group.block_tokens * group.token_shards
        if group.rule == "fixed":
            fixed += group.fixed_blocks
        elif group.rule == "full":
            full[size] = full.get(size, 0) + 1
            every[size] = every.get(size, 0) + 1
        elif group.rule in ("sliding", "chunked") and group.window_tokens is not None:
            rule = _SLIDING if group.rule == "sliding" else _CHUNKED
            key = (rule, group.window_tokens + group.retained_tokens, size)
            kinds[key] = kinds.get(key, 0) + 1
            every[size] = every.get(size, 0) + 1
        else:
            raise InputError(
                f"the simulation does not support cache groups of the rule {group.rule!r}",
                hint="it follows vLLM's scheduler; set deployment.engine: vllm",
                key="deployment.engine",
            )
    every = every or {layout.block_tokens: 0}
    form: list[int] = []
    ring = 0
    for size, groups in every.items():
        form += [size, groups, full.get(size, 0), ring]
        ring += size
    kinds_at = len(form)
    for (rule, span, size), copies in kinds.items():
        held = min(span + layout.in_flight_tokens - (rule == _SLIDING), window)
        form += [rule, span, size, copies, -(-held // size) + (rule == _SLIDING), ring]
        ring += size
    return Layout(
        numbers=(len(every), fixed, len(kinds), 1 if engine.async_scheduling else 0, kinds_at),
        form=arrays.of(form),
        ring_places=ring,
    )


def slot_rows(max_seqs: int, kinds: int, replicas: int, arrays: Arrays) -> tuple[Any, tuple[int, ...]]:
    """The slots of every replica's running list, all empty, and where their fields begin."""
    field = [*offsets(state.SLID, max_seqs), state.SLID * max_seqs, state.SLID * max_seqs + max_seqs * kinds]
    row = np.zeros(field[-1] + max(1, max_seqs * kinds), np.int64)
    for name in (state.END_AT, state.SLIDE_AT):
        row[field[name] : field[name] + max_seqs] = -1
    row[field[state.NEXT_SLIDING] : field[state.NEXT_SLIDING] + max_seqs] = -2
    row[field[state.NEXT_SLOT] : field[state.NEXT_SLOT] + max_seqs] = [*range(1, max_seqs), -1]
    return arrays.of(np.tile(row, (replicas, 1))), tuple(field)


def engine_rows(free: int, replicas: int, arrays: Arrays) -> tuple[Any, Any]:
    """Every replica's counts and times while it is idle."""
    row = np.zeros(state.ENGINE_PLACES, np.int64)
    row[
        [
            state.FIRST_SLOT,
            state.LAST_SLOT,
            state.QUEUE_HEAD,
            state.QUEUE_TAIL,
            state.PREEMPTED,
            state.DONE_HEAD,
            state.LEFT_HEAD,
            state.PREFILLED_HEAD,
            state.FRESH,
            state.SLIDING_HEAD,
        ]
    ] = -1
    row[state.FREE] = free
    row[state.LATE] = 1
    return arrays.of(np.tile(row, (replicas, 1))), arrays.of(np.zeros((replicas, state.CLOCK_PLACES)), np.float64)


@dataclass(frozen=True, kw_only=True)
class Identities:
    """Blocks with identities, or placeholders where counts are enough."""

    cells: Any
    book: Any
    """For each request: shared blocks, number of the first block of its own, place of its first link."""
    links: Any
    table: Any
    numbers: tuple[tuple[int, ...], int, int, int, int, int, int]

    def of(self, serial: Integers, arrays: Arrays) -> tuple[Any, Any, tuple[Any, ...]]:
        """The book of some requests with all links, the table, and the pool's numbers with the places in the book."""
        book = self.book[:, serial] if self.book.size else self.book
        at = offsets(state.BOOK_COLUMNS, book.shape[1])
        numbers = (self.numbers[0], at, *self.numbers[1:])
        return arrays.of(np.concatenate((book.reshape(-1), self.links))), self.table, numbers


def no_identities(max_seqs: int, replicas: int, arrays: Arrays) -> Identities:
    """Placeholders, except for the blocks that preempted requests would find again: two places a slot."""
    return Identities(
        cells=arrays.of(np.zeros((replicas, 2 * max_seqs))),
        book=np.zeros((state.NODES, 0), np.int64),
        links=np.zeros(1, np.int64),
        table=arrays.table(),
        numbers=((0,) * state.CELL_COLUMNS, 1, 1, 1, 1, 0, 0),
    )


def identities(
    requests: Requests, answer: Integers, engine: EngineSetup, max_seqs: int, replicas: int, arrays: Arrays
) -> Identities:
    """A free queue of all usable blocks in order, none with content, and the numbers of what prompts hold."""
    block = engine.layout.groups[0].block_tokens
    book, links, per_node, keys = _contents(requests, answer, block)
    first, root = engine.layout.reserved_blocks, engine.blocks
    cells = root + 1
    width = int((-(-(requests.prompt_tokens + answer) // block)).max(initial=0)) + 2
    at = [*offsets(state.BLOCK_TABLE, cells), state.BLOCK_TABLE * cells]
    at += [at[-1] + max_seqs * width, at[-1] + max_seqs * width + max_seqs]
    row = np.zeros(at[-1] + max_seqs, np.int64)
    behind, ahead = row[:cells], row[cells : 2 * cells]
    behind[:], ahead[:] = np.arange(1, cells + 1), np.arange(-1, cells - 1)
    behind[root], ahead[first] = (first, root)
    row[at[state.CONTENT] : at[state.CONTENT] + cells] = -1
    row[at[state.TWIN] : at[state.TWIN] + cells] = -1
    return Identities(
        cells=arrays.of(np.tile(row, (replicas, 1))),
        book=book,
        links=links,
        table=arrays.table(),
        numbers=(tuple(at), requests.chain_tokens, per_node, block, width, root, keys),
    )


def _contents(requests: Requests, answer: Integers, block: int) -> tuple[Integers, Integers, int, int]:
    """Numbers for what blocks hold: blocks under the same chain of ids share theirs, all others have their own.

    The links of chains are numbered as a trie; the blocks that end in a link follow its number. Beyond the prompt, only
    requests with the same whole prompt share; not the answers of one request, because each is drawn anew.
    """
    count = len(requests.arrival_s)
    prompt = requests.prompt_tokens
    per_node = requests.chain_tokens // block + 2
    shared, node_start, owner = np.zeros(count, np.int64), np.zeros(count, np.int64), np.arange(count)
    links: dict[tuple[int, int], int] = {}
    twins: dict[tuple[int, int], int] = {}
    nodes: list[int] = []
    if requests.chain is not None and requests.chain_start is not None:
        chain, start = requests.chain.tolist(), requests.chain_start.tolist()
        for i in range(count):
            own = chain[start[i] : start[i + 1]]
            if not own:
                continue
            node_start[i], shared[i], node = len(nodes), prompt[i] // block, -1
            for place in range(-(-int(prompt[i]) // requests.chain_tokens)):
                node = links.setdefault((node, own[place] if place < len(own) else -1), len(links))
                nodes.append(node)
            if requests.parent is None:
                owner[i] = twins.setdefault((node, int(prompt[i])), i)
    room = np.zeros(count, np.int64)
    np.maximum.at(room, owner, -(-(prompt + answer) // block) - shared + 1)
    tail = len(links) * per_node + np.cumsum(room) - room
    book = np.stack((shared, tail[owner], node_start))
    return book, np.array([*nodes, 0], np.int64), per_node, len(links) * per_node + int(room.sum())


def client_rules(clients: Sequence[ClientRule], arrays: Arrays) -> Any:
    """The rules of the clients as rows of numbers; the loops around them follow."""
    rules, outer_rows = list(clients), []
    for rule in rules:  # grows meanwhile
        outer_rows.append(-1.0 if rule.outer is None else float(len(rules)))
        rules += [] if rule.outer is None else [rule.outer]
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
            outer,
        )
        for rule, outer in zip(rules, outer_rows, strict=True)
    ]
    return arrays.of(np.array(table, np.float64).reshape(-1, state.RULE_FIELDS), np.float64)


def front_door(door: FrontDoor, arrays: Arrays) -> tuple[Any, Any, Any, Any]:
    """The door's settings, the empty ledgers of its replicas, and how its Retry-After is computed."""
    wait, replicas = door.retry_after, door.replicas
    times = np.zeros((replicas, state.DOOR_TIMES))
    times[:, state.HOLD_S] = -1.0
    return (
        arrays.of((door.capacity, door.max_inside, door.max_queued_tokens, replicas, int(door.router))),
        arrays.of(np.zeros((replicas, state.DOOR_PLACES))),
        arrays.of(times, np.float64),
        arrays.of(
            (
                0.0 if wait.seconds is None else wait.seconds,
                wait.jitter_share,
                wait.longest_s,
                wait.unknown_s,
                float(wait.seconds is None),
                door.round_trip_s,
            ),
            np.float64,
        ),
    )


def engine_settings(
    engine: EngineSetup, door: FrontDoor, watch: Watch, *, usable: int, max_seqs: int, identities: bool, caches: bool
) -> tuple[state.Conf, state.Cost]:
    """The engine's settings, and the constants of a step with the watched time."""
    conf = (
        engine.max_num_batched_tokens,
        max_seqs,
        engine.max_model_len,
        engine.long_prefill_tokens,
        int(engine.chunked_prefill),
        int(engine.reserves_whole_input),
        engine.watermark_blocks,
        usable,
        int(identities),
        int(caches and not identities),
        int(door.max_queued_tokens < UNLIMITED),
    )
    step = engine.step
    cost = (step.base_s, step.prefill_token_s, step.decode_sequence_s, step.kv_token_s, watch.from_s, watch.until_s)
    return conf, tuple(map(float, cost))  # type: ignore[return-value] # a map has no length


def watched(watch: Watch) -> state.Watched:
    """The watch, in the kernel's order."""
    spans = (watch.from_s, watch.until_s, watch.stop_s, watch.sample_every_s, watch.sample_until_s)
    return tuple(map(float, spans))  # type: ignore[return-value] # a map has no length
