"""Both curves of a simulation: what each round cap cuts off, and what is refused under it, for a picture or a page."""

from collections.abc import Callable
from pathlib import Path

from kvplan.recommend.caps import candidates, cap_point, mean_truncated
from kvplan.recommend.player import SAFE_POLICY, TRIAL_SEEDS, Player, Setting, played
from kvplan.recommend.results import CapPoint, Constraints
from kvplan.simulation.bounds import judged_strategy
from kvplan.simulation.results import Simulation
from kvplan.simulation.workers import Progress
from kvplan.traffic.sample import sample

_MOST_REQUESTS = 2_000_000
"""Requests over all points from which one seed a point must do."""


def cap_curve(
    simulation: Simulation,
    *,
    limits: Constraints | None = None,
    workers: int | None = None,
    profiles_folder: str | Path | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[CapPoint, ...]:
    """The judged strategy at each default cap worth a look, on the simulation's own first seeds.

    A strategy that fills in no cap stands back for ``worst_case_default_cap``. Nothing where every client sends a cap
    of its own: a default changes nothing there.
    """
    limits = limits or Constraints()
    inputs, traffic, plant = simulation.inputs, simulation.traffic, simulation.plant
    drawn = sample(traffic, inputs.seed, scale=inputs.scale)
    caps = candidates([drawn], plant.settings.max_model_len, limits)
    if not caps:
        return ()
    seeds = min(inputs.seeds, TRIAL_SEEDS) if len(drawn) * len(caps) * TRIAL_SEEDS <= _MOST_REQUESTS else 1
    drawings = [drawn, *(sample(traffic, inputs.seed + turn, scale=inputs.scale) for turn in range(1, seeds))]
    judged = judged_strategy(traffic)
    player = Player(workers=workers, profiles_folder=profiles_folder, progress=progress, say=say)
    results = player.play(
        [
            Setting(
                traffic=traffic,
                plant=plant,
                strategy=judged.name if judged.fills_default_cap else SAFE_POLICY,
                cap=cap,
                fraction=inputs.safety_fraction,
                first_seed=inputs.seed,
                seeds=seeds,
                scale=inputs.scale,
            )
            for cap in caps
        ]
    )
    return tuple(
        cap_point(cap, played(result), mean_truncated(drawings, cap), limits)
        for cap, result in zip(caps, results, strict=True)
    )
