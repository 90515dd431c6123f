"""What a traffic file says, as frozen values whose names carry their units."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvplan.engines.deployment import Deployment
from kvplan.traffic.arrival_processes import ArrivalProcess, Poisson, Ramp
from kvplan.traffic.distributions import Constant, Distribution
from kvplan.traffic.prefixes import SharedPrefix


@dataclass(frozen=True, kw_only=True)
class KvPool:
    """A measured pool: blocks as the engine prints them (the reserved one included), or bytes per GPU.

    With ``block_tokens`` it is one full-attention group of that block size, without it the model's own groups.
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
        """Every term multiplied by ``factor``."""
        return StepCost(**{name: value * factor for name, value in vars(self).items()})


MAX_REPLICAS = 10_000
"""Each has a ledger and an engine in the simulation; more is a slip of the keyboard."""


@dataclass(frozen=True, kw_only=True)
class PlannedDeployment(Deployment):
    """The file's ``deployment``: the options of each engine, and the keys that only a traffic file has.

    Names (``gpu_name``, ``draft_model_name``, ``calibration``) are looked up when the deployment is planned; until then
    ``gpu`` and ``draft_model`` are None. ``kv_pool`` takes the place of ``kv_memory_bytes``.
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
    """The Retry-After of a refusal: ``seconds``, or None for the ledger's expected drain; the jitter spreads it."""

    seconds: float | None = None
    jitter_share: float = 0.25


@dataclass(frozen=True, kw_only=True)
class AdmissionPlan:
    """The front door. ``concurrency`` None means the engine's max_num_seqs, ``default_max_tokens`` None no default."""

    policy: str = "worst_case"
    safety_fraction: float = 1.0
    default_max_tokens: int | None = None
    concurrency: int | None = None
    retry_after: RetryAfter = field(default_factory=RetryAfter)


@dataclass(frozen=True, kw_only=True)
class TraceFile:
    """A recorded trace that a class replays, its rate multiplied by ``scale``."""

    path: str
    format: str = "auto"
    scale: float = 1.0
    hash_block_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrafficClass:
    """Requests of one kind, either drawn (``rate_per_s`` and the lengths) or replayed (``trace``).

    ``answers`` is how many answers a request asks for (``n`` in its body); each has a length of its own.
    """

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
    """One entry of ``limits``: a measure, of one class or of all, and its bound."""

    name: str
    minimum: float | None = None
    maximum: float | None = None
    class_name: str | None = None
    line: int | None = None


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A whole traffic file, read from ``file``. With ``duration_s`` None a trace runs to its end and then drains.

    ``deployment_lines`` are the lines of the deployment's keys that stand in the file.
    """

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
    deployment_lines: Mapping[str, int] = field(default_factory=dict, compare=False)
