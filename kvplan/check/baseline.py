"""The figures that an earlier answer keeps as JSON: all of a ``check``, or what a ``fit`` or ``simulate`` shares."""

import json
from pathlib import Path
from typing import Any

from kvplan.checkpoint import read_small_text
from kvplan.engines.base import term_sort
from kvplan.errors import InputError

_HOW = "kvplan check TRAFFIC --format json --output plan.json writes one"
_CAPACITY = ("max_model_len", "longest_window_tokens", "concurrency_at_max_model_len")
_TERMS = ("weight_bytes", "activation_bytes", "non_torch_bytes", "graph_bytes")


def read_baseline(path: Path) -> tuple[dict[str, float | None], bool]:
    """The figures kept in the JSON of an earlier ``check``, or those of a ``fit`` or ``simulate`` that they share; and
    whether these are all that a check has."""
    file = str(path)
    text = read_small_text(path, hint=_HOW)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is not JSON: {error}", hint=_HOW, file=file) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    reader = _READERS.get(str(schema))
    if reader is None:
        raise InputError(f"{file} is no answer of kvplan check, fit or simulate", hint=_HOW, file=file)
    complete = schema == "kvplan.check"
    found = {
        name: value
        for name, value in reader(document).items()
        if _is_number(value) or (value is None and complete)  # a check says what it could not have
    }
    if not found:
        raise InputError(f"{file} holds none of the figures of a {schema} document", hint=_HOW, file=file)
    return found, complete


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _part(document: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def _rows(document: Any, key: str) -> list[dict[str, Any]]:
    listed = document.get(key) if isinstance(document, dict) else None
    return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []


def _of_fit(document: Any) -> dict[str, Any]:
    budget, pool, capacity = (_part(document, name) for name in ("budget", "pool", "capacity"))
    # By their sort: the document's own sums leave out what the engine books beside its share.
    terms = [term for term in _rows(budget, "terms") if _is_number(term.get("bytes"))]
    sums = dict.fromkeys(_TERMS if terms else (), 0)
    for term in terms:
        sort = f"{term_sort(str(term.get('name')))}_bytes"
        if sort in sums:
            sums[sort] += term["bytes"]
    return {
        **{name: capacity.get(name) for name in _CAPACITY},
        "kv_pool_bytes": pool.get("kv_bytes"),
        "kv_pool_tokens": pool.get("tokens"),
        **sums,
    }


def _of_simulation(document: Any) -> dict[str, Any]:
    wanted = _part(document, "inputs").get("judged")
    strategy = next((row for row in _rows(document, "strategies") if row.get("name") == wanted), {})
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
            for row in _rows(document, "reservations")
        },
    }


_READERS = {
    "kvplan.check": lambda document: _part(document, "figures"),
    "kvplan.fit": _of_fit,
    "kvplan.simulation": _of_simulation,
}
