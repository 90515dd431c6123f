"""``kvplan compare``: the smallest that carries the load, all candidates, why the others fall short; as text, JSON or
CSV."""

from collections.abc import Iterator, Sequence
from csv import writer
from io import StringIO
from shlex import quote

from kvplan.compare.results import Candidate, Comparison, ShapeLoad
from kvplan.report.check_json import limit_object, whole
from kvplan.report.check_text import bound, measured, title
from kvplan.report.json_text import document, picked
from kvplan.report.numbers import count, format_bytes, ratio
from kvplan.report.page import BLANK, QUIET, Part, answer, columns, labelled, next_steps, paragraph
from kvplan.report.simulation_text import file_name
from kvplan.traffic.spec import Traffic

_MAX_ROWS = 40


def text(comparison: Comparison) -> Iterator[Part]:
    """The whole answer."""
    models = list(dict.fromkeys(one.choice.model.id for one in comparison.candidates))
    several = len(models) > 1
    for model in models:
        yield answer(_answer(comparison, model, several=several))
    carriers = sum(one.carries for one in comparison.candidates)
    total = len(comparison.candidates)
    yield paragraph(f"{carriers} of {total} candidates do; {_first(comparison)} first", style=QUIET, indent=0)
    yield BLANK
    shown = comparison.candidates[:_MAX_ROWS]
    for model in dict.fromkeys(one.choice.model.id for one in shown):
        rows = [one for one in shown if one.choice.model.id == model]
        if several:
            yield paragraph(model, style="1", indent=0)
        yield _table(rows, comparison)
        yield BLANK
        reasons = [(_name(one, rows), reason(one, comparison)) for one in rows if not one.carries]
        if reasons:
            yield columns(("why not", ""), reasons, left=2, wrap=1)
        yield BLANK
    if total > len(shown):
        yield paragraph(f"and {total - len(shown)} more: --format csv shows all")
    for note in comparison.notes:
        yield labelled("note", note)
    if comparison.smallest is None:
        yield labelled("Try", "--tp 8,16, --replicas 1,2,4, --kv-dtype auto,fp8")
    yield labelled("Columns", _columns_said(comparison))
    yield from next_steps(_next(comparison))


def _answer(comparison: Comparison, model: str, *, several: bool) -> str:
    smallest, load = comparison.smallest_of(model), load_words(comparison.load)
    subject = f"{model}: " if several else ""
    if smallest is None:
        return f"{subject}nothing here carries {load}"
    window = [f"window {smallest.max_model_len:,}"] if smallest.max_model_len else []
    kv_dtype = [] if smallest.choice.kv_dtype == "auto" else [f"KV {smallest.choice.kv_dtype}"]
    setting = f" ({', '.join(window + kv_dtype)})" if window or kv_dtype else ""
    return f"{subject}{hardware(smallest)} is the {_first(comparison)} that carries {load}{setting}"


def _first(comparison: Comparison) -> str:
    """What candidates are ordered by: the price of all GPUs where it is known, else their memory."""
    return "cheapest" if comparison.by_price else "smallest"


def _table(rows: Sequence[Candidate], comparison: Comparison) -> Part:
    played = isinstance(comparison.load, Traffic)
    priced = any(one.price_per_hour is not None for one in comparison.candidates)
    kv_types = len({one.choice.kv_dtype for one in comparison.candidates}) > 1
    headings = ["carries", "GPUs", *(["KV"] if kv_types else []), "memory", "window", "KV pool", "at once"]
    headings += (["per s"] if played else []) + (["per hour"] if priced else [])
    cells = [
        (
            "yes" if one.carries else "no",
            hardware(one),
            *([one.choice.kv_dtype] if kv_types else []),
            format_bytes(one.choice.memory_bytes),
            count(one.max_model_len),
            "-" if one.kv_pool_bytes is None or one.kv_pool_bytes <= 0 else format_bytes(one.kv_pool_bytes),
            count(one.sequences),
            *([_rate(one)] if played else []),
            *([price(one)] if priced else []),
        )
        for one in rows
    ]
    marked = [place for place, one in enumerate(rows) if one is comparison.smallest_of(one.choice.model.id)]
    return columns(headings, cells, left={0, 1, 2} if kv_types else {0, 1}, marked=marked)


def _columns_said(comparison: Comparison) -> str:
    priced = any(one.price_per_hour is not None for one in comparison.candidates)
    played = isinstance(comparison.load, Traffic)
    held = "worst cases of the class that needs most" if played else "worst cases of this shape"
    said = ["memory: of all GPUs", "KV pool: per GPU", f"at once: {held}"]
    said += (["per s: sustainable requests"] if played else []) + (["per hour: price"] if priced else [])
    return "; ".join(said)


def _rate(one: Candidate) -> str:
    value = one.figures.get("sustainable_per_s")
    return "-" if value is None else ratio(value)


def _name(one: Candidate, rows: Sequence[Candidate]) -> str:
    """The hardware, and what else distinguishes it from the other rows."""
    parts = [hardware(one)]
    if len({each.choice.kv_dtype for each in rows}) > 1:
        parts.append(one.choice.kv_dtype)
    if len({each.choice.max_model_len for each in rows}) > 1:
        parts.append(count(one.choice.max_model_len))
    return ", ".join(parts)


def _next(comparison: Comparison) -> str:
    smallest = comparison.smallest
    if smallest is None:
        return "kvplan list gpus"
    choice = smallest.choice
    ranks = f" --tp {choice.tensor_parallel}" if choice.tensor_parallel > 1 else ""
    window = f" --max-model-len {smallest.max_model_len}" if smallest.max_model_len else ""
    kv_dtype = f" --kv-dtype {choice.kv_dtype}" if choice.kv_dtype != "auto" else ""
    return f"kvplan fit {quote(choice.model.id)} --gpu {choice.gpu.name}{ranks}{window}{kv_dtype}"


def load_words(load: ShapeLoad | Traffic) -> str:
    """The load in a few words."""
    if isinstance(load, Traffic):
        return f"the traffic of {file_name(load.file)}"
    if load.prompt_tokens is None:
        many = load.concurrency > 1
        return f"{load.concurrency:,} requests of the whole window" if many else "one request of the whole window"
    cap = "the window's end" if load.max_output_tokens is None else f"{load.max_output_tokens:,}"
    return f"{load.concurrency:,} request{'s' * (load.concurrency > 1)} of {load.prompt_tokens:,} + {cap}"


def hardware(candidate: Candidate) -> str:
    """How many of which GPU, and how they are divided into replicas."""
    choice = candidate.choice
    each = f"{choice.replicas} × {choice.tensor_parallel}" if choice.replicas > 1 else f"{choice.tensor_parallel}"
    return f"{each} × {choice.gpu.name}"


def reason(candidate: Candidate, comparison: Comparison) -> str:
    """Why the candidate falls short, or what makes it larger than the smallest; empty for the smallest."""
    smallest = comparison.smallest_of(candidate.choice.model.id)
    if candidate is smallest:
        return ""
    if not candidate.carries:
        return _why_not(candidate)
    assert smallest is not None
    if comparison.by_price and candidate.price_per_hour is not None and smallest.price_per_hour is not None:
        if candidate.price_per_hour > smallest.price_per_hour > 0:
            return f"costs {candidate.price_per_hour / smallest.price_per_hour:.3g} × the smallest"
        return "costs the same"
    times = candidate.choice.memory_bytes / smallest.choice.memory_bytes
    return f"{times:.3g} × the smallest's memory" if times > 1 else "the same hardware"


def _why_not(candidate: Candidate) -> str:
    if candidate.verdict == "limits_broken":
        broken = candidate.broken[0]
        more = f", and {len(candidate.broken) - 1} more" if len(candidate.broken) > 1 else ""
        return f"{title(broken)} {measured(broken)}, limit {bound(broken)}{more}"
    if candidate.verdict == "does_not_fit":
        if candidate.kv_pool_bytes is not None and candidate.kv_pool_bytes < 0:
            return f"does not fit: {format_bytes(-candidate.kv_pool_bytes)} short on each GPU, before any KV"
        return f"does not fit: {candidate.detail}"
    if candidate.verdict == "cannot_tell":
        return f"cannot tell: {candidate.detail}"
    return candidate.detail


def price(candidate: Candidate) -> str:
    """Price of all GPUs per hour."""
    return "-" if candidate.price_per_hour is None else ratio(candidate.price_per_hour)


_FIGURES = "kv_pool_bytes longest_window_tokens concurrency_at_max_model_len sequences price_per_hour"


def json(comparison: Comparison) -> str:
    """The document. ``smallest`` is the first candidate, or null where none carries the load."""
    candidates = [candidate_object(one, comparison) for one in comparison.candidates]
    return document(
        "compare",
        {
            "load": _load_object(comparison.load),
            "order": "price" if comparison.by_price else "memory",
            "smallest": candidates[0] if comparison.smallest is not None else None,
            "smallest_by_model": {
                model: next((one for one in candidates if one["carries"] and one["model"] == model), None)
                for model in dict.fromkeys(one.choice.model.id for one in comparison.candidates)
            },
            "candidates": candidates,
            "notes": list(comparison.notes),
        },
    )


def _load_object(load: ShapeLoad | Traffic) -> dict[str, object]:
    """What is to be carried."""
    if isinstance(load, Traffic):
        return {"traffic_file": load.file, "policy": load.admission.policy, "seed": load.seed}
    return {
        **picked(load, "prompt_tokens max_output_tokens concurrency"),
        "safety_fraction": float(load.safety_fraction),
    }


def candidate_object(one: Candidate, comparison: Comparison) -> dict[str, object]:
    """One candidate."""
    choice = one.choice
    return {
        **picked(one, "carries verdict"),
        "reason": reason(one, comparison) or None,
        "model": choice.model.id,
        "gpu": choice.gpu.name,
        **picked(choice, "gpus tensor_parallel replicas kv_dtype"),
        "max_model_len": one.max_model_len,
        "memory_bytes": choice.memory_bytes,
        **picked(one, _FIGURES),
        "broken_limits": [limit_object(limit) for limit in one.broken],
        "figures": {name: whole(value) for name, value in one.figures.items()},
    }


_PLAYED = ("sustainable_per_s", "refused_share", "gave_up_share", "truncated_share", "ttft_p99_s", "e2e_p99_s")


def csv(comparison: Comparison) -> str:
    """A row per candidate in the order of the answer, under a header; what is not known is empty."""
    written = StringIO()
    rows = writer(written, lineterminator="\n")
    for place, one in enumerate(comparison.candidates, start=1):
        row = candidate_object(one, comparison)
        del row["broken_limits"], row["figures"]
        why = row.pop("reason")
        if place == 1:
            rows.writerow(["place", *row, *_PLAYED, "reason"])
        played = [one.figures.get(name) for name in _PLAYED]
        rows.writerow([place, *map(_plain, row.values()), *map(_plain, played), _plain(why)])
    return written.getvalue()


def _plain(value: object) -> object:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else value
