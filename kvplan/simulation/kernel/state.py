"""The kernel's state: which number is where in which list, and the two structures that order requests.

Numbers that belong together share one list (an array where the kernel is compiled) with named places, because every
list that is passed from one function to another costs time. A list of requests is a column that names the next one;
what future batches bring is a heap of keys (batch, kind of event, slot), which has functions of its own so that all
others can be compiled without reference counting.
"""

from heapq import heappop, heappush
from typing import Final

Ints = list[int]
Reals = list[float]
Offsets = tuple[int, ...]

# ``st``: the counts of an engine.
(
    BATCHES,  # scheduled since the start
    STEPS,  # since it was last idle, like the next three: context tokens are those that steps attend to
    PREFILL_TOKENS,
    DECODES,
    CONTEXT_TOKENS,
    DECODING,  # sequences of which every further batch computes one token
    COMPUTED,  # the sum of their computed tokens
    FREE,  # blocks
    RUNNING,
    FIRST_SLOT,  # the running list, in order of admission
    LAST_SLOT,
    FREE_SLOT,
    QUEUE_HEAD,  # new requests, first come, first served
    QUEUE_TAIL,
    PREEMPTED,  # preempted requests, which go first; the one preempted last leads
    WAITING,
    DONE_HEAD,  # finished, not yet released at the front door
    DONE_TAIL,
    LEFT_HEAD,  # abandoned by their clients, not yet noticed by the engine
    LEFT_TAIL,
    PREFILLED_HEAD,  # prefilled, not yet counted at the front door
    PREFILLED_TAIL,
    PREFILLS,  # running sequences whose input is not fully computed
    PREFILL_SLOT,  # the latest of them
    LATE,  # 1: the batch in flight returned before another could be scheduled
    BLOCKED,  # 1: the head of the queue did not fit, and no block was freed since
    SLIDING_BLOCKS,  # blocks that slide out of windows with the next batch
    ALL_STEPS,
    ALL_PREFILL_TOKENS,
    ALL_DECODES,
    SHORTAGES,  # batches in which a running sequence found no block
    PEAK_USED,
    ADMISSIONS,
    BUDGET,  # tokens that the batch being formed may still take
    BLOCKS_TAKEN,  # by the batches that a jump skips
    KEPT_FROM,  # entries of ``kept``: the first that is not used up,
    KEPT_END,  # the next to be made,
    KEPT_BLOCKS,  # and the blocks of all between
    FRESH,  # sequences whose input this batch completes
    SLIDING_HEAD,  # sequences with blocks that slide out with the next batch
    ENGINE_PLACES,
) = range(41)

# ``ck``: its times.
(
    ORIGIN_S,  # when it was last idle
    END_S,  # end of the last batch
    START_S,  # start of the last batch
    USED_BLOCK_S,
    QUIET_S,  # nothing it does before then concerns the front door
    BUSY_S,
    CLOCK_PLACES,
) = range(7)

# Columns of ``row``: a request. Those before ``KEPT_COLUMNS`` are results.
(
    GENERATED,
    PREEMPTIONS,
    RECOMPUTED,
    REFUSALS,
    REPLICA,  # once it was admitted
    OUTCOME,
    PROMPT,
    ANSWER,  # tokens at which it ends
    CAP,
    COMPUTED_ONCE,  # the most tokens that were ever computed for it
    LINK,  # the next one in its queue
    SLOT_OF,  # its slot; −1: none, −2: ended, −3 − batch: preempted, but that batch still brings a token
    LEFT_LINK,
    PREFILLED_LINK,
    ROW_COLUMNS,
) = range(15)
KEPT_COLUMNS = OUTCOME
SPENT = LINK  # while a request is in no queue: tries used up by the innermost loop of its client

# Columns of ``time``: when things happened to it; negative: they have not.
ADMITTED, SCHEDULED, FIRST_TOKEN, FINISH, TIME_COLUMNS = range(5)

# Fields of ``slot``: an entry of the running list.
(
    REQUEST,
    OFFSET,  # computed tokens; of a decoding sequence, less the batches scheduled
    PHASE,
    END_AT,  # the batch before which its end is noticed
    SLIDE_AT,  # the batch before which blocks may slide out
    FIRST_BATCH,  # the batch that completed its input
    GENERATED_BEFORE,  # tokens generated before that batch
    CHUNK,  # tokens computed in its last batch of prefill
    NEXT_SLOT,
    PREVIOUS_SLOT,
    HELD,  # blocks, once no further batch computes it
    SLIDING,  # blocks that slide out with the next batch
    SERVED,  # its last batch of prefill; the negative of one that left it out
    ORDER,  # of admission
    NEXT_FRESH,
    NEXT_SLIDING,  # −2: not in that list
    NEXT_ENDING,
    SLID,  # for each kind of window: blocks that slid out,
    IN_RING,  # and whether a ring counts them from now on
    SLOT_FIELDS,
) = range(20)
# Phases. Asynchronous scheduling forms a batch before the last one returned, so a sequence that stops is computed once
# more in vain (``WASTED``); one that reaches its cap is known to end (``ENDING``).
PREFILLING, GENERATING, WASTED, ENDING = range(1, 5)

# Columns of ``cell``: a block with an identity (``TWIN``: the next one with the same content), then those of slots.
NEXT_FREE, PREVIOUS_FREE, HOLDERS, CONTENT, TWIN, BLOCK_TABLE, BLOCKS_HELD, BLOCKS_CACHED, CELL_COLUMNS = range(9)
# Columns of ``book``: what the blocks of a request hold.
SHARED, TAIL, NODE_START, NODES, BOOK_COLUMNS = range(5)

UNFINISHED, COMPLETED, REJECTED, GAVE_UP, TIMED_OUT, CANCELLED = range(6)

# Keys of the heap: batch, whether blocks slide (else a sequence ends), slot.
SLOT_BITS = 20
KEY_SHIFT = SLOT_BITS + 1
SLIDES = 1 << SLOT_BITS
SLOT_MASK = SLIDES - 1
LAST_KEY = 1 << 62

GOLDEN = 0.6180339887498949

Slots = tuple[Ints, Offsets]
Rows = tuple[Ints, Reals, Offsets, Offsets]

# The cache layout: block sizes, fixed blocks, kinds of window, batches formed ahead, where the rows of the kinds begin
# in ``form``; then ``form`` and the replica's ``rings``. ``form`` has a row per block size (size, groups, full groups,
# place of its ring), then a row per kind of window (rule, window, size, groups, cap, place of its ring).
Shape = tuple[int, int, int, int, int, Ints, Ints]
LayoutNumbers = tuple[int, int, int, int, int]
SIZES: Final = 0
FIXED: Final = 1
KINDS_NUMBER: Final = 2
LAG: Final = 3
KINDS: Final = 4
FORM: Final = 5
RINGS: Final = 6
SIZE_ROW, KIND_ROW = 4, 6

# Blocks with identities: ``cell``, ``book``, a table from content to its first block, then offsets and numbers.
# Where no content is shared, ``cell`` is ``kept``: two places an entry.
Pool = tuple[Ints, Ints, dict[int, int], Offsets, Offsets, int, int, int, int, int, int]
PoolNumbers = tuple[Offsets, Offsets, int, int, int, int, int, int]
CELL: Final = 0
BOOK: Final = 1
TABLE: Final = 2
CELL_AT: Final = 3
BOOK_AT: Final = 4
CHAIN_TOKENS: Final = 5
PER_NODE: Final = 6
BLOCK: Final = 7
WIDTH: Final = 8
ROOT: Final = 9
KEY_BASE: Final = 10

# Settings of the engine.
Conf = tuple[int, int, int, int, int, int, int, int, int, int, int]
(
    BATCH_TOKENS,
    MAX_SEQS,
    MAX_LEN,
    LONG_PREFILL,  # the longest chunk of one request where others wait or run; 0: no limit
    CHUNKED,  # 1: prompts may be split
    WHOLE_INPUT,  # 1: a request is admitted only when its whole input fits
    WATERMARK,
    USABLE,  # blocks
    IDENTITIES,  # 1: blocks have identities
    CACHES,  # 1: blocks that preempted requests would find again are counted
    COUNTS_QUEUED,  # 1: the front door limits the prompt tokens that are not prefilled
) = range(11)
# The four constants of a step, then the watched time (from, until).
Cost = tuple[float, float, float, float, float, float]

# ``door``: its settings; ``doors`` and ``since``: what each replica's ledger holds now, and its times.
CAPACITY, MAX_INSIDE, MAX_QUEUED_TOKENS, REPLICAS, ROUTER = range(5)
RESERVED, INSIDE, QUEUED_TOKENS, DOOR_PLACES = range(4)
SINCE_S, HELD_UNIT_S, HOLD_S, PROMISED_S, DOOR_TIMES = range(5)
# ``waits``: how the Retry-After of a refusal is computed.
FIXED_S, JITTER, LONGEST_S, UNKNOWN_S, DRAINS, ROUND_TRIP_S = range(6)
# ``rules``: a client's.
(
    TRIES,
    HONOURS_HEADER,
    WHOLE_SECONDS,
    HONOURED_S,
    GIVES_UP,
    BASE_S,
    MAX_S,
    CLIENT_JITTER,
    JITTER_ADD_S,
    ON_HEADER,
    OUTER,  # the row of the retry loop around this one; −1: none
    RULE_FIELDS,
) = range(12)
# ``watch``
FROM_S, UNTIL_S, STOP_S, EVERY_S, LAST_SAMPLE_S = range(5)
# ``totals``: what is carried from piece to piece.
RESERVED_PEAK, SAMPLED, TURN, REFUSED, LAST_EVENT_S, TOTAL_PLACES = range(6)
# Columns of ``samples``
SAMPLED_RESERVED, SAMPLED_USED, SAMPLED_RUNNING, SAMPLED_WAITING, SAMPLED_REFUSALS, SAMPLE_COLUMNS = range(6)

Watched = tuple[float, float, float, float, float]
Held = tuple[Ints, Ints, Ints]

# What ``event_loop`` is given, group by group.
# The request table: arrival_s, charge, barred, client, time_out_s, cancel_s, client_draw, server_draw, parent, and
# sequences of a parent that have not ended.
Asked = tuple[Reals, Ints, Ints, Ints, Reals, Reals, Reals, Reals, Ints, Ints]
Clients = list[Reals]  # rules
FrontDoor = tuple[Ints, list[Ints], list[Reals], Reals]  # door, doors, since, waits
Engines = tuple[list[Ints], list[Reals], list[Ints], list[Ints], list[Ints]]  # st, ck, slot, rings and cell of each
Setup = tuple[Conf, Cost, LayoutNumbers, Ints, Offsets]  # the last two: form, and where the fields of a slot begin
Contents = tuple[Ints, dict[int, int], PoolNumbers]  # book, table
Output = tuple[Ints, Reals]  # samples, totals
# What is due after a piece: keys of the engines' heaps (replica, key), retries (time, row), departures (time, row).
Pending = tuple[Ints, Reals, Ints, Reals, Ints]


def next_key(heap: Ints) -> int:
    """The earliest key."""
    return heap[0]


def push_key(key: int, heap: Ints) -> None:
    """Add a key."""
    heappush(heap, key)


def pop_key(heap: Ints) -> int:
    """Take out the earliest key."""
    return heappop(heap)


def join(i: int, link: int, head: int, st: Ints, row: Ints) -> None:
    """Append request ``i`` to the list with its head at place ``head`` of ``st`` and its tail at the next place; the
    column that begins at ``link`` names who follows."""
    row[link + i] = -1
    if st[head] >= 0:
        row[link + st[head + 1]] = i
    else:
        st[head] = i
    st[head + 1] = i
