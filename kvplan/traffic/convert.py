"""From the shape of the file to the values inside: units read, relations between keys checked."""

from dataclasses import fields
from pathlib import Path

from kvplan.engines.base import MediaLimit
from kvplan.errors import InputError
from kvplan.traffic import arrivals as processes
from kvplan.traffic import distributions as laws
from kvplan.traffic.kinds import (
    AdmissionPlan,
    KvPool,
    Limit,
    PlannedDeployment,
    RetryAfter,
    ServiceTime,
    TraceFile,
    Traffic,
    TrafficClass,
)
from kvplan.traffic.load import Places
from kvplan.traffic.prefixes import SharedPrefix
from kvplan.traffic.shapes.classes import ArrivalShape, ClassShape, SharedPrefixShape
from kvplan.traffic.shapes.deployment import DeploymentShape, MediaShape
from kvplan.traffic.shapes.file import AdmissionShape, FileShape, RetryAfterShape
from kvplan.traffic.shapes.lengths import AnswersShape, CapShape, LengthShape, quantile_of
from kvplan.traffic.yaml_text import KeyPath
from kvplan.units import parse_bytes, parse_per_second, parse_seconds

_CLASSES: KeyPath = ("traffic", "classes")


def convert(shape: FileShape, places: Places) -> Traffic:
    """The frozen values that a validated file stands for; InputError where two keys contradict each other."""
    mix = shape.traffic
    classes = tuple(_traffic_class(entry, places, (*_CLASSES, index)) for index, entry in enumerate(mix.classes))
    names = [entry.name for entry in classes]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise places.error((*_CLASSES, index, "name"), f"two classes are called {name!r}")
    duration_s = None if mix.duration is None else _positive_seconds(mix.duration, places, ("traffic", "duration"))
    if duration_s is None and any(entry.trace is None for entry in classes):
        raise places.error(("traffic",), "the key 'traffic.duration' is missing", "for how long: 30m, 600s")
    if mix.ramp is not None and duration_s is None:
        raise places.error(("traffic", "ramp"), "a ramp needs a traffic.duration")
    if duration_s is not None:
        _check_periods(classes, duration_s, places)
    return Traffic(
        file=places.file,
        classes=classes,
        duration_s=duration_s,
        seed=mix.seed,
        ramp=None if mix.ramp is None else processes.Ramp(start=mix.ramp.start, end=mix.ramp.end),
        model=shape.model,
        deployment=_deployment(shape.deployment, places),
        admission=_admission(shape.admission),
        reservation_quantile=shape.reservation_quantile,
        limits=_limits(shape, names, places),
    )


_MOST_PERIODS = 1_000_000


def _check_periods(classes: tuple[TrafficClass, ...], duration_s: float, places: Places) -> None:
    """Rates that change too often for their curve to be drawn are refused."""
    for index, entry in enumerate(classes):
        law = entry.arrivals
        period_s = law.on_s + law.off_s if isinstance(law, processes.OnOff) else None
        period_s = law.period_s if isinstance(law, processes.Diurnal) else period_s
        period_s = law.step_s if isinstance(law, processes.Recorded) else period_s
        if period_s is not None and duration_s / period_s > _MOST_PERIODS:
            raise places.error(
                (*_CLASSES, index, "arrivals"),
                f"class {entry.name!r}: {duration_s / period_s:,.0f} periods in one run are too many to draw",
                "make the periods longer, or the duration shorter",
            )


def _positive_seconds(text: str, places: Places, path: KeyPath) -> float:
    seconds = places.at(path, parse_seconds, text)
    if seconds <= 0:
        raise places.error(path, f"{'.'.join(map(str, path))}: {text} is no time at all")
    return seconds


def _traffic_class(entry: ClassShape, places: Places, path: KeyPath) -> TrafficClass:
    timeout_s = None if entry.timeout is None else _positive_seconds(entry.timeout, places, (*path, "timeout"))
    if entry.trace is not None:
        return TrafficClass(
            name=entry.name,
            max_tokens=_cap(entry.max_tokens),
            client=entry.client,
            timeout_s=timeout_s,
            cancel_share=entry.cancel_share,
            trace=TraceFile(
                path=_beside(places, entry.trace, (*path, "trace")),
                format=entry.format,
                scale=entry.scale,
                hash_block_tokens=entry.hash_block_tokens,
            ),
        )
    assert entry.rate is not None
    assert entry.prompt_tokens is not None
    assert entry.output_tokens is not None
    rate_per_s = places.at((*path, "rate"), parse_per_second, entry.rate)
    if rate_per_s <= 0:
        raise places.error((*path, "rate"), f"the rate of class {entry.name!r} is zero", "leave the class out instead")
    return TrafficClass(
        name=entry.name,
        rate_per_s=rate_per_s * entry.scale,
        arrivals=_arrivals(entry.arrivals, places, (*path, "arrivals")),
        prompt_tokens=_length(entry.prompt_tokens),
        output_tokens=_length(entry.output_tokens),
        length_correlation=entry.length_correlation or 0.0,
        max_tokens=_cap(entry.max_tokens),
        answers=_answers(entry.n),
        shared_prefix=_shared_prefix(entry.shared_prefix, places, (*path, "shared_prefix")),
        client=entry.client,
        timeout_s=timeout_s,
        cancel_share=entry.cancel_share,
    )


def _beside(places: Places, name: str, path: KeyPath, what: str = "trace") -> str:
    """The path of a file that the traffic file names, taken from its folder."""
    found = Path(places.file).parent / Path(name).expanduser()
    if not found.exists():
        raise places.error(path, f"there is no {what} {found}", "a relative path starts at the traffic file's folder")
    if found.is_dir():
        raise places.error(path, f"{found} is a folder, not a {what}")
    return str(found)


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
    lasts = None if shape.lifetime is None else _positive_seconds(shape.lifetime, places, (*path, "lifetime"))
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
            on_s=_positive_seconds(shape.on_off.on, places, (*inner, "on")),
            off_s=_positive_seconds(shape.on_off.off, places, (*inner, "off")),
            off_share=shape.on_off.off_share,
        )
    if shape.recorded is not None:
        return processes.Recorded(
            step_s=_positive_seconds(shape.recorded.step, places, (*path, "recorded", "step")),
            counts=tuple(shape.recorded.counts),
            cv=shape.recorded.cv,
        )
    assert shape.diurnal is not None
    inner = (*path, "diurnal")
    return processes.Diurnal(
        period_s=_positive_seconds(shape.diurnal.period, places, (*inner, "period")),
        peak_to_mean=shape.diurnal.peak_to_mean,
        peak_at_s=places.at((*inner, "peak_at"), parse_seconds, shape.diurnal.peak_at),
    )


_DEPLOYMENT: KeyPath = ("deployment",)


def _deployment(shape: DeploymentShape, places: Places) -> PlannedDeployment:
    """Most keys carry their name and value over; those with a unit, a place or a form of their own are read here."""
    known = {field.name for field in fields(PlannedDeployment)}
    plain = {name: getattr(shape, name) for name in DeploymentShape.model_fields if name in known}
    stages = None if shape.pp_layers is None else tuple(shape.pp_layers)
    if stages is not None and shape.pipeline_parallel == 1:
        plain["pipeline_parallel"] = len(stages)
    plain |= {
        "gpu": None if shape.gpu is None else str(shape.gpu),
        "pp_layers": stages,
        "limit_mm_per_prompt": _media_limits(shape),
        "weight_bytes": _memory(shape.weight_bytes, places, "weight_bytes"),
        "kv_pool": _pool(shape, places),
        "service": None if shape.service is None else ServiceTime(**shape.service.model_dump()),
        "calibration": None
        if shape.calibration is None
        else _beside(places, shape.calibration, (*_DEPLOYMENT, "calibration"), "calibration"),
    }
    memory = shape.gpu_memory
    ranks = [] if memory is None else memory.split(",") if isinstance(memory, str) else memory
    return PlannedDeployment(
        **plain,
        gpu_memory_bytes=tuple(places.at((*_DEPLOYMENT, "gpu_memory"), parse_bytes, text.strip()) for text in ranks)
        or None,
        kv_offload_bytes=_memory(shape.kv_offload, places, "kv_offload"),
        watermark_share=shape.watermark,
    )


def _memory(value: int | str | None, places: Places, *key: str) -> int | None:
    return places.at((*_DEPLOYMENT, *key), parse_bytes, value) if isinstance(value, str) else value


def _pool(shape: DeploymentShape, places: Places) -> KvPool | None:
    if shape.kv_memory is not None:
        return KvPool(memory_bytes=_memory(shape.kv_memory, places, "kv_memory"))
    pool = shape.kv_pool
    if pool is None:
        return None
    memory_bytes = _memory(pool.memory, places, "kv_pool", "memory")
    return KvPool(blocks=pool.blocks, block_tokens=pool.block_tokens, memory_bytes=memory_bytes)


def _media_limits(shape: DeploymentShape) -> tuple[MediaLimit, ...] | None:
    if shape.limit_mm_per_prompt is None:
        return None
    said = {
        sort: limit if isinstance(limit, MediaShape) else MediaShape(count=limit)
        for sort, limit in shape.limit_mm_per_prompt.items()
    }
    return tuple(MediaLimit(sort=sort, items=limit.count, item_tokens=limit.tokens) for sort, limit in said.items())


def _admission(shape: AdmissionShape) -> AdmissionPlan:
    answer = shape.retry_after or RetryAfterShape(estimate="drain")
    jitter_share = answer.jitter if answer.jitter is not None else 0.0 if answer.seconds is not None else 0.25
    return AdmissionPlan(
        policy=shape.policy,
        safety_fraction=shape.safety_fraction,
        default_max_tokens=shape.default_max_tokens,
        concurrency=shape.concurrency,
        retry_after=RetryAfter(seconds=answer.seconds, jitter_share=jitter_share),
    )


def _limits(shape: FileShape, names: list[str], places: Places) -> tuple[Limit, ...]:
    found = []
    for name, given in shape.limits.items():
        listed = isinstance(given, list)
        for index, limit in enumerate(given if isinstance(given, list) else [given]):
            path: KeyPath = ("limits", name, index) if listed else ("limits", name)
            if limit.class_name is not None and limit.class_name not in names:
                raise places.error(
                    path, f"limits.{name}: there is no class {limit.class_name!r}", f"classes: {', '.join(names)}"
                )
            low, high = _bound(name, limit.min, places, path), _bound(name, limit.max, places, path)
            found.append(
                Limit(name=name, minimum=low, maximum=high, class_name=limit.class_name, line=places.line(path))
            )
    return tuple(found)


def _bound(name: str, value: float | str | None, places: Places, path: KeyPath) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        if not name.endswith("_bytes"):
            raise places.error(path, f"limits.{name}: {value!r} is not a number")
        return float(places.at(path, parse_bytes, value))
    if name.endswith("_bytes"):
        raise places.error(path, f"limits.{name}: {value!r} has no unit", "write it like 40GiB")
    if name.endswith("_share") and value > 1:
        raise InputError(
            f"limits.{name}: a share lies between 0 and 1, not {value:g}",
            file=places.file,
            line=places.line(path),
            key=".".join(map(str, path)),
        )
    return float(value)
