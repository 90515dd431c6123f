"""From the shape of a class to the values inside: arrivals, lengths, and what is replayed."""

from dataclasses import replace

from kvplan.profiles.loader import AROUND
from kvplan.traffic import arrivals as processes
from kvplan.traffic import distributions as laws
from kvplan.traffic.file.places import Places
from kvplan.traffic.file.shapes.classes import ArrivalShape, ClassShape, SharedPrefixShape
from kvplan.traffic.file.shapes.lengths import AnswersShape, CapShape, LengthShape, quantile_of
from kvplan.traffic.file.yaml_text import KeyPath
from kvplan.traffic.kinds import TraceFile, TrafficClass
from kvplan.traffic.prefixes import SharedPrefix
from kvplan.units import parse_per_second, parse_seconds


def traffic_class(entry: ClassShape, places: Places, path: KeyPath) -> TrafficClass:
    """One entry of ``traffic.classes``, which stands at ``path``."""
    either = TrafficClass(
        name=entry.name,
        max_tokens=_cap(entry.max_tokens),
        client=AROUND.join(entry.client) if isinstance(entry.client, list) else entry.client,
        timeout_s=None if entry.timeout is None else places.seconds((*path, "timeout"), entry.timeout),
        cancel_share=entry.cancel_share,
    )
    if entry.trace is not None:
        trace = TraceFile(
            path=places.beside((*path, "trace"), entry.trace, "trace"),
            format=entry.format,
            scale=entry.scale,
            hash_block_tokens=entry.hash_block_tokens,
        )
        return replace(either, trace=trace)
    assert entry.rate is not None
    assert entry.prompt_tokens is not None
    assert entry.output_tokens is not None
    rate_per_s = places.at((*path, "rate"), parse_per_second, entry.rate)
    if rate_per_s <= 0:
        raise places.error((*path, "rate"), f"the rate of class {entry.name!r} is zero", "leave the class out instead")
    return replace(
        either,
        rate_per_s=rate_per_s * entry.scale,
        arrivals=_arrivals(entry.arrivals, places, (*path, "arrivals")),
        prompt_tokens=_length(entry.prompt_tokens),
        output_tokens=_length(entry.output_tokens),
        length_correlation=entry.length_correlation or 0.0,
        answers=_answers(entry.n),
        shared_prefix=_shared_prefix(entry.shared_prefix, places, (*path, "shared_prefix")),
    )


def _length(shape: LengthShape) -> laws.Distribution:
    if shape.value is not None:
        return laws.Constant(value=shape.value)
    if shape.lognormal is not None:
        low, high = shape.lognormal.min, shape.lognormal.max
        return laws.Lognormal(p50=shape.lognormal.p50, p95=shape.lognormal.p95, minimum=low, maximum=high)
    if shape.exponential is not None:
        low, high = shape.exponential.min, shape.exponential.max
        return laws.Exponential(average=shape.exponential.mean, minimum=low, maximum=high)
    if shape.uniform is not None:
        return laws.Uniform(minimum=shape.uniform.min, maximum=shape.uniform.max)
    if shape.choices is not None:
        chosen = tuple(laws.Choice(value=choice.value or laws.UNSET, share=choice.share) for choice in shape.choices)
        return laws.Choices(choices=chosen)
    if shape.histogram is not None:
        return laws.histogram(tuple(shape.histogram.edges), tuple(shape.histogram.shares))
    assert shape.quantiles is not None
    points = sorted((quantile_of(name), tokens) for name, tokens in shape.quantiles.items())
    return laws.Quantiles(points=tuple(points))


def _cap(shape: CapShape | None) -> laws.Distribution:
    return laws.Constant(value=laws.UNSET) if shape is None or shape.unset else _length(shape)


def _answers(shape: AnswersShape | None) -> laws.Distribution:
    if shape is None or shape.choices is None:
        return laws.Constant(value=1 if shape is None or shape.value is None else shape.value)
    return laws.Choices(choices=tuple(laws.Choice(value=each.value, share=each.share) for each in shape.choices))


def _shared_prefix(shape: SharedPrefixShape | None, places: Places, path: KeyPath) -> SharedPrefix | None:
    if shape is None:
        return None
    lasts = None if shape.lifetime is None else places.seconds((*path, "lifetime"), shape.lifetime)
    return SharedPrefix(tokens=_length(shape.tokens), groups=shape.groups, lifetime_s=lasts)


def _arrivals(shape: ArrivalShape | None, places: Places, path: KeyPath) -> processes.ArrivalProcess:
    if shape is None or shape.poisson is not None:
        return processes.Poisson()
    if shape.constant is not None:
        return processes.Evenly()
    if shape.gamma is not None:
        return processes.Gamma(cv=shape.gamma.cv)
    if shape.weibull is not None:
        return processes.Weibull(cv=shape.weibull.cv)
    if shape.on_off is not None:
        inner = (*path, "on_off")
        return processes.OnOff(
            on_s=places.seconds((*inner, "on"), shape.on_off.on),
            off_s=places.seconds((*inner, "off"), shape.on_off.off),
            off_share=shape.on_off.off_share,
        )
    if shape.recorded is not None:
        return processes.Recorded(
            step_s=places.seconds((*path, "recorded", "step"), shape.recorded.step),
            counts=tuple(shape.recorded.counts),
            cv=shape.recorded.cv,
        )
    assert shape.diurnal is not None
    inner = (*path, "diurnal")
    return processes.Diurnal(
        period_s=places.seconds((*inner, "period"), shape.diurnal.period),
        peak_to_mean=shape.diurnal.peak_to_mean,
        peak_at_s=places.at((*inner, "peak_at"), parse_seconds, shape.diurnal.peak_at),
    )


_MOST_PERIODS = 1_000_000


def check_periods(classes: tuple[TrafficClass, ...], duration_s: float, places: Places) -> None:
    """Rates that change too often for their curve to be drawn are refused."""
    for index, entry in enumerate(classes):
        match entry.arrivals:
            case processes.OnOff(on_s=on_s, off_s=off_s):
                period_s = on_s + off_s
            case processes.Diurnal(period_s=period_s) | processes.Recorded(step_s=period_s):
                pass
            case _:
                continue
        if duration_s / period_s > _MOST_PERIODS:
            raise places.error(
                ("traffic", "classes", index, "arrivals"),
                f"class {entry.name!r}: {duration_s / period_s:,.0f} periods in one run are too many to draw",
                "make the periods longer, or the duration shorter",
            )
