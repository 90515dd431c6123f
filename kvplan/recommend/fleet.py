"""How many replicas carry the traffic: the closed form says where to look, played runs decide."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

from kvplan.recommend.caps import keeps, mean_truncated
from kvplan.recommend.player import TRIAL_SEEDS, Player, Setting, played
from kvplan.recommend.results import CapPoint, Constraints, Fleet, Played
from kvplan.traffic.kinds import Arrivals

MOST_REPLICAS = 256
_MOST_RUNS = 10
"""Numbers of replicas tried before the fewest are known to be few enough; each is a run of the whole traffic."""

Trial = Callable[[int], Played]


def fleet(
    answer: Setting,
    *,
    points: Sequence[CapPoint],
    kept: bool,
    drawings: Sequence[Arrivals],
    limits: Constraints,
    player: Player,
) -> Fleet:
    """The fewest replicas at which the constraints hold.

    With a feasible cap: as many as there are, or fewer if fewer do. Without one: the cap is the least that keeps the
    truncation limit, and replicas are added from the closed-form bound on until the rest holds too.
    """
    now = answer.plant.replicas
    cap = answer.cap
    if not kept:
        enough = [point.default_max_tokens for point in points if point.truncated_share <= limits.max_truncated_share]
        if points and not enough:
            return Fleet(
                needed=None,
                now=now,
                default_max_tokens=cap,
                played=None,
                reason="no cap cuts off few enough answers, whatever the number of replicas",
            )
        cap = min(enough, default=cap)
    elif now == 1:
        return Fleet(needed=1, now=1, default_max_tokens=cap, played=None, reason="one replica carries it")
    truncated = mean_truncated(drawings, cap)

    def tried(count: int) -> Played:
        plant = replace(answer.plant, replicas=count)
        setting = replace(answer, plant=plant, cap=cap, seeds=min(TRIAL_SEEDS, answer.seeds))
        return played(player.play([setting])[0])

    if kept:
        return _fewer(now, cap, tried, truncated, limits)
    return _more(answer, cap, tried, truncated, limits, points)


def _fewer(now: int, cap: int, tried: Trial, truncated: float, limits: Constraints) -> Fleet:
    fewest, found = now, None
    for count in range(now - 1, max(0, now - 1 - _MOST_RUNS), -1):
        figures = tried(count)
        if not keeps(figures, truncated, limits):
            break
        fewest, found = count, figures
    reason = "fewer are enough" if fewest < now else "one less breaks a constraint"
    return Fleet(needed=fewest, now=now, default_max_tokens=cap, played=found, reason=reason)


def _more(
    answer: Setting,
    cap: int,
    tried: Trial,
    truncated: float,
    limits: Constraints,
    points: Sequence[CapPoint],
) -> Fleet:
    now = answer.plant.replicas
    nearest = next((point.played for point in points if point.default_max_tokens == cap), None)
    figures = nearest or tried(now)
    each = figures.sustainable_per_s / now
    count = max(now + 1, ceil(figures.offered_per_s / each) if each > 0 else MOST_REPLICAS)
    low, first = now, None
    for _ in range(_MOST_RUNS):
        if count > MOST_REPLICAS:
            break
        figures = tried(count)
        if keeps(figures, truncated, limits):
            first = (count, figures)
            break
        low = count
        count = max(count + 1, ceil(count * 1.25))
    if first is None:
        last = f"{low} replicas still refuse {figures.refused_share:.1%}"
        if limits.max_e2e_p99_s is not None and (figures.e2e_p99_s or 0.0) > limits.max_e2e_p99_s:
            last = f"on {low} replicas the p99 is still {figures.e2e_p99_s:.0f} s: the GPU is too slow, not too few"
        elif figures.rejected_permanently_share > limits.max_refused_share:
            last = f"{figures.rejected_permanently_share:.1%} of requests exceed the window or one replica's ledger"
        return Fleet(needed=None, now=now, default_max_tokens=cap, played=figures, reason=last)
    count, figures = first
    while count - low > 1:
        middle = (low + count) // 2
        between = tried(middle)
        if keeps(between, truncated, limits):
            count, figures = middle, between
        else:
            low = middle
    return Fleet(
        needed=count,
        now=now,
        default_max_tokens=cap,
        played=figures,
        reason="the fewest that keep the constraints" + (f", with a cap of {cap:,}" if len(points) > 1 else ""),
    )
