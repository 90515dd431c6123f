"""``kvplan calibrate`` as JSON (``kvplan.calibration``)."""

from kvplan.calibration import Calibration, TermDifference
from kvplan.report.fit_json import budget_object, finding_object
from kvplan.report.json_text import document


def text(found: Calibration, calibration_file: str) -> str:
    """The comparison, and the text of the file that reproduces the log."""
    start, plan = found.start, found.planned.plan
    calibrated = found.calibrated
    culprit = found.culprit
    return document(
        "calibration",
        {
            "model": {"id": found.planned.model.id, "as_printed": start.model},
            "engine": str(found.deployment.engine),
            "engine_version": start.version,
            "lines": {"first": start.first_line, "last": start.last_line},
            "log": {
                "total_bytes": start.total_bytes,
                "requested_bytes": start.requested_bytes,
                "weight_bytes": start.weight_bytes,
                "activation_bytes": start.activation_bytes,
                "non_torch_bytes": start.non_torch_bytes,
                "graph_estimate_bytes": start.graph_estimate_bytes,
                "graph_bytes": start.graph_bytes,
                "compute_bytes": start.compute_bytes,
                "state_bytes": start.state_bytes,
                "kv_bytes": start.kv_bytes,
                "blocks": start.blocks,
                "kv_tokens": start.kv_tokens,
                "concurrency": start.concurrency,
                "concurrency_tokens": start.concurrency_tokens,
                "max_model_len": start.max_model_len,
                "max_num_seqs": start.max_num_seqs,
                "max_num_batched_tokens": start.max_num_batched_tokens,
                "memory_utilization_share": start.memory_utilization,
                "tensor_parallel": start.tensor_parallel,
            },
            "terms": [_term(term) for term in found.terms],
            "culprit": None if culprit is None else culprit.name,
            "pool": {
                "kv_bytes_planned": plan.kv_bytes,
                "kv_bytes_logged": found.kv_bytes_logged,
                "blocks_planned": plan.blocks,
                "kv_bytes_calibrated": calibrated.plan.kv_bytes,
                "blocks_calibrated": calibrated.plan.blocks,
                "tokens_calibrated": calibrated.pool_tokens,
                "concurrency_calibrated": float(calibrated.concurrency),
            },
            "budget": None if calibrated.plan.budget is None else budget_object(calibrated.plan.budget),
            "corrections": dict(found.corrections),
            "misleading": [{"line": line.line, "text": line.text, "reason": line.reason} for line in found.misleading],
            "refusals": [
                {
                    "line": refusal.line,
                    "reason": refusal.reason,
                    "text": refusal.text,
                    "max_model_len": refusal.max_model_len,
                    "needed_bytes": refusal.needed_bytes,
                    "available_bytes": refusal.available_bytes,
                    "estimated_max_model_len": refusal.estimated_max_model_len,
                }
                for refusal in start.refusals
            ],
            "findings": [finding_object(finding) for finding in found.findings],
            "calibration_file": calibration_file,
        },
    )


def _term(term: TermDifference) -> dict[str, object]:
    return {
        "name": term.name,
        "planned_bytes": term.planned_bytes,
        "logged_bytes": term.logged_bytes,
        "difference_bytes": term.difference_bytes,
    }
