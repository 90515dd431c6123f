"""How long the effect of a burst lasts: from its end until no more requests wait than did before it."""

from dataclasses import dataclass, replace

import numpy as np

from kvplan.simulation.types import Floats, RequestRows, Requests
from kvplan.traffic.on_disk import forget, is_long, pieces

SPAN_S = 60.0
SPANS = 20
"""Arrivals are counted per minute, or per twentieth of the watched time if that is shorter."""
_CELLS = 2**18
"""Times of the grid on which a long run is counted."""
_TIMES_USUAL = 1.5
_NOISE = 5.0
"""A burst is above 1.5 × the usual count, and above it by five standard deviations of a Poisson count."""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """The largest burst of a run. ``recovery_s`` runs from its end; None: not within the watched time."""

    start_s: float
    end_s: float
    peak_per_s: float
    usual_per_s: float
    waiting_before: float
    recovery_s: float | None


def recovery(requests: Requests, rows: RequestRows, from_s: float, until_s: float) -> Recovery | None:
    """The burst between two times, and how long until its queue has cleared; None without a burst.

    The burst is the minute with the most arrivals (minutes start at ``from_s``; the first of equals), if it stands out
    from the median minute. Waiting at t are requests that arrived by t and are neither scheduled by the engine nor
    gone, those that will retry included. The level before is the median of that over the time from ``from_s`` to the
    burst (0 for a burst in the first minute). The queue has cleared at the first moment from the end of the burst on at
    which no more than this level wait.
    """
    span_s = min(SPAN_S, (until_s - from_s) / SPANS)
    if not span_s > 0 or not len(requests.arrival_s):
        return None
    spans = max(round((until_s - from_s) / span_s), 1)
    counts = np.zeros(spans, np.int64)
    for piece in pieces(len(requests.arrival_s)):
        watched = requests.arrival_s[piece]
        watched = watched[(watched >= from_s) & (watched < until_s)]
        counts += np.bincount(np.minimum(((watched - from_s) / span_s).astype(np.int64), spans - 1), minlength=spans)
    forget(requests)
    peak, usual = int(counts.argmax()), float(np.median(counts))
    if counts[peak] <= max(_TIMES_USUAL * usual, usual + _NOISE * max(usual, 1.0) ** 0.5):
        return None
    start_s = from_s + peak * span_s
    end_s = start_s + span_s
    long = is_long(len(requests.arrival_s))
    times_s, waiting = _waiting_on_a_grid(requests, rows, until_s) if long else _waiting(requests, rows)
    level = _median(times_s, waiting, from_s, start_s)
    return Recovery(
        start_s=start_s,
        end_s=end_s,
        peak_per_s=float(counts[peak]) / span_s,
        usual_per_s=usual / span_s,
        waiting_before=level,
        recovery_s=_first_at_most(times_s, waiting, level, end_s, until_s),
    )


def _waiting(requests: Requests, rows: RequestRows) -> tuple[Floats, Floats]:
    """Times, and how many requests wait from each of them on; the first time is −inf."""
    comes_s, goes_s = _comes_and_goes(requests, rows)
    times_s = np.concatenate([[-np.inf], comes_s, goes_s])
    steps = np.concatenate([[0.0], np.ones(len(comes_s)), -np.ones(len(goes_s))])
    order = np.argsort(times_s, kind="stable")
    times_s, waiting = times_s[order], np.cumsum(steps[order])
    last = np.append(times_s[1:] != times_s[:-1], True)  # what holds after everything at one instant
    return times_s[last], waiting[last]


def _comes_and_goes(requests: Requests, rows: RequestRows) -> tuple[Floats, Floats]:
    """When requests begin to wait, and when they are scheduled or gone."""
    ends_s = np.fmin(np.fmin(rows.scheduled_s, rows.gave_up_s), rows.finish_s)
    waits = (rows.attempts > 0) & ~requests.refused_for_good
    goes_s = ends_s[waits]
    return requests.arrival_s[waits], goes_s[~np.isnan(goes_s)]


def _waiting_on_a_grid(requests: Requests, rows: RequestRows, until_s: float) -> tuple[Floats, Floats]:
    """``_waiting`` of a long run, on a grid of 2^18 times."""
    start_s, steps = float(requests.arrival_s[0]), np.zeros(_CELLS + 1)
    cell_s = (until_s - start_s) / _CELLS
    alone = replace(requests, chain=None, chain_start=None)
    for piece in pieces(len(requests.arrival_s)):
        for sign, times_s in zip((1, -1), _comes_and_goes(alone.part(piece), rows.part(piece)), strict=True):
            cells = np.minimum((times_s - start_s) / cell_s, _CELLS).astype(np.int64)
            steps += sign * np.bincount(cells, minlength=_CELLS + 1)
        forget(requests, rows)
    ends_s = start_s + cell_s * np.arange(1, _CELLS + 1)
    return np.concatenate([[-np.inf], ends_s]), np.concatenate([[0.0], np.cumsum(steps[:_CELLS])])


def _median(times_s: Floats, waiting: Floats, from_s: float, until_s: float) -> float:
    """The median over time of a step function; 0 where there is no time."""
    low = np.clip(times_s, from_s, until_s)
    length_s = np.diff(np.append(low, until_s))
    if length_s.sum() <= 0:
        return 0.0
    order = np.argsort(waiting, kind="stable")
    reached = np.cumsum(length_s[order])
    return float(waiting[order][np.searchsorted(reached, reached[-1] / 2)])


def _first_at_most(times_s: Floats, waiting: Floats, level: float, from_s: float, until_s: float) -> float | None:
    """Seconds from ``from_s`` until the step function is at ``level`` or below; None where not before ``until_s``."""
    start = int(np.searchsorted(times_s, from_s, side="right")) - 1
    if waiting[start] <= level:
        return 0.0
    low = np.flatnonzero(waiting[start:] <= level)
    if not len(low) or times_s[start + low[0]] >= until_s:
        return None
    return float(times_s[start + low[0]] - from_s)
