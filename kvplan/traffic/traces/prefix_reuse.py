"""The requests of a trace whose prompts reuse a prefix, separated from the others, which are often of another kind."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvplan.traffic.arrival_processes import ArrivalProcess
from kvplan.traffic.distributions import coupled
from kvplan.traffic.traces.formats import TraceRow
from kvplan.traffic.traces.statistics import Lengths, Stamps, fitted_arrivals

_EULER = 0.5772156649015329
"""The mean of the negative logarithm of an exponential of mean 1 (see ``_prefix_reuse``)."""
_SHORTEST_GAP_S = 1e-3
"""Equal stamps have no logarithm; most traces count milliseconds."""
_VALUES = 20_000
"""Enough for a correlation to two digits."""


@dataclass(frozen=True, kw_only=True)
class PrefixReuse:
    """How prompts share prefixes: the ``shared`` tokens of requests that follow another with the same first block, the
    number of prefix ``groups`` in use at a time, and how long each lasts (``lifetime_s`` None: the whole trace)."""

    shared: Lengths
    groups: int
    lifetime_s: float | None


@dataclass(frozen=True, kw_only=True)
class Part:
    """Requests of one kind: their lengths, how they arrive and what their prompts share. ``products`` is the sum of
    prompt × output tokens, which tells whether long answers follow long prompts."""

    prompt: Lengths
    output: Lengths
    products: int
    arrivals: ArrivalProcess
    reuse: PrefixReuse | None = None

    @property
    def length_correlation(self) -> float:
        """The correlation at which coupled lengths (``distributions.coupled``) have the recorded mean of prompt ×
        output, found by bisection because that mean rises with it."""
        prompt, output = _spread(self.prompt), _spread(self.output)
        low, high = -1.0, 1.0
        for _ in range(12):
            middle = (low + high) / 2
            drawn = coupled(output, prompt, middle, np.random.default_rng(0))
            mean = float((prompt.astype(np.float64) * drawn).mean())
            low, high = (middle, high) if mean < self.products / self.prompt.rows else (low, middle)
        return round((low + high) / 2, 2)


def _spread(lengths: Lengths) -> NDArray[np.int64]:
    """``_VALUES`` lengths at evenly spaced quantiles."""
    values = np.array(sorted(lengths.counts), np.int64)
    below = np.cumsum([lengths.counts[value] for value in values.tolist()])
    wanted = (np.arange(_VALUES) + 0.5) / _VALUES * below[-1]
    spread: NDArray[np.int64] = values[np.searchsorted(below, wanted)]
    return spread


class Repeats:
    """Counts repeated blocks row by row. It remembers block ids, so it grows with distinct blocks only."""

    def __init__(self) -> None:
        self.requests = 0
        self.block_tokens: int | None = None
        self._seen: set[int] = set()
        self._blocks = 0
        self._repeated = 0
        self._alone: dict[int, tuple[int, int, float]] = {}
        self._last_s: dict[int, float] = {}
        self._groups = 0
        self._log_gaps = 0.0
        self._prompt: Counter[int] = Counter()
        self._output: Counter[int] = Counter()
        self._shared: Counter[int] = Counter()
        self._products, self._shared_products = 0, 0
        self._reusing, self._others = Stamps(), Stamps()

    def add(self, row: TraceRow) -> None:
        """Counts one request."""
        ids = row.hash_ids
        self._products += row.prompt_tokens * row.output_tokens
        if not ids:
            if self.requests:  # a trace without ids needs no second count
                self._others.add(row.arrival_s)
            return
        begin = ids[0]
        self.requests += 1
        self.block_tokens = row.hash_block_tokens
        self._blocks += len(ids)
        self._repeated += sum(block in self._seen for block in ids)
        if begin not in self._last_s:
            self._alone[begin] = (row.prompt_tokens, row.output_tokens, row.arrival_s)
        else:
            if begin in self._alone:
                self._groups += 1
                self._count(*self._alone.pop(begin))
            self._count(row.prompt_tokens, row.output_tokens, row.arrival_s)
            self._log_gaps += math.log(max(abs(row.arrival_s - self._last_s[begin]), _SHORTEST_GAP_S))
            run = next((place for place, block in enumerate(ids) if block not in self._seen), len(ids))
            self._shared[min(run * row.hash_block_tokens, row.prompt_tokens)] += 1
        self._last_s[begin] = row.arrival_s
        self._seen.update(ids)

    def _count(self, prompt_tokens: int, output_tokens: int, arrival_s: float) -> None:
        self._prompt[prompt_tokens] += 1
        self._output[output_tokens] += 1
        self._shared_products += prompt_tokens * output_tokens
        self._reusing.add(arrival_s)

    @property
    def shared_share(self) -> float | None:
        """The share of blocks that were seen before; None where there are no blocks."""
        return self._repeated / self._blocks if self._blocks else None

    def parts(self, stamps: Stamps, *, prompt: Mapping[int, int], output: Mapping[int, int]) -> tuple[Part, ...]:
        """The trace with these lengths and arrivals as one kind of requests; as two where prefixes are reused."""
        whole = Part(
            prompt=Lengths(counts=prompt),
            output=Lengths(counts=output),
            products=self._products,
            arrivals=fitted_arrivals(stamps),
        )
        reuse = self._prefix_reuse(stamps.span_s)
        if reuse is None:
            return (whole,)
        several = Part(
            prompt=Lengths(counts=self._prompt),
            output=Lengths(counts=self._output),
            products=self._shared_products,
            arrivals=fitted_arrivals(self._reusing, like=stamps),
            reuse=reuse,
        )
        for _, _, arrival_s in self._alone.values():
            self._others.add(arrival_s)
        others = Part(
            prompt=Lengths(counts=Counter(prompt) - self._prompt),
            output=Lengths(counts=Counter(output) - self._output),
            products=self._products - self._shared_products,
            arrivals=fitted_arrivals(self._others, like=stamps),
        )
        return (others, several) if others.prompt.rows else (several,)

    def _prefix_reuse(self, span_s: float) -> PrefixReuse | None:
        """How prefixes are reused; None where they are not.

        With r such requests a second and g seconds between two uses of a prefix, r × g prefixes are in use. Their
        lifetime is the one at which the trace sees as many as it did: in use × (span / lifetime + 1). Short gaps matter
        to a cache, so g is the mean of exponential gaps whose logarithms have the recorded mean, ln g − 0.577.
        """
        rows = self._prompt.total()
        if not rows or span_s <= 0:
            return None
        gap_s = math.exp(self._log_gaps / (rows - self._groups) + _EULER)
        in_use = min(rows / span_s * gap_s, float(self._groups))
        renewals = self._groups / in_use - 1.0
        return PrefixReuse(
            shared=Lengths(counts=self._shared),
            groups=max(1, round(in_use)),
            lifetime_s=span_s / renewals if renewals > 0 else None,
        )
