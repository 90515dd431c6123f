"""What one rank keeps of a sequence: the layers of its pipeline stage, sorted by how they grow, and their bytes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.errors import InputError, UnsupportedModelError
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
"""The layer kinds that kvplan can price on engines other than vLLM."""


@dataclass(frozen=True, kw_only=True)
class CacheSizes:
    """What one rank's layers keep: bytes per token in growing and in window layers, and bytes of state per sequence.

    ``growing_layers`` leaves out index keys, which belong to another layer. ``window_tokens`` is the longest window,
    None without one.
    """

    growing_per_token: Fraction
    windowed_per_token: Fraction
    state_bytes: int
    growing_layers: int
    window_layers: int
    state_layers: int
    window_tokens: int | None

    @property
    def token_bytes(self) -> Fraction:
        """Bytes of one token while windows are not full, or where they keep every token."""
        return self.growing_per_token + self.windowed_per_token


def refuse_other_kinds(model: ModelSpec, engine: str, *, but: tuple[type[Layer], ...] = PRICED) -> None:
    """Raises UnsupportedModelError for a model with a layer kind that kvplan cannot price on ``engine``."""
    for kept in model.caches:
        if not isinstance(kept, but):
            raise UnsupportedModelError(
                f"cannot tell: how {engine} stores {kept.kind} is not known to kvplan",
                hint="plan it for vLLM, or start the engine once and read its log: kvplan calibrate LOG",
                key="engine",
            )


def cache_sizes(layers: Iterable[Layer], kv: KvTypes) -> CacheSizes:
    """The sums over ``layers`` of one rank."""
    kept = list(layers)
    growing = [layer for layer in kept if layer.growing_bytes_per_token(kv)]
    windowed = [layer for layer in kept if layer.windowed_bytes_per_token(kv)]
    states = [layer for layer in kept if isinstance(layer, RecurrentLayer)]
    return CacheSizes(
        growing_per_token=sum((layer.growing_bytes_per_token(kv) for layer in growing), Fraction(0)),
        windowed_per_token=sum((layer.windowed_bytes_per_token(kv) for layer in windowed), Fraction(0)),
        state_bytes=sum(layer.fixed_bytes(kv) for layer in states),
        growing_layers=sum(not isinstance(layer, IndexKeys) for layer in growing),
        window_layers=len(windowed),
        state_layers=len(states),
        window_tokens=max((layer.window_tokens or 0 for layer in windowed), default=None),
    )


def refuse_options(engine: str, *options: tuple[bool, str]) -> None:
    """Raises UnsupportedModelError for the first of ``options``, pairs of (is it asked for, its description)."""
    for asked, what in options:
        if asked:
            raise UnsupportedModelError(
                f"cannot tell: {what} is not modelled for {engine}",
                hint="leave it out, or start the engine once with it and read its log: kvplan calibrate LOG",
                key="engine",
            )


def stage_layers(layers: int, stages: int, sizes: Sequence[int] | None = None) -> tuple[range, ...]:
    """The decoder layers of each pipeline stage: ``sizes`` where given, else equal shares.

    The remainder goes one layer each to the stages just before the last, which also holds the final norm and the head.
    Source: vLLM 0.33, ``get_pp_indices`` (sizes: ``VLLM_PP_LAYER_PARTITION``).

    >>> [len(stage) for stage in stage_layers(34, 4)]
    [8, 9, 9, 8]
    >>> stage_layers(64, 2, (56, 8))
    (range(0, 56), range(56, 64))
    """
    if stages > layers:
        raise InputError(
            f"pipeline parallelism {stages} exceeds the model's {layers} layers",
            hint=f"every stage needs a layer: {layers} stages at most",
            key="pipeline_parallel",
        )
    if sizes is None:
        sizes = [layers // stages] * stages
        for place in range(2, layers % stages + 2):
            sizes[-place] += 1
    elif len(sizes) != stages or sum(sizes) != layers or min(sizes) < 1:
        raise InputError(
            f"stages of {', '.join(map(str, sizes))} layers do not divide {layers} layers into {stages} stages",
            hint="give one number of layers per stage; together they are all layers",
            key="pp_layers",
        )
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def rank_stages(model: ModelSpec, deployment: Deployment) -> tuple[tuple[Layer, ...], ...]:
    """What a tensor-parallel rank of each pipeline stage keeps, layer by layer."""
    rank = model.rank_layers(deployment.tensor_parallel)
    stages = stage_layers(len(rank), deployment.pipeline_parallel, deployment.pipeline_layers)
    return tuple(tuple(kept for index in stage for kept in rank[index]) for stage in stages)


def sequence_bytes(model: ModelSpec, deployment: Deployment, tokens: int, kv: KvTypes) -> int:
    """Bytes that a sequence of ``tokens`` tokens stores on one rank of the largest stage, before paging.

    Context parallelism splits the tokens of growing layers over its ranks; windows and states are whole on each.
    """
    share = -(-tokens // deployment.context_parallel)
    return max(
        sum(layer.bytes_for(share if layer.window_tokens is None else tokens, kv) for layer in stage)
        for stage in rank_stages(model, deployment)
    )
