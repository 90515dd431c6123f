"""``kvplan model`` as text or JSON."""

from collections.abc import Iterator
from dataclasses import asdict

from kvplan.model import ModelSpec
from kvplan.pricing import LayerRow, ModelPrice
from kvplan.report.json_text import document, picked
from kvplan.report.numbers import count, exact, format_bytes, json_number, parameters
from kvplan.report.page import BLANK, Part, answer, columns, headline, next_steps, paragraph

SHORT_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def provenance(model: ModelSpec) -> str:
    """Where the facts come from, how many parameters, the config's quantization, and the type the model runs in."""
    source = model.source
    checked = f"{source.name}, {source.checked}" if source.checked else source.name
    revision = f"@{source.revision[:12]}" if source.revision else ""
    named = model.weights.quantization
    parts = (
        f"{checked}{revision}",
        parameters(model.weights.parameters),
        f"{named} quantization" if named else None,
        SHORT_TYPES.get(model.dtype, model.dtype),
    )
    return " · ".join(part for part in parts if part)


def text(price: ModelPrice) -> Iterator[Part]:
    """The price list: per token, per layer kind, per sequence."""
    yield headline(price.model.id, provenance(price.model))
    yield answer(_answer(price))
    yield BLANK
    states = ("state bytes",) if any(row.fixed_bytes for row in price.layers) else ()
    headings = ("layers", "KV heads", "bytes/token", *states, "")
    yield columns(headings, _layer_rows(price), left={0, len(headings) - 1}, wrap=len(headings) - 1)
    yield BLANK
    yield columns(
        ("one sequence of", *(count(row.tokens) for row in price.sequences), "tokens"),
        _sequence_rows(price),
        left={0, len(price.sequences) + 1},
    )
    yield BLANK
    for note in price.notes:
        yield paragraph(note)
    yield BLANK
    yield from next_steps(f"kvplan fit {price.model.id} --gpu h100")


def _answer(price: ModelPrice) -> str:
    """What one token costs, and beside it what does not grow with every token."""
    growing, windowed = price.bytes_per_token, price.windowed_bytes_per_token
    dtype = f" in {SHORT_TYPES.get(price.kv_types.name, price.kv_types.name)}"
    parts = []
    if growing:
        parts.append(f"{exact(growing)} bytes of KV per token ({format_bytes(int(growing))})")
    if windowed:
        parts.append(f"{exact(windowed)} {'more' if growing else 'bytes of KV per token'} while windows fill")
    if price.fixed_bytes:
        parts.append(f"{exact(price.fixed_bytes)} bytes per sequence")
    first, *others = parts or ["no KV at all"]
    return ", ".join((f"{first}{dtype}", *others))


def _layer_rows(price: ModelPrice) -> Iterator[tuple[str, ...]]:
    fixed = any(row.fixed_bytes for row in price.layers)
    for row in price.layers:
        window = f" {row.window_tokens:,}" if row.window_tokens else ""
        cells = [f"{row.layers} × {row.kind}{window}", _heads(row), exact(row.bytes_per_token)]
        if fixed:
            cells.append(count(row.fixed_bytes))
        yield (*cells, row.formula)


def _sequence_rows(price: ModelPrice) -> Iterator[tuple[str, ...]]:
    yield ("holds", *(format_bytes(row.sequence_bytes) for row in price.sequences), "")
    if any(row.gpu_bytes != row.sequence_bytes for row in price.sequences):
        yield ("on one GPU", *(format_bytes(row.gpu_bytes) for row in price.sequences), "")


def _heads(row: LayerRow) -> str:
    """``8 × 128``; ``8 × 192/128`` where keys and values differ in width; ``-`` for a kind without heads."""
    if row.kv_heads is None or row.head_dim is None:
        return "-"
    differs = row.value_head_dim not in (None, row.head_dim)
    return f"{row.kv_heads} × {row.head_dim}" + (f"/{row.value_head_dim}" if differs else "")


def model_object(model: ModelSpec) -> dict[str, object]:
    """What every document says about the model."""
    return {
        "id": model.id,
        "revision": model.source.revision,
        "source": model.source.name,
        "checked": model.source.checked,
        **picked(model, "architecture max_context_tokens"),
        "parameters": model.weights.parameters,
        "weight_bytes": model.weights.stored_bytes,
        "dtype": model.dtype,
    }


def json(price: ModelPrice) -> str:
    """The document."""
    sections = {"model": model_object(price.model), "kv": _kv_object(price), "notes": list(price.notes)}
    return document("model", sections)


def _kv_object(price: ModelPrice) -> dict[str, object]:
    return {
        "dtype": price.kv_types.name,
        "layout": price.deployment.engine.name,
        **picked(price.deployment, "tensor_parallel pipeline_parallel data_parallel context_parallel"),
        "bytes_per_token": json_number(price.bytes_per_token),
        "bytes_per_token_per_gpu": json_number(price.gpu_bytes_per_token),
        "windowed_bytes_per_token": json_number(price.windowed_bytes_per_token),
        "windowed_bytes_per_token_per_gpu": json_number(price.gpu_windowed_bytes_per_token),
        "fixed_bytes_per_sequence": price.fixed_bytes,
        "fixed_bytes_per_sequence_per_gpu": price.gpu_fixed_bytes,
        "layers": [{**asdict(row), "bytes_per_token": json_number(row.bytes_per_token)} for row in price.layers],
        "sequences": [
            {"tokens": row.tokens, "bytes": row.sequence_bytes, "bytes_per_gpu": row.gpu_bytes}
            for row in price.sequences
        ],
    }
