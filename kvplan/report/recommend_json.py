"""``kvplan recommend`` as JSON (``kvplan.recommendation``)."""

from dataclasses import asdict

from kvplan.recommend import Advice
from kvplan.report.json_text import document, picked, plain
from kvplan.report.model import model_object


def json(advice: Advice, written: str | None = None) -> str:
    """The document; ``written`` is the traffic file's new text, if it was asked for and is not written to a file."""
    backend = advice.backend
    content = {
        "feasible": advice.feasible,
        "failed": plain(advice.failed),
        "recommendation": {
            **picked(advice, "safety_fraction default_max_tokens truncated_share"),
            "refused_share": advice.answer.refused_share,
            "e2e_p99_s": advice.answer.e2e_p99_s,
            "per_class": plain(advice.per_class),
            "per_class_unbounded": list(advice.per_class_unbounded),
            "per_class_played": plain(advice.per_class_played),
            "binds": advice.binds,
            "reason": advice.knee,
        },
        "constraints": {**asdict(advice.constraints), "sources": dict(advice.constraint_sources)},
        "safety": plain(advice.safety),
        "curves": {"caps": plain(advice.caps), "fractions": plain(advice.fractions)},
        "answer": plain(advice.answer),
        "check": {
            "first_seed": advice.check_seed,
            "truncated_share": advice.check_truncated_share,
            **asdict(advice.check),
        },
        "sensitivity": plain(advice.sensitivity),
        "price": plain(advice.price),
        "reservations": plain(advice.reservations),
        "engine": plain(advice.engine),
        "retry_after": plain(advice.retry),
        "replicas": plain(advice.fleet),
        "autoscaling": plain(advice.scaling),
        "observed": plain(advice.observed),
        "inputs": {
            "traffic_file": advice.traffic.file,
            **picked(advice, "policy seed seeds scale runs unset_share own_cap_truncated_share"),
            "assumptions": list(advice.assumptions),
        },
        "model": None if backend.model is None else model_object(backend.model),
        "pool": {
            "blocks": backend.blocks,
            "usable_blocks": backend.usable,
            "block_tokens": backend.layout.block_tokens,
            **picked(backend, "kv_bytes kv_bytes_low kv_bytes_high replicas"),
            "max_model_len": backend.settings.max_model_len,
        },
        "traffic_yaml": written,
    }
    return document("recommendation", content)
