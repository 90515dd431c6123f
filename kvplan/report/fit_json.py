"""``kvplan fit`` as JSON (``kvplan.fit``)."""

from collections.abc import Mapping, Sequence

from kvplan.capacity import Fit
from kvplan.engines.engine_plan import Budget, Finding
from kvplan.errors import KvplanError
from kvplan.remedies import Remedy
from kvplan.report.json_text import document, picked
from kvplan.report.model import model_object

_RESERVATION = "name prompt_tokens max_output_tokens reserved_tokens reserved_bytes logical_bytes blocks sequences"


def json(fit: Fit, flags: Mapping[str, object], remedies: Sequence[Remedy]) -> str:
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
    """The document where kvplan cannot tell: only the reason is known."""
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
    return picked(finding, "code severity message hint")


def _deployment_object(fit: Fit) -> dict[str, object]:
    asked, settings = fit.deployment, fit.plan.settings
    return {
        "engine": str(asked.engine),
        "gpu": None if asked.gpu is None else asked.gpu.name,
        "gpus": asked.gpus,
        "gpu_memory_bytes": None if asked.gpu_memory_bytes is None else list(asked.gpu_memory_bytes),
        **picked(asked, "tensor_parallel pipeline_parallel data_parallel context_parallel expert_parallel"),
        "kv_dtype": fit.plan.kv_types.name,
        **picked(settings, "max_model_len max_num_seqs max_num_batched_tokens"),
        "memory_utilization_share": float(settings.memory_utilization),
        **picked(settings, "async_scheduling prefix_caching in_flight_tokens"),
        **picked(asked, "hybrid_kv_cache_manager enforce_eager kv_memory_bytes other_processes_bytes"),
    }


def budget_object(budget: Budget) -> dict[str, object]:
    """One rank's memory.

    The named terms are sums of those ``terms`` that lie inside the engine's share, so that they and ``kv_bytes`` add up
    to ``requested_bytes``; the rest is ``other_bytes``.
    """
    inside = dict.fromkeys(("weight", "activation", "non_torch", "graph", "other"), 0)
    for term in budget.terms:
        inside[term.kind] += term.bytes if term.inside_fraction else 0
    return {
        **picked(budget, "rank total_bytes requested_bytes"),
        **{f"{kind}_bytes": amount for kind, amount in inside.items()},
        **picked(budget, "kv_bytes kv_bytes_low kv_bytes_high"),
        "terms": [picked(term, "name bytes formula inside_fraction") for term in budget.terms],
    }


def _pool_object(fit: Fit) -> dict[str, object]:
    layout = fit.plan.layout
    return {
        "kv_bytes": fit.plan.kv_bytes,
        **picked(layout, "block_tokens bytes_per_block"),
        "blocks": fit.plan.blocks,
        "tokens": fit.pool_tokens,
        "groups": [
            {
                **picked(group, "kind layers block_tokens window_tokens"),
                "blocks_per_request": group.request_blocks(fit.max_model_len, layout.in_flight_tokens),
            }
            for group in layout.groups
        ],
    }


def _capacity_object(fit: Fit) -> dict[str, object]:
    return {
        **picked(fit, "max_model_len longest_window_tokens default_max_tokens"),
        "concurrency_at_max_model_len": float(fit.concurrency),
        "concurrency_all_replicas": float(fit.concurrency_all_replicas),
        "reservations": [picked(each, _RESERVATION) for each in fit.reservations],
    }
