"""Plays settings: the same requests and random numbers meet every one of them, so that they differ by nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvplan.admission import STRATEGIES
from kvplan.recommend.results import Played
from kvplan.simulation.aggregate import over_seeds
from kvplan.simulation.backend import Backend
from kvplan.simulation.front_door import AppliedStrategy, apply_strategy
from kvplan.simulation.results import StrategyResult
from kvplan.simulation.tasks import RunOptions, Task, run_groups, tasks_of, watched_s
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.sample import sample
from kvplan.traffic.spec import Traffic

SAFE_POLICY = "worst_case_default_cap"
"""What is played where the file's own policy promises nothing, or fills in no cap."""
CURVE_SEEDS = 4
"""Seeds of a point on a curve; the answer and its neighbours are played on all that were asked for."""
PRICE_SEEDS = 5
"""Seeds of what the answer is compared with: no admission, and no default."""
TRIAL_SEEDS = 3
"""Seeds of a trial that is one of many: a replica more, an assumption off, a point of a picture."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One thing to play: a traffic on a backend behind a front door, on seeds ``first_seed``, + 1, ….

    ``engine_backend`` is the backend that really stands there, where it is not the one that was planned.
    """

    traffic: Traffic
    backend: Backend
    strategy: str
    cap: int
    fraction: float
    first_seed: int
    seeds: int
    scale: float = 1.0
    fills_default_cap: bool = True
    engine_backend: Backend | None = None
    takes_samples: bool = False

    def applied(self) -> AppliedStrategy:
        """The front door of this setting."""
        strategy = STRATEGIES[self.strategy]
        if self.fills_default_cap and strategy.counts == "blocks":
            strategy = replace(strategy, fills_default_cap=True)
        admission = replace(self.traffic.admission, safety_fraction=self.fraction)
        return apply_strategy(strategy, self.backend, admission, self.traffic.deployment, self.cap)


class Player:
    """Turns settings into results over the cores, counting the runs. ``planned`` is how many the search expects."""

    def __init__(self, options: RunOptions, *, planned: int = 0) -> None:
        self.options = options
        self.planned = planned
        self.runs = 0

    def play(self, settings: Sequence[Setting]) -> list[StrategyResult]:
        """The results of ``settings``, in their order."""
        groups = [self._tasks(one) for one in settings]
        before, self.runs = self.runs, self.runs + sum(len(tasks) for tasks, _, _ in groups)

        def step(done: int, _total: int) -> None:
            if self.options.progress is not None:
                self.options.progress(before + done, max(self.planned, self.runs))

        played = run_groups(
            [tasks for tasks, _, _ in groups],
            requests=max((len(first) for _, first, _ in groups), default=0),
            options=replace(self.options, progress=step),
        )
        return [
            over_seeds(tasks[0].applied, runs, first.classes, watched_s=span_s)
            for (tasks, first, span_s), runs in zip(groups, played, strict=True)
        ]

    def figures(self, settings: Sequence[Setting]) -> list[Played]:
        """What a search looks at of ``settings``, in their order."""
        return [played(result) for result in self.play(settings)]

    def _tasks(self, setting: Setting) -> tuple[list[Task], Arrivals, float]:
        traffic, applied = setting.traffic, setting.applied()
        first = sample(traffic, setting.first_seed, scale=setting.scale)
        task = tasks_of(
            traffic,
            setting.engine_backend or setting.backend,
            first,
            scale=setting.scale,
            profiles_folder=self.options.profiles_folder,
        )
        tasks = [
            task(applied=applied, seed=setting.first_seed + turn, takes_samples=setting.takes_samples and turn == 0)
            for turn in range(setting.seeds)
        ]
        return tasks, first, watched_s(traffic, first)


def played(result: StrategyResult) -> Played:
    """The figures that a search looks at."""
    return Played(
        seeds=len(result.seeds),
        refused_share=result.shares["refused_share"],
        refused_interval=result.intervals["refused_share"],
        gave_up_share=result.shares["gave_up_share"],
        rejected_permanently_share=result.shares["rejected_permanently_share"],
        preemptions=result.preemptions,
        over_capacity_events=result.over_capacity_events,
        ttft_p99_s=result.ttft_s.p99,
        e2e_p50_s=result.e2e_s.p50,
        e2e_p99_s=result.e2e_s.p99,
        output_tokens_per_s=result.output_tokens_per_s,
        kv_used_mean_share=result.kv.used_mean_share,
        kv_used_peak_share=result.kv.used_peak_share,
        kv_reserved_mean_share=result.kv.reserved_mean_share,
        offered_per_s=sum(one.offered_per_s for one in result.seeds) / len(result.seeds),
        sustainable_per_s=result.sustainable_per_s,
        steady=result.steady,
    )
