"""The ``traffic`` section: how long the run lasts, and classes of requests that are drawn or replayed from a trace."""

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from kvplan.profiles.loader import NESTED_IN, load_retry_loops
from kvplan.traffic import arrival_processes as processes
from kvplan.traffic.distributions import UNSET, Constant
from kvplan.traffic.file.fields import (
    Count,
    File,
    InvalidValueError,
    LookupFolders,
    NotNegative,
    OneOf,
    PerSecond,
    Positive,
    Seconds,
    SecondsOrZero,
    Section,
    Share,
    as_invalid_value,
)
from kvplan.traffic.file.lengths import Answers, Cap, Length
from kvplan.traffic.prefixes import SharedPrefix
from kvplan.traffic.spec import TraceFile, TrafficClass

Cv = Annotated[float, Field(gt=0.01, le=50)]


class PoissonShape(Section):
    def process(self) -> processes.ArrivalProcess:
        return processes.Poisson()


class ConstantShape(Section):
    def process(self) -> processes.ArrivalProcess:
        return processes.Evenly()


class GammaShape(Section):
    cv: Cv

    def process(self) -> processes.ArrivalProcess:
        return processes.Gamma(cv=self.cv)


class WeibullShape(Section):
    cv: Cv

    def process(self) -> processes.ArrivalProcess:
        return processes.Weibull(cv=self.cv)


class OnOffShape(Section):
    on: Seconds
    off: Seconds
    off_share: Share = 0.0

    def process(self) -> processes.ArrivalProcess:
        return processes.OnOff(on_s=self.on, off_s=self.off, off_share=self.off_share)


class DiurnalShape(Section):
    period: Seconds = Field(default="24h", validate_default=True)
    peak_to_mean: Annotated[float, Field(ge=1, le=2)] = 1.5
    peak_at: SecondsOrZero = Field(default="0s", validate_default=True)

    def process(self) -> processes.ArrivalProcess:
        return processes.Diurnal(period_s=self.period, peak_to_mean=self.peak_to_mean, peak_at_s=self.peak_at)


class RecordedShape(Section):
    step: Seconds
    counts: Annotated[list[NotNegative], Field(min_length=1)]
    cv: Cv = 1.0

    @model_validator(mode="after")
    def _has_arrivals(self) -> Self:
        if not sum(self.counts) > 0:
            raise ValueError("counts hold no arrivals")
        return self

    def process(self) -> processes.ArrivalProcess:
        return processes.Recorded(step_s=self.step, counts=tuple(self.counts), cv=self.cv)


class ArrivalShape(OneOf):
    poisson: PoissonShape | None = None
    constant: ConstantShape | None = None
    gamma: GammaShape | None = None
    weibull: WeibullShape | None = None
    on_off: OnOffShape | None = None
    diurnal: DiurnalShape | None = None
    recorded: RecordedShape | None = None


def _block_of_name(value: Any) -> Any:
    return {value: {}} if isinstance(value, str) else value


ArrivalName = Literal["poisson", "constant"]
Arrivals = Annotated[ArrivalShape, BeforeValidator(_block_of_name, json_schema_input_type=ArrivalName | ArrivalShape)]


class SharedPrefixShape(Section):
    """What the prompts of a class begin with, and share: a system prompt, a document, a conversation so far."""

    tokens: Length
    groups: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    lifetime: Seconds | None = None

    def shared_prefix(self) -> SharedPrefix:
        return SharedPrefix(tokens=self.tokens.distribution(), groups=self.groups, lifetime_s=self.lifetime)


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("the name has a character that cannot be printed")
    return name


def _joined(client: str | list[str]) -> str:
    return client if isinstance(client, str) else NESTED_IN.join(client)


def _known(client: str | list[str], info: "ValidationInfo[LookupFolders]") -> str | list[str]:
    with as_invalid_value():
        load_retry_loops(_joined(client), extra_folder=info.context.profiles)
    return client


class ClassShape(Section):
    name: Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_printable)]
    rate: PerSecond | None = None
    arrivals: Arrivals | None = None
    prompt_tokens: Length | None = None
    output_tokens: Length | None = None
    length_correlation: Annotated[float, Field(ge=-1, le=1)] | None = None
    max_tokens: Cap | None = None
    n: Answers | None = None
    shared_prefix: SharedPrefixShape | None = None
    client: Annotated[str | Annotated[list[str], Field(min_length=1)], AfterValidator(_known)] | None = None
    timeout: Seconds | None = None
    cancel_share: Share = 0.0
    trace: File | None = None
    format: Literal["auto", "plain", "azure", "burstgpt", "mooncake", "bailian"] = "auto"
    scale: Positive = 1.0
    hash_block_tokens: Count | None = None

    @model_validator(mode="after")
    def _drawn_or_replayed(self) -> Self:
        needed = ("rate", "prompt_tokens", "output_tokens")
        if self.trace is None:
            missing = [name for name in needed if getattr(self, name) is None]
            if missing:
                raise ValueError(f"{', '.join(missing)} missing (or name a trace)")
            if self.hash_block_tokens is not None or self.format != "auto":
                raise ValueError("format and hash_block_tokens belong to a trace, and this class has none")
        else:
            drawn = (*needed, "arrivals", "n", "shared_prefix", "length_correlation")
            given = [name for name in drawn if getattr(self, name) is not None]
            if given:
                raise ValueError(f"a replayed trace brings its own {', '.join(given)}")
        return self

    def traffic_class(self) -> TrafficClass:
        """Requests of this class: replayed where it names a trace, else drawn."""
        either = TrafficClass(
            name=self.name,
            max_tokens=Constant(value=UNSET) if self.max_tokens is None else self.max_tokens.distribution(),
            client=None if self.client is None else _joined(self.client),
            timeout_s=self.timeout,
            cancel_share=self.cancel_share,
        )
        if self.trace is not None:
            trace = TraceFile(
                path=self.trace, format=self.format, scale=self.scale, hash_block_tokens=self.hash_block_tokens
            )
            return replace(either, trace=trace)
        assert self.rate is not None
        assert self.prompt_tokens is not None
        assert self.output_tokens is not None
        return replace(
            either,
            rate_per_s=self.rate * self.scale,
            arrivals=processes.Poisson() if self.arrivals is None else self.arrivals.given.process(),
            prompt_tokens=self.prompt_tokens.distribution(),
            output_tokens=self.output_tokens.distribution(),
            length_correlation=self.length_correlation or 0.0,
            answers=Constant(value=1) if self.n is None else self.n.distribution(),
            shared_prefix=None if self.shared_prefix is None else self.shared_prefix.shared_prefix(),
        )


class RampShape(Section):
    start: Positive = 1.0
    end: Positive = 1.0


_MAX_PERIODS = 1_000_000
"""A rate that changes more often in one run has a curve that is too long to draw."""


class TrafficShape(Section):
    duration: Seconds | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    ramp: RampShape | None = None
    classes: Annotated[list[ClassShape], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [entry.name for entry in self.classes]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidValueError(f"two classes are called {name!r}", at=("classes", index, "name"))
        return self

    @model_validator(mode="after")
    def _lasts(self) -> Self:
        if self.duration is None:
            if any(entry.trace is None for entry in self.classes):
                raise InvalidValueError("the key 'duration' is missing", hint="say how long requests arrive: 30m, 600s")
            if self.ramp is not None:
                raise InvalidValueError("a ramp needs a duration", at=("ramp",))
            return self
        for index, entry in enumerate(self.classes):
            period_s = None if entry.arrivals is None else _period_s(entry.arrivals.given)
            if period_s is not None and self.duration / period_s > _MAX_PERIODS:
                raise InvalidValueError(
                    f"{self.duration / period_s:,.0f} periods in one run are too many to draw",
                    hint="make the periods longer or the duration shorter",
                    at=("classes", index, "arrivals"),
                )
        return self


def _period_s(shape: Section) -> float | None:
    """How often the rate of these arrivals changes; None where it is constant."""
    match shape:
        case OnOffShape(on=on_s, off=off_s):
            return on_s + off_s
        case DiurnalShape(period=period_s) | RecordedShape(step=period_s):
            return period_s
    return None
