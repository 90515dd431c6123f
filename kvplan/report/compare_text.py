"""``kvplan compare`` as text: the smallest that carries the load, all candidates, why the others lose."""

from collections.abc import Iterator, Sequence
from shlex import quote

from kvplan.compare.results import Candidate, Comparison
from kvplan.report.compare_words import hardware, load_words, price, reason
from kvplan.report.numbers import count, format_bytes, ratio
from kvplan.report.page import BLANK, QUIET, Part, answer, columns, labelled, next_steps, paragraph
from kvplan.traffic.spec import Traffic

_MOST_ROWS = 40


def text(comparison: Comparison) -> Iterator[Part]:
    """The whole answer."""
    models = list(dict.fromkeys(one.choice.model.id for one in comparison.candidates))
    several = len(models) > 1
    for model in models:
        yield answer(_answer(comparison, model, several=several))
    carriers = sum(one.carries for one in comparison.candidates)
    total = len(comparison.candidates)
    yield paragraph(f"{carriers} of {total} candidates carry it; {_first(comparison)} first", style=QUIET, indent=0)
    yield BLANK
    shown = comparison.candidates[:_MOST_ROWS]
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
    window = f", window {smallest.max_model_len:,}" if smallest.max_model_len else ""
    kv_dtype = "" if smallest.choice.kv_dtype == "auto" else f", KV {smallest.choice.kv_dtype}"
    return f"{subject}the {_first(comparison)} for {load}: {hardware(smallest)}{window}{kv_dtype}"


def _first(comparison: Comparison) -> str:
    """What the order is by: the price of all GPUs where it is known, else their memory."""
    return "cheapest" if comparison.by_price else "smallest"


def _table(rows: Sequence[Candidate], comparison: Comparison) -> Part:
    played = isinstance(comparison.load, Traffic)
    priced = any(one.price_per_hour is not None for one in comparison.candidates)
    kv_types = len({one.choice.kv_dtype for one in comparison.candidates}) > 1
    headings = ["", "GPUs", *(["KV"] if kv_types else []), "memory", "window", "KV pool", "at once"]
    headings += (["per s"] if played else []) + (["per hour"] if priced else [])
    cells = [
        (
            "carries" if one.carries else "loses",
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
    held = "worst cases of the class of which fewest fit" if played else "worst cases of this shape"
    said = ["memory: of all GPUs", "KV pool: of each GPU", f"at once: {held}"]
    said += (["per s: requests that it can sustain"] if played else []) + (["per hour: price"] if priced else [])
    return "; ".join(said)


def _rate(one: Candidate) -> str:
    value = one.figures.get("sustainable_per_s")
    return "-" if value is None else ratio(value)


def _name(one: Candidate, rows: Sequence[Candidate]) -> str:
    """The hardware, and what else tells it from its neighbours."""
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
