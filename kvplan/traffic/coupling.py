"""Lengths that go together: the same draws in another order, so that each column keeps its distribution."""

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


def ranks(values: Tokens, rng: np.random.Generator) -> Tokens:
    """The place of each value among all, from 0, equal ones in random order.

    >>> ranks(np.array([30, 10, 20]), np.random.default_rng(0)).tolist()
    [2, 0, 1]
    """
    found = np.empty(len(values), np.int64)
    found[np.lexsort((rng.random(len(values)), values))] = np.arange(len(values))
    return found


def coupled(values: Tokens, leading: Tokens, correlation: float, rng: np.random.Generator) -> Tokens:
    """``values`` in the order of correlation × z + √(1 − correlation²) × noise, z being normal in the order of
    ``leading`` (a Gaussian copula: 1 puts the longest with the longest, −1 with the shortest, 0 leaves it to chance).

    >>> coupled(np.array([1, 2, 3]), np.array([30, 10, 20]), -1.0, np.random.default_rng(0)).tolist()
    [1, 3, 2]
    """
    count = len(values)
    lead = np.sort(rng.standard_normal(count))[ranks(leading, rng)]
    scores = correlation * lead + (1.0 - correlation**2) ** 0.5 * rng.standard_normal(count)
    found = np.empty_like(values)
    found[np.argsort(scores, kind="stable")] = np.sort(values)
    return found
