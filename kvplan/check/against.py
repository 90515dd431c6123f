"""What a change does: the figures of a traffic file beside those of another file, or of an earlier answer's JSON."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvplan.check.judge import read
from kvplan.check.measures import MEASURES
from kvplan.check.results import Change, ChangedKey, Measured
from kvplan.engines.deployment import EngineVersion
from kvplan.engines.engine_plan import term_kind
from kvplan.engines.options import rows
from kvplan.errors import InputError
from kvplan.files import read_small_text
from kvplan.traffic.spec import Traffic


def figures(measured: Measured) -> dict[str, float | None]:
    """Every figure that a limit could name, and the worst cases of every class and cap; None where there is none."""
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
    return None if measured.simulation is None else measured.simulation.backend.settings.max_model_len


def changes(before: Mapping[str, float | None], after: Mapping[str, float | None]) -> tuple[Change, ...]:
    """The figures of both in the order of ``after``; those that only ``before`` has come last."""
    names = [*after, *(name for name in before if name not in after)]
    return tuple(Change(name=name, before=before.get(name), after=after.get(name)) for name in names)


def settings(before: Traffic, after: Traffic) -> tuple[ChangedKey, ...]:
    """The keys that two files give differently, by their names in the file; limits are left out, because they are
    judged."""
    old, new = dict(_settings(before)), dict(_settings(after))
    return tuple(
        ChangedKey(key=key, before=old.get(key), after=new.get(key))
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
    """The leaves of a frozen value as (dotted key, text), without those that are None. ``keys``: names in the file that
    differ from the field's."""
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


_HOW = "kvplan check TRAFFIC --format json --output plan.json writes one"
_CAPACITY = ("max_model_len", "longest_window_tokens", "concurrency_at_max_model_len")
_TERMS = ("weight_bytes", "activation_bytes", "non_torch_bytes", "graph_bytes")


def read_baseline(path: Path) -> tuple[dict[str, float | None], bool]:
    """The figures in the JSON of an earlier ``check``, or those of a ``fit`` or ``simulate`` that a check has too; and
    whether they are all that a check has."""
    file = str(path)
    text = read_small_text(path, hint=_HOW)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not JSON: {error}", hint=_HOW, file=file) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    reader = _READERS.get(str(schema))
    if reader is None:
        raise InputError(f"{file} is not the JSON of kvplan check, fit or simulate", hint=_HOW, file=file)
    complete = schema == "kvplan.check"
    found = {
        name: value
        for name, value in reader(document).items()
        if _is_number(value) or (value is None and complete)  # a check says what it could not have
    }
    if not found:
        raise InputError(f"{file} has none of the figures of a {schema} document", hint=_HOW, file=file)
    return found, complete


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _part(document: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def _dict_rows(document: Any, key: str) -> list[dict[str, Any]]:
    listed = document.get(key) if isinstance(document, dict) else None
    return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []


def _of_fit(document: Any) -> dict[str, Any]:
    budget, pool, capacity = (_part(document, name) for name in ("budget", "pool", "capacity"))
    # By their kind: the document's own sums leave out what the engine books beside its share.
    terms = [term for term in _dict_rows(budget, "terms") if _is_number(term.get("bytes"))]
    sums = dict.fromkeys(_TERMS if terms else (), 0)
    for term in terms:
        kind = f"{term_kind(str(term.get('name')))}_bytes"
        if kind in sums:
            sums[kind] += term["bytes"]
    return {
        **{name: capacity.get(name) for name in _CAPACITY},
        "kv_pool_bytes": pool.get("kv_bytes"),
        "kv_pool_tokens": pool.get("tokens"),
        **sums,
    }


def _of_simulation(document: Any) -> dict[str, Any]:
    wanted = _part(document, "inputs").get("judged")
    strategy = next((row for row in _dict_rows(document, "strategies") if row.get("name") == wanted), {})
    pool, stability = _part(document, "pool"), _part(document, "stability")
    times = {
        f"{time}_{point}_s": _part(strategy, f"{time}_s").get(point)
        for time in ("queue", "ttft", "e2e")
        for point in ("mean", "p50", "p90", "p99")
    }
    worst, shares = _part(strategy, "worst_seed"), dict(_part(strategy, "shares"))
    for_now, for_good = shares.get("refused_share"), shares.get("rejected_permanently_share")
    if isinstance(for_now, int | float) and isinstance(for_good, int | float):
        shares["refused_share"] = for_now + for_good  # as a check counts them
    return {
        "max_model_len": pool.get("max_model_len"),
        "kv_pool_bytes": pool.get("kv_bytes"),
        "longest_window_tokens": pool.get("longest_window_tokens"),
        **{name: stability.get(name) for name in ("sustainable_per_s", "offered_per_s")},
        **shares,
        **times,
        **{name: strategy.get(name) for name in ("output_tokens_per_s", "amplification")},
        **{f"kv_{name}": value for name, value in _part(strategy, "kv").items()},
        **{name: worst.get(name) for name in ("preemptions", "refusals", "over_capacity_events")},
        **{
            f"worst_case_reservations: {row.get('name')}": row.get("sequences")
            for row in _dict_rows(document, "reservations")
        },
    }


_READERS = {
    "kvplan.check": lambda document: _part(document, "figures"),
    "kvplan.fit": _of_fit,
    "kvplan.simulation": _of_simulation,
}
