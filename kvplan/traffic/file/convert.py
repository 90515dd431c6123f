"""From the shape of the whole file to the values inside: units read, relations between keys checked."""

from kvplan.traffic.arrivals import Ramp
from kvplan.traffic.file.classes import check_periods, traffic_class
from kvplan.traffic.file.deployment import deployment
from kvplan.traffic.file.places import Places
from kvplan.traffic.file.shapes.whole import AdmissionShape, FileShape, RetryAfterShape
from kvplan.traffic.file.yaml_text import KeyPath
from kvplan.traffic.kinds import AdmissionPlan, Limit, RetryAfter, Traffic
from kvplan.units import parse_bytes

_CLASSES: KeyPath = ("traffic", "classes")


def convert(shape: FileShape, places: Places) -> Traffic:
    """The frozen values that a validated file stands for; InputError where two keys contradict each other."""
    mix = shape.traffic
    classes = tuple(traffic_class(entry, places, (*_CLASSES, index)) for index, entry in enumerate(mix.classes))
    names = [entry.name for entry in classes]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise places.error((*_CLASSES, index, "name"), f"two classes are called {name!r}")
    duration_s = None if mix.duration is None else places.seconds(("traffic", "duration"), mix.duration)
    if duration_s is None and any(entry.trace is None for entry in classes):
        raise places.error(("traffic",), "the key 'traffic.duration' is missing", "for how long: 30m, 600s")
    if mix.ramp is not None and duration_s is None:
        raise places.error(("traffic", "ramp"), "a ramp needs a traffic.duration")
    if duration_s is not None:
        check_periods(classes, duration_s, places)
    return Traffic(
        file=places.file,
        classes=classes,
        duration_s=duration_s,
        seed=mix.seed,
        ramp=None if mix.ramp is None else Ramp(start=mix.ramp.start, end=mix.ramp.end),
        model=shape.model,
        deployment=deployment(shape.deployment, places),
        admission=_admission(shape.admission),
        reservation_quantile=shape.reservation_quantile,
        limits=_limits(shape, names, places),
    )


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
        raise places.error(path, f"limits.{name}: a share lies between 0 and 1, not {value:g}")
    return float(value)
