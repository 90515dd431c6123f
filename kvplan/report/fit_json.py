"""``kvplan fit`` as JSON (``kvplan.fit``)."""

from collections.abc import Mapping, Sequence

from kvplan.capacity import Fit, Reservation
from kvplan.engines.base import Budget, Deployment, Finding
from kvplan.errors import KvplanError
from kvplan.remedies import Remedy
from kvplan.report.json_text import document
from kvplan.report.model_json import model_object


def text(fit: Fit, flags: Mapping[str, object], remedies: Sequence[Remedy]) -> str:
    """The document of a plan."""
    return document(
        "fit",
        {
            "model": model_object(fit.model),
            "deployment": _deployment_object(fit),
            "budget": None if fit.plan.budget is None else budget_object(fit.plan.budget),
            "pool": _pool_object(fit),
            "capacity": _capacity_object(fit),
            "flags": dict(flags),
            "verdict": fit.verdict,
            "findings": [finding_object(finding) for finding in fit.findings],
            "remedies": [
                {
                    "change": remedy.change,
                    "kv_bytes": remedy.fit.plan.kv_bytes,
                    "max_model_len": remedy.fit.max_model_len,
                    "concurrency_at_max_model_len": float(remedy.fit.concurrency),
                }
                for remedy in remedies
            ],
        },
    )


def refusal(reference: str, error: KvplanError) -> str:
    """The document where kvplan cannot tell: nothing is known but why."""
    finding = Finding(code="not-modelled", severity="error", message=error.message, hint=error.hint)
    return document(
        "fit",
        {
            "model": {"id": reference},
            "deployment": None,
            "budget": None,
            "pool": None,
            "capacity": None,
            "flags": {},
            "verdict": "cannot_tell",
            "findings": [{**finding_object(finding), "file": error.file, "line": error.line, "key": error.key}],
            "remedies": [],
            "exit_code": error.exit_code,
            "message": error.message,
            "hint": error.hint,
        },
    )


def finding_object(finding: Finding) -> dict[str, object]:
    """One finding."""
    return {
        "code": finding.code,
        "severity": finding.severity,
        "message": finding.message,
        "hint": finding.hint,
    }


def _deployment_object(fit: Fit) -> dict[str, object]:
    asked: Deployment = fit.deployment
    settings = fit.plan.settings
    return {
        "engine": str(asked.engine),
        "gpu": None if asked.gpu is None else asked.gpu.name,
        "gpus": asked.gpus,
        "gpu_memory_bytes": None if asked.gpu_memory_bytes is None else list(asked.gpu_memory_bytes),
        "tensor_parallel": asked.tensor_parallel,
        "pipeline_parallel": asked.pipeline_parallel,
        "data_parallel": asked.data_parallel,
        "context_parallel": asked.context_parallel,
        "expert_parallel": asked.expert_parallel,
        "kv_dtype": fit.plan.kv_types.name,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "memory_utilization_share": float(settings.memory_utilization),
        "async_scheduling": settings.async_scheduling,
        "prefix_caching": settings.prefix_caching,
        "in_flight_tokens": settings.in_flight_tokens,
        "hybrid_kv_cache_manager": asked.hybrid_kv_cache_manager,
        "enforce_eager": asked.enforce_eager,
        "kv_memory_bytes": asked.kv_memory_bytes,
    }


def budget_object(budget: Budget) -> dict[str, object]:
    """One rank's memory. The named terms repeat those of ``terms`` that lie inside the engine's share, so that they and
    ``kv_bytes`` sum to ``requested_bytes``; what has no name of its own is ``other_bytes``."""
    inside = dict.fromkeys(("weight", "activation", "non_torch", "graph", "other"), 0)
    for term in budget.terms:
        inside[term.sort] += term.bytes if term.inside_fraction else 0
    return {
        "rank": budget.rank,
        "total_bytes": budget.total_bytes,
        "requested_bytes": budget.requested_bytes,
        **{f"{sort}_bytes": amount for sort, amount in inside.items()},
        "kv_bytes": budget.kv_bytes,
        "kv_bytes_low": budget.kv_bytes_low,
        "kv_bytes_high": budget.kv_bytes_high,
        "terms": [
            {
                "name": term.name,
                "bytes": term.bytes,
                "formula": term.formula,
                "inside_fraction": term.inside_fraction,
            }
            for term in budget.terms
        ],
    }


def _pool_object(fit: Fit) -> dict[str, object]:
    layout = fit.plan.layout
    return {
        "kv_bytes": fit.plan.kv_bytes,
        "block_tokens": layout.block_tokens,
        "bytes_per_block": layout.bytes_per_block,
        "blocks": fit.plan.blocks,
        "tokens": fit.pool_tokens,
        "groups": [
            {
                "kind": group.kind,
                "layers": group.layers,
                "block_tokens": group.block_tokens,
                "window_tokens": group.window_tokens,
                "blocks_per_request": group.request_blocks(fit.max_model_len, layout.in_flight_tokens),
            }
            for group in layout.groups
        ],
    }


def _capacity_object(fit: Fit) -> dict[str, object]:
    return {
        "max_model_len": fit.max_model_len,
        "longest_window_tokens": fit.longest_window_tokens,
        "concurrency_at_max_model_len": float(fit.concurrency),
        "concurrency_all_replicas": float(fit.concurrency_all_replicas),
        "reservations": [_reservation_object(each) for each in fit.reservations],
    }


def _reservation_object(each: Reservation) -> dict[str, object]:
    return {
        "name": each.name,
        "prompt_tokens": each.prompt_tokens,
        "max_output_tokens": each.max_output_tokens,
        "reserved_tokens": each.reserved_tokens,
        "reserved_bytes": each.reserved_bytes,
        "logical_bytes": each.logical_bytes,
        "blocks": each.blocks,
        "sequences": each.sequences,
    }
