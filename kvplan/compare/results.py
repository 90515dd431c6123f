"""A comparison's load, its candidates, and what became of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from kvplan.capacity import RequestShape
from kvplan.check.results import LimitResult
from kvplan.engines.deployment import EngineVersion
from kvplan.model import ModelSpec
from kvplan.profiles.kinds import GpuProfile
from kvplan.traffic.spec import Traffic

Verdict = Literal["carries", "limits_broken", "too_small", "does_not_fit", "impossible", "cannot_tell"]


@dataclass(frozen=True, kw_only=True)
class ShapeLoad:
    """``concurrency`` worst-case requests of one shape at once; without a shape, of the whole window."""

    prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    concurrency: int = 1
    safety_fraction: Fraction = Fraction(1)

    @property
    def shapes(self) -> tuple[RequestShape, ...]:
        """The shape as the plan takes it."""
        if self.prompt_tokens is None:
            return ()
        shape = RequestShape(
            name="the load", prompt_tokens=self.prompt_tokens, max_output_tokens=self.max_output_tokens
        )
        return (shape,)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One candidate as asked for. ``max_model_len`` None: the engine's default, or the traffic file's."""

    model: ModelSpec
    gpu: GpuProfile
    tensor_parallel: int
    kv_dtype: str
    max_model_len: int | None
    replicas: int
    engine: EngineVersion = field(default_factory=EngineVersion)

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.tensor_parallel * self.replicas

    @property
    def memory_bytes(self) -> int:
        """Memory of all GPUs together: how large the candidate is."""
        return self.gpu.memory_bytes * self.gpus


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A choice and what became of it. ``detail`` says why it cannot serve; ``broken`` are the limits it breaks.

    ``sequences``: worst-case requests of the shape that fit, over all replicas. ``figures``: what a check measures.
    """

    choice: Choice
    verdict: Verdict
    detail: str = ""
    max_model_len: int | None = None
    kv_pool_bytes: int | None = None
    longest_window_tokens: int | None = None
    concurrency_at_max_model_len: float | None = None
    sequences: int | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)
    broken: tuple[LimitResult, ...] = ()
    price_per_hour: float | None = None

    @property
    def carries(self) -> bool:
        """Whether it serves the load."""
        return self.verdict == "carries"


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """All candidates: those that carry the load first, and within each part the smallest first.

    ``by_price``: smallest means cheapest, because every candidate that carries the load has a price; else least memory.
    """

    load: ShapeLoad | Traffic
    candidates: tuple[Candidate, ...]
    by_price: bool
    notes: tuple[str, ...] = ()

    @property
    def smallest(self) -> Candidate | None:
        """The answer; None where nothing carries the load."""
        first = self.candidates[0]
        return first if first.carries else None

    def smallest_of(self, model_id: str) -> Candidate | None:
        """The answer for one of several models."""
        return next((one for one in self.candidates if one.carries and one.choice.model.id == model_id), None)
