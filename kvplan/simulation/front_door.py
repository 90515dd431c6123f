"""The front door and its clients: a strategy applied to the backend, caps and charges of all requests, retry rules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from kvplan.admission import STRATEGIES, RequestSize, Strategy
from kvplan.engines.engine_plan import CacheLayout
from kvplan.profiles.kinds import ClientProfile
from kvplan.profiles.loader import load_retry_loops
from kvplan.simulation.backend import Backend
from kvplan.simulation.types import UNLIMITED, ClientRule, Floats, FrontDoor, Integers, Requests, RetryAfter, Router
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.on_disk import forget, is_long, pieces, zeros
from kvplan.traffic.spec import AdmissionPlan, PlannedDeployment, Traffic

_CLIENT_STREAM, _SERVER_STREAM = 1, 2
_STREAM_BASE = 2**32  # above every class index, so that no class shares a stream with these
ENGINE_QUEUE_FACTOR = 2
"""``engine_queue`` where the file sets no cap: the engine admits this many times max_num_seqs requests."""


@dataclass(frozen=True, kw_only=True)
class AppliedStrategy:
    """A strategy at the front door of a backend. ``default_max_tokens`` is None where the strategy fills in none."""

    strategy: Strategy
    default_max_tokens: int | None
    front_door: FrontDoor

    @property
    def capacity(self) -> int:
        """What the ledger of one replica holds, in the strategy's unit."""
        return self.front_door.capacity


def charged_blocks(layout: CacheLayout, tokens: Integers) -> Integers:
    """``layout.request_blocks`` of every entry, computed once for each number of tokens that occurs."""
    counts, index = np.unique(tokens, return_inverse=True)
    return np.array([layout.request_blocks(count) for count in counts.tolist()], np.int64)[index]


def judged_strategy(traffic: Traffic) -> Strategy:
    """The strategy that ``check`` judges: the file's policy. Where the file has a default cap, ``worst_case`` fills it
    in, as the gateway does."""
    name = traffic.admission.policy
    if name == "worst_case" and traffic.admission.default_max_tokens is not None:
        name = "worst_case_default_cap"
    return STRATEGIES[name]


def apply_strategy(
    strategy: Strategy, backend: Backend, admission: AdmissionPlan, deployment: PlannedDeployment, default_cap: int
) -> AppliedStrategy:
    """``strategy`` in front of ``backend``; ``default_cap`` is for strategies that fill one in."""
    seqs = backend.settings.max_num_seqs
    capacity, inside, queued_tokens = UNLIMITED, UNLIMITED, UNLIMITED
    if strategy.counts == "blocks":
        capacity = backend.promised_blocks(admission.safety_fraction)
    elif strategy.counts == "requests":
        capacity = admission.concurrency or seqs
    if strategy.engine_caps:
        requests, queued_tokens = deployment.max_queued_requests, deployment.max_queued_tokens or UNLIMITED
        if requests is None and deployment.max_queued_tokens is None:
            requests = ENGINE_QUEUE_FACTOR * seqs
        inside = UNLIMITED if requests is None else requests
    answer = admission.retry_after
    return AppliedStrategy(
        strategy=strategy,
        default_max_tokens=default_cap if strategy.fills_default_cap else None,
        front_door=FrontDoor(
            capacity=capacity,
            max_inside=inside,
            max_queued_tokens=queued_tokens,
            retry_after=RetryAfter(seconds=answer.seconds, jitter_share=answer.jitter_share),
            replicas=backend.replicas,
            router=Router.MIN_RESERVED if deployment.router == "least_reserved" else Router.ROUND_ROBIN,
        ),
    )


def effective_caps(max_tokens: Integers, prompt_tokens: Integers, window_tokens: int, default: int | None) -> Integers:
    """``admission.effective_cap`` of every request; ``max_tokens`` 0: the client sent none."""
    room = window_tokens - prompt_tokens
    unset = room if default is None else np.minimum(default, room)
    return np.where(max_tokens > 0, np.minimum(max_tokens, room), unset).astype(np.int64)


def requests_for(
    arrivals: Arrivals,
    applied: AppliedStrategy,
    backend: Backend,
    *,
    seed: int,
    client_timeouts_s: Sequence[float],
    expected_output_tokens: Sequence[int],
    tries_again: bool = True,
) -> Requests:
    """Every arrival with its cap, its charge, and whether it can ever be served.

    ``expected_output_tokens`` is the p95 of the answers of each class. A user who cancels does so after a drawn share
    of the time that the answer would take on an idle engine. ``tries_again`` False: no client retries, so the random
    numbers of waits are not drawn.
    """
    draws = [np.random.default_rng([seed, _STREAM_BASE, name]) for name in (_CLIENT_STREAM, _SERVER_STREAM)]
    make = partial(
        _asked,
        applied=applied,
        backend=backend,
        client_timeouts_s=client_timeouts_s,
        expected=np.array(expected_output_tokens, np.int64),
        draws=draws if tries_again else [],
    )
    count = len(arrivals)
    if not is_long(count) or arrivals.answers is not None:
        return make(arrivals)
    made: dict[str, Any] = {name: zeros(count, dtype) for name, dtype in _MADE.items()}
    for piece, drawn in zip(pieces(count), arrivals.parts(), strict=True):
        part = make(drawn)
        for name, column in made.items():
            column[piece] = getattr(part, name)
        forget(*made.values())
    return replace(
        part,
        arrival_s=arrivals.arrival_s,
        prompt_tokens=arrivals.prompt_tokens,
        output_tokens=arrivals.output_tokens,
        client=arrivals.client_index,
        **made,
    )


_MADE = {
    "cap_tokens": np.int32,
    "charge": np.int64,
    "refused_for_good": np.bool_,
    "time_out_s": np.float64,
    "cancel_s": np.float64,
    "client_draw": np.float64,
    "server_draw": np.float64,
}
"""The columns of a long run that are not those of its arrivals; they are kept on disk."""


def _asked(
    arrivals: Arrivals,
    *,
    applied: AppliedStrategy,
    backend: Backend,
    client_timeouts_s: Sequence[float],
    expected: Integers,
    draws: Sequence[np.random.Generator],
) -> Requests:
    """The requests of some arrivals; ``draws`` are the random numbers of clients and server, or none."""
    window, strategy = backend.settings.max_model_len, applied.strategy
    prompt = arrivals.prompt_tokens
    cap = np.maximum(effective_caps(arrivals.max_tokens, prompt, window, applied.default_max_tokens), 1)
    charge = _charges(strategy, backend.layout, prompt, cap, expected[arrivals.class_index])
    barred = prompt >= window
    if arrivals.answers is not None:
        charge = charge * arrivals.answers  # as in the gateway, whatever the unit
        barred = barred | (arrivals.answers > applied.front_door.max_inside)
    barred = barred | (charge > applied.capacity)
    prefixes = arrivals.prefixes
    client_draw = server_draw = np.zeros(len(arrivals))
    if draws:
        client_draw, server_draw = (rng.random(len(arrivals)) for rng in draws)
    return Requests(
        arrival_s=arrivals.arrival_s,
        prompt_tokens=prompt,
        output_tokens=arrivals.output_tokens,
        cap_tokens=cap,
        charge=charge,
        refused_for_good=barred,
        client=arrivals.client_index,
        time_out_s=_timeouts(arrivals, client_timeouts_s),
        cancel_s=_cancel_times(arrivals, np.minimum(arrivals.output_tokens, cap), backend),
        client_draw=client_draw,
        server_draw=server_draw,
        chain=None if prefixes is None else prefixes.ids,
        chain_start=None if prefixes is None else prefixes.offsets,
        chain_tokens=512 if prefixes is None else prefixes.block_tokens,
    )


def _charges(strategy: Strategy, layout: CacheLayout, prompt: Integers, cap: Integers, expected: Integers) -> Integers:
    """``admission.charge`` of every request."""
    if strategy.counts == "requests":
        return np.ones(len(prompt), np.int64)
    if strategy.tokens is None:
        return np.zeros(len(prompt), np.int64)
    tokens: Callable[[RequestSize], Integers] = strategy.tokens  # type: ignore[assignment] # integer arithmetic, here on arrays
    usual = np.minimum(expected, cap)
    size = RequestSize(prompt_tokens=prompt, cap_tokens=cap, expected_output_tokens=usual)  # type: ignore[arg-type]
    return charged_blocks(layout, tokens(size))


def _cancel_times(arrivals: Arrivals, output_tokens: Integers, backend: Backend) -> Floats:
    """When each user cancels: after the drawn share of what the answer takes on an idle engine; inf for those who stay.

    Only the rows of those who cancel are computed, because they are few in most traffic.
    """
    leaves = np.flatnonzero(np.isfinite(arrivals.cancel_draw))
    if not len(leaves):
        return np.broadcast_to(np.float64(inf), len(arrivals))
    step = backend.service.step
    prompt, output = arrivals.prompt_tokens[leaves], output_tokens[leaves]
    chunks = -(-prompt // backend.settings.max_num_batched_tokens)
    prefill_s = chunks * step.base_s + prompt * step.prefill_token_s
    decode_s = output * (step.base_s + step.decode_sequence_s + step.kv_token_s * (prompt + output / 2))
    times_s = np.full(len(arrivals), inf)
    times_s[leaves] = arrivals.cancel_draw[leaves] * (prefill_s + decode_s)
    return times_s


def _timeouts(arrivals: Arrivals, client_timeouts_s: Sequence[float]) -> Floats:
    """The time-out of the class where it has one, else that of the client library."""
    if all(timeout_s == inf for timeout_s in client_timeouts_s):
        return arrivals.timeout_s
    own = np.array(client_timeouts_s)[arrivals.client_index]
    return np.where(np.isfinite(arrivals.timeout_s), arrivals.timeout_s, own)


def client_rule(profile: ClientProfile) -> ClientRule:
    """The retry rule of a client profile."""
    return ClientRule(
        tries=UNLIMITED if profile.tries is None else profile.tries,
        honours_retry_after=profile.honours_retry_after != "no",
        whole_seconds=profile.honours_retry_after == "whole_seconds",
        longest_honoured_s=inf if profile.longest_honoured_s is None else profile.longest_honoured_s,
        gives_up_when_longer=profile.when_longer == "give_up",
        backoff_base_s=profile.backoff_base_s,
        backoff_max_s=profile.backoff_max_s,
        jitter_share=profile.jitter_share,
        jitter_add_s=profile.jitter_add_s,
        jitter_on_header=profile.jitter_on_header,
    )


def client_table(
    names: tuple[str, ...], *, profiles_folder: str | Path | None = None
) -> tuple[tuple[ClientRule, ...], tuple[float, ...]]:
    """The retry rule and time-out of each name; the empty name tries once and waits for ever.

    The time-out of nested retry loops is the shortest of theirs.
    """
    rules, timeouts_s = [], []
    for name in names:
        loops = load_retry_loops(name, extra_folder=profiles_folder) if name else ()
        nested: ClientRule | None = None
        for profile in loops:
            nested = replace(client_rule(profile), outer=nested)
        rules.append(nested or ClientRule())
        timeouts_s.append(min((loop.timeout_s for loop in loops if loop.timeout_s is not None), default=inf))
    return tuple(rules), tuple(timeouts_s)
