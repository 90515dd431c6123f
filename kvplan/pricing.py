"""What one token and one sequence of a model store, layer kind by layer kind, before an engine's paging.

A sequence is priced piecewise (windows saturate, state is fixed); nothing here multiplies a rate by a length.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines import engine_of
from kvplan.engines.deployment import Deployment
from kvplan.engines.ranks import rank_stages, sequence_bytes
from kvplan.layers import CrossAttention, FullAttention, HeadLayer, KvTypes, LatentAttention, Layer, StoredType
from kvplan.model import ModelSpec

_DEFAULT_TOKENS = (2048, 8192, 32768, 131072)
"""Lengths of the sequences priced where none are given."""


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """All layers that keep the same. Bytes are totals over the row, of one copy of the model, and ``formula`` derives
    them. A row with ``window_tokens`` stops growing there."""

    kind: str
    layers: int
    kv_heads: int | None
    head_dim: int | None
    value_head_dim: int | None
    window_tokens: int | None
    bytes_per_token: Fraction
    fixed_bytes: int
    formula: str


@dataclass(frozen=True, kw_only=True)
class SequenceRow:
    """What one sequence of ``tokens`` tokens stores: in one copy of the model, and on the fullest GPU."""

    tokens: int
    sequence_bytes: int
    gpu_bytes: int


@dataclass(frozen=True, kw_only=True)
class ModelPrice:
    """The price list of a model. ``gpu_…``: one rank of the largest stage, replicated heads included."""

    model: ModelSpec
    deployment: Deployment
    kv_types: KvTypes
    bytes_per_token: Fraction
    gpu_bytes_per_token: Fraction
    windowed_bytes_per_token: Fraction
    gpu_windowed_bytes_per_token: Fraction
    fixed_bytes: int
    gpu_fixed_bytes: int
    layers: tuple[LayerRow, ...]
    sequences: tuple[SequenceRow, ...]
    notes: tuple[str, ...] = ()


def price(model: ModelSpec, deployment: Deployment, tokens: Sequence[int] = ()) -> ModelPrice:
    """Price ``model`` as the deployment's engine stores it, and sequences of ``tokens`` tokens.

    A rank of decode context parallelism keeps ``1 / context_parallel`` of what grows with tokens; data parallelism does
    not change a rank's share.
    """
    kv_types = engine_of(deployment.engine.name).kv_types(model, deployment)
    held = rank_stages(model, deployment)
    lengths = tuple(tokens) or _lengths(deployment.max_model_len or model.max_context_tokens)
    return ModelPrice(
        model=model,
        deployment=deployment,
        kv_types=kv_types,
        bytes_per_token=model.growing_bytes_per_token(kv_types),
        gpu_bytes_per_token=max(_growing(stage, kv_types) for stage in held) / deployment.context_parallel,
        windowed_bytes_per_token=model.windowed_bytes_per_token(kv_types),
        gpu_windowed_bytes_per_token=max(
            sum((layer.windowed_bytes_per_token(kv_types) for layer in stage), Fraction(0)) for stage in held
        ),
        fixed_bytes=model.fixed_bytes(kv_types),
        gpu_fixed_bytes=max(sum(layer.fixed_bytes(kv_types) for layer in stage) for stage in held),
        layers=_layer_rows(model, kv_types),
        sequences=tuple(
            SequenceRow(
                tokens=length,
                sequence_bytes=model.sequence_bytes(length, kv_types),
                gpu_bytes=sequence_bytes(model, deployment, length, kv_types),
            )
            for length in lengths
        ),
        notes=(
            *model.notes,
            *_notes(model),
            *_rank_notes(model, deployment, kv_types),
            *_window_notes(model, kv_types),
        ),
    )


def _lengths(context: int | None) -> tuple[int, ...]:
    """Lengths worth showing: up to three usual ones within the model's context, and the context itself."""
    if context is None:
        return _DEFAULT_TOKENS
    shorter = [length for length in _DEFAULT_TOKENS if length < context]
    return (*shorter[-3:], context)


def _growing(layers: Sequence[Layer], kv: KvTypes) -> Fraction:
    return sum((layer.growing_bytes_per_token(kv) for layer in layers), Fraction(0))


def _layer_rows(model: ModelSpec, kv: KvTypes) -> tuple[LayerRow, ...]:
    """One row for equal layers, in order of first appearance; layers that keep nothing have a row too."""
    counts: dict[Layer, int] = {}
    for layer in model.layers:
        for kept in layer or (Layer(),):
            counts[kept] = counts.get(kept, 0) + 1
    return tuple(_layer_row(layer, count, kv) for layer, count in counts.items())


def _layer_row(layer: Layer, count: int, kv: KvTypes) -> LayerRow:
    per_token = layer.growing_bytes_per_token(kv) + layer.windowed_bytes_per_token(kv)
    fixed = layer.fixed_bytes(kv)
    return LayerRow(
        kind=getattr(layer, "kind", "no KV"),
        layers=count,
        kv_heads=getattr(layer, "kv_heads", None),
        head_dim=getattr(layer, "head_dim", None),
        value_head_dim=getattr(layer, "value_head_dim", None),
        window_tokens=layer.window_tokens,
        bytes_per_token=per_token * count,
        fixed_bytes=fixed * count,
        formula=_formula(layer, count, kv, per_token, fixed),
    )


def _formula(layer: Layer, count: int, kv: KvTypes, per_token: Fraction, fixed: int) -> str:
    """The row's bytes as a person would write them down."""
    key, value = _width(kv.key), _width(kv.value)
    if isinstance(layer, LatentAttention) and kv.packed is None:
        return f"{count} × ({layer.latent_dim} + {layer.rope_dim}) × {key}"
    heads, head, other = (getattr(layer, name, None) for name in ("kv_heads", "head_dim", "value_head_dim"))
    if heads is not None and head is not None and other is not None:
        tokens = f" × {layer.source_tokens:,} tokens" if isinstance(layer, CrossAttention) else ""
        if (head, key) == (other, value):
            return f"2 × {count} × {heads} × {head} × {key}{tokens}"
        if key == value:
            return f"{count} × {heads} × ({head} + {other}) × {key}{tokens}"
        return f"{count} × {heads} × ({head} × {key} + {other} × {value}){tokens}"
    each = per_token or fixed
    return f"{count} × {_number(each)}" if each else ""


def _width(stored: StoredType) -> str:
    each = f"{stored.bytes_per_group}/{stored.elements_per_group}"
    return each.removesuffix("/1")


def _number(value: Fraction | int) -> str:
    return f"{int(value):,}" if value == int(value) else f"{float(value):,g}"


def _notes(model: ModelSpec) -> tuple[str, ...]:
    """How much the layer kinds save compared with one KV head per query head."""
    notes = []
    heads = {kept.kv_heads for layer in model.layers for kept in layer if isinstance(kept, FullAttention)}
    queries = max(model.query_heads, default=0)
    if len(heads) == 1:
        (shared,) = heads
        if shared < queries:
            kind = "MQA" if shared == 1 else "GQA"
            times = _number(Fraction(queries, shared))
            held = f"{shared} KV head{'s' * (shared > 1)}"
            notes.append(f"{kind} shares {held} among {queries} query heads: {times} times less KV than with one each.")
    if any(isinstance(kept, LatentAttention) for layer in model.layers for kept in layer):
        notes.append("MLA keeps one latent per token, shared by all heads and copied on every tensor-parallel rank.")
    return tuple(notes)


def _rank_notes(model: ModelSpec, deployment: Deployment, kv: KvTypes) -> Iterator[str]:
    """That KV heads are copied where there are more ranks."""
    ranks = deployment.tensor_parallel
    heads = {kept.kv_heads for layer in model.layers for kept in layer if isinstance(kept, HeadLayer)}
    if ranks > 1 and heads and max(heads) < ranks:
        held = max(_growing(stage, kv) for stage in rank_stages(model, deployment))
        yield (
            f"Each of {ranks} ranks keeps 1 KV head, one of {max(heads)} copied {ranks // max(heads)} times: "
            f"{_number(held)} bytes per token on one GPU, no less than at --tp {max(heads)}."
        )


def _window_notes(model: ModelSpec, kv: KvTypes) -> Iterator[str]:
    """The size of the windows, and which engines and flags keep such layers in full."""
    windows = sorted({kept.window_tokens for layer in model.layers for kept in layer if kept.window_tokens})
    if not windows:
        return
    yield f"Layers with a window stop growing at {' and '.join(f'{w:,}' for w in windows)} tokens."
    growing, windowed = model.growing_bytes_per_token(kv), model.windowed_bytes_per_token(kv)
    if growing and windowed:
        yield (
            "vLLM with its hybrid manager (the default), SGLang and llama.cpp keep them so; vLLM with "
            "--no-hybrid-kv-cache-manager, llama.cpp with --swa-full, TensorRT-LLM and TGI keep every layer in full: "
            f"{_number(growing + windowed)} bytes per token."
        )
