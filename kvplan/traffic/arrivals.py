"""One drawing of a traffic file: a row for each request, in order of arrival; and several classes' rows merged."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.traffic.on_disk import filled, forget, pieces
from kvplan.traffic.prefixes import Prefixes, merged_prefixes

Narrow = NDArray[np.integer[Any]]
"""Whole numbers in as few bytes as they need, because a recorded trace has millions of rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrivals:
    """The requests of one drawing, one array for each column.

    ``max_tokens`` is 0 where the client sent none. ``cancel_draw`` is the share of the answer's time on an idle engine
    after which the user cancels (infinite: never). ``class_index`` points into ``classes``, ``client_index`` into
    ``clients``. Where requests ask for several answers, ``answers`` counts them, ``answer_tokens`` holds their lengths
    request by request, and ``output_tokens`` the longest of each request; None means one answer each.
    """

    arrival_s: NDArray[np.float64]
    prompt_tokens: Narrow
    output_tokens: Narrow
    max_tokens: Narrow
    class_index: Narrow
    client_index: Narrow
    timeout_s: NDArray[np.float64]
    cancel_draw: NDArray[np.float64]
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    duration_s: float
    prefixes: Prefixes | None = None
    answers: NDArray[np.int64] | None = None
    answer_tokens: NDArray[np.int64] | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    odd_rows: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_s)

    def part(self, piece: slice) -> "Arrivals":
        """Some of the requests, with all prefixes; only for a drawing in which each asks for one answer."""
        columns: dict[str, Any] = {
            name: column[piece] for name, column in vars(self).items() if isinstance(column, np.ndarray)
        }
        return replace(self, **columns)

    def parts(self) -> Iterator["Arrivals"]:
        """The requests, one piece in memory at a time; all at once where they ask for several answers."""
        if self.answers is not None:
            yield self
            return
        for piece in pieces(len(self)):
            yield self.part(piece)
            forget(self)


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
        prefixes=merged_prefixes([part.prefixes for part in parts], [len(part) for part in parts], order),
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
