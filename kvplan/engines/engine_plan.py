"""What an engine answers: the settings, pages, budget and findings of a plan (``EnginePlan``)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Self

from kvplan.layers import KvTypes
from kvplan.model import ModelSpec

OVER_STATE_BLOCKS = "max-num-seqs-above-state-blocks"
"""Code of the finding that max_num_seqs exceeds the blocks, though every running sequence needs one for its state."""

LOG_ROUNDING_BYTES = 1 << 23
"""Half width of the band after a correction: engines print GiB with two digits, and no two starts are the same."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something the user should know: a stable code, a severity (info, warning or error), and what to do about it."""

    code: str
    severity: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Unpriced:
    """An option that was asked for but that the plan does not price. ``word`` is its flag; ``takes`` says what it would
    use. ``only_takes``: it can only use more memory, so a plan that does not fit without it does not fit with it."""

    option: str
    word: str
    takes: str
    only_takes: bool = False

    @property
    def finding(self) -> Finding:
        """What the user is told."""
        return Finding(
            code=f"{self.word}-not-modelled",
            severity="error",
            message=f"cannot tell with {self.word}: it takes {self.takes}; the plan is without it",
            hint="start the engine once with it, and plan from its log: kvplan calibrate LOG",
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The engine's settings, defaults filled in. Without ``chunked_prefill`` a step must hold a whole prompt."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    memory_utilization: Fraction
    async_scheduling: bool
    prefix_caching: bool
    in_flight_tokens: int
    chunked_prefill: bool = True


@dataclass(frozen=True, kw_only=True)
class CacheGroup:
    """Layers that are paged together. ``rule`` says how a request of L tokens is charged in blocks of ``block_tokens``:

    - ``full``: ceil(L / block)
    - ``sliding``: ceil(min(window − 1 + retained + in_flight, L) / block) + 1
    - ``chunked``: ceil(min(chunk + in_flight, L) / block)
    - ``fixed``: ``fixed_blocks``, whatever L (recurrent state, cross attention)
    - ``paired``: ceil(max(L, min(window + block, L) / pool_ratio) / block): a second pool holds ``pool_ratio`` window
      tokens per token of this one, and either can run out first (SGLang)

    ``page_bytes`` is one block of all the group's layers on one rank. ``token_shards``: ranks that share a sequence's
    tokens under decode context parallelism; each holds ceil(L / shards) of them.
    """

    kind: str
    layers: int
    rule: str
    block_tokens: int
    page_bytes: int
    window_tokens: int | None = None
    retained_tokens: int = 0
    fixed_blocks: int = 0
    token_shards: int = 1
    pool_ratio: Fraction = Fraction(1)

    def request_blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Blocks charged for a request of ``tokens`` tokens in this group."""
        if self.rule == "fixed":
            return self.fixed_blocks
        held, extra = -(-tokens // self.token_shards), 0
        if self.rule == "sliding":
            assert self.window_tokens is not None
            held, extra = min(self.window_tokens - 1 + self.retained_tokens + in_flight_tokens, tokens), 1
        elif self.rule == "chunked":
            assert self.window_tokens is not None
            held = min(self.window_tokens + in_flight_tokens, tokens)
        elif self.rule == "paired":
            assert self.window_tokens is not None
            held = max(tokens, ceil(min(self.window_tokens + self.block_tokens, tokens) / self.pool_ratio))
        return -(-held // self.block_tokens) + extra


@dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """How an engine pages a model on one rank. All groups share one pool of blocks of ``bytes_per_block``."""

    block_tokens: int
    bytes_per_block: int
    groups: tuple[CacheGroup, ...]
    in_flight_tokens: int
    reserved_blocks: int = 1

    def request_blocks(self, tokens: int) -> int:
        """Blocks charged for a request of ``tokens`` tokens, summed over the groups."""
        return sum(group.request_blocks(tokens, self.in_flight_tokens) for group in self.groups)


def term_kind(name: str) -> str:
    """The kind of a budget term: weight, activation, non_torch, graph or other.

    >>> [term_kind(name) for name in ("weights", "activation_encoder", "cuda_graphs", "left_free")]
    ['weight', 'activation', 'graph', 'other']
    """
    named = next((kind for kind in ("weight", "activation", "non_torch") if name.startswith(kind)), None)
    return named or ("graph" if "graph" in name else "other")


@dataclass(frozen=True, kw_only=True)
class BudgetTerm:
    """One line of a rank's memory. ``inside_fraction``: it counts within the memory utilisation."""

    name: str
    bytes: int
    formula: str
    inside_fraction: bool = True

    @property
    def kind(self) -> str:
        """Its kind, whatever the engine calls it."""
        return term_kind(self.name)

    def corrected(self, added_bytes: int) -> Self:
        """This term changed by what a log adds to it. It may fall below zero: a log that prints several terms as one
        corrects one of them for all.
        """
        changed = self.bytes + added_bytes
        why = "corrected by a log" if changed >= 0 else "corrected by a log, for all terms that it does not print"
        return replace(self, bytes=changed, formula=f"{self.formula}; {why}")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Where one rank's memory goes. ``kv_bytes`` may be negative: that is the answer "does not fit".

    Law: requested_bytes = Σ terms inside the fraction + kv_bytes.
    """

    rank: int
    total_bytes: int
    requested_bytes: int
    terms: tuple[BudgetTerm, ...]
    kv_bytes: int
    kv_bytes_low: int
    kv_bytes_high: int

    def corrected(self, corrections: Sequence[tuple[str, int]]) -> Self:
        """This budget with each named term changed by the bytes that a log adds to it; a new name becomes a term.

        ``kv_bytes`` changes by the sum of what lies inside the fraction, so the law still holds.
        """
        if not corrections:
            return self
        added = dict(corrections)
        terms = [term.corrected(added.pop(term.name)) if term.name in added else term for term in self.terms]
        terms += [BudgetTerm(name=name, bytes=amount, formula="from a log") for name, amount in added.items()]
        before = sum(term.bytes for term in self.terms if term.inside_fraction)
        left = self.kv_bytes + before - sum(term.bytes for term in terms if term.inside_fraction)
        return replace(
            self,
            terms=tuple(terms),
            kv_bytes=left,
            kv_bytes_low=left - LOG_ROUNDING_BYTES,
            kv_bytes_high=left + LOG_ROUNDING_BYTES,
        )


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """An engine's answer. ``budget`` is None where the pool's memory was given; ``kv_bytes`` is the pool of one rank.

    ``blocks`` includes the reserved ones. ``tokens`` is the pool size that the engine prints, where that is not
    concurrency × window (older releases), else None. ``unpriced`` are options asked for that the plan does not price.
    ``loaded`` is the model with a drafter's caches added, None without speculative decoding.
    """

    settings: Settings
    kv_types: KvTypes
    layout: CacheLayout
    kv_bytes: int
    blocks: int
    budget: Budget | None
    findings: tuple[Finding, ...] = ()
    tokens: int | None = None
    unpriced: tuple[Unpriced, ...] = ()
    loaded: ModelSpec | None = None

    @property
    def starts(self) -> bool:
        """Whether no finding is an error: the engine starts and keeps running."""
        return all(finding.severity != "error" for finding in self.findings)
