"""Token counts of one column of a trace, kept per value: so they do not grow with the rows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

PERCENTS = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Token counts of one column: ``counts`` maps a length to how many rows have it."""

    counts: Mapping[int, int] = field(repr=False)

    @property
    def rows(self) -> int:
        """Rows that have this column."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """The average length; 0 of none."""
        return sum(length * count for length, count in self.counts.items()) / self.rows if self.counts else 0.0

    def quantile(self, probability: float) -> int:
        """Value number ceil(probability × n) of the sorted lengths.

        >>> Lengths(counts={1: 1, 5: 1, 9: 2}).quantile(0.5)
        5
        """
        wanted, below = max(1, math.ceil(probability * self.rows - 1e-9)), 0
        for length in sorted(self.counts):
            below += self.counts[length]
            if below >= wanted:
                return length
        return 0

    def quantiles(self, percents: tuple[float, ...] = PERCENTS) -> dict[str, int]:
        """Several of them, named ``p50`` and so on."""
        ordered, below, place, found = sorted(self.counts), 0, -1, {}
        for percent in percents:
            wanted = max(1, math.ceil(percent / 100 * self.rows - 1e-9))
            while below < wanted:
                place += 1
                below += self.counts[ordered[place]]
            found[f"p{percent:g}"] = ordered[place]
        return found
