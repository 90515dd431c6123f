"""What a traffic file says, once it has been read: frozen values, units in their names."""

from dataclasses import dataclass, field

from kvplan.engines.base import Deployment
from kvplan.traffic.arrival_processes import ArrivalProcess, Poisson, Ramp
from kvplan.traffic.distributions import Constant, Distribution
from kvplan.traffic.prefixes import SharedPrefix


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
