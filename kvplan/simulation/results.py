"""The results of a simulation: frozen values, ready for any report."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvplan.simulation.backend import Backend
from kvplan.simulation.recovery import Recovery
from kvplan.simulation.types import Integers, RequestRows, Requests, Samples
from kvplan.traffic.spec import Traffic


@dataclass(frozen=True, kw_only=True, eq=False)
class StrategyRows:
    """Every request of one strategy on one seed, as arrays."""

    strategy: str
    seed: int
    requests: Requests
    rows: RequestRows
    class_names: tuple[str, ...]
    class_index: Integers


SHARES = (
    "completed",
    "refused",
    "gave_up",
    "rejected_permanently",
    "timed_out",
    "cancelled",
    "unfinished",
    "truncated",
)
"""The counts of requests that are also given as shares of those offered."""


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Mean and quantiles of a time over completed requests; None where none completed."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Requests by how they ended: offered = completed + rejected_permanently + gave_up + timed_out + cancelled +
    unfinished. ``refused``: at least once; ``truncated``: completed, with an answer that reached its cap."""

    offered: int = 0
    completed: int = 0
    refused: int = 0
    gave_up: int = 0
    rejected_permanently: int = 0
    timed_out: int = 0
    cancelled: int = 0
    unfinished: int = 0
    truncated: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def share(self, name: str) -> float:
        """One count over the requests offered."""
        return getattr(self, name) / self.offered if self.offered else 0.0


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Counts and times of one strategy on one seed, over all classes or one."""

    requests: Counts
    attempts: int
    refusals: int
    preemptions: int
    recomputed_tokens: int
    output_tokens_per_s: float
    queue_s: Quantiles
    ttft_s: Quantiles
    e2e_s: Quantiles


@dataclass(frozen=True, kw_only=True)
class SeedResult:
    """One strategy on one seed: figures of its requests and of the pool, and how the load developed."""

    seed: int
    figures: Figures
    classes: tuple[Figures, ...]
    over_capacity_events: int
    reserved_mean_share: float | None
    used_mean_share: float
    used_peak_share: float
    load_first_half: float
    load_second_half: float
    offered_per_s: float
    end_s: float
    steps: int
    kernel: str
    recovery: Recovery | None = None


@dataclass(frozen=True, kw_only=True)
class KvShares:
    """Shares of the usable pool over all replicas; ``reserved`` is in the unit of the ledger, None without a ledger."""

    reserved_mean_share: float | None
    used_mean_share: float
    used_peak_share: float


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """One class of traffic under one strategy; counts are sums over the seeds."""

    name: str
    requests: Counts
    attempts: int
    refusals: int
    preemptions: int
    queue_s: Quantiles
    ttft_s: Quantiles
    e2e_s: Quantiles
    shares: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Burst:
    """The largest burst of each seed that has one, and how long its effect lasts (see ``simulation.recovery``).

    ``recovery_s`` is the mean over those seeds; None where the queue of one did not clear within its run.
    """

    seeds: int
    seeds_recovered: int
    peak_to_usual: float | None
    recovery_s: float | None


@dataclass(frozen=True, kw_only=True)
class StrategyResult:
    """One strategy over all seeds. Counts are sums over seeds, with the highest of a single seed in ``worst_seed``.
    Shares and times are means over seeds, with their 95% intervals in ``intervals`` under the same names."""

    name: str
    summary: str
    default_max_tokens: int | None
    ledger_capacity: int | None
    requests: Counts
    attempts: int
    refusals: int
    amplification: float
    preemptions: int
    recomputed_tokens: int
    over_capacity_events: int
    kv: KvShares
    queue_s: Quantiles
    ttft_s: Quantiles
    e2e_s: Quantiles
    output_tokens_per_s: float
    shares: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    worst_seed: Mapping[str, float]
    classes: tuple[ClassResult, ...]
    sustainable_per_s: float
    steady: bool
    steady_reason: str
    seeds: tuple[SeedResult, ...]
    samples: Samples | None = None
    burst: Burst | None = None


@dataclass(frozen=True, kw_only=True)
class ReservationRow:
    """The worst case of a class with one choice of cap: its prompt quantile, its blocks, and how many fit.

    ``share`` is the share of the class's requests with this cap; ``max_output_tokens`` None: none was sent.
    """

    name: str
    class_name: str
    share: float
    prompt_tokens: int
    max_output_tokens: int | None
    cap_tokens: int
    reserved_tokens: int
    reserved_bytes: int | None
    blocks: int
    sequences: int


@dataclass(frozen=True, kw_only=True)
class Stability:
    """Requests per second that are offered, and that the judged strategy can sustain by the closed form."""

    strategy: str
    offered_per_s: float
    sustainable_per_s: float
    binds: str


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Everything that a run depends on: what the file says, what was filled in, and what was assumed."""

    traffic_file: str
    seed: int
    seeds: int
    scale: float
    duration_s: float | None
    warmup_s: float
    strategies: tuple[str, ...]
    policy: str
    judged: str
    safety_fraction: float
    default_max_tokens: int
    default_max_tokens_source: str
    concurrency: int
    retry_after: str
    service_source: str
    service_band_share: float
    service: Mapping[str, float]
    reservation_quantile: float
    clients: tuple[str, ...]
    unset_share: float
    skipped_rows: Mapping[str, int]
    odd_rows: tuple[str, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ClassRecommendation:
    """A cap for one class, and the share it truncates of answers to requests without one."""

    name: str
    default_max_tokens: int
    truncated_share: float


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The safety fraction and the default cap, what binds them, and the price."""

    safety_fraction: float
    default_max_tokens: int
    truncated_share: float
    refused_share: float | None
    per_class: tuple[ClassRecommendation, ...]
    binds: str
    reason: str
    terms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ServiceBand:
    """The judged strategy with every step ``factor`` times as long: one end of the band of the step time."""

    factor: float
    result: StrategyResult


@dataclass(frozen=True, kw_only=True, eq=False)
class Simulation:
    """The result of ``kvplan.simulate``."""

    traffic: Traffic
    backend: Backend
    inputs: Inputs
    reservations: tuple[ReservationRow, ...]
    stability: Stability
    strategies: tuple[StrategyResult, ...]
    band: tuple[ServiceBand, ...] = ()
    recommendation: Recommendation | None = None
    rows: tuple[StrategyRows, ...] = ()

    @property
    def promised_blocks(self) -> int:
        """Blocks that the ledger of one replica may promise."""
        return self.backend.promised_blocks(self.inputs.safety_fraction)

    @property
    def unsafe_concurrency(self) -> tuple[int, ReservationRow] | None:
        """How many requests ``concurrency`` lets in at once, and the worst case of which fewer fit; None where all fit,
        or the strategy was not played."""
        worst = min((row for row in self.reservations if row.sequences), key=lambda row: row.sequences, default=None)
        at_once = self.inputs.concurrency * self.backend.replicas
        if worst is None or "concurrency" not in self.inputs.strategies or at_once <= worst.sequences:
            return None
        return at_once, worst

    @property
    def best_default_tokens(self) -> int:
        """The default cap to set: the recommended one, or the one that was played."""
        return (self.recommendation or self.inputs).default_max_tokens

    def strategy(self, name: str) -> StrategyResult:
        """The result of one strategy; KeyError if it was not played."""
        return {result.name: result for result in self.strategies}[name]
