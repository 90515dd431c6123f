"""What a change does: every figure of a file beside the same figure of another file, or of an answer kept as JSON."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from kvplan.check.judge import read
from kvplan.check.measures import MEASURES
from kvplan.check.results import Change, Measured, Setting
from kvplan.errors import InputError
from kvplan.simulation.plant import Plant
from kvplan.traffic.kinds import Traffic

_LARGEST_BYTES = 64 * 2**20


def figures(measured: Measured) -> dict[str, float | None]:
    """Every figure that a limit could name, and the worst case of every class and cap; None: it could not be had."""
    found: dict[str, float | None] = {
        "gpus": measured.gpus,
        "max_model_len": _window(measured),
    }
    for name in MEASURES:
        if name != "worst_case_reservations":
            found[name] = read(name, measured).value
    if measured.simulation is not None:
        found["offered_per_s"] = measured.simulation.stability.offered_per_s
        for row in measured.simulation.reservations:
            found[f"worst_case_reservations: {row.name}"] = row.sequences
    return found


def _window(measured: Measured) -> int | None:
    if measured.fit is not None:
        return measured.fit.max_model_len
    plant: Plant | None = None if measured.simulation is None else measured.simulation.plant
    return None if plant is None else plant.settings.max_model_len


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
    yield from _flat("deployment", traffic.deployment)
    yield from _flat("admission", traffic.admission)
    yield from _flat("traffic.duration_s", traffic.duration_s)
    yield from _flat("traffic.seed", traffic.seed)
    yield from _flat("traffic.ramp", traffic.ramp)
    yield from _flat("reservation_quantile", traffic.reservation_quantile)
    for entry in traffic.classes:
        yield from _flat(entry.name, entry)


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """The leaves of a frozen value as (dotted key, text); what is None is not given."""
    if value is None:
        return
    if is_dataclass(value) and not isinstance(value, type):
        named = fields(value)
        if not named:
            yield key, type(value).__name__.lower()
        for one in named:
            yield from _flat(f"{key}.{one.name}", getattr(value, one.name))
    elif isinstance(value, tuple):
        for place, one in enumerate(value):
            yield from _flat(f"{key}.{place}", one)
    else:
        yield key, f"{value:g}" if isinstance(value, float) else str(value)


def changes_since(
    kept: Mapping[str, float | None], after: Mapping[str, float | None], *, complete: bool
) -> tuple[Change, ...]:
    """``changes`` against figures that were kept; an answer that is not complete says nothing of the others."""
    return changes(kept, after if complete else {name: value for name, value in after.items() if name in kept})


def read_baseline(path: Path) -> tuple[dict[str, float | None], bool]:
    """The figures kept in the JSON of an earlier ``check``, or those of a ``fit`` or ``simulate`` that they share; and
    whether these are all that a check has."""
    file = str(path)
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise InputError(f"{file} is far too large for an answer of kvplan", file=file)
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise InputError(f"there is no file {file}", hint=_HOW, file=file) from error
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}", file=file) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not JSON: {error}", hint=_HOW, file=file) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    reader = _READERS.get(str(schema))
    if reader is None:
        raise InputError(f"{file} is no answer of kvplan check, fit or simulate", hint=_HOW, file=file)
    found = {name: value for name, value in reader(document).items() if _is_number(value)}
    if not found:
        raise InputError(f"{file} holds none of the figures of a {schema} document", hint=_HOW, file=file)
    return found, schema == "kvplan.check"


_HOW = "kvplan check TRAFFIC --format json --output plan.json writes one"


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _part(document: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def _of_check(document: Any) -> dict[str, Any]:
    return dict(_part(document, "figures"))


def _of_fit(document: Any) -> dict[str, Any]:
    budget, pool, capacity = (_part(document, name) for name in ("budget", "pool", "capacity"))
    terms = ("weight_bytes", "activation_bytes", "non_torch_bytes", "graph_bytes")
    found = {
        "max_model_len": capacity.get("max_model_len"),
        "kv_pool_bytes": pool.get("kv_bytes"),
        "kv_pool_tokens": pool.get("tokens"),
        "longest_window_tokens": capacity.get("longest_window_tokens"),
        "concurrency_at_max_model_len": capacity.get("concurrency_at_max_model_len"),
        **{name: budget.get(name) for name in terms},
    }
    return {name: value for name, value in found.items() if value is not None}


def _of_simulation(document: Any) -> dict[str, Any]:
    wanted = _part(document, "inputs").get("judged")
    listed = document.get("strategies")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    strategy = next((row for row in rows if row.get("name") == wanted), {})
    pool, stability = _part(document, "pool"), _part(document, "stability")
    times = {
        f"{time}_{point}_s": _part(strategy, f"{time}_s").get(point)
        for time in ("queue", "ttft", "e2e")
        for point in ("mean", "p50", "p90", "p99")
    }
    worst = _part(strategy, "worst_seed")
    found = {
        "max_model_len": pool.get("max_model_len"),
        "kv_pool_bytes": pool.get("kv_bytes"),
        "longest_window_tokens": pool.get("longest_window_tokens"),
        "sustainable_per_s": stability.get("sustainable_per_s"),
        "offered_per_s": stability.get("offered_per_s"),
        **_part(strategy, "shares"),
        **times,
        "output_tokens_per_s": strategy.get("output_tokens_per_s"),
        "amplification": strategy.get("amplification"),
        **{f"kv_{name}": value for name, value in _part(strategy, "kv").items()},
        **{name: worst.get(name) for name in ("preemptions", "refusals", "over_capacity_events")},
    }
    listed = document.get("reservations")
    for row in listed if isinstance(listed, list) else []:
        if isinstance(row, dict):
            found[f"worst_case_reservations: {row.get('name')}"] = row.get("sequences")
    return {name: value for name, value in found.items() if value is not None}


_READERS = {"kvplan.check": _of_check, "kvplan.fit": _of_fit, "kvplan.simulation": _of_simulation}
