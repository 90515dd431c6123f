"""``kvplan simulate`` as JSON (``kvplan.simulation``)."""

from collections.abc import Mapping
from dataclasses import asdict

from kvplan.report.json_text import document, picked
from kvplan.report.model_json import model_object
from kvplan.simulation.results import Recommendation, Simulation, StrategyResult


def text(result: Simulation) -> str:
    """The document."""
    return document("simulation", simulation_object(result))


def simulation_object(result: Simulation) -> dict[str, object]:
    """What the document holds besides its frame."""
    return {
        "inputs": {name: _plain(value) for name, value in asdict(result.inputs).items()},
        "model": None if result.plant.model is None else model_object(result.plant.model),
        "pool": _pool_object(result),
        "reservations": [asdict(row) for row in result.reservations],
        "stability": asdict(result.stability),
        "strategies": [strategy_object(strategy) for strategy in result.strategies],
        "service_band": [{"factor": end.factor, **strategy_object(end.result)} for end in result.band],
        "recommendation": None if result.recommendation is None else recommendation_object(result.recommendation),
    }


def _pool_object(result: Simulation) -> dict[str, object]:
    plant = result.plant
    return {
        **picked(plant, "kv_bytes kv_bytes_low kv_bytes_high"),
        **picked(plant.layout, "block_tokens bytes_per_block"),
        "blocks": plant.blocks,
        "usable_blocks": plant.usable,
        "ledger_blocks": result.promised_blocks,
        "replicas": plant.replicas,
        "max_model_len": plant.settings.max_model_len,
        "longest_window_tokens": plant.longest_window_tokens,
        **picked(plant.settings, "max_num_seqs max_num_batched_tokens"),
    }


def strategy_object(strategy: StrategyResult) -> dict[str, object]:
    """One strategy over all seeds."""
    return {
        **picked(strategy, "name summary default_max_tokens ledger_capacity"),
        "requests": asdict(strategy.requests),
        "shares": dict(strategy.shares),
        **picked(strategy, "attempts refusals amplification"),
        "recovery_s": None if strategy.burst is None else strategy.burst.recovery_s,
        "burst": None if strategy.burst is None else asdict(strategy.burst),
        **picked(strategy, "preemptions recomputed_tokens over_capacity_events"),
        "kv": asdict(strategy.kv),
        "queue_s": asdict(strategy.queue_s),
        "ttft_s": asdict(strategy.ttft_s),
        "e2e_s": asdict(strategy.e2e_s),
        **picked(strategy, "output_tokens_per_s sustainable_per_s steady"),
        "steady_reason": strategy.steady_reason or None,
        "intervals": {name: list(ends) for name, ends in strategy.intervals.items()},
        "worst_seed": dict(strategy.worst_seed),
        "classes": [{name: _plain(value) for name, value in asdict(one).items()} for one in strategy.classes],
    }


def recommendation_object(advice: Recommendation) -> dict[str, object]:
    """The recommendation."""
    return {
        **picked(advice, "safety_fraction default_max_tokens truncated_share refused_share"),
        "per_class": [asdict(one) for one in advice.per_class],
        **picked(advice, "binds reason"),
        "terms": dict(advice.terms),
    }


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value
