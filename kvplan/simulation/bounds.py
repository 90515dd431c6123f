"""Closed forms: worst-case reservations of each class, the load that can be sustained, and the default cap."""

from collections import Counter
from collections.abc import Sequence
from math import ceil

import numpy as np

from kvplan.simulation.backend import Backend
from kvplan.simulation.front_door import AppliedStrategy, charged_blocks
from kvplan.simulation.results import ReservationRow
from kvplan.simulation.types import UNLIMITED, Integers, Requests
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.distributions import Choices, Constant, Distribution
from kvplan.traffic.on_disk import forget, pieces
from kvplan.traffic.spec import Traffic, TrafficClass

_MAX_ROWS = 6
"""A class whose clients send more different caps gets one row, at their quantile."""
MAX_TRUNCATED_SHARE = 0.01
"""What a default cap may cut off where the file has no limit."""


def quantile_of(values: Integers, probability: float) -> int:
    """Value number ceil(probability × n) of the sorted values; 0 if there are none."""
    return int(np.quantile(values, probability, method="inverted_cdf")) if len(values) else 0


class TokenCounts:
    """How often each number of tokens occurs in a column of the arrivals, of one class or of all."""

    def __init__(self, arrivals: Arrivals, name: str, index: int | None = None) -> None:
        self.counts: Counter[int] = Counter()
        for part in arrivals.parts():
            values = getattr(part, name)
            chosen = values if index is None else values[part.class_index == index]
            tokens, times = np.unique(chosen, return_counts=True)
            self.counts.update(dict(zip(tokens.tolist(), times.tolist(), strict=True)))

    def quantile(self, probability: float) -> int:
        """Value number ceil(probability × n) of the sorted values; 0 if there are none."""
        rank, reached = ceil(probability * self.counts.total()), 0
        for tokens in sorted(self.counts):
            reached += self.counts[tokens]
            if reached >= rank:
                return tokens
        return 0


def expected_outputs(traffic: Traffic, arrivals: Arrivals) -> tuple[int, ...]:
    """The p95 of the answers of each class: of its distribution, or of the rows of its trace."""
    drawn = {entry.name: entry.output_tokens for entry in traffic.classes}
    return tuple(
        _length(drawn.get(name), arrivals, "output_tokens", index, 0.95) for index, name in enumerate(arrivals.classes)
    )


def _length(drawn: Distribution | None, arrivals: Arrivals, column: str, index: int, probability: float) -> int:
    """A quantile of the lengths of a class: of the distribution they are drawn from, or of the rows of its trace."""
    return (drawn or TokenCounts(arrivals, column, index)).quantile(probability)


def reservations(
    traffic: Traffic, arrivals: Arrivals, backend: Backend, default_cap: int
) -> tuple[ReservationRow, ...]:
    """One row per class and choice of cap, and one with the default cap, at the reservation quantile of the prompt.

    blocks = what the engine takes for min(prompt + cap, window) tokens, times the most answers that a request of the
    class can ask for; sequences = floor(promised blocks / blocks), over all replicas.
    """
    rows = []
    for index, name in enumerate(arrivals.classes):
        entry = next((entry for entry in traffic.classes if entry.name == name), None)
        drawn = None if entry is None else entry.prompt_tokens
        prompt = _length(drawn, arrivals, "prompt_tokens", index, traffic.reservation_quantile)
        choices = _cap_choices(entry, TokenCounts(arrivals, "max_tokens", index), traffic.reservation_quantile)
        answers = 1 if entry is None else entry.answers.quantile(1.0)
        each = f"{name}, n {answers}" if answers > 1 else name
        named = [
            (f"{each}, no cap sent" if cap is None else f"{each}, cap {cap:,}", cap, share) for cap, share in choices
        ]
        if any(cap is None for cap, _ in choices):
            unset = sum(share for cap, share in choices if cap is None)
            named.append((f"{each}, default cap {default_cap:,}", default_cap, unset))
        rows += [
            _row(traffic, backend, name=label, class_name=name, share=share, prompt=prompt, cap=cap, answers=answers)
            for label, cap, share in named
        ]
    return tuple(rows)


def _cap_choices(entry: TrafficClass | None, sent: TokenCounts, probability: float) -> list[tuple[int | None, float]]:
    """The caps that clients of a class send, with their shares; too many different ones are shown as their quantile."""
    if entry is not None and entry.trace is None and isinstance(entry.max_tokens, Choices | Constant):
        sends = entry.max_tokens
        pairs = (
            [(sends.value, 1.0)] if isinstance(sends, Constant) else [(one.value, one.share) for one in sends.choices]
        )
        return [(value or None, share) for value, share in pairs]
    total = sent.counts.total()
    unset_share = sent.counts[0] / total if total else 0.0
    if len(sent.counts) <= _MAX_ROWS:
        return [(value or None, count / total) for value, count in sorted(sent.counts.items())]
    del sent.counts[0]
    choices: list[tuple[int | None, float]] = [(sent.quantile(probability), 1.0 - unset_share)]
    return [(None, unset_share), *choices] if unset_share else choices


def _row(
    traffic: Traffic,
    backend: Backend,
    *,
    name: str,
    class_name: str,
    share: float,
    prompt: int,
    cap: int | None,
    answers: int,
) -> ReservationRow:
    """The worst case of ``answers`` answers with this cap; None: up to the end of the window."""
    room = backend.settings.max_model_len - prompt
    cap_tokens = room if cap is None else min(cap, room)
    tokens = prompt + cap_tokens
    blocks = backend.layout.request_blocks(tokens) * answers
    usable = backend.promised_blocks(traffic.admission.safety_fraction)
    return ReservationRow(
        name=name,
        class_name=class_name,
        share=share,
        prompt_tokens=prompt,
        max_output_tokens=cap,
        cap_tokens=max(cap_tokens, 0),
        reserved_tokens=tokens * answers,
        reserved_bytes=None if backend.kv_bytes is None else blocks * backend.layout.bytes_per_block,
        blocks=blocks,
        sequences=usable // blocks * backend.replicas if room > 0 else 0,
    )


def sustainable_per_s(requests: Requests, applied: AppliedStrategy, backend: Backend) -> tuple[float, str]:
    """Requests per second that a strategy can sustain, and what binds.

    Let w be the mean work of a request beyond the base of the steps, P × prefill + O × (decode + kv × context), and
    c × O its charge held over O steps. While the ledger of U is full, a step takes base / (1 − x w), and U = x E[c O] ×
    that step; so x = 1 / (w + base × E[c O] / U). The same holds for one sequence each and max_num_seqs, and for the
    blocks that requests really fill and the pool; the least of these binds. Requests that can never be served are left
    out. Requests for several answers are rows of sequences here: their rate is that of sequences over the mean number
    of answers, where a prefix cache saves siblings the prompt.
    """
    if requests.parent is not None:
        each = np.bincount(requests.parent, minlength=len(requests.parent))[requests.parent]
        per_s, binds = _sequences_per_s(requests, requests.charge // each, applied, backend)
        return per_s * float((1.0 / each).sum()) / len(each), binds
    return _sequences_per_s(requests, requests.charge, applied, backend)


def _sequences_per_s(
    requests: Requests, charge: Integers, applied: AppliedStrategy, backend: Backend
) -> tuple[float, str]:
    step, served = backend.service.step, 0
    sums = dict.fromkeys(("work", "held", "pool", "ledger"), 0.0)
    found = _shared_with_siblings(requests, backend)
    for piece in pieces(len(charge)):
        kept = ~requests.refused_for_good[piece]
        prompt = requests.prompt_tokens[piece][kept]
        output = np.minimum(requests.output_tokens[piece], requests.cap_tokens[piece])[kept]
        hits = found[piece][kept]
        read = prompt - hits
        chunks = -(-read // backend.settings.max_num_batched_tokens)
        context = prompt + output / 2
        work = read * (step.prefill_token_s + step.kv_token_s * chunks / 2) + output * (
            step.decode_sequence_s + step.kv_token_s * context
        )
        held = output + chunks - 1
        mean_blocks = charged_blocks(backend.layout, prompt + (output + 1) // 2) - hits // backend.layout.block_tokens
        served += len(held)
        parts = {"work": work, "held": held, "pool": mean_blocks * held, "ledger": charge[piece][kept] * held}
        for name, values in parts.items():
            sums[name] += float(values.sum(dtype=np.float64))
        forget(requests, charge)
    if not served:
        return 0.0, "nothing can be served"
    mean = {name: value / served for name, value in sums.items()}
    limits = {
        "max_num_seqs": mean["held"] / backend.settings.max_num_seqs,
        "the pool": mean["pool"] / max(backend.usable, 1),
    }
    if applied.capacity < UNLIMITED:
        limits["the ledger"] = mean["ledger"] / max(applied.capacity, 1)
    if applied.front_door.max_inside < UNLIMITED:
        limits["the engine's queue"] = mean["held"] / applied.front_door.max_inside
    binds = max(limits, key=lambda name: limits[name])
    seconds = mean["work"] + step.base_s * limits[binds]
    if mean["work"] > step.base_s * limits[binds]:
        binds = "the GPU's speed"
    return (backend.replicas / seconds if seconds > 0 else float("inf")), binds


def _shared_with_siblings(requests: Requests, backend: Backend) -> Integers:
    """Prompt tokens that a sequence finds in the cache because a sibling computed them: the full blocks that leave at
    least one token to compute."""
    groups, block = backend.layout.groups, backend.layout.block_tokens
    if requests.parent is None or not backend.settings.prefix_caching or len(groups) > 1 or groups[0].rule != "full":
        return np.broadcast_to(np.int64(0), len(requests.arrival_s))
    is_sibling = requests.parent != np.arange(len(requests.parent))
    return np.where(is_sibling, (requests.prompt_tokens - 1) // block * block, 0)


def default_cap(traffic: Traffic, drawings: Sequence[Arrivals], backend: Backend) -> tuple[int, str]:
    """The default cap to play, and where it comes from: the file, or ``provisional_cap`` with the file's limit on
    truncated answers."""
    window, given = backend.settings.max_model_len, traffic.admission.default_max_tokens
    if given is not None:
        return min(given, window), "the traffic file"
    limits = [one.maximum for one in traffic.limits if (one.name, one.class_name) == ("truncated_share", None)]
    share = next((limit for limit in limits if limit is not None), None)
    named = "" if share is None else " (limits.truncated_share)"
    share = MAX_TRUNCATED_SHARE if share is None else share
    cap = provisional_cap(drawings, backend, max_truncated_share=share)
    bound = f"{100 * share:g}% of all answers{named}"
    if cap == window:
        return cap, f"the whole window: every smaller round cap cuts off more than {bound}"
    return cap, f"the smallest round cap that cuts off at most {bound}"


def provisional_cap(drawings: Sequence[Arrivals], backend: Backend, *, max_truncated_share: float) -> int:
    """The least round cap that truncates at most this share of all requests when it is the default; the whole window
    where there is none. Where every request sends a cap of its own, it is judged as if none did."""
    requests = sum(map(len, drawings))
    everyone = not any(TokenCounts(one, "max_tokens").counts[0] for one in drawings)
    window = backend.settings.max_model_len
    choices = np.array(round_caps(window))
    longer = np.zeros(len(choices), np.int64)
    for part in (part for one in drawings for part in one.parts()):
        judged = part.output_tokens if everyone else part.output_tokens[part.max_tokens == 0]
        longer += len(judged) - np.searchsorted(np.sort(judged), choices, side="right")
    enough = np.flatnonzero(longer <= max_truncated_share * requests)
    return int(choices[enough[0]]) if len(enough) else window


def round_caps(window_tokens: int) -> list[int]:
    """128, 192, 256, 384, … below the window.

    >>> round_caps(600)
    [128, 192, 256, 384, 512]
    """
    found, power = [], 128
    while power < window_tokens:
        found += [cap for cap in (power, power * 3 // 2) if cap < window_tokens]
        power *= 2
    return found or [max(window_tokens // 2, 1)]


def unset_share(arrivals: Sequence[Arrivals]) -> float:
    """The share of requests that send no cap."""
    total = sum(map(len, arrivals))
    return sum(TokenCounts(one, "max_tokens").counts[0] for one in arrivals) / total if total else 0.0
