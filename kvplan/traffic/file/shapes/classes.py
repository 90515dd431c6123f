"""How a file writes what arrives: arrival processes, and classes that are drawn or replayed."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kvplan.traffic.file.shapes.base import Count, Duration, NotNegative, OneOf, Positive, Rate, Section, Share
from kvplan.traffic.file.shapes.lengths import Answers, Cap, Length


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


class RecordedShape(Section):
    step: Duration
    counts: Annotated[list[NotNegative], Field(min_length=1)]
    cv: Annotated[float, Field(gt=0.01, le=50)] = 1.0

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not sum(self.counts) > 0:
            raise ValueError("counts hold no arrival")
        return self


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
    recorded: RecordedShape | None = None


ArrivalsShape = Annotated[ArrivalShape, BeforeValidator(_named, json_schema_input_type=ArrivalName | ArrivalShape)]


class SharedPrefixShape(Section):
    """What the prompts of a class begin with, and share: a system prompt, a document, a conversation so far."""

    tokens: Length
    groups: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    lifetime: Duration | None = None


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("holds a character that cannot be printed")
    return name


class ClassShape(Section):
    name: Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_printable)]
    rate: Rate | None = None
    arrivals: ArrivalsShape | None = None
    prompt_tokens: Length | None = None
    output_tokens: Length | None = None
    length_correlation: Annotated[float, Field(ge=-1, le=1)] | None = None
    max_tokens: Cap | None = None
    n: Answers | None = None
    shared_prefix: SharedPrefixShape | None = None
    client: str | Annotated[list[str], Field(min_length=1)] | None = None
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
            if self.hash_block_tokens is not None or self.format != "auto":
                raise ValueError("format and hash_block_tokens belong to a trace, which this class does not replay")
        else:
            drawn |= {"arrivals": self.arrivals, "n": self.n, "shared_prefix": self.shared_prefix}
            drawn["length_correlation"] = self.length_correlation
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
