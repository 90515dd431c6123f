"""Several classes' drawings as one: requests in order of arrival, each with what belongs to it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError
from kvplan.traffic.kinds import Arrivals
from kvplan.traffic.on_disk import filled
from kvplan.traffic.prefixes import Prefixes


def merged(parts: Sequence[Arrivals], duration_s: float | None) -> Arrivals:
    """The rows of all ``parts`` in order of arrival; equal stamps keep the order of the parts."""
    if len(parts) == 1:
        return parts[0]
    clients = tuple(dict.fromkeys(client for part in parts for client in part.clients))
    offsets = np.cumsum([0, *(len(part.classes) for part in parts)])
    classes = [part.class_index + offset for part, offset in zip(parts, offsets, strict=False)]
    callers = [np.array([clients.index(client) for client in part.clients])[part.client_index] for part in parts]
    order = np.argsort(np.concatenate([part.arrival_s for part in parts]), kind="stable")

    def in_order(columns: Sequence[NDArray[Any]]) -> Any:
        whole = np.concatenate(columns)
        return filled(len(order), lambda piece: whole[order[piece]], dtype=whole.dtype)

    def joined(name: str) -> Any:
        return in_order([getattr(part, name) for part in parts])

    answers, answer_tokens = _merge_answers(parts, order)
    return Arrivals(
        arrival_s=joined("arrival_s"),
        prompt_tokens=joined("prompt_tokens"),
        output_tokens=joined("output_tokens"),
        max_tokens=joined("max_tokens"),
        class_index=in_order(classes),
        client_index=in_order(callers),
        timeout_s=joined("timeout_s"),
        cancel_draw=joined("cancel_draw"),
        classes=tuple(name for part in parts for name in part.classes),
        clients=clients,
        duration_s=duration_s if duration_s is not None else max(part.duration_s for part in parts),
        prefixes=_merge_prefixes(parts, order),
        answers=answers,
        answer_tokens=answer_tokens,
        skipped={name: sum(part.skipped.get(name, 0) for part in parts) for part in parts for name in part.skipped},
        odd_rows=tuple(row for part in parts for row in part.odd_rows),
    )


def _merge_answers(
    parts: Sequence[Arrivals], order: NDArray[np.int64]
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """How many answers each request asks for, and their lengths in the order of the requests."""
    if all(part.answers is None for part in parts):
        return None, None
    each = [np.ones(len(part), np.int64) if part.answers is None else part.answers for part in parts]
    counts = np.concatenate(each)
    lengths = np.concatenate(
        [part.output_tokens if part.answer_tokens is None else part.answer_tokens for part in parts]
    )
    start, sorted_counts = (np.cumsum(counts) - counts)[order], counts[order]
    first = np.cumsum(sorted_counts) - sorted_counts
    return sorted_counts, lengths[np.repeat(start - first, sorted_counts) + np.arange(len(lengths))]


def _merge_prefixes(parts: Sequence[Arrivals], order: NDArray[np.int64]) -> Prefixes | None:
    """Block ids of several traces side by side; each trace keeps ids of its own."""
    if all(part.prefixes is None for part in parts):
        return None
    block_tokens = {part.prefixes.block_tokens for part in parts if part.prefixes is not None}
    if len(block_tokens) > 1:
        sizes = " and ".join(f"{size}" for size in sorted(block_tokens))
        raise InputError(
            f"the traces of this mix mark shared prefixes in blocks of {sizes} tokens, which cannot be played together",
            hint="set hash_block_tokens of each class to what its trace uses, or simulate them apart",
            key="hash_block_tokens",
        )
    lengths, starts, ids, shift, place = [], [], [], 0, 0
    for part in parts:
        if part.prefixes is None:
            lengths.append(np.zeros(len(part), np.int64))
            starts.append(np.zeros(len(part), np.int64))
            continue
        lengths.append(np.diff(part.prefixes.offsets))
        starts.append(part.prefixes.offsets[:-1] + place)
        ids.append(part.prefixes.ids + shift)
        place += len(part.prefixes.ids)
        shift += int(part.prefixes.ids.max(initial=-1)) + 1
    length, start = np.concatenate(lengths)[order], np.concatenate(starts)[order]
    offsets = np.concatenate([[0], np.cumsum(length)])
    picks = np.repeat(start - offsets[:-1], length) + np.arange(offsets[-1])
    return Prefixes(ids=np.concatenate(ids)[picks], offsets=offsets, block_tokens=block_tokens.pop())
