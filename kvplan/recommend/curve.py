"""Both curves: what each default cap cuts off, and what is refused under it when it is played."""

from collections.abc import Callable, Sequence
from pathlib import Path

from kvplan.recommend.caps import candidates, keeps, mean_truncated
from kvplan.recommend.player import SAFE_POLICY, TRIAL_SEEDS, Player, Setting
from kvplan.recommend.results import CapPoint, Constraints
from kvplan.simulation.bounds import judged_strategy
from kvplan.simulation.results import Simulation
from kvplan.simulation.workers import Progress
from kvplan.traffic.sample import sample

_MOST_REQUESTS = 2_000_000
"""Requests over all points from which one seed a point must do."""


def cap_points(
    settings: Sequence[Setting], truncated: Sequence[float], limits: Constraints, player: Player
) -> list[CapPoint]:
    """The default cap of each setting as it was played, and whether it keeps all constraints; ``truncated`` are the
    shares that they cut off."""
    return [
        CapPoint(default_max_tokens=one.cap, truncated_share=cut, played=figures, feasible=keeps(figures, cut, limits))
        for one, cut, figures in zip(settings, truncated, player.figures(settings), strict=True)
    ]


def cap_curve(
    simulation: Simulation,
    *,
    workers: int | None = None,
    profiles_folder: str | Path | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> tuple[CapPoint, ...]:
    """The judged strategy at each default cap worth a look, on the simulation's own first seeds.

    A strategy that fills in no cap stands back for ``worst_case_default_cap``. Nothing where every client sends a cap
    of its own: a default changes nothing there.
    """
    limits = Constraints()
    inputs, traffic, plant = simulation.inputs, simulation.traffic, simulation.plant
    drawn = sample(traffic, inputs.seed, scale=inputs.scale)
    caps = candidates([drawn], plant.settings.max_model_len, limits)
    if not caps:
        return ()
    seeds = min(inputs.seeds, TRIAL_SEEDS) if len(drawn) * len(caps) * TRIAL_SEEDS <= _MOST_REQUESTS else 1
    drawings = [drawn, *(sample(traffic, inputs.seed + turn, scale=inputs.scale) for turn in range(1, seeds))]
    judged = judged_strategy(traffic)
    player = Player(workers=workers, profiles_folder=profiles_folder, progress=progress, say=say)
    settings = [
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
    return tuple(cap_points(settings, [mean_truncated(drawings, cap) for cap in caps], limits, player))
