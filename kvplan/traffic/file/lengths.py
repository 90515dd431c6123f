"""Lengths, caps and numbers of answers: one block for each distribution, and the distribution that it stands for."""

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from kvplan.traffic import distributions
from kvplan.traffic.file.fields import Count, NotNegative, OneOf, Section, Share

TypicalLength = Annotated[float, Field(ge=1, le=2**40)]


class ClippedShape(Section):
    """Lengths are clipped to [min, max]."""

    min: Count = 1
    max: Count | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max ({self.max}) is below min ({self.min})")
        return self


class LognormalShape(ClippedShape):
    p50: TypicalLength
    p95: TypicalLength

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.p95 < self.p50:
            raise ValueError(f"p95 ({self.p95:g}) is below p50 ({self.p50:g})")
        return self

    def distribution(self) -> distributions.Distribution:
        return distributions.Lognormal(p50=self.p50, p95=self.p95, minimum=self.min, maximum=self.max)


class ExponentialShape(ClippedShape):
    mean: TypicalLength

    def distribution(self) -> distributions.Distribution:
        return distributions.Exponential(average=self.mean, minimum=self.min, maximum=self.max)


class UniformShape(ClippedShape):
    min: Count
    max: Count

    def distribution(self) -> distributions.Distribution:
        return distributions.Uniform(minimum=self.min, maximum=self.max)


class ChoiceShape(Section):
    value: Count | None = None
    unset: bool = False
    share: Share

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        if (self.value is None) is not self.unset:
            raise ValueError("give either value or unset: true")
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
        _check_sum(self.shares)
        return self

    def distribution(self) -> distributions.Distribution:
        return distributions.histogram(tuple(self.edges), tuple(self.shares))


def _check_sum(shares: list[float]) -> None:
    total = sum(shares)
    if abs(total - 1.0) > 1e-6:
        raise ValueError(f"shares sum to {total:.6g}, not 1")


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
            _check_sum([choice.share for choice in self.choices])
            if not self.may_be_unset and any(choice.unset for choice in self.choices):
                raise ValueError("only max_tokens can be unset")
        if self.quantiles is not None:
            points = _points(self.quantiles)
            if len(points) < 2 or points[0][0] != 0 or points[-1][0] != 1:
                raise ValueError("quantiles go from p0 to p100, and both must be given")
            if any(right[1] < left[1] for left, right in pairwise(points)):
                raise ValueError("quantiles must not fall")
        return self

    def distribution(self) -> distributions.Distribution:
        """The distribution that lengths are drawn from."""
        if self.value is not None:
            return distributions.Constant(value=self.value)
        if self.quantiles is not None:
            return distributions.Quantiles(points=_points(self.quantiles))
        if self.choices is not None:
            choices = (
                distributions.Choice(value=each.value or distributions.UNSET, share=each.share) for each in self.choices
            )
            return distributions.Choices(choices=tuple(choices))
        found: distributions.Distribution = self.given.distribution()
        return found


class CapShape(LengthShape):
    may_be_unset: ClassVar[bool] = True
    unset: Literal[True] | None = None

    def distribution(self) -> distributions.Distribution:
        return distributions.Constant(value=distributions.UNSET) if self.unset else super().distribution()


def _points(quantiles: dict[str, float]) -> tuple[tuple[float, float], ...]:
    return tuple(sorted((_probability(name), tokens) for name, tokens in quantiles.items()))


def _probability(name: str) -> float:
    """The probability that a name such as ``p99.9`` stands for."""
    try:
        percent = float(name.removeprefix("p"))
    except ValueError:
        percent = -1.0
    if not name.startswith("p") or not 0 <= percent <= 100:
        raise ValueError(f"{name!r} is not a quantile; write p0, p50, p99.9, p100")
    return percent / 100


AnswerCount = Annotated[int, Field(ge=1, le=128)]


class AnswersChoice(Section):
    value: AnswerCount
    share: Share


class AnswersShape(OneOf):
    """How many answers a request asks for."""

    value: AnswerCount | None = None
    choices: Annotated[list[AnswersChoice], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.choices is not None:
            _check_sum([choice.share for choice in self.choices])
        return self

    def distribution(self) -> distributions.Distribution:
        if self.choices is None:
            return distributions.Constant(value=self.given)
        return distributions.Choices(
            choices=tuple(distributions.Choice(value=each.value, share=each.share) for each in self.choices)
        )


def _constant(value: Any) -> Any:
    return {"value": value} if isinstance(value, int) and not isinstance(value, bool) else value


Length = Annotated[LengthShape, BeforeValidator(_constant, json_schema_input_type=int | LengthShape)]
Answers = Annotated[AnswersShape, BeforeValidator(_constant, json_schema_input_type=int | AnswersShape)]
Cap = Annotated[CapShape, BeforeValidator(_constant, json_schema_input_type=int | CapShape)]
