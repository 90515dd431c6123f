"""``kvplan model`` as JSON (``kvplan.model``)."""

from dataclasses import asdict

from kvplan.model import ModelSpec
from kvplan.pricing import ModelPrice
from kvplan.report.json_text import document, picked
from kvplan.report.numbers import json_number


def model_object(model: ModelSpec) -> dict[str, object]:
    """What every document says of the model."""
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


def text(price: ModelPrice) -> str:
    """The document."""
    sections = {"model": model_object(price.model), "kv": _kv_object(price), "notes": list(price.notes)}
    return document("model", sections)


def _kv_object(price: ModelPrice) -> dict[str, object]:
    return {
        "dtype": price.kv_types.name,
        **picked(price, "layout tensor_parallel pipeline_parallel data_parallel context_parallel"),
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
