"""Draws the requests of a traffic file: one random stream for each class and purpose, so request i is always draw i."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError
from kvplan.traffic.arrival_processes import arrival_times
from kvplan.traffic.arrivals import Arrivals, merged
from kvplan.traffic.distributions import UNSET, Constant, coupled
from kvplan.traffic.on_disk import filled
from kvplan.traffic.prefixes import SharedPrefix
from kvplan.traffic.spec import Traffic, TrafficClass

if TYPE_CHECKING:
    from kvplan.traffic.traces.arrays import Trace

MAX_REQUESTS = 50_000_000
"""The most that a run may draw; more would not fit into memory."""
ENOUGH_REQUESTS = 10_000
"""Enough to know a share of 1% to within 0.2%. One short run has too few requests to judge long answers."""
# The position in this tuple is part of a stream's seed: append, never reorder.
PURPOSES = (
    "arrivals",
    "rate",
    "prompt",
    "output",
    "max_tokens",
    "cancel",
    "answers",
    "other_outputs",
    "prefix",
    "correlation",
)


def stream(seed: int, class_index: int, purpose: str) -> np.random.Generator:
    """The random stream of one purpose of one class."""
    return np.random.default_rng([seed, class_index, PURPOSES.index(purpose)])


def enough_drawings(traffic: Traffic, first: Arrivals, *, seed: int, seeds: int, scale: float = 1.0) -> list[Arrivals]:
    """``first``, drawn with ``seed``, and further drawings, at most ``seeds``, until there are ``ENOUGH_REQUESTS``."""
    drawn = [first]
    while len(drawn) < seeds and sum(map(len, drawn)) < ENOUGH_REQUESTS:
        drawn.append(sample(traffic, seed + len(drawn), scale=scale))
    return drawn


def sample(traffic: Traffic, seed: int, *, scale: float = 1.0) -> Arrivals:
    """One drawing of ``traffic``: all classes in order of arrival (equal times keep the order of the classes).

    ``scale`` multiplies every rate: it shortens gaps and leaves lengths and the order of draws as they are.
    """
    if traffic.duration_s is not None:
        grown = (traffic.ramp.start + traffic.ramp.end) / 2 if traffic.ramp is not None else 1.0
        expected = sum(entry.rate_per_s for entry in traffic.classes) * traffic.duration_s * scale * grown
        if expected > MAX_REQUESTS:
            raise InputError(
                f"this run has about {expected:,.0f} requests, more than {MAX_REQUESTS:,}",
                hint="a shorter duration gives the same shares",
                file=traffic.file,
                key="traffic.duration",
            )
    drawn = [
        _replay(traffic, entry, index, seed, scale)
        if entry.trace is not None
        else _draw(traffic, entry, index, seed, scale)
        for index, entry in enumerate(traffic.classes)
    ]
    return merged(drawn, traffic.duration_s)


def _draw(traffic: Traffic, entry: TrafficClass, index: int, seed: int, scale: float) -> Arrivals:
    assert traffic.duration_s is not None
    assert entry.prompt_tokens is not None
    assert entry.output_tokens is not None
    arrival_s = arrival_times(
        entry.arrivals,
        rate_per_s=entry.rate_per_s * scale,
        duration_s=traffic.duration_s,
        gap_rng=stream(seed, index, "arrivals"),
        curve_rng=stream(seed, index, "rate"),
        ramp=traffic.ramp,
    )
    count = len(arrival_s)
    prompt = entry.prompt_tokens.draw(stream(seed, index, "prompt"), count)
    output = entry.output_tokens.draw(stream(seed, index, "output"), count)
    if entry.length_correlation:
        output = coupled(output, prompt, entry.length_correlation, stream(seed, index, "correlation"))
    answers = answer_tokens = None
    if entry.answers != Constant(value=1):
        answers = entry.answers.draw(stream(seed, index, "answers"), count)
        first = np.cumsum(answers) - answers
        answer_tokens = entry.output_tokens.draw(stream(seed, index, "other_outputs"), int(answers.sum()))
        answer_tokens[first] = output  # the first answer is the same as with n = 1
        output = np.maximum.reduceat(answer_tokens, first) if count else output
    prefixes = None
    if entry.shared_prefix is not None:
        rng = stream(seed, index, "prefix")
        prefixes = entry.shared_prefix.draw(arrival_s, prompt, rng, _block_tokens(traffic, entry.shared_prefix))
    return Arrivals(
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        answers=answers,
        answer_tokens=answer_tokens,
        max_tokens=entry.max_tokens.draw(stream(seed, index, "max_tokens"), count),
        class_index=np.zeros(count, np.int64),
        client_index=np.zeros(count, np.int64),
        timeout_s=_timeouts(entry, count),
        cancel_draw=_cancels(entry, index, seed, count),
        classes=(entry.name,),
        clients=(entry.client or "",),
        duration_s=traffic.duration_s,
        prefixes=prefixes,
    )


def _block_tokens(traffic: Traffic, own: SharedPrefix) -> int:
    """The block size of drawn prefixes: that of a trace in the mix that marks prefixes, else the finest of what the
    classes would choose."""
    for entry in traffic.classes:
        if entry.trace is not None:
            recorded = _trace(entry.trace.path, entry.trace.format, _stamp(entry.trace.path)).prefixes
            if recorded is not None:
                return entry.trace.hash_block_tokens or recorded.block_tokens
    others = (entry.shared_prefix for entry in traffic.classes if entry.shared_prefix is not None)
    return min(one.block_tokens for one in (own, *others))


def _timeouts(entry: TrafficClass, count: int) -> NDArray[np.float64]:
    return np.broadcast_to(np.float64(np.inf if entry.timeout_s is None else entry.timeout_s), count)


def _cancels(entry: TrafficClass, index: int, seed: int, count: int) -> NDArray[np.float64]:
    """For each request the share of its answer after which its user cancels; infinite for those who stay."""
    if not entry.cancel_share:
        return np.broadcast_to(np.float64(np.inf), count)
    rng = stream(seed, index, "cancel")

    def cancels(piece: slice) -> NDArray[np.float64]:
        draws = rng.random((piece.stop - piece.start, 2))
        return np.where(draws[:, 0] < entry.cancel_share, draws[:, 1], np.inf)

    column: NDArray[np.float64] = filled(count, cancels, dtype=float)
    return column


def _replay(traffic: Traffic, entry: TrafficClass, index: int, seed: int, scale: float) -> Arrivals:
    """The rows of a trace, their times divided by both scales, and caps drawn for rows that have none."""
    assert entry.trace is not None
    trace = _trace(entry.trace.path, entry.trace.format, _stamp(entry.trace.path))
    faster = entry.trace.scale * scale
    arrival_s = trace.arrival_s
    if faster != 1.0 or traffic.ramp is not None:
        arrival_s = filled(
            len(trace), lambda piece: _ramped(trace.arrival_s[piece] / faster, traffic), dtype=float, uses=(arrival_s,)
        )
    duration_s = traffic.duration_s if traffic.duration_s is not None else float(arrival_s[-1]) if len(trace) else 0.0
    kept = slice(0, len(trace) if traffic.duration_s is None else int(np.searchsorted(arrival_s, duration_s)))
    count = len(arrival_s[kept])
    asked = trace.max_tokens[kept]
    if entry.max_tokens != Constant(value=UNSET):
        rng = stream(seed, index, "max_tokens")

        def capped(piece: slice) -> NDArray[np.integer[Any]]:
            own = trace.max_tokens[piece]
            return np.where(own > 0, own, entry.max_tokens.draw(rng, len(own)))

        asked = filled(count, capped, dtype=np.int32, uses=(trace.max_tokens,))
    labels = tuple(f"{entry.name}/{label}" if label else entry.name for label in trace.classes)
    clients = tuple(label or entry.client or "" for label in trace.clients)
    prefixes = trace.prefixes
    if prefixes is not None:
        prefixes = replace(
            prefixes,
            block_tokens=entry.trace.hash_block_tokens or prefixes.block_tokens,
            ids=prefixes.ids[: prefixes.offsets[count]],
            offsets=prefixes.offsets[: count + 1],
        )
    return Arrivals(
        arrival_s=arrival_s[kept],
        prompt_tokens=trace.prompt_tokens[kept],
        output_tokens=trace.output_tokens[kept],
        max_tokens=asked,
        class_index=trace.class_index[kept],
        client_index=trace.client_index[kept],
        timeout_s=_timeouts(entry, count),
        cancel_draw=_cancels(entry, index, seed, count),
        classes=labels,
        clients=clients,
        duration_s=duration_s,
        prefixes=prefixes,
        skipped=trace.skipped,
        odd_rows=tuple(f"{entry.name}: {row}" for row in trace.notes.odd_rows),
    )


@lru_cache(maxsize=2)
def _trace(path: str, name: str, stamp: tuple[int, int]) -> "Trace":  # noqa: ARG001 - the stamp is part of the key
    """The trace, read once per process for all seeds and strategies; ``stamp`` changes when the file does."""
    from kvplan.traffic.traces.arrays import load_trace

    return load_trace(path, format=name)


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = Path(path).stat()
    except OSError:
        return 0, 0  # reading the file reports what is wrong
    return found.st_mtime_ns, found.st_size


def _ramped(arrival_s: NDArray[np.float64], traffic: Traffic) -> NDArray[np.float64]:
    """Times moved so that the ramp multiplies their rate: the solution u of R(u) = t, a quadratic in u."""
    if traffic.ramp is None:
        return arrival_s
    assert traffic.duration_s is not None
    grid = np.linspace(0.0, traffic.duration_s, 4097)
    reached = traffic.ramp.integral(grid, traffic.duration_s)
    ramped: NDArray[np.float64] = np.interp(arrival_s, reached, grid, right=np.inf)
    return ramped
