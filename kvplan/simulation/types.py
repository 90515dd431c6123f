"""What the kernel is given and what it returns: one strategy on one seed, every request as a row of arrays."""

from dataclasses import dataclass, replace
from enum import IntEnum
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.engines.engine_plan import CacheLayout
from kvplan.traffic.spec import StepCost

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
Counts = NDArray[np.int32]
Flags = NDArray[np.bool_]

UNLIMITED = 2**62
"""A count that is never reached."""


class Outcome(IntEnum):
    """How a request ended; ``UNFINISHED``: still inside, or waiting for its next attempt, when the run stopped."""

    UNFINISHED = 0
    COMPLETED = 1
    REJECTED_PERMANENTLY = 2
    GAVE_UP = 3
    TIMED_OUT = 4
    CANCELLED = 5


class Router(IntEnum):
    """Which replica an attempt is sent to. ``ROUND_ROBIN``: the next; ``MIN_RESERVED``: the one with the least
    reserved, then the fewest requests inside, then the first."""

    ROUND_ROBIN = 0
    MIN_RESERVED = 1


@dataclass(frozen=True, kw_only=True)
class EngineSetup:
    """One replica of the engine: its pool, its settings and its clock.

    ``blocks`` is the pool as the engine prints it, with the reserved block. ``watermark_blocks`` must stay free when a
    request is admitted while others run. ``long_prefill_tokens`` limits the chunk of one request in a step (0: no
    limit). Without ``chunked_prefill`` a prompt must fit into one step. ``reserves_whole_input``: a request is admitted
    only when blocks for all its known tokens are free (the engine's default). Prefix caching needs a layout of one
    group; with several it is off.
    """

    blocks: int
    layout: CacheLayout
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    step: StepCost
    async_scheduling: bool = False
    prefix_caching: bool = False
    watermark_blocks: int = 0
    long_prefill_tokens: int = 0
    chunked_prefill: bool = True
    reserves_whole_input: bool = True


@dataclass(frozen=True, kw_only=True)
class ClientRule:
    """What a client does when it is refused; the fields are those of a client profile, with None resolved.

    After refused attempt n (0 is the first) it waits the server's Retry-After, where that is honoured and not longer
    than ``longest_honoured_s``, else ``min(backoff_base_s × 2^n, backoff_max_s)``; with the jitter of the profile:
    × (1 − U × jitter_share), + U × jitter_add_s. A negative ``jitter_share`` lengthens the wait. ``tries`` includes the
    first attempt. ``whole_seconds``: the header is read as whole seconds, rounded up. ``outer`` is the retry loop
    around this one, which waits and starts it again when it gives up.
    """

    tries: int = 1
    honours_retry_after: bool = False
    whole_seconds: bool = False
    longest_honoured_s: float = inf
    gives_up_when_longer: bool = False
    backoff_base_s: float = 0.0
    backoff_max_s: float = 0.0
    jitter_share: float = 0.0
    jitter_add_s: float = 0.0
    jitter_on_header: bool = False
    outer: "ClientRule | None" = None


@dataclass(frozen=True, kw_only=True)
class RetryAfter:
    """The wait that a refusal names: ``seconds``, or else the expected drain of the ledger
    (``admission.DrainEstimate`` with these constants); at least 1 s, spread upwards by up to ``jitter_share``, at most
    ``longest_s``."""

    seconds: float | None = None
    jitter_share: float = 0.0
    longest_s: float = 60.0
    unknown_s: float = 2.0


@dataclass(frozen=True, kw_only=True)
class FrontDoor:
    """What decides on an attempt, given ``Requests.charge``: it is admitted when charge ≤ capacity − reserved, at most
    ``max_inside`` sequences are then inside, and prompts not yet prefilled hold fewer than ``max_queued_tokens``.

    ``capacity`` is per replica, in the unit of the charges; ``UNLIMITED`` with charges of 0 admits everything. The two
    other limits are the engine's own caps (max_num_queued_reqs counts waiting and running requests; source: vLLM 0.33,
    ``AsyncLLM.check_admission``). A client that retries at once still needs ``round_trip_s``.
    """

    capacity: int = UNLIMITED
    max_inside: int = UNLIMITED
    max_queued_tokens: int = UNLIMITED
    retry_after: RetryAfter = RetryAfter()
    replicas: int = 1
    router: Router = Router.ROUND_ROBIN
    round_trip_s: float = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class Requests:
    """Every request of a run, sorted by arrival; row number = serial number.

    ``output_tokens`` is what the model would generate (≥ 1), ``cap_tokens`` what it may (≥ 1, within the window);
    ``charge`` is the reservation; ``refused_for_good`` marks requests that can never be served. ``client`` indexes the
    client table. ``time_out_s`` counts from the attempt that was admitted; ``cancel_s`` from the first attempt, and it
    also ends the wait between attempts (inf: never). ``client_draw`` and ``server_draw`` are one uniform number each;
    attempt n uses the fractional part of draw + n × the golden ratio, so attempts differ without a matrix of draws.
    ``chain`` and ``chain_start`` (n + 1 offsets) are the ids of a prompt's pieces of ``chain_tokens`` tokens; pieces
    with equal ids after equal ids have equal content. None: no prompts share content.
    ``parent`` makes every row one sequence of a request for several answers: it names the row that makes the attempts,
    is charged for all of them and releases that with the last; its siblings follow it. None: one row per request.
    """

    arrival_s: Floats
    prompt_tokens: Integers
    output_tokens: Integers
    cap_tokens: Integers
    charge: Integers
    refused_for_good: Flags
    client: Integers
    time_out_s: Floats
    cancel_s: Floats
    client_draw: Floats
    server_draw: Floats
    chain: Integers | None = None
    chain_start: Integers | None = None
    chain_tokens: int = 512
    parent: Integers | None = None

    @classmethod
    def uncharged(
        cls, arrival_s: Any, prompt_tokens: Any, output_tokens: Any, cap_tokens: Any, **columns: Any
    ) -> "Requests":
        """Requests that are charged nothing and whose clients wait for ever; ``columns`` replace any of these."""
        count = len(arrival_s)
        usual = {
            "charge": np.zeros(count, np.int64),
            "refused_for_good": np.zeros(count, np.bool_),
            "client": np.zeros(count, np.int64),
            "time_out_s": np.full(count, inf),
            "cancel_s": np.full(count, inf),
            "client_draw": np.zeros(count),
            "server_draw": np.zeros(count),
        }
        return cls(
            arrival_s=np.array(arrival_s, np.float64),
            prompt_tokens=np.array(prompt_tokens, np.int64),
            output_tokens=np.array(output_tokens, np.int64),
            cap_tokens=np.array(cap_tokens, np.int64),
            **usual | columns,
        )

    def part(self, piece: slice) -> "Requests":
        """Some of the requests, where they share no content and have one answer each."""
        columns: dict[str, Any] = {name: one[piece] for name, one in vars(self).items() if isinstance(one, np.ndarray)}
        return replace(self, **columns)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """When the run stops and what is measured. Integrals cover ``from_s`` to ``until_s``, or to the end of the run if
    that is earlier; the run stops at ``stop_s`` (inf: when all requests have left); samples are taken every
    ``sample_every_s`` (0: none) up to ``sample_until_s``."""

    from_s: float = 0.0
    until_s: float = inf
    stop_s: float = inf
    sample_every_s: float = 0.0
    sample_until_s: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestRows:
    """What became of each request. Times are nan where it never happened; ``refusals`` are attempts answered with 429
    or 503. ``finish_s`` is the last token, or when the client left (time-out, cancellation). ``output_tokens`` were
    delivered to the client (0 of an unfinished request). ``gave_up_s`` is the refusal after which the client gave up.
    """

    attempts: Counts
    refusals: Counts
    outcome: NDArray[np.int8]
    admitted_s: Floats
    scheduled_s: Floats
    first_token_s: Floats
    finish_s: Floats
    gave_up_s: Floats
    output_tokens: Counts
    preemptions: Counts
    recomputed_tokens: Counts
    replica: Counts

    def part(self, piece: slice) -> "RequestRows":
        """Some of the rows."""
        return RequestRows(**{name: column[piece] for name, column in vars(self).items()})


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """The run on an even grid of times: reserved and used blocks, running and waiting requests of all replicas, and
    refusals so far."""

    time_s: Floats
    reserved: Integers
    used_blocks: Integers
    running: Integers
    waiting: Integers
    refusals: Integers


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the run. ``reserved_unit_s`` and ``used_block_s`` are time integrals over the watched time (the latter
    interpolates linearly between the exact levels at events); peaks and counts are of the whole run.
    ``over_capacity_events`` are engine steps in which a running request found no block, so that one was preempted."""

    end_s: float
    watched_s: float
    reserved_unit_s: float
    used_block_s: float
    reserved_peak: int
    used_peak_blocks: int
    over_capacity_events: int
    steps: int
    busy_s: float
    prefill_tokens: int
    decode_tokens: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One strategy on one seed: rows per request, totals, and the samples. ``kernel`` says how blocks were tracked:
    ``counts``, or ``identities`` where prompts share content."""

    rows: RequestRows
    totals: Totals
    samples: Samples
    kernel: str
    compiled: bool
