"""``kvplan calibrate`` as JSON (``kvplan.calibration``)."""

from kvplan.calibration import Calibration
from kvplan.report.fit_json import budget_object, finding_object
from kvplan.report.json_text import document, picked

_LOG = (
    "total_bytes requested_bytes weight_bytes activation_bytes non_torch_bytes graph_estimate_bytes graph_bytes "
    "compute_bytes state_bytes kv_bytes blocks kv_tokens concurrency concurrency_tokens max_model_len max_num_seqs "
    "max_num_batched_tokens"
)
_TERM = "name planned_bytes logged_bytes difference_bytes"
_REFUSAL = "line reason text max_model_len needed_bytes available_bytes estimated_max_model_len"


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
                **picked(start, _LOG),
                "memory_utilization_share": start.memory_utilization,
                "tensor_parallel": start.tensor_parallel,
            },
            "terms": [picked(term, _TERM) for term in found.terms],
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
            "misleading": [picked(line, "line text reason") for line in found.misleading],
            "refusals": [picked(refusal, _REFUSAL) for refusal in start.refusals],
            "findings": [finding_object(finding) for finding in found.findings],
            "calibration_file": calibration_file,
        },
    )
