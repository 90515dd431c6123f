"""The whole traffic file: the ``admission`` and ``limits`` sections, and all sections together."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from kvplan.traffic.arrival_processes import Ramp
from kvplan.traffic.file.classes import TrafficShape
from kvplan.traffic.file.complaints import Places, complaining
from kvplan.traffic.file.deployment import DeploymentShape
from kvplan.traffic.file.fields import (
    BytesText,
    Count,
    InvalidValueError,
    LookupFolders,
    NotNegative,
    Positive,
    Section,
    Share,
    Text,
    as_invalid_value,
)
from kvplan.traffic.file.yaml_text import KeyPath
from kvplan.traffic.spec import AdmissionPlan, Limit, RetryAfter, Traffic
from kvplan.units import parse_bytes


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

    def admission_plan(self) -> AdmissionPlan:
        """The front door. An estimate is spread over clients by a quarter; stated seconds are not, unless asked."""
        answer = self.retry_after or RetryAfterShape()
        jitter_share = answer.jitter if answer.jitter is not None else 0.25 if answer.seconds is None else 0.0
        return AdmissionPlan(
            policy=self.policy,
            safety_fraction=self.safety_fraction,
            default_max_tokens=self.default_max_tokens,
            concurrency=self.concurrency,
            retry_after=RetryAfter(seconds=answer.seconds, jitter_share=jitter_share),
        )


class LimitShape(Section):
    min: NotNegative | BytesText | None = None
    max: NotNegative | BytesText | None = None
    class_name: Annotated[str | None, Field(alias="class")] = None

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("give min or max")
        if isinstance(self.min, float) and isinstance(self.max, float) and self.min > self.max:
            raise ValueError(f"nothing is at least {self.min:g} and at most {self.max:g}")
        return self

    def limit(self, name: str, classes: list[str], line: int | None) -> Limit:
        """The bound on the measure ``name``. Raises InvalidValueError for a class or a unit that it does not have."""
        if self.class_name is not None and self.class_name not in classes:
            raise InvalidValueError(f"there is no class {self.class_name!r}", hint=f"classes: {', '.join(classes)}")
        minimum, maximum = _bound(name, self.min), _bound(name, self.max)
        return Limit(name=name, minimum=minimum, maximum=maximum, class_name=self.class_name, line=line)


def _bound(name: str, value: float | str | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        if not name.endswith("_bytes"):
            raise InvalidValueError(f"{value!r} is not a number")
        with as_invalid_value():
            return float(parse_bytes(value))
    if name.endswith("_bytes"):
        raise InvalidValueError(f"{value!r} has no unit", hint="write it like 40GiB")
    if name.endswith("_share") and value > 1:
        raise InvalidValueError(f"a share is between 0 and 1, not {value:g}")
    return float(value)


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
LIMIT_NAMES: tuple[str, ...] = get_args(LimitName)


class FileShape(Section):
    """A kvplan traffic file."""

    model: Text | None = None
    deployment: DeploymentShape = DeploymentShape()
    admission: AdmissionShape = AdmissionShape()
    traffic: TrafficShape
    reservation_quantile: Annotated[float, Field(gt=0, lt=1)] = 0.95
    limits: dict[LimitName, LimitShape | Annotated[list[LimitShape], Field(min_length=1)]] = Field(default={})
    sources: list[str] = Field(default=[])
    notes: str | None = None

    def to_traffic(self, places: Places, profiles: str | Path | None) -> Traffic:
        """The frozen values that the file stands for. Raises InvalidValueError where two sections disagree."""
        mix = self.traffic
        return Traffic(
            file=places.file,
            classes=tuple(entry.traffic_class() for entry in mix.classes),
            duration_s=mix.duration,
            seed=mix.seed,
            ramp=None if mix.ramp is None else Ramp(start=mix.ramp.start, end=mix.ramp.end),
            model=self.model,
            deployment=self.deployment.deployment(profiles),
            admission=self.admission.admission_plan(),
            reservation_quantile=self.reservation_quantile,
            limits=self._limits(places),
            deployment_lines={
                str(path[1]): line for path, line in places.lines.items() if len(path) == 2 and path[0] == "deployment"
            },
        )

    def _limits(self, places: Places) -> tuple[Limit, ...]:
        classes = [entry.name for entry in self.traffic.classes]
        found = []
        for name, given in self.limits.items():
            for index, limit in enumerate(given if isinstance(given, list) else [given]):
                path: KeyPath = ("limits", name, index) if isinstance(given, list) else ("limits", name)
                try:
                    found.append(limit.limit(name, classes, places.line(path)))
                except InvalidValueError as error:
                    error.at = path
                    raise
        return tuple(found)


def read_values(values: dict[str, Any], places: Places, profiles_folder: str | Path | None) -> Traffic:
    """The traffic that the values of a file describe. Raises InputError with the first complaint, at its place."""
    with complaining(FileShape, values, places):
        folders = LookupFolders(folder=Path(places.file).parent, profiles=profiles_folder)
        return FileShape.model_validate(values, context=folders).to_traffic(places, profiles_folder)
