"""The whole file: what is asked of it, in front of what, and what must hold."""

import json
from typing import Annotated, Literal, Self, get_args

from pydantic import ConfigDict, Field, model_validator

from kvplan.traffic.file.shapes.base import Bytes, Count, NotNegative, Positive, Section, Share
from kvplan.traffic.file.shapes.classes import TrafficShape
from kvplan.traffic.file.shapes.deployment import DeploymentShape


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
        if isinstance(self.min, float) and isinstance(self.max, float) and self.min > self.max:
            raise ValueError(f"nothing is at least {self.min:g} and at most {self.max:g}")
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
    limits: dict[LimitName, LimitShape | list[LimitShape]] = Field(default={})
    sources: list[str] = Field(default=[])
    notes: str | None = None


LIMIT_NAMES: tuple[str, ...] = get_args(LimitName)


def schema_text() -> str:
    """The JSON Schema that editors use, as ``profiles/schema/traffic.json`` holds it."""
    schema = FileShape.model_json_schema(by_alias=True, mode="validation")
    schema |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "kvplan traffic file"}
    return json.dumps(schema, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
