"""What a traffic file says, once it has been read: frozen values, units in their names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.engines.base import Deployment
from kvplan.traffic.arrivals import ArrivalProcess, Poisson, Ramp
from kvplan.traffic.distributions import Constant, Distribution
from kvplan.traffic.on_disk import forget, pieces
from kvplan.traffic.prefixes import Prefixes, SharedPrefix

Narrow = NDArray[np.integer[Any]]
"""Whole numbers in as few bytes as they need: a recorded trace has millions of rows."""


@dataclass(frozen=True, kw_only=True)
class KvPool:
    """A pool that was measured: blocks as the engine prints them (the reserved one included), or bytes per GPU.

    ``block_tokens`` given: one full-attention group of that block size. Not given: the model's own groups.
    """

    blocks: int | None = None
    block_tokens: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Seconds of one engine step: base + prefill × (prefill tokens in it) + decode × (decoding sequences)
    + kv × (context tokens of the scheduled sequences after it)."""

    base_s: float
    prefill_token_s: float
    decode_sequence_s: float
    kv_token_s: float

    def times(self, factor: float) -> "StepCost":
        """Every term so many times as long."""
        return StepCost(**{name: value * factor for name, value in vars(self).items()})


MOST_REPLICAS = 10_000


@dataclass(frozen=True, kw_only=True)
class PlannedDeployment(Deployment):
    """The file's ``deployment``: what is asked of each engine, and what the file alone says.

    What is named, as the file's ``model`` is, is looked up when it is planned: ``gpu_name``, ``draft_model_name`` and
    ``calibration``; until then ``gpu`` and ``draft_model`` are None. ``kv_pool`` stands for ``kv_memory_bytes``.
    """

    gpu_name: str | None = None
    draft_model_name: str | None = None
    calibration: str | None = None
    replicas: int = 1
    router: str = "round_robin"
    watermark_share: float = 0.0
    long_prefill_token_threshold: int = 0
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    kv_pool: KvPool | None = None
    service: StepCost | None = None


@dataclass(frozen=True, kw_only=True)
class RetryAfter:
    """What a refusal tells the client: ``seconds``, or None for the ledger's expected drain; spread by the jitter."""

    seconds: float | None = None
    jitter_share: float = 0.25


@dataclass(frozen=True, kw_only=True)
class AdmissionPlan:
    """The front door. ``concurrency`` None means the engine's max_num_seqs; ``default_max_tokens`` None means none."""

    policy: str = "worst_case"
    safety_fraction: float = 1.0
    default_max_tokens: int | None = None
    concurrency: int | None = None
    retry_after: RetryAfter = field(default_factory=RetryAfter)


@dataclass(frozen=True, kw_only=True)
class TraceFile:
    """A recorded trace that a class replays. ``scale`` multiplies its rate."""

    path: str
    format: str = "auto"
    scale: float = 1.0
    hash_block_tokens: int | None = None
    loop: bool = False


@dataclass(frozen=True, kw_only=True)
class TrafficClass:
    """Requests of one kind: either drawn (``rate_per_s`` and the lengths) or replayed (``trace``). ``answers`` is how
    many each asks for (``n`` in a request), every one of a length of its own."""

    name: str
    rate_per_s: float = 0.0
    arrivals: ArrivalProcess = field(default_factory=Poisson)
    prompt_tokens: Distribution | None = None
    output_tokens: Distribution | None = None
    length_correlation: float = 0.0
    max_tokens: Distribution = field(default_factory=lambda: Constant(value=0))
    answers: Distribution = field(default_factory=lambda: Constant(value=1))
    client: str | None = None
    timeout_s: float | None = None
    cancel_share: float = 0.0
    shared_prefix: SharedPrefix | None = None
    trace: TraceFile | None = None


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One line of ``limits``: a measure, perhaps of one class, and the bound it must keep."""

    name: str
    minimum: float | None = None
    maximum: float | None = None
    class_name: str | None = None
    line: int | None = None


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A whole traffic file. ``file`` is where it came from; ``duration_s`` None: a trace runs whole and drains."""

    file: str
    classes: tuple[TrafficClass, ...]
    duration_s: float | None
    seed: int = 0
    ramp: Ramp | None = None
    model: str | None = None
    deployment: PlannedDeployment = field(default_factory=PlannedDeployment)
    admission: AdmissionPlan = field(default_factory=AdmissionPlan)
    reservation_quantile: float = 0.95
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrivals:
    """One drawing of a traffic file: a row per request, in order of arrival.

    ``max_tokens`` 0 means that the client sent none. ``cancel_draw`` is the share of an answer's time on an idle
    engine after which its user walks away (infinite: never).
    ``class_index`` points into ``classes``, ``client_index`` into ``clients``. Where some ask for several answers,
    ``answers`` says how many and ``answer_tokens`` how long each is, request by request; ``output_tokens`` is then the
    longest of a request. None: one each.
    """

    arrival_s: NDArray[np.float64]
    prompt_tokens: Narrow
    output_tokens: Narrow
    max_tokens: Narrow
    class_index: Narrow
    client_index: Narrow
    timeout_s: NDArray[np.float64]
    cancel_draw: NDArray[np.float64]
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    duration_s: float
    prefixes: Prefixes | None = None
    answers: NDArray[np.int64] | None = None
    answer_tokens: NDArray[np.int64] | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    odd_rows: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_s)

    def part(self, piece: slice) -> "Arrivals":
        """Some of the requests, with all prefixes; of a drawing in which each asks for one answer."""
        columns: dict[str, Any] = {
            name: column[piece] for name, column in vars(self).items() if isinstance(column, np.ndarray)
        }
        return replace(self, **columns)

    def parts(self) -> Iterator["Arrivals"]:
        """The requests piece by piece, of which memory holds one; of requests for several answers all at once."""
        if self.answers is not None:
            yield self
            return
        for piece in pieces(len(self)):
            yield self.part(piece)
            forget(self)
