"""The kernel's memory: plain lists, or arrays where it is compiled, filled from what was asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.errors import InputError
from kvplan.simulation.kernel import places
from kvplan.simulation.types import ClientRule, EngineSetup, Floats, FrontDoor, Integers, Requests, Watch

_NO_ONE = -1
_SLIDING, _CHUNKED = 1, 2


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Makes lists or arrays."""

    compiled: bool

    def of(self, values: Any, dtype: Any = np.int64) -> Any:
        """The values of an array or sequence; writable, for a read-only one is another type, and compiled anew."""
        array = np.require(values, dtype, ("C", "W"))
        return array if self.compiled else array.tolist()

    def columns(self, columns: int, count: int, starts: Mapping[int, Any], dtype: Any = np.int64) -> Any:
        """One row of columns of ``count`` entries each, one behind the other: each begins with a number or an array's
        values; those that are not named with zeros, which take no memory until they are written."""
        row = np.zeros(columns * count, dtype)
        for column, start in starts.items():
            row[column * count : (column + 1) * count] = start
        return self.of(row, dtype)

    def read_only(self, values: Floats | Integers, dtype: Any) -> Any:
        """A column, or its first entry where all are alike."""
        return self.of(values[:1] if is_one_number(values) else values, dtype)

    def table(self) -> Any:
        """An empty table from integers to integers."""
        if not self.compiled:
            return {}
        from numba import types
        from numba.typed import Dict

        return Dict.empty(types.int64, types.int64)


def is_one_number(values: Floats | Integers) -> bool:
    """Whether an array says the same in every row."""
    return values.strides == (0,) or (len(values) > 0 and bool((values == values[0]).all()))


def offsets(columns: int, count: int) -> tuple[int, ...]:
    """Where each of ``columns`` columns of ``count`` entries begins."""
    return tuple(column * count for column in range(columns))


@dataclass(frozen=True, kw_only=True)
class LayoutNumbers:
    """A cache layout as the kernel reads it; ``ring_places`` entries count its sequences by residue."""

    numbers: tuple[int, int, int, int, int]
    form: Any
    ring_places: int
    kinds: int


def layout_numbers(engine: EngineSetup, memory: Memory) -> LayoutNumbers:
    """Groups merged by size of block, and windows and chunks by kind; the cap of those as vLLM's admission has it.

    Raises InputError for a layout whose groups the engine clock does not know.
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
                f"the simulation does not play cache groups of the rule {group.rule!r}",
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
    return LayoutNumbers(
        numbers=(len(every), fixed, len(kinds), 1 if engine.async_scheduling else 0, kinds_at),
        form=memory.of(form),
        ring_places=ring,
        kinds=len(kinds),
    )


def slot_rows(seats: int, kinds: int, replicas: int, memory: Memory) -> tuple[Any, tuple[int, ...]]:
    """The seats of every replica's running list, all empty, and where their fields begin."""
    field = [*offsets(places.SLID, seats), places.SLID * seats, places.SLID * seats + seats * kinds]
    row = np.zeros(field[-1] + max(1, seats * kinds), np.int64)
    for name in (places.END_AT, places.GIVE_AT):
        row[field[name] : field[name] + seats] = _NO_ONE
    row[field[places.NEXT_GIVER] : field[places.NEXT_GIVER] + seats] = -2
    row[field[places.AFTER] : field[places.AFTER] + seats] = [*range(1, seats), _NO_ONE]
    return memory.of(np.tile(row, (replicas, 1))), tuple(field)


def engine_rows(free: int, replicas: int, memory: Memory) -> tuple[Any, Any]:
    """Every replica's counts and times, at rest."""
    row = np.zeros(places.ENGINE_PLACES, np.int64)
    row[
        [
            places.FIRST_SLOT,
            places.LAST_SLOT,
            places.QUEUE_HEAD,
            places.QUEUE_TAIL,
            places.PREEMPTED,
            places.DONE_HEAD,
            places.LEFT_HEAD,
            places.READ_HEAD,
            places.FRESH,
            places.GIVERS,
        ]
    ] = _NO_ONE
    row[places.FREE] = free
    row[places.LATE] = 1
    return memory.of(np.tile(row, (replicas, 1))), memory.of(np.zeros((replicas, places.CLOCK_PLACES)), np.float64)


@dataclass(frozen=True, kw_only=True)
class Identities:
    """Blocks with identities, or empty shells where counts are enough."""

    cells: Any
    book: Any
    """A row per request: shared blocks, number of the first of its own, place of its first link; then all links."""
    links: Any
    table: Any
    numbers: tuple[tuple[int, ...], int, int, int, int, int, int]

    def of(self, serial: Integers, memory: Memory) -> tuple[Any, tuple[Any, ...]]:
        """The book of some requests, and the pool's numbers with the places in it."""
        book = self.book[:, serial] if self.book.size else self.book
        at = offsets(places.BOOK_COLUMNS, book.shape[1])
        return memory.of(np.concatenate((book.reshape(-1), self.links))), (self.numbers[0], at, *self.numbers[1:])


def no_identities(seats: int, replicas: int, memory: Memory) -> Identities:
    """Shells that are never looked at, but for what preempted requests would find again: two places a seat."""
    return Identities(
        cells=memory.of(np.zeros((replicas, 2 * seats))),
        book=np.zeros((places.NODES, 0), np.int64),
        links=np.zeros(1, np.int64),
        table=memory.table(),
        numbers=((0,) * places.CELL_COLUMNS, 1, 1, 1, 1, 0, 0),
    )


def identities(
    requests: Requests, answer: Integers, engine: EngineSetup, seats: int, replicas: int, memory: Memory
) -> Identities:
    """A free queue of all usable blocks in order, none with content, and the numbers of what prompts hold."""
    block = engine.layout.groups[0].block_tokens
    book, links, per_node, keys = _contents(requests, answer, block)
    first, root = engine.layout.reserved_blocks, engine.blocks
    cells = root + 1
    width = int((-(-(requests.prompt_tokens + answer) // block)).max(initial=0)) + 2
    at = [*offsets(places.PLACED, cells), places.PLACED * cells]
    at += [at[-1] + seats * width, at[-1] + seats * width + seats]
    row = np.zeros(at[-1] + seats, np.int64)
    behind, ahead = row[:cells], row[cells : 2 * cells]
    behind[:], ahead[:] = np.arange(1, cells + 1), np.arange(-1, cells - 1)
    behind[root], ahead[first] = (first, root)
    row[at[places.CONTENT] : at[places.CONTENT] + cells] = _NO_ONE
    row[at[places.TWIN] : at[places.TWIN] + cells] = _NO_ONE
    return Identities(
        cells=memory.of(np.tile(row, (replicas, 1))),
        book=book,
        links=links,
        table=memory.table(),
        numbers=(tuple(at), requests.chain_tokens, per_node, block, width, root, keys),
    )


def _contents(requests: Requests, answer: Integers, block: int) -> tuple[Integers, Integers, int, int]:
    """Numbers for what blocks hold: those under one chain of ids share theirs, all others have their own.

    A chain's links are numbered as a trie; the blocks that end in a link follow its number. Behind the prompt, only
    requests with the same whole prompt share: not the answers of one request, each of which is drawn anew.
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


def client_table(clients: Sequence[ClientRule], memory: Memory) -> Any:
    """The clients' rules as rows of numbers, in the kernel's order; behind them the loops around them."""
    rules, places_of_outer = list(clients), []
    for rule in rules:  # which grows
        places_of_outer.append(-1.0 if rule.outer is None else float(len(rules)))
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
        for rule, outer in zip(rules, places_of_outer, strict=True)
    ]
    return memory.of(np.array(table, np.float64).reshape(-1, places.RULE_FIELDS), np.float64)


def door_numbers(door: FrontDoor, memory: Memory) -> tuple[Any, Any, Any, Any]:
    """The door's settings, its replicas' reservations and times, all at rest, and how its Retry-After is made."""
    wait, replicas = door.retry_after, door.replicas
    times = np.zeros((replicas, places.DOOR_TIMES))
    times[:, places.HOLD_S] = -1.0
    return (
        memory.of((door.capacity, door.max_inside, door.max_queued_tokens, replicas, int(door.router))),
        memory.of(np.zeros((replicas, places.DOOR_PLACES))),
        memory.of(times, np.float64),
        memory.of(
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


def watched(watch: Watch) -> tuple[float, float, float, float, float]:
    """The watch, in the kernel's order."""
    spans = (watch.from_s, watch.until_s, watch.stop_s, watch.sample_every_s, watch.sample_until_s)
    return (float(spans[0]), float(spans[1]), float(spans[2]), float(spans[3]), float(spans[4]))
