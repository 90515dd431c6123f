"""What one rank keeps, stage by stage: of one sequence, and sorted by how it grows; and what is refused for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.base import Deployment
from kvplan.engines.stages import stage_layers
from kvplan.errors import UnsupportedModelError
from kvplan.layers import (
    ChunkedAttention,
    FullAttention,
    IndexKeys,
    KvTypes,
    LatentAttention,
    Layer,
    RecurrentLayer,
    SharedKv,
    SlidingAttention,
)
from kvplan.model import ModelSpec

PRICED = (FullAttention, SlidingAttention, ChunkedAttention, LatentAttention, IndexKeys, RecurrentLayer, SharedKv)
"""The kinds that engines other than vLLM are priced with."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Bytes on one rank: per token of layers that grow, per token of window layers, and of state per sequence.

    ``counts`` are layers: growing (index keys are part of one), window, state. ``window_tokens`` is the longest window,
    None without one.
    """

    growing_per_token: Fraction
    windowed_per_token: Fraction
    state_bytes: int
    counts: tuple[int, int, int]
    window_tokens: int | None

    @property
    def token_bytes(self) -> Fraction:
        """Bytes of one token where windows are not yet full, or are kept whole."""
        return self.growing_per_token + self.windowed_per_token


def refuse_other_kinds(model: ModelSpec, engine: str, *, but: tuple[type[Layer], ...] = PRICED) -> None:
    """Raises UnsupportedModelError for a model that keeps something whose place in ``engine``'s pools is not known."""
    for kept in model.caches:
        if not isinstance(kept, but):
            raise UnsupportedModelError(
                f"cannot tell: how {engine} stores {kept.kind} is not known to kvplan",
                hint="plan it for vLLM, or start the engine once and read its log: kvplan calibrate LOG",
                key="engine",
            )


def keep(layers: Iterable[Layer], kv: KvTypes) -> Kept:
    """Sums over ``layers``."""
    kept = list(layers)
    growing = [layer for layer in kept if layer.growing_bytes_per_token(kv)]
    windowed = [layer for layer in kept if layer.windowed_bytes_per_token(kv)]
    states = [layer for layer in kept if isinstance(layer, RecurrentLayer)]
    return Kept(
        growing_per_token=sum((layer.growing_bytes_per_token(kv) for layer in growing), Fraction(0)),
        windowed_per_token=sum((layer.windowed_bytes_per_token(kv) for layer in windowed), Fraction(0)),
        state_bytes=sum(layer.fixed_bytes(kv) for layer in states),
        counts=(sum(not isinstance(layer, IndexKeys) for layer in growing), len(windowed), len(states)),
        window_tokens=max((layer.window_tokens or 0 for layer in windowed), default=None),
    )


def refuse_options(engine: str, *options: tuple[bool, str]) -> None:
    """Raises UnsupportedModelError for the first of ``options`` (whether it is asked for, what it is) that is asked."""
    for asked, what in options:
        if asked:
            raise UnsupportedModelError(
                f"cannot tell: {what} is not modelled for {engine}",
                hint="leave it out, or start the engine once with it and read its log: kvplan calibrate LOG",
                key="engine",
            )


def sequence_bytes(stages: Iterable[Sequence[Layer]], tokens: int, kv: KvTypes, context_parallel: int) -> int:
    """Bytes that a sequence of ``tokens`` tokens stores on one rank, of the stage with the most, before pages.

    Context parallelism deals a sequence's growing part to its ranks; windows and states are whole on each.
    """
    dealt = -(-tokens // context_parallel)
    return max(
        sum(layer.bytes_for(dealt if layer.window_tokens is None else tokens, kv) for layer in stage)
        for stage in stages
    )


def rank_stages(model: ModelSpec, deployment: Deployment) -> tuple[tuple[Layer, ...], ...]:
    """What a tensor-parallel rank of each pipeline stage keeps."""
    rank = model.rank_layers(deployment.tensor_parallel)
    stages = stage_layers(len(rank), deployment.pipeline_parallel, deployment.pipeline_layers)
    return tuple(tuple(kept for index in stage for kept in rank[index]) for stage in stages)
