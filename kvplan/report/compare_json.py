"""``kvplan compare`` as JSON (``kvplan.compare``)."""

from kvplan.compare.results import Candidate, Comparison, ShapeLoad
from kvplan.report.check_json import limit_object, whole
from kvplan.report.compare_words import reason
from kvplan.report.json_text import document, picked
from kvplan.traffic.spec import Traffic

_FIGURES = "kv_pool_bytes longest_window_tokens concurrency_at_max_model_len sequences price_per_hour"


def text(comparison: Comparison) -> str:
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
