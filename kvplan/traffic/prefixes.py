"""Shared prompt prefixes: recorded as ids of blocks, or drawn as groups of requests that share one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import InputError
from kvplan.traffic.distributions import Distribution, ranks

_FINEST_TOKENS, _COARSEST_TOKENS = 16, 512
_LINKS = 32
"""Blocks of a prefix of mean length: few to store, and the rounding of the last one is 3% of it."""


@dataclass(frozen=True, kw_only=True)
class Prefixes:
    """The block ids of request i are ``ids[offsets[i]:offsets[i + 1]]``, each for ``block_tokens`` prompt tokens; equal
    ids at equal places mean equal content."""

    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    block_tokens: int


@dataclass(frozen=True, kw_only=True)
class SharedPrefix:
    """``groups`` prefixes in use at a time, each for ``lifetime_s`` (None: the whole run) before another replaces it.

    ``tokens`` is how much of its group's prefix a prompt begins with, at most the whole prompt.
    """

    tokens: Distribution
    groups: int = 1
    lifetime_s: float | None = None

    @property
    def block_tokens(self) -> int:
        """The block size of prefixes where no trace states one: a power of two from 16 to 512 tokens.

        >>> from kvplan.traffic.distributions import Constant
        >>> [SharedPrefix(tokens=Constant(value=tokens)).block_tokens for tokens in (100, 2_000, 100_000)]
        [16, 32, 512]
        """
        wanted = max(int(self.tokens.mean()) // _LINKS, 1)
        return min(max(1 << (wanted.bit_length() - 1), _FINEST_TOKENS), _COARSEST_TOKENS)

    def draw(
        self,
        arrival_s: NDArray[np.float64],
        prompt_tokens: NDArray[np.int64],
        rng: np.random.Generator,
        block_tokens: int,
    ) -> Prefixes:
        """The block ids of every prompt: its group's number for each shared block, then a number of its own.

        Long prompts have long prefixes, as in conversations: the request at a fraction u of the prompts, sorted by
        length (equal ones in random order), gets the prefix length at u of those drawn, and the group at u of all.
        """
        count = len(arrival_s)
        rank = ranks(prompt_tokens, rng)
        group = rank * self.groups // max(count, 1)
        if self.lifetime_s is not None:
            begun = rng.random(self.groups)[group]
            group += self.groups * np.floor(arrival_s / self.lifetime_s + begun).astype(np.int64)
        shared = np.minimum(np.sort(self.tokens.draw(rng, count))[rank], prompt_tokens) // block_tokens
        lengths = np.where(shared > 0, shared + 1, 0)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ids = np.repeat(group, lengths)
        own = offsets[1:][shared > 0] - 1
        ids[own] = int(group.max(initial=0)) + 1 + np.arange(len(own))
        return Prefixes(ids=ids, offsets=offsets, block_tokens=block_tokens)


def merged_prefixes(
    parts: Sequence[Prefixes | None], requests: Sequence[int], order: NDArray[np.int64]
) -> Prefixes | None:
    """The block ids of several drawings in the ``order`` of all requests; ``requests`` counts those of each drawing.
    Every drawing keeps ids of its own."""
    block_tokens = {part.block_tokens for part in parts if part is not None}
    if not block_tokens:
        return None
    if len(block_tokens) > 1:
        sizes = " and ".join(f"{size}" for size in sorted(block_tokens))
        raise InputError(
            f"the traces of this mix mark shared prefixes in blocks of {sizes} tokens and cannot be played together",
            hint="set hash_block_tokens of each class to what its trace uses, or simulate them apart",
            key="hash_block_tokens",
        )
    lengths, starts, ids, shift, place = [], [], [], 0, 0
    for part, count in zip(parts, requests, strict=True):
        offsets = np.zeros(count + 1, np.int64) if part is None else part.offsets
        lengths.append(np.diff(offsets))
        starts.append(offsets[:-1] + place)
        if part is not None:
            ids.append(part.ids + shift)
            place += len(part.ids)
            shift += int(part.ids.max(initial=-1)) + 1
    length, start = np.concatenate(lengths)[order], np.concatenate(starts)[order]
    offsets = np.concatenate([[0], np.cumsum(length)])
    picks = np.repeat(start - offsets[:-1], length) + np.arange(offsets[-1])
    return Prefixes(ids=np.concatenate(ids)[picks], offsets=offsets, block_tokens=block_tokens.pop())
