"""Judges each limit by its reading; a mean whose interval reaches across the limit is within noise."""

from collections.abc import Iterator

from kvplan.check.measures import MEASURES, PlanMeasure, judged, read_seeds
from kvplan.check.results import Bound, Certainty, LimitResult, Measured, Reading
from kvplan.errors import InputError
from kvplan.traffic.spec import Limit


def judge_limits(measured: Measured, *, strict: bool = False) -> tuple[LimitResult, ...]:
    """Every bound of every limit of the file, in the file's order; before them, whether the engine starts."""
    found = [] if measured.trouble is None else [_does_not_start(measured.trouble)]
    for limit in measured.traffic.limits:
        _check_class(limit, measured.traffic.file)
        found += [_judge(limit, bound, value, measured, strict=strict) for bound, value in _bounds(limit)]
    return tuple(found)


def _does_not_start(trouble: str) -> LimitResult:
    return LimitResult(
        name="fits",
        class_name=None,
        bound="min",
        limit=1,
        reading=Reading(value=0, detail=trouble),
        certainty="exact",
        passed=False,
    )


def _bounds(limit: Limit) -> Iterator[tuple[Bound, float]]:
    if limit.minimum is not None:
        yield "min", limit.minimum
    if limit.maximum is not None:
        yield "max", limit.maximum


def _check_class(limit: Limit, file: str) -> None:
    if limit.class_name is not None and not MEASURES[limit.name].of_classes:
        raise InputError(
            f"limits.{limit.name}: this figure exists only for the whole, not for a class",
            hint="leave class out",
            file=file,
            line=limit.line,
            key=f"limits.{limit.name}.class",
        )


def _judge(limit: Limit, bound: Bound, value: float, measured: Measured, *, strict: bool) -> LimitResult:
    reading = read(limit.name, measured, limit.class_name, bound)
    if reading.value is None and measured.trouble is None and isinstance(MEASURES[limit.name], PlanMeasure):
        raise InputError(
            f"limits.{limit.name} cannot be judged: {reading.detail}",
            hint="give what is missing, or remove the limit: what is not measured does not pass",
            file=measured.traffic.file,
            line=limit.line,
            key=f"limits.{limit.name}",
        )
    slow, fast = _at_band(limit, bound, measured)
    certainty, passed = verdict(reading, bound, value, strict=strict)
    return LimitResult(
        name=limit.name,
        class_name=limit.class_name,
        bound=bound,
        limit=value,
        reading=reading,
        certainty=certainty,
        passed=passed,
        line=limit.line,
        at_slow_end=slow,
        at_fast_end=fast,
    )


def read(name: str, measured: Measured, class_name: str | None = None, bound: Bound = "max") -> Reading:
    """The reading of the figure ``name``; its value is None where the figure needs an engine that does not start."""
    measure = MEASURES[name]
    if measured.simulation is None and not (isinstance(measure, PlanMeasure) and not measure.needs_simulation):
        return Reading(value=None, detail="the engine does not start, so nothing can be measured")
    if isinstance(measure, PlanMeasure):
        return measure.read(measured, class_name)
    simulation = measured.simulation
    assert simulation is not None
    return read_seeds(measure, simulation, class_name, bound, judged(simulation))


def _at_band(limit: Limit, bound: Bound, measured: Measured) -> tuple[float | None, float | None]:
    """The value at the slow and at the fast end of an estimated step time."""
    measure, simulation = MEASURES[limit.name], measured.simulation
    if simulation is None or isinstance(measure, PlanMeasure) or not simulation.band:
        return None, None
    slow = max(simulation.band, key=lambda end: end.factor)
    fast = min(simulation.band, key=lambda end: end.factor)
    ends = [read_seeds(measure, simulation, limit.class_name, bound, end.result).value for end in (slow, fast)]
    return ends[0], ends[1]


def verdict(reading: Reading, bound: Bound, limit: float, *, strict: bool) -> tuple[Certainty, bool]:
    """How sure the judgement is, and whether the limit passes.

    Exact figures and worst seeds decide by themselves. A mean decides by its 95% interval: wholly on one side it is
    sure; across the limit it is within noise, which passes unless ``strict``. What was not measured fails: a check that
    checks nothing is not a pass.

    >>> noisy = Reading(value=0.012, low=0.008, high=0.016)
    >>> verdict(noisy, "max", 0.01, strict=False), verdict(noisy, "max", 0.01, strict=True)
    (('within_noise', True), ('within_noise', False))
    >>> verdict(noisy, "max", 0.007, strict=False)
    ('sure', False)
    """
    if reading.value is None:
        return "not_measured", False
    low = reading.value if reading.low is None else reading.low
    high = reading.value if reading.high is None else reading.high
    surely, possibly = (low >= limit, high >= limit) if bound == "min" else (high <= limit, low <= limit)
    if surely != possibly:
        return "within_noise", not strict
    if reading.low is None:
        return ("one_seed" if reading.one_seed else "exact"), surely
    return "sure", surely
