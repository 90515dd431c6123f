"""The traffic file as it is written: the one definition from which validation and the JSON Schema both come."""

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Bytes = Annotated[str, Field(examples=["10GiB", "80GB"], description="An amount of memory with its unit")]
Duration = Annotated[str, Field(examples=["30m", "600s", "250ms"], description="A time with its unit")]
Rate = Annotated[str, Field(examples=["6/s", "90/m"], description="Events per unit of time")]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=2**40)]
CountOrNone = Annotated[int, Field(ge=0, le=2**40)]
Positive = Annotated[float, Field(gt=0, le=1e15)]
NotNegative = Annotated[float, Field(ge=0, le=1e15)]


class Section(BaseModel):
    """A block of the file: unknown keys are refused, numbers are not converted from text."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class OneOf(Section):
    """A block of which exactly one key must be given."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            known = ", ".join(type(self).model_fields)
            raise ValueError(f"give exactly one of: {known}" + (f" (found {', '.join(given)})" if given else ""))
        return self


class LognormalShape(Section):
    p50: Positive
    p95: Positive
    min: Count = 1
    max: Count | None = None

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.p95 < self.p50:
            raise ValueError(f"p95 ({self.p95:g}) lies below p50 ({self.p50:g})")
        _ordered(self.min, self.max)
        return self


class ExponentialShape(Section):
    mean: Positive
    min: Count = 1
    max: Count | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        _ordered(self.min, self.max)
        return self


class UniformShape(Section):
    min: Count
    max: Count

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        _ordered(self.min, self.max)
        return self


def _ordered(low: int, high: int | None) -> None:
    if high is not None and high < low:
        raise ValueError(f"max ({high}) lies below min ({low})")


class ChoiceShape(Section):
    value: Count | None = None
    unset: bool = False
    share: Share

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        if (self.value is None) is not self.unset:
            raise ValueError("give either value or unset: true")
        return self


class AnswersChoice(Section):
    value: Annotated[int, Field(ge=1, le=128)]
    share: Share


class AnswersShape(OneOf):
    """How many answers a request asks for."""

    value: Annotated[int, Field(ge=1, le=128)] | None = None
    choices: Annotated[list[AnswersChoice], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.choices is not None:
            _sums_to_one([choice.share for choice in self.choices])
        return self


class HistogramShape(Section):
    edges: Annotated[list[NotNegative], Field(min_length=2)]
    shares: Annotated[list[Share], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.edges) != len(self.shares) + 1:
            raise ValueError(f"{len(self.shares)} shares need {len(self.shares) + 1} edges, not {len(self.edges)}")
        if any(right <= left for left, right in pairwise(self.edges)):
            raise ValueError("edges must rise")
        _sums_to_one(self.shares)
        return self


def _sums_to_one(shares: list[float]) -> None:
    total = sum(shares)
    if abs(total - 1.0) > 1e-6:
        raise ValueError(f"shares sum to {total:.6g}, not 1")


def _constant(value: Any) -> Any:
    return {"value": value} if isinstance(value, int) and not isinstance(value, bool) else value


class LengthShape(OneOf):
    value: Count | None = None
    lognormal: LognormalShape | None = None
    exponential: ExponentialShape | None = None
    uniform: UniformShape | None = None
    choices: Annotated[list[ChoiceShape], Field(min_length=1)] | None = None
    histogram: HistogramShape | None = None
    quantiles: dict[str, NotNegative] | None = None
    may_be_unset: ClassVar[bool] = False

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.choices is not None:
            _sums_to_one([choice.share for choice in self.choices])
            if not self.may_be_unset and any(choice.unset for choice in self.choices):
                raise ValueError("only max_tokens can be unset")
        if self.quantiles is not None:
            _check_quantiles(self.quantiles)
        return self


class CapShape(LengthShape):
    may_be_unset: ClassVar[bool] = True
    unset: Literal[True] | None = None


def _check_quantiles(quantiles: dict[str, float]) -> None:
    points = sorted((quantile_of(name), tokens) for name, tokens in quantiles.items())
    if len(points) < 2 or points[0][0] != 0 or points[-1][0] != 1:
        raise ValueError("quantiles go from p0 to p100, both given")
    if any(right[1] < left[1] for left, right in pairwise(points)):
        raise ValueError("quantiles must not fall")


def quantile_of(name: str) -> float:
    """The probability that a name such as ``p99.9`` stands for."""
    try:
        percent = float(name.removeprefix("p"))
    except ValueError:
        percent = -1.0
    if not name.startswith("p") or not 0 <= percent <= 100:
        raise ValueError(f"{name!r} is no quantile; write p0, p50, p99.9, p100")
    return percent / 100


Length = Annotated[LengthShape, BeforeValidator(_constant, json_schema_input_type=int | LengthShape)]
Answers = Annotated[AnswersShape, BeforeValidator(_constant, json_schema_input_type=int | AnswersShape)]
Cap = Annotated[CapShape, BeforeValidator(_constant, json_schema_input_type=int | CapShape)]


class CvShape(Section):
    cv: Annotated[float, Field(gt=0.01, le=50)]


class OnOffShape(Section):
    on: Duration
    off: Duration
    off_share: Share = 0.0


class DiurnalShape(Section):
    period: Duration = "24h"
    peak_to_mean: Annotated[float, Field(ge=1, le=2)] = 1.5
    peak_at: Duration = "0s"


ArrivalName = Literal["poisson", "constant"]


def _named(value: Any) -> Any:
    return {value: {}} if isinstance(value, str) else value


class Nothing(Section):
    pass


class ArrivalShape(OneOf):
    poisson: Nothing | None = None
    constant: Nothing | None = None
    gamma: CvShape | None = None
    weibull: CvShape | None = None
    on_off: OnOffShape | None = None
    diurnal: DiurnalShape | None = None


ArrivalsShape = Annotated[ArrivalShape, BeforeValidator(_named, json_schema_input_type=ArrivalName | ArrivalShape)]


class ClassShape(Section):
    name: Annotated[str, Field(min_length=1, max_length=100)]
    rate: Rate | None = None
    arrivals: ArrivalsShape | None = None
    prompt_tokens: Length | None = None
    output_tokens: Length | None = None
    max_tokens: Cap | None = None
    n: Answers | None = None
    client: str | None = None
    timeout: Duration | None = None
    cancel_share: Share = 0.0
    trace: Annotated[str, Field(min_length=1)] | None = None
    format: Literal["auto", "plain", "azure", "burstgpt", "mooncake", "bailian"] = "auto"
    scale: Positive = 1.0
    hash_block_tokens: Count | None = None

    @model_validator(mode="after")
    def _drawn_or_replayed(self) -> Self:
        drawn: dict[str, object] = {
            "rate": self.rate,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
        }
        if self.trace is None:
            missing = [name for name, value in drawn.items() if value is None]
            if missing:
                raise ValueError(f"{', '.join(missing)} missing (or name a trace)")
        else:
            drawn |= {"arrivals": self.arrivals, "n": self.n}
            given = [name for name, value in drawn.items() if value is not None]
            if given:
                raise ValueError(f"a replayed trace brings its own {', '.join(given)}")
        return self


class RampShape(Section):
    start: Positive = 1.0
    end: Positive = 1.0


class TrafficShape(Section):
    duration: Duration | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    ramp: RampShape | None = None
    classes: Annotated[list[ClassShape], Field(min_length=1)]


class PoolShape(Section):
    blocks: Annotated[int, Field(ge=2, le=2**40)] | None = None
    block_tokens: Count | None = None
    memory: Bytes | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.blocks is None) == (self.memory is None):
            raise ValueError("give either blocks or memory")
        if self.memory is not None and self.block_tokens is not None:
            raise ValueError("block_tokens goes with blocks; with memory the model's own groups are used")
        return self


class ServiceShape(Section):
    base_s: NotNegative
    prefill_token_s: NotNegative
    decode_sequence_s: NotNegative
    kv_token_s: NotNegative

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.base_s + self.prefill_token_s + self.decode_sequence_s + self.kv_token_s <= 0:
            raise ValueError("a step that takes no time cannot be simulated")
        return self


class DeploymentShape(Section):
    gpu: str | None = None
    gpu_memory: Bytes | list[Bytes] | None = None
    engine: str = "vllm"
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    data_parallel: Count = 1
    context_parallel: Count = 1
    expert_parallel: bool = False
    replicas: Count = 1
    router: Literal["round_robin", "least_reserved"] = "round_robin"
    kv_dtype: str = "auto"
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    max_model_len: Count | None = None
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    async_scheduling: bool | None = None
    prefix_caching: bool | None = None
    hybrid_kv_cache_manager: bool = True
    block_size: Count | None = None
    enforce_eager: bool = False
    speculative_tokens: CountOrNone = 0
    weight_bytes: Count | Bytes | None = None
    calibration: str | None = None
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    long_prefill_token_threshold: CountOrNone = 0
    max_queued_requests: CountOrNone | None = None
    max_queued_tokens: CountOrNone | None = None
    kv_pool: PoolShape | None = None
    service: ServiceShape | None = None


class RetryAfterShape(Section):
    estimate: Literal["drain"] | None = None
    seconds: Positive | None = None
    jitter: Share | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.estimate is not None and self.seconds is not None:
            raise ValueError("give either estimate: drain or seconds")
        return self


Policy = Literal[
    "worst_case",
    "worst_case_default_cap",
    "prompt_only",
    "concurrency",
    "none",
    "ratio",
    "quantile",
    "engine_queue",
]


class AdmissionShape(Section):
    policy: Policy = "worst_case"
    safety_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    default_max_tokens: Count | None = None
    concurrency: Count | None = None
    retry_after: RetryAfterShape | None = None


class LimitShape(Section):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True, populate_by_name=True)
    min: NotNegative | Bytes | None = None
    max: NotNegative | Bytes | None = None
    class_name: Annotated[str | None, Field(alias="class")] = None

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("give min or max")
        return self


LimitName = Literal[
    "refused_share",
    "gave_up_share",
    "timed_out_share",
    "cancelled_share",
    "rejected_permanently_share",
    "completed_share",
    "truncated_share",
    "unfinished_share",
    "preemptions",
    "refusals",
    "amplification",
    "over_capacity_events",
    "worst_case_reservations",
    "concurrency_at_max_model_len",
    "sustainable_per_s",
    "queue_mean_s",
    "queue_p50_s",
    "queue_p90_s",
    "queue_p99_s",
    "ttft_mean_s",
    "ttft_p50_s",
    "ttft_p90_s",
    "ttft_p99_s",
    "e2e_mean_s",
    "e2e_p50_s",
    "e2e_p90_s",
    "e2e_p99_s",
    "output_tokens_per_s",
    "kv_reserved_mean_share",
    "kv_used_mean_share",
    "kv_used_peak_share",
    "kv_pool_bytes",
    "kv_pool_tokens",
    "weight_bytes",
    "activation_bytes",
    "non_torch_bytes",
    "graph_bytes",
    "longest_window_tokens",
    "cost_per_hour",
]


class FileShape(Section):
    """A kvplan traffic file."""

    model: Annotated[str, Field(min_length=1)] | None = None
    deployment: DeploymentShape = DeploymentShape()
    admission: AdmissionShape = AdmissionShape()
    traffic: TrafficShape
    reservation_quantile: Annotated[float, Field(gt=0, lt=1)] = 0.95
    limits: dict[LimitName, LimitShape | list[LimitShape]] = {}
    sources: list[str] = []
    notes: str | None = None


LIMIT_NAMES: tuple[str, ...] = get_args(LimitName)
