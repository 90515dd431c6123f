"""How many replicas carry the traffic: a closed form says where to look, simulations decide."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

from kvplan.recommend.caps import mean_truncated, meets
from kvplan.recommend.player import TRIAL_SEEDS, Player, Setting
from kvplan.recommend.results import CapPoint, Constraints, Fleet, Played
from kvplan.traffic.arrivals import Arrivals

MAX_REPLICAS = 256
"""Beyond it the traffic needs larger GPUs, not more of them."""
_MAX_RUNS = 10
"""Numbers of replicas tried before the fewest are known to be few enough; each is a run of the whole traffic."""

Trial = Callable[[int], tuple[Played, bool]]
"""Plays a number of replicas; returns the figures and whether they meet the constraints."""


def fleet(
    answer: Setting,
    *,
    points: Sequence[CapPoint],
    feasible: bool,
    drawings: Sequence[Arrivals],
    limits: Constraints,
    player: Player,
) -> Fleet:
    """The fewest replicas with which the constraints hold.

    ``feasible``: a cap meets them, so the present number or fewer. Otherwise the smallest cap within the truncation
    limit is taken, and replicas are added from the closed-form bound on until the rest holds too.
    """
    now, cap = answer.backend.replicas, answer.cap
    if not feasible:
        enough = [point.default_max_tokens for point in points if point.truncated_share <= limits.max_truncated_share]
        if points and not enough:
            reason = "no cap cuts off few enough answers, whatever the number of replicas"
            return Fleet(needed=None, now=now, default_max_tokens=cap, played=None, reason=reason)
        cap = min(enough, default=cap)
    elif now == 1:
        return Fleet(needed=1, now=1, default_max_tokens=cap, played=None, reason="one replica carries it")
    truncated = mean_truncated(drawings, cap)

    def tried(count: int) -> tuple[Played, bool]:
        backend = replace(answer.backend, replicas=count)
        (found,) = player.figures([replace(answer, backend=backend, cap=cap, seeds=min(TRIAL_SEEDS, answer.seeds))])
        return found, meets(found, truncated, limits)

    if feasible:
        needed, figures, reason = _fewer(now, tried)
    else:
        nearest = next((point.played for point in points if point.default_max_tokens == cap), None)
        needed, figures, reason = _more(now, nearest or tried(now)[0], tried, limits)
        reason += f", with a cap of {cap:,}" if needed is not None and len(points) > 1 else ""
    return Fleet(needed=needed, now=now, default_max_tokens=cap, played=figures, reason=reason)


def _fewer(now: int, tried: Trial) -> tuple[int | None, Played | None, str]:
    fewest, found = now, None
    for count in range(now - 1, max(0, now - 1 - _MAX_RUNS), -1):
        figures, is_enough = tried(count)
        if not is_enough:
            break
        fewest, found = count, figures
    return fewest, found, "fewer are enough" if fewest < now else "one less breaks a constraint"


def _more(now: int, figures: Played, tried: Trial, limits: Constraints) -> tuple[int | None, Played, str]:
    """Upwards from the closed form in steps of a quarter, then by halving; ``figures`` are those of ``now``."""
    each = figures.sustainable_per_s / now
    count = max(now + 1, ceil(figures.offered_per_s / each) if each > 0 else MAX_REPLICAS)
    low, is_enough = now, False
    for _ in range(_MAX_RUNS):
        if count > MAX_REPLICAS:
            break
        figures, is_enough = tried(count)
        if is_enough:
            break
        low, count = count, max(count + 1, ceil(count * 1.25))
    if not is_enough:
        last = f"{low} replicas still refuse {figures.refused_share:.1%}"
        if limits.max_e2e_p99_s is not None and (figures.e2e_p99_s or 0.0) > limits.max_e2e_p99_s:
            last = f"on {low} replicas the p99 is still {figures.e2e_p99_s:.0f} s: the GPU is too slow, not too few"
        elif figures.rejected_permanently_share > limits.max_refused_share:
            last = f"{figures.rejected_permanently_share:.1%} of requests exceed the window or one replica's ledger"
        return None, figures, last
    while count - low > 1:
        middle = (low + count) // 2
        between, is_enough = tried(middle)
        if is_enough:
            count, figures = middle, between
        else:
            low = middle
    return count, figures, "the fewest that meet the constraints"
