"""Closed forms beside every run: worst-case reservations of each class, and the load that can be sustained."""

from collections import Counter
from collections.abc import Sequence
from math import ceil

import numpy as np

from kvplan.admission import STRATEGIES, Strategy
from kvplan.simulation.doors import Door, charged_blocks
from kvplan.simulation.plant import Plant
from kvplan.simulation.results import ReservationRow
from kvplan.simulation.types import UNLIMITED, Integers, Requests
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.distributions import Choices, Constant
from kvplan.traffic.on_disk import forget, pieces
from kvplan.traffic.spec import Traffic, TrafficClass

_MOST_ROWS = 6


def quantile_of(values: Integers, probability: float) -> int:
    """Value number ceil(probability × n) of the sorted values; 0 of none."""
    return int(np.quantile(values, probability, method="inverted_cdf")) if len(values) else 0


class Spread:
    """How often each number of tokens occurs in a column of a drawing; of one class, or of all."""

    def __init__(self, arrivals: Arrivals, name: str, index: int | None = None) -> None:
        self.counts: Counter[int] = Counter()
        for part in arrivals.parts():
            values = getattr(part, name)
            chosen = values if index is None else values[part.class_index == index]
            tokens, times = np.unique(chosen, return_counts=True)
            self.counts.update(dict(zip(tokens.tolist(), times.tolist(), strict=True)))

    def quantile(self, probability: float) -> int:
        """Value number ceil(probability × n) of the sorted values; 0 of none."""
        rank, reached = ceil(probability * self.counts.total()), 0
        for tokens in sorted(self.counts):
            reached += self.counts[tokens]
            if reached >= rank:
                return tokens
        return 0


def expected_outputs(traffic: Traffic, arrivals: Arrivals) -> tuple[int, ...]:
    """The p95 of each class's answers: of its distribution, or of the rows that a trace recorded."""
    laws = {entry.name: entry.output_tokens for entry in traffic.classes}
    found = []
    for index, name in enumerate(arrivals.classes):
        law = laws.get(name)
        found.append(law.quantile(0.95) if law is not None else Spread(arrivals, "output_tokens", index).quantile(0.95))
    return tuple(found)


def reservations(traffic: Traffic, arrivals: Arrivals, plant: Plant, default_cap: int) -> tuple[ReservationRow, ...]:
    """A row per class and cap choice, and one with the default cap, at the prompt's reservation quantile.

    blocks = the engine's charge of min(prompt + cap, window) tokens, for each of the most answers that a request of the
    class may ask for; sequences = floor(usable at the safety fraction / blocks), over all replicas.
    """
    rows = []
    for index, name in enumerate(arrivals.classes):
        entry = next((entry for entry in traffic.classes if entry.name == name), None)
        law = None if entry is None else entry.prompt_tokens
        sampled = Spread(arrivals, "prompt_tokens", index).quantile(traffic.reservation_quantile)
        prompt = law.quantile(traffic.reservation_quantile) if law is not None else sampled
        choices = _cap_choices(entry, Spread(arrivals, "max_tokens", index), traffic.reservation_quantile)
        answers = 1 if entry is None else entry.answers.quantile(1.0)
        each = f"{name}, n {answers}" if answers > 1 else name
        for cap, share in choices:
            label = f"{each}, no cap sent" if cap is None else f"{each}, cap {cap:,}"
            rows.append(_row(label, name, share, prompt, cap, cap, answers, traffic, plant))
        if any(cap is None for cap, _ in choices):
            share = sum(share for cap, share in choices if cap is None)
            label = f"{each}, default cap {default_cap:,}"
            rows.append(_row(label, name, share, prompt, None, default_cap, answers, traffic, plant))
    return tuple(rows)


def _cap_choices(entry: TrafficClass | None, sent: "Spread", probability: float) -> list[tuple[int | None, float]]:
    """The caps that clients of a class choose, with their shares; many different ones stand as their quantile."""
    if entry is not None and entry.trace is None and isinstance(entry.max_tokens, Choices | Constant):
        law = entry.max_tokens
        pairs = [(law.value, 1.0)] if isinstance(law, Constant) else [(one.value, one.share) for one in law.choices]
        return [(value or None, share) for value, share in pairs]
    total = sent.counts.total()
    unset_share = sent.counts[0] / total if total else 0.0
    if len(sent.counts) <= _MOST_ROWS:
        return [(value or None, count / total) for value, count in sorted(sent.counts.items())]
    del sent.counts[0]
    choices: list[tuple[int | None, float]] = [(sent.quantile(probability), 1.0 - unset_share)]
    return [(None, unset_share), *choices] if unset_share else choices


def _row(
    label: str,
    class_name: str,
    share: float,
    prompt: int,
    sent: int | None,
    cap: int | None,
    answers: int,
    traffic: Traffic,
    plant: Plant,
) -> ReservationRow:
    window = plant.settings.max_model_len
    room = window - prompt
    cap_tokens = room if cap is None else min(cap, room)
    tokens = prompt + cap_tokens
    blocks = plant.layout.request_blocks(tokens) * answers
    usable = plant.promised_blocks(traffic.admission.safety_fraction)
    return ReservationRow(
        name=label,
        class_name=class_name,
        share=share,
        prompt_tokens=prompt,
        max_output_tokens=cap if sent is None and cap is not None else sent,
        cap_tokens=max(cap_tokens, 0),
        reserved_tokens=tokens * answers,
        reserved_bytes=None if plant.kv_bytes is None else blocks * plant.layout.bytes_per_block,
        blocks=blocks,
        sequences=usable // blocks * plant.replicas if room > 0 else 0,
    )


def sustainable_per_s(requests: Requests, opened: Door, plant: Plant) -> tuple[float, str]:
    """Requests per second that a strategy can carry for ever, and what binds.

    Let w be the mean work of a request beyond the steps' base, P × prefill + O × (decode + kv × context), and c × O its
    charge held over O steps. With the ledger of U full, steps take base / (1 − x w), and U = x E[c O] × that step; so
    x = 1 / (w + base × E[c O] / U). The same with one sequence each and max_num_seqs, and with the blocks that requests
    really fill and the pool; the least of them binds. Requests that can never be served are left out. Those that ask
    for several answers are rows of sequences here: the rate is that of sequences, over the mean number a request
    (each counted as if it read the prompt itself, which a prefix cache saves).
    """
    if requests.parent is not None:
        each = np.bincount(requests.parent, minlength=len(requests.parent))[requests.parent]
        per_s, binds = _sequences_per_s(requests, requests.charge // each, opened, plant)
        return per_s * float((1.0 / each).sum()) / len(each), binds
    return _sequences_per_s(requests, requests.charge, opened, plant)


def _sequences_per_s(requests: Requests, charge: Integers, opened: Door, plant: Plant) -> tuple[float, str]:
    step, served = plant.service.step, 0
    sums = dict.fromkeys(("work", "held", "pool", "ledger"), 0.0)
    found = _shared_with_siblings(requests, plant)
    for piece in pieces(len(charge)):
        kept = ~requests.refused_for_good[piece]
        prompt = requests.prompt_tokens[piece][kept]
        output = np.minimum(requests.output_tokens[piece], requests.cap_tokens[piece])[kept]
        hits = found[piece][kept]
        read = prompt - hits
        chunks = -(-read // plant.settings.max_num_batched_tokens)
        context = prompt + output / 2
        work = read * (step.prefill_token_s + step.kv_token_s * chunks / 2) + output * (
            step.decode_sequence_s + step.kv_token_s * context
        )
        held = output + chunks - 1
        mean_blocks = charged_blocks(plant.layout, prompt + (output + 1) // 2) - hits // plant.layout.block_tokens
        served += len(held)
        parts = {"work": work, "held": held, "pool": mean_blocks * held, "ledger": charge[piece][kept] * held}
        for name, values in parts.items():
            sums[name] += float(values.sum(dtype=np.float64))
        forget(requests, charge)
    if not served:
        return 0.0, "nothing can be served"
    mean = {name: value / served for name, value in sums.items()}
    limits = {
        "max_num_seqs": mean["held"] / plant.settings.max_num_seqs,
        "the pool": mean["pool"] / max(plant.usable, 1),
    }
    if opened.capacity < UNLIMITED:
        limits["the ledger"] = mean["ledger"] / max(opened.capacity, 1)
    if opened.front.max_inside < UNLIMITED:
        limits["the engine's queue"] = mean["held"] / opened.front.max_inside
    binds = max(limits, key=lambda name: limits[name])
    seconds = mean["work"] + step.base_s * limits[binds]
    if mean["work"] > step.base_s * limits[binds]:
        binds = "the GPU's speed"
    return (plant.replicas / seconds if seconds > 0 else float("inf")), binds


def _shared_with_siblings(requests: Requests, plant: Plant) -> Integers:
    """Prompt tokens that a sequence finds in the cache because another answer of its request reads them: the full
    blocks that leave a token to compute."""
    groups, block = plant.layout.groups, plant.layout.block_tokens
    if requests.parent is None or not plant.settings.prefix_caching or len(groups) > 1 or groups[0].rule != "full":
        return np.broadcast_to(np.int64(0), len(requests.arrival_s))
    is_sibling = requests.parent != np.arange(len(requests.parent))
    return np.where(is_sibling, (requests.prompt_tokens - 1) // block * block, 0)


def provisional_cap(drawings: Sequence[Arrivals], plant: Plant, *, max_truncated_share: float) -> int:
    """The default cap where the file has none: the least round number that truncates at most the given share of all
    requests, counting those that send no cap; where all send one, as if none did. Round numbers are 128, 192, 256,
    384, 512, 768, 1,024 …"""
    requests = sum(map(len, drawings))
    everyone = not any(Spread(one, "max_tokens").counts[0] for one in drawings)
    window = plant.settings.max_model_len
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


def judged_strategy(traffic: Traffic) -> Strategy:
    """The strategy that ``check`` judges: the file's policy; with a default cap in the file, ``worst_case`` fills it
    in, as the gateway does."""
    name = traffic.admission.policy
    if name == "worst_case" and traffic.admission.default_max_tokens is not None:
        name = "worst_case_default_cap"
    return STRATEGIES[name]


def unset_share(arrivals: Sequence[Arrivals]) -> float:
    """Share of all requests that send no cap."""
    total = sum(map(len, arrivals))
    return sum(Spread(one, "max_tokens").counts[0] for one in arrivals) / total if total else 0.0
