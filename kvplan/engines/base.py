"""The types between a model, an engine and a plan: what is asked (``Deployment``) and what an engine answers
(``EnginePlan``)."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from kvplan.engines.deployment import Deployment, EngineVersion, MediaLimit
from kvplan.layers import KvTypes
from kvplan.model import ModelSpec

__all__ = [
    "Budget",
    "BudgetTerm",
    "CacheGroup",
    "CacheLayout",
    "Deployment",
    "EnginePlan",
    "EngineVersion",
    "Finding",
    "MediaLimit",
    "Settings",
    "Unpriced",
    "term_sort",
]


OVER_STATE_BLOCKS = "max-num-seqs-above-state-blocks"
"""The code of a finding: more sequences than the plan has blocks, of which each that runs needs one for its state."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something the reader should know: a stable code, a severity (info, warning, error), and what to do."""

    code: str
    severity: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Unpriced:
    """An option that was asked for and that the plan is made without. ``word`` is its flag, ``takes`` says what it
    would take; ``only_takes`` that it can only take memory: then "does not fit" stays true with it."""

    option: str
    word: str
    takes: str
    only_takes: bool = False

    @property
    def finding(self) -> Finding:
        """What the reader is told."""
        return Finding(
            code=f"{self.word}-not-modelled",
            severity="error",
            message=f"cannot tell with {self.word}: it takes {self.takes}; the plan is without it",
            hint="start the engine once with it, and plan from its log: kvplan calibrate LOG",
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The engine's settings, its defaults filled in. Without ``chunked_prefill`` a step must hold a whole prompt."""

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
      tokens for each of its own, and either can be the first to run out (SGLang)

    ``page_bytes`` is one block of all the group's layers on one rank. ``token_shards``: ranks to which decode context
    parallelism deals a sequence's tokens; one rank then holds ceil(L / shards) of them.
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
        """Blocks that the engine sets aside for a request of ``tokens`` tokens in this group."""
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
    """How an engine pages a model on one rank. All groups draw on one pool of blocks of ``bytes_per_block``."""

    block_tokens: int
    bytes_per_block: int
    groups: tuple[CacheGroup, ...]
    in_flight_tokens: int
    reserved_blocks: int = 1

    def request_blocks(self, tokens: int) -> int:
        """Blocks charged for a request of ``tokens`` tokens, summed over the groups."""
        return sum(group.request_blocks(tokens, self.in_flight_tokens) for group in self.groups)


def term_sort(name: str) -> str:
    """What a budget's term is one of: weight, activation, non_torch, graph or other.

    >>> [term_sort(name) for name in ("weights", "activation_encoder", "cuda_graphs", "left_free")]
    ['weight', 'activation', 'graph', 'other']
    """
    named = next((sort for sort in ("weight", "activation", "non_torch") if name.startswith(sort)), None)
    return named or ("graph" if "graph" in name else "other")


@dataclass(frozen=True, kw_only=True)
class BudgetTerm:
    """One line of a rank's memory. ``inside_fraction``: booked within the utilisation the user set."""

    name: str
    bytes: int
    formula: str
    inside_fraction: bool = True

    @property
    def sort(self) -> str:
        """What it is one of, whatever the engine calls it."""
        return term_sort(self.name)


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


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """An engine's answer. ``budget`` is None when the pool's memory was given; ``kv_bytes`` is that of one rank.

    ``blocks`` includes the reserved ones. ``tokens`` is the figure that the engine prints for the pool where that is
    not the concurrency × window of the plan (older releases); null means it is. ``unpriced`` are options that were
    asked for and that the plan is made without. ``loaded`` is the model with a drafter's caches on it, where one
    guesses ahead.
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
        """Whether no finding says that the engine refuses to start, or breaks once it has."""
        return all(finding.severity != "error" for finding in self.findings)
