"""``kvplan simulate`` as JSON (``kvplan.simulation``)."""

from kvplan.report.json_text import document, picked, plain
from kvplan.report.model import model_object
from kvplan.simulation.results import Simulation, StrategyResult


def json(result: Simulation) -> str:
    """The document."""
    content = {
        "inputs": plain(result.inputs),
        "model": None if result.backend.model is None else model_object(result.backend.model),
        "pool": _pool_object(result),
        "reservations": plain(result.reservations),
        "stability": plain(result.stability),
        "strategies": [_strategy_object(strategy) for strategy in result.strategies],
        "service_band": [{"factor": end.factor, **_strategy_object(end.result)} for end in result.band],
        "recommendation": plain(result.recommendation),
    }
    return document("simulation", content)


def _pool_object(result: Simulation) -> dict[str, object]:
    backend = result.backend
    return {
        **picked(backend, "kv_bytes kv_bytes_low kv_bytes_high"),
        **picked(backend.layout, "block_tokens bytes_per_block"),
        "blocks": backend.blocks,
        "usable_blocks": backend.usable,
        "ledger_blocks": result.promised_blocks,
        "replicas": backend.replicas,
        "max_model_len": backend.settings.max_model_len,
        "longest_window_tokens": backend.longest_window_tokens,
        **picked(backend.settings, "max_num_seqs max_num_batched_tokens"),
    }


def _strategy_object(strategy: StrategyResult) -> dict[str, object]:
    """One strategy over all seeds."""
    return {
        **picked(strategy, "name summary default_max_tokens ledger_capacity"),
        **{name: plain(getattr(strategy, name)) for name in ("requests", "shares")},
        **picked(strategy, "attempts refusals amplification"),
        "recovery_s": None if strategy.burst is None else strategy.burst.recovery_s,
        "burst": plain(strategy.burst),
        **picked(strategy, "preemptions recomputed_tokens over_capacity_events"),
        **{name: plain(getattr(strategy, name)) for name in ("kv", "queue_s", "ttft_s", "e2e_s")},
        **picked(strategy, "output_tokens_per_s sustainable_per_s steady"),
        "steady_reason": strategy.steady_reason or None,
        "intervals": plain(strategy.intervals),
        "worst_seed": plain(strategy.worst_seed),
        "classes": plain(strategy.classes),
    }
