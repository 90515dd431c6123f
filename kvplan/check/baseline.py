"""The figures that an earlier answer keeps as JSON: all of a ``check``, or what a ``fit`` or ``simulate`` shares."""

import json
from pathlib import Path
from typing import Any

from kvplan.engines.base import term_sort
from kvplan.errors import InputError, unreadable

_LARGEST_BYTES = 64 * 2**20
_HOW = "kvplan check TRAFFIC --format json --output plan.json writes one"
_TERMS = ("weight_bytes", "activation_bytes", "non_torch_bytes", "graph_bytes")


def read_baseline(path: Path) -> tuple[dict[str, float | None], bool]:
    """The figures kept in the JSON of an earlier ``check``, or those of a ``fit`` or ``simulate`` that they share; and
    whether these are all that a check has."""
    file = str(path)
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise InputError(f"{file} is far too large for an answer of kvplan", hint=_HOW, file=file)
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise InputError(f"there is no file {file}", hint=_HOW, file=file) from error
    except OSError as error:
        raise unreadable(path, error) from error
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
    found = {
        "max_model_len": capacity.get("max_model_len"),
        "kv_pool_bytes": pool.get("kv_bytes"),
        "kv_pool_tokens": pool.get("tokens"),
        "longest_window_tokens": capacity.get("longest_window_tokens"),
        "concurrency_at_max_model_len": capacity.get("concurrency_at_max_model_len"),
        **_terms(budget.get("terms")),
    }
    return {name: value for name, value in found.items() if value is not None}


def _terms(listed: Any) -> dict[str, int]:
    """The budget's terms by their sort. Its own sums leave out what the engine books beside its share."""
    found: dict[str, int] = {}
    for term in listed if isinstance(listed, list) else []:
        name, amount = (term.get("name"), term.get("bytes")) if isinstance(term, dict) else (None, None)
        if isinstance(name, str) and _is_number(amount):
            key = f"{term_sort(name)}_bytes"
            found[key] = found.get(key, 0) + (amount or 0)
    return {key: found.get(key, 0) for key in _TERMS} if found else {}


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
    worst, shares = _part(strategy, "worst_seed"), dict(_part(strategy, "shares"))
    for_now, for_good = shares.get("refused_share"), shares.get("rejected_permanently_share")
    if isinstance(for_now, int | float) and isinstance(for_good, int | float):
        shares["refused_share"] = for_now + for_good  # as a check counts them
    found = {
        "max_model_len": pool.get("max_model_len"),
        "kv_pool_bytes": pool.get("kv_bytes"),
        "longest_window_tokens": pool.get("longest_window_tokens"),
        "sustainable_per_s": stability.get("sustainable_per_s"),
        "offered_per_s": stability.get("offered_per_s"),
        **shares,
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
