"""How a file writes lengths, caps and numbers of answers: one shape per distribution."""

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from kvplan.traffic.file.shapes.base import Count, NotNegative, OneOf, Section, Share

TypicalLength = Annotated[float, Field(ge=1, le=2**40)]


class LognormalShape(Section):
    p50: TypicalLength
    p95: TypicalLength
    min: Count = 1
    max: Count | None = None

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.p95 < self.p50:
            raise ValueError(f"p95 ({self.p95:g}) lies below p50 ({self.p50:g})")
        _ordered(self.min, self.max)
        return self


class ExponentialShape(Section):
    mean: TypicalLength
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
