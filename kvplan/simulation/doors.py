"""The front door of one strategy as the kernel wants it: caps, charges and refusals of every request as arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np

from kvplan.admission import Ask, Strategy
from kvplan.engines.base import CacheLayout
from kvplan.simulation.plant import Plant
from kvplan.simulation.types import UNLIMITED, Floats, FrontDoor, Integers, Requests, RetryAfter, Router
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.on_disk import forget, is_long, pieces, zeros
from kvplan.traffic.spec import AdmissionPlan, PlannedDeployment

_CLIENT_STREAM, _SERVER_STREAM = 1, 2
_STREAM_BASE = 2**32  # above every class index, so that no class shares a stream with these
ENGINE_QUEUE_FACTOR = 2
"""``engine_queue`` without caps of its own: the engine takes twice max_num_seqs requests in, then answers 503."""


@dataclass(frozen=True, kw_only=True)
class Door:
    """What a strategy needs beside the traffic. ``default_max_tokens`` is None for strategies that fill in none."""

    strategy: Strategy
    capacity: int
    default_max_tokens: int | None
    front: FrontDoor


def charged_blocks(layout: CacheLayout, tokens: Integers) -> Integers:
    """``layout.request_blocks`` of every entry; it is asked once for each number of tokens that occurs."""
    counts, places = np.unique(tokens, return_inverse=True)
    return np.array([layout.request_blocks(count) for count in counts.tolist()], np.int64)[places]


def caps(max_tokens: Integers, prompt_tokens: Integers, window_tokens: int, default: int | None) -> Integers:
    """``admission.effective_cap`` of every request; ``max_tokens`` 0 means that the client sent none."""
    room = window_tokens - prompt_tokens
    unset = room if default is None else np.minimum(default, room)
    return np.where(max_tokens > 0, np.minimum(max_tokens, room), unset).astype(np.int64)


def door(strategy: Strategy, plant: Plant, admission: AdmissionPlan, deployment: PlannedDeployment, cap: int) -> Door:
    """The front door of ``strategy``; ``cap`` is the default for strategies that fill one in."""
    seqs = plant.settings.max_num_seqs
    capacity, inside, queued_tokens = UNLIMITED, UNLIMITED, UNLIMITED
    if strategy.counts == "blocks":
        capacity = plant.promised_blocks(admission.safety_fraction)
    elif strategy.counts == "requests":
        capacity = admission.concurrency or seqs
    if strategy.engine_caps:
        requests, queued_tokens = deployment.max_queued_requests, deployment.max_queued_tokens or UNLIMITED
        if requests is None and deployment.max_queued_tokens is None:
            requests = ENGINE_QUEUE_FACTOR * seqs
        inside = UNLIMITED if requests is None else requests
    answer = admission.retry_after
    return Door(
        strategy=strategy,
        capacity=capacity,
        default_max_tokens=cap if strategy.fills_default_cap else None,
        front=FrontDoor(
            capacity=capacity,
            max_inside=inside,
            max_queued_tokens=queued_tokens,
            retry_after=RetryAfter(seconds=answer.seconds, jitter_share=answer.jitter_share),
            replicas=plant.replicas,
            router=Router.LEAST_RESERVED if deployment.router == "least_reserved" else Router.ROUND_ROBIN,
        ),
    )


def requests_for(
    arrivals: Arrivals,
    opened: Door,
    plant: Plant,
    *,
    seed: int,
    client_timeouts_s: Sequence[float],
    expected_output_tokens: Sequence[int],
    tries_again: bool = True,
) -> Requests:
    """Every arrival with its cap, charge and whether it can ever be served.

    ``expected_output_tokens`` is the p95 of each class's answers. A user who walks away does so after a drawn share of
    the time that the answer would take on an idle engine. ``tries_again`` False: no client does, so that nobody looks
    at the draws of a wait.
    """
    draws = [np.random.default_rng([seed, _STREAM_BASE, name]) for name in (_CLIENT_STREAM, _SERVER_STREAM)]
    make = partial(
        _asked,
        opened=opened,
        plant=plant,
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
"""The columns of a long run that are not those of its arrivals, as they are kept on disk."""


def _asked(
    arrivals: Arrivals,
    *,
    opened: Door,
    plant: Plant,
    client_timeouts_s: Sequence[float],
    expected: Integers,
    draws: Sequence[np.random.Generator],
) -> Requests:
    """The requests of a drawing, or of a part of one; ``draws`` are the next of the clients and of the server."""
    window, strategy = plant.settings.max_model_len, opened.strategy
    prompt = arrivals.prompt_tokens
    cap = np.maximum(caps(arrivals.max_tokens, prompt, window, opened.default_max_tokens), 1)
    charge = _charges(strategy, plant.layout, prompt, cap, expected[arrivals.class_index])
    never = prompt >= window
    if arrivals.answers is not None:
        charge = charge * arrivals.answers  # as the gateway does, whatever the unit
        never = never | (arrivals.answers > opened.front.max_inside)
    never = never | (charge > opened.capacity)
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
        refused_for_good=never,
        client=arrivals.client_index,
        time_out_s=_timeouts(arrivals, client_timeouts_s),
        cancel_s=_cancel_times(arrivals, np.minimum(arrivals.output_tokens, cap), plant),
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
    tokens: Callable[[Ask], Integers] = strategy.tokens  # type: ignore[assignment] # whole-number arithmetic on arrays
    usual = np.minimum(expected, cap)
    ask = Ask(prompt_tokens=prompt, cap_tokens=cap, expected_output_tokens=usual)  # type: ignore[arg-type]
    return charged_blocks(layout, tokens(ask))


def _cancel_times(arrivals: Arrivals, output_tokens: Integers, plant: Plant) -> Floats:
    """When each user walks away: the drawn share of what the answer takes on an idle engine; never for those who stay.

    Only the rows that leave are worked out: in most traffic they are few.
    """
    leaves = np.flatnonzero(np.isfinite(arrivals.cancel_draw))
    if not len(leaves):
        return np.broadcast_to(np.float64(inf), len(arrivals))
    step = plant.service.step
    prompt, output = arrivals.prompt_tokens[leaves], output_tokens[leaves]
    chunks = -(-prompt // plant.settings.max_num_batched_tokens)
    prefill_s = chunks * step.base_s + prompt * step.prefill_token_s
    decode_s = output * (step.base_s + step.decode_sequence_s + step.kv_token_s * (prompt + output / 2))
    times_s = np.full(len(arrivals), inf)
    times_s[leaves] = arrivals.cancel_draw[leaves] * (prefill_s + decode_s)
    return times_s


def _timeouts(arrivals: Arrivals, client_timeouts_s: Sequence[float]) -> Floats:
    """The class's time-out where it has one, else the client library's own."""
    if all(timeout_s == inf for timeout_s in client_timeouts_s):
        return arrivals.timeout_s
    own = np.array(client_timeouts_s)[arrivals.client_index]
    return np.where(np.isfinite(arrivals.timeout_s), arrivals.timeout_s, own)
