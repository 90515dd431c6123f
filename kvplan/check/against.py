"""What a change does: every figure of a file beside the same figure of another file, or of an earlier answer."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from kvplan.check.judge import read
from kvplan.check.measures import MEASURES
from kvplan.check.results import Change, Measured, Setting
from kvplan.engines.base import EngineVersion
from kvplan.engines.options import rows
from kvplan.traffic.spec import Traffic


def figures(measured: Measured) -> dict[str, float | None]:
    """Every figure that a limit could name, and the worst case of every class and cap; None: it could not be had."""
    found: dict[str, float | None] = {"gpus": measured.gpus, "max_model_len": _window(measured)}
    found |= {name: read(name, measured).value for name in MEASURES if name != "worst_case_reservations"}
    if measured.simulation is not None:
        found["offered_per_s"] = measured.simulation.stability.offered_per_s
        for row in measured.simulation.reservations:
            found[f"worst_case_reservations: {row.name}"] = row.sequences
    return found


def _window(measured: Measured) -> int | None:
    if measured.fit is not None:
        return measured.fit.max_model_len
    return None if measured.simulation is None else measured.simulation.plant.settings.max_model_len


def changes(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> tuple[Change, ...]:
    """The figures of both, in the order of ``after``; those that only ``before`` has come last."""
    names = [*after, *(name for name in before if name not in after)]
    return tuple(Change(name=name, before=before.get(name), after=after.get(name)) for name in names)


def settings(before: Traffic, after: Traffic) -> tuple[Setting, ...]:
    """The keys that two files give differently, as the file names them; limits left out, for they are judged."""
    old, new = dict(_settings(before)), dict(_settings(after))
    return tuple(
        Setting(key=key, before=old.get(key), after=new.get(key))
        for key in [*new, *(key for key in old if key not in new)]
        if old.get(key) != new.get(key)
    )


def _settings(traffic: Traffic) -> Iterator[tuple[str, str]]:
    yield from _flat("model", traffic.model)
    yield from _flat("deployment", traffic.deployment, {row.field: row.key for row in rows()})
    yield from _flat("admission", traffic.admission)
    yield from _flat("traffic.duration_s", traffic.duration_s)
    yield from _flat("traffic.seed", traffic.seed)
    yield from _flat("traffic.ramp", traffic.ramp)
    yield from _flat("reservation_quantile", traffic.reservation_quantile)
    for entry in traffic.classes:
        yield from _flat(entry.name, entry)


def _flat(key: str, value: Any, keys: Mapping[str, str] = MappingProxyType({})) -> Iterator[tuple[str, str]]:
    """The leaves of a frozen value as (dotted key, text); what is None is not given. ``keys`` of fields, where
    they are not the fields' names."""
    if value is None:
        return
    if is_dataclass(value) and not isinstance(value, EngineVersion) and not isinstance(value, type):
        named = fields(value)
        if not named:
            yield key, type(value).__name__.lower()
        for one in named:
            yield from _flat(f"{key}.{keys.get(one.name, one.name)}", getattr(value, one.name))
    elif isinstance(value, tuple):
        for place, one in enumerate(value):
            yield from _flat(f"{key}.{place}", one)
    else:
        yield key, f"{float(value):g}" if isinstance(value, float | Fraction) else str(value)
