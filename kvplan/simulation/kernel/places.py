"""Where the kernel keeps what: every group of numbers is one list (or array) and these are the places in it.

Few lists with named places, instead of many lists, keep the compiled kernel quick: each list that is handed from one
function to another is counted.
"""

from typing import Final

Ints = list[int]
Reals = list[float]
Offsets = tuple[int, ...]

# ``st``: what an engine counts.
(
    BATCHES,  # scheduled since the start
    STEPS,  # since it last stood idle: steps, prefill tokens, decoding sequences, context tokens
    PREFILL,
    DECODE,
    CONTEXT,
    DECODING,  # sequences that every further batch takes one token of
    COMPUTED,  # their computed tokens, together
    FREE,  # blocks
    RUNNING,
    FIRST_SLOT,  # the running list, in order of admission
    LAST_SLOT,
    SPARE_SLOT,
    QUEUE_HEAD,  # new requests, first come first served
    QUEUE_TAIL,
    PREEMPTED,  # those that go before them, the latest preempted on top
    WAITING,
    DONE_HEAD,  # finished, not yet released at the door
    DONE_TAIL,
    LEFT_HEAD,  # clients that walked away, not yet seen by the engine
    LEFT_TAIL,
    READ_HEAD,  # prompts read, not yet counted at the door
    READ_TAIL,
    READING_NOW,  # sequences whose input is not computed whole, and the latest of them
    READING_SLOT,
    LATE,  # 1: the batch in flight returned before another could be scheduled
    BLOCKED,  # 1: the head of the queue did not fit, and nothing came back since
    SLIDING_BACK,  # blocks that come back with the next batch
    ALL_STEPS,
    ALL_PREFILL,
    ALL_DECODE,
    SHORTAGES,
    PEAK_USED,
    STAMP,  # admissions so far
    BUDGET,  # tokens that the batch being formed may still take
    TAKEN,  # blocks that the batches to be skipped take
    KEPT_FROM,  # entries of ``kept``: the first that is not all gone, the next to be made, and their blocks
    KEPT_END,
    KEPT_BLOCKS,
    FRESH,  # sequences whose input this batch computes whole
    GIVERS,  # those with blocks that slide out with the next batch
    ENGINE_PLACES,
) = range(41)

# ``ck``: its times.
(
    ORIGIN_S,  # when it last stood idle
    END_S,  # end of the last batch
    START_S,  # start of the last batch
    USED_BLOCK_S,
    QUIET_S,  # until then nothing of it reaches the door
    BUSY_S,
    CLOCK_PLACES,
) = range(7)

# Columns of ``row``: a request.
(
    GENERATED,  # up to ``KEPT_COLUMNS``: what is told of it in the end
    PREEMPTIONS,
    RECOMPUTED,
    REFUSALS,
    REPLICA,  # once it was let in
    OUTCOME,
    PROMPT,
    ANSWER,  # tokens at which it ends
    CAP,
    HIGH,  # the most tokens that were ever computed for it
    LINK,  # the next one in its queue
    SLOT_OF,  # its slot; −1 outside, −2 once it ended, −3 − batch where that batch still brings it a token
    LEFT_LINK,
    READ_LINK,
    ROW_COLUMNS,
) = range(15)
KEPT_COLUMNS = OUTCOME
SPENT = LINK  # while a request is in no queue: the tries of its client's innermost loop that are spent

# Columns of ``time``: its moments, negative until they happen.
ADMITTED, SCHEDULED, FIRST, FINISH, TIME_COLUMNS = range(5)

# Fields of ``slot``: a seat of the running list.
(
    WHO,
    OFF,  # computed tokens; while it writes, less the batches scheduled
    PHASE,
    END_AT,  # the batch before which its end is seen
    GIVE_AT,  # the batch before which blocks may slide out
    FIRST_BATCH,  # the batch that computed its whole input
    BEFORE,  # tokens generated before that
    CHUNK,  # tokens of it in its last batch
    AFTER,
    PRIOR,
    HELD,  # blocks, once it is in no further batch
    GIVE,  # blocks that slide out with the next batch
    SERVED,  # the last batch that read for it; the negative of one that left it out
    ORDER,  # of admission
    NEXT_FRESH,
    NEXT_GIVER,  # −2 outside of that list
    NEXT_ENDING,
    SLID,  # per window kind: blocks that slid out, and whether a ring counts them
    JOINED,
    SLOT_FIELDS,
) = range(20)
READING, WRITING, IN_VAIN, CERTAIN = range(1, 5)

# Columns of ``cell``: a block with an identity (``TWIN``: the next with the same content), then those of seats.
BEHIND, AHEAD, HOLDERS, CONTENT, TWIN, PLACED, MANY, CACHED, CELL_COLUMNS = range(9)
# Columns of ``book``: what a request's blocks hold.
SHARED, TAIL, NODE_START, NODES, BOOK_COLUMNS = range(5)

UNFINISHED, COMPLETED, REJECTED, GAVE_UP, TIMED_OUT, CANCELLED = range(6)

# Keys of the heap: batch, sort of event, slot.
SLOT_BITS = 20
KEY_SHIFT = SLOT_BITS + 1
SLIDES = 1 << SLOT_BITS
SLOT_MASK = SLIDES - 1
LAST_KEY = 1 << 62

GOLDEN = 0.6180339887498949

Slots = tuple[Ints, Offsets]
Rows = tuple[Ints, Reals, Offsets, Offsets]

# A layout in numbers: sizes of blocks, fixed blocks, window kinds, batches formed ahead, the place of the kinds' rows
# in ``form``, then ``form`` and ``rings``. ``form`` holds a row per size (size, groups, full groups, place of its
# ring), then a row per kind (rule, window, size, groups, cap, place of its ring).
Shape = tuple[int, int, int, int, int, Ints, Ints]
SIZES: Final = 0
FIXED: Final = 1
KINDS_NUMBER: Final = 2
LAG: Final = 3
KINDS: Final = 4
FORM: Final = 5
RINGS: Final = 6
SIZE_ROW, KIND_ROW = 4, 6

# Blocks with identities: ``cell``, ``book``, the table from content to its first block, then offsets and numbers.
# Where nobody shares content, ``cell`` is ``kept``: two places an entry.
Pool = tuple[Ints, Ints, dict[int, int], Offsets, Offsets, int, int, int, int, int, int]
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

# Settings, and costs with the watched span.
Conf = tuple[int, int, int, int, int, int, int, int, int, int, int]
(
    MOST_TOKENS,
    SEATS,
    WINDOW,
    LONGEST,  # chunk of one request in a batch, where others wait or run
    CHUNKS,  # 1: what is left of a batch's tokens may take a part of a prompt
    WHOLE_INPUT,
    WATERMARK,
    TOTAL,
    NAMED,  # 1: blocks have identities
    KEEPS,  # 1: what preempted requests would find again is counted
    TRACKS,  # 1: the door counts the prompts that are being read
) = range(11)
Cost = tuple[float, float, float, float, float, float]

# ``door``: settings, and per replica what it holds now.
CAPACITY, MOST_INSIDE, MOST_READING, REPLICAS, ROUTER = range(5)
RESERVED, INSIDE, IN_READING, DOOR_PLACES = range(4)
SINCE_S, HELD_UNIT_S, HOLD_S, PROMISED_S, DOOR_TIMES = range(5)
# ``waits``: how a refusal's Retry-After is made.
FIXED_S, JITTER, LONGEST_S, UNKNOWN_S, DRAINS, ROUND_TRIP_S = range(6)
# A client's rule.
(
    TRIES,
    HONOURS,
    WHOLE_SECONDS,
    HONOURED_S,
    GIVES_UP,
    BASE_S,
    MOST_S,
    CLIENT_JITTER,
    EXTRA_S,
    ON_HEADER,
    OUTER,  # the row of the loop that tries around this one; −1: none
    RULE_FIELDS,
) = range(12)
# ``watch``
FROM_S, UNTIL_S, STOP_S, EVERY_S, LAST_SAMPLE_S = range(5)
# ``totals``: what a run goes on with from piece to piece.
MOST_RESERVED, SAMPLED, TURN, REFUSED, LAST_EVENT_S, TOTAL_PLACES = range(6)
# Columns of ``samples``
SAMPLED_RESERVED, SAMPLED_USED, SAMPLED_RUNNING, SAMPLED_WAITING, SAMPLED_REFUSALS, SAMPLE_COLUMNS = range(6)

Watched = tuple[float, float, float, float, float]
Held = tuple[Ints, Ints, Ints]
Replicas = tuple[list[Ints], list[Reals], list[Ints], list[Ints], list[Ints]]
