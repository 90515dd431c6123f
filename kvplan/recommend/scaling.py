"""When to add or remove replicas: thresholds on the ledger and on each engine's own gauges."""

from kvplan.engines import engine_of, parse_engine
from kvplan.engines.statement import EngineMetrics
from kvplan.recommend.results import Played, ScalingRule
from kvplan.simulation.plant import Plant

_LEDGER_FULL_SHARE = 0.80
"""Full enough to act: the last fifth is what can still be promised while another replica starts."""


def engine_metrics(engine: str) -> EngineMetrics:
    """The names of ``engine``, written ``name`` or ``name@version``."""
    version = parse_engine(engine)
    return engine_of(version.name).metrics(version.release)


def scaling_rules(plant: Plant, fraction: float, answer: Played) -> tuple[ScalingRule, ...]:
    """Thresholds for replicas behind a worst-case front door.

    Its ledger fills before the engine does, so it is the first signal: out at 80 % reserved; in where n − 1 of n
    replicas would still be below that. The engine's KV gauge then reads used / reserved × fraction × 0.80; a rule that
    waits for 0.9 there never fires. A request that waits in the engine was admitted and should not wait at all.
    """
    names = engine_metrics(plant.engine)
    fleet = max(plant.replicas, 2)
    ledger = "kvplan_ledger_reserved / kvplan_ledger_capacity"
    rules = [
        ScalingRule(
            metric=ledger,
            direction="out",
            threshold=_LEDGER_FULL_SHARE,
            for_s=60,
            meaning="the promises are nearly all given; refusals follow",
        ),
        ScalingRule(
            metric=ledger,
            direction="in",
            threshold=round(_LEDGER_FULL_SHARE * (fleet - 1) / fleet, 2),
            for_s=600,
            meaning=f"{fleet - 1} of {fleet} replicas would still hold what is promised",
        ),
    ]
    reserved = answer.kv_reserved_mean_share
    if names.kv_usage is not None and reserved:
        gauge = answer.kv_used_mean_share / reserved * fraction * _LEDGER_FULL_SHARE
        rules.append(
            ScalingRule(
                metric=names.kv_usage,
                direction="out",
                threshold=round(gauge, 2),
                for_s=60,
                meaning="what the engine's gauge reads when the ledger is 80% full",
            )
        )
    if names.waiting is not None:
        rules.append(
            ScalingRule(
                metric=names.waiting,
                direction="out",
                threshold=1.0,
                for_s=30,
                meaning="admitted requests wait: max_num_seqs or the step time binds, not the ledger",
            )
        )
    return tuple(rules)
