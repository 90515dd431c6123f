"""What ``kvplan recommend`` answers: the settings, the search that led to them, and what they cost."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvplan.simulation.backend import Backend
from kvplan.simulation.results import ClassRecommendation, ReservationRow
from kvplan.traffic.spec import Traffic


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """What a recommendation must meet: shares of all requests, and a time from the first attempt to the last token."""

    max_truncated_share: float = 0.01
    max_refused_share: float = 0.01
    max_e2e_p99_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Played:
    """One setting played over ``seeds`` seeds: means over them; ``refused_interval`` is their 95% interval."""

    seeds: int
    refused_share: float
    refused_interval: tuple[float, float]
    gave_up_share: float
    rejected_permanently_share: float
    preemptions: int
    over_capacity_events: int
    ttft_p99_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None
    output_tokens_per_s: float
    kv_used_mean_share: float
    kv_used_peak_share: float
    kv_reserved_mean_share: float | None
    offered_per_s: float
    sustainable_per_s: float
    steady: bool

    @property
    def turned_away_share(self) -> float:
        """Refused for now or for good."""
        return self.refused_share + self.rejected_permanently_share


@dataclass(frozen=True, kw_only=True)
class CapPoint:
    """A point of both curves: what a default cap cuts off (of all requests), and what is refused under it."""

    default_max_tokens: int
    truncated_share: float
    played: Played
    feasible: bool


@dataclass(frozen=True, kw_only=True)
class FractionPoint:
    """A safety fraction of the planned pool, played while the engine has only the pool at the low end of its band."""

    safety_fraction: float
    played: Played


@dataclass(frozen=True, kw_only=True)
class SafetyAnswer:
    """How the safety fraction is made up: risk_free × (1 − each term), rounded down to whole percents."""

    safety_fraction: float
    risk_free_fraction: float
    terms: Mapping[str, float]
    binds: str
    reason: str
    seeds: int


@dataclass(frozen=True, kw_only=True)
class FailedConstraint:
    """A constraint that no cap meets together with the others, and which caps would meet it alone."""

    name: str
    limit: float
    measured: float | None
    needs: str


@dataclass(frozen=True, kw_only=True)
class SensitivityRow:
    """One assumption off by ``factor``: the answer's figures then, and the cap that would be recommended (None: none of
    those tried meets the constraints)."""

    what: str
    factor: float
    truncated_share: float
    refused_share: float
    e2e_p99_s: float | None
    holds: bool
    default_max_tokens: int | None
    seeds: int


@dataclass(frozen=True, kw_only=True)
class Price:
    """What the promise costs: worst cases that fit at once, requests that would fit by what they really use, the share
    of the pool that stays idle while the ledger is full, and throughput beside no admission at all."""

    worst_case_sequences: int
    expected_sequences: float
    pool_idle_share: float
    pool_idle_when_full_share: float | None
    answer: Played
    none: Played
    worst_case: Played


@dataclass(frozen=True, kw_only=True)
class EngineAdvice:
    """Two engine flags. ``running_peak`` is the most requests inside the engine at once."""

    max_num_seqs: int
    max_num_seqs_now: int
    running_peak: int
    max_num_batched_tokens: int
    max_num_batched_tokens_now: int
    full_step_s: float
    full_step_now_s: float


@dataclass(frozen=True, kw_only=True)
class RetryAdvice:
    """What a refusal should say: the drain estimate's usual and long wait while the ledger is full, and a fixed value
    for a front door that cannot estimate."""

    typical_s: float
    long_s: float
    fixed_s: int
    jitter_share: float
    least_honoured_s: float | None


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Replicas that meet the constraints; ``needed`` None: no number tried does, and ``reason`` says why."""

    needed: int | None
    now: int
    default_max_tokens: int
    played: Played | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class ScalingRule:
    """One threshold: scale out while ``metric`` (averaged over replicas) stays above it for ``for_s``."""

    metric: str
    direction: str
    threshold: float
    for_s: int
    meaning: str


@dataclass(frozen=True, kw_only=True)
class ObservedUse:
    """What a running engine's or gateway's metrics say, and the fraction that follows.

    ``used_share``: tokens used over tokens reserved. ``overbooking_fraction``: the share of the pool at which live
    requests fill it if all stand at their final length, three standard deviations up; above 1 it is no promise.
    """

    source: str
    requests: int
    reserved_tokens: float | None
    used_tokens: float | None
    used_share: float | None
    reserved_source: str
    over_reserved_share: float | None
    pool_blocks: int | None
    kv_usage_share: float | None
    preemptions: int | None
    prompt_mean_tokens: float | None
    output_mean_tokens: float | None
    output_cap_tokens: int | None
    safety_fraction: float
    overbooking_fraction: float | None
    binds: str
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Advice:
    """The whole answer of ``kvplan recommend``.

    If not ``feasible``, no cap meets all constraints (``failed`` says which), and the cap given misses them by the
    least. ``default_max_tokens`` is None where every client sends its own cap. ``per_class_played``: every class with a
    cap of its own. ``check`` is the recommendation played on seeds that the search never saw.
    """

    traffic: Traffic
    backend: Backend
    policy: str
    seed: int
    seeds: int
    scale: float
    constraints: Constraints
    constraint_sources: Mapping[str, str]
    feasible: bool
    failed: tuple[FailedConstraint, ...]
    safety_fraction: float
    safety: SafetyAnswer
    default_max_tokens: int | None
    truncated_share: float
    own_cap_truncated_share: float
    unset_share: float
    answer: Played
    knee: str
    per_class: tuple[ClassRecommendation, ...]
    per_class_unbounded: tuple[str, ...]
    per_class_played: Played
    caps: tuple[CapPoint, ...]
    fractions: tuple[FractionPoint, ...]
    check: Played
    check_truncated_share: float
    check_seed: int
    sensitivity: tuple[SensitivityRow, ...]
    reservations: tuple[ReservationRow, ...]
    price: Price
    engine: EngineAdvice
    retry: RetryAdvice
    fleet: Fleet
    scaling: tuple[ScalingRule, ...]
    observed: ObservedUse | None
    runs: int
    assumptions: tuple[str, ...]

    @property
    def binds(self) -> str:
        """What decides the fraction; the metrics' reason where they set it."""
        seen = self.observed
        return self.safety.binds if seen is None or self.safety_fraction != seen.safety_fraction else seen.binds
