"""Speculative decoding on vLLM: the drafter, the caches it adds, what vLLM refuses, and the effect on states.

A drafter's layers page like the model's own, after them, on the last pipeline stage. A recurrent layer keeps one more
step of its convolution, and one more state, for every drafted token.
Source: vLLM 0.33, ``config/speculative.py``, ``v1/worker/gpu/spec_decode`` and ``MambaBase.get_kv_cache_spec``.
"""

from dataclasses import replace

from kvplan.engines.deployment import Deployment
from kvplan.engines.drafting import DRAFT_MODEL, MTP, NGRAM, Drafter, method_of
from kvplan.engines.engine_plan import Settings
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import (
    BFLOAT16,
    GatedDeltaState,
    KdaState,
    KvTypes,
    Layer,
    Mamba2State,
    RecurrentLayer,
    ShortConvState,
)
from kvplan.model import ModelSpec


def drafter_of(model: ModelSpec, deployment: Deployment) -> Drafter | None:
    """The drafter of ``deployment``, None without speculative decoding.

    Raises InputError for what vLLM refuses, UnsupportedModelError where the method or the drafter is not modelled.
    """
    tokens = deployment.speculative_tokens
    if not tokens:
        return None
    method, draft = method_of(model, deployment), deployment.draft_model
    if method == NGRAM:
        return Drafter(method=method, tokens=tokens)
    if draft is None:
        return _next_token_drafter(model, tokens)
    if deployment.context_parallel > 1:
        raise UnsupportedModelError(
            "cannot tell how context parallelism splits a draft model's caches",
            hint="leave out --dcp, or draft with ngram or the model's own next-token layers",
            key="context_parallel",
        )
    _check_draft(model, draft, method)
    return Drafter(method=method, tokens=tokens, layers=draft.layers, model=draft)


def _next_token_drafter(model: ModelSpec, tokens: int) -> Drafter:
    """The model's own multi-token layers; for more tokens than layers, vLLM runs the layers again."""
    layers = model.next_token_layers
    if not layers:
        raise InputError(
            f"{model.id} has no next-token layers that vLLM loads",
            hint="--speculative-method ngram, or --draft-model org/name",
            key="speculative_method",
        )
    if tokens > len(layers) and tokens % len(layers):
        raise InputError(
            f"{tokens} tokens are not a multiple of {model.id}'s {len(layers)} next-token layers: vLLM refuses them",
            hint=f"--speculative-tokens {tokens // len(layers) * len(layers)}",
            key="speculative_tokens",
        )
    several = min(len(layers), tokens) > 1
    return Drafter(method=MTP, tokens=tokens, layers=layers, retained_tokens=tokens - 1 if several else 0)


def _check_draft(model: ModelSpec, draft: ModelSpec, method: str) -> None:
    """A draft model has the model's vocabulary, and is a plain decoder."""
    mine, its = model.shape.vocabulary, draft.shape.vocabulary
    if method == DRAFT_MODEL and mine is not None and its is not None and mine != its:
        raise InputError(
            f"{draft.id} has a vocabulary of {its:,} tokens, {model.id} of {mine:,}: vLLM refuses the pair",
            hint="use a draft model with the same vocabulary",
            key="draft_model",
        )
    if draft.is_encoder_decoder or draft.next_token_layers or _outgrows(draft, model):
        raise UnsupportedModelError(
            f"cannot tell: how vLLM pages {draft.id} as a drafter is not known (recurrent states larger than the "
            "model's own, an encoder, or next-token layers of its own, which vLLM loads in its place)",
            hint="use a plain decoder as the draft model",
            key="draft_model",
        )


def _outgrows(draft: ModelSpec, model: ModelSpec) -> bool:
    """Whether a recurrent state of ``draft`` is larger than the model's largest: vLLM 0.33 aligns blocks to the model's
    states only, and asserts that the drafter's fit into them."""
    kv = KvTypes(key=BFLOAT16, value=BFLOAT16)
    own, its = (
        max((kept.fixed_bytes(kv) for kept in each.caches if isinstance(kept, RecurrentLayer)), default=0)
        for each in (model, draft)
    )
    return its > own


def check_lookahead(drafter: Drafter | None, settings: Settings) -> None:
    """A step must hold the drafted tokens and one more (vLLM 0.33, ``_set_max_num_scheduled_tokens``)."""
    if drafter is not None and settings.max_num_batched_tokens <= drafter.lookahead_tokens:
        raise InputError(
            f"{drafter.lookahead_tokens:,} drafted tokens leave no room in a step of "
            f"{settings.max_num_batched_tokens:,}: vLLM refuses to start",
            hint="raise --max-num-batched-tokens, or draft fewer",
            key="max_num_batched_tokens",
        )


def cut_to_drafter(settings: Settings, drafter: Drafter | None) -> Settings:
    """A draft model with a shorter context shortens the window; other drafters share the model's positions.

    Source: vLLM 0.33, ``VllmConfig._limit_max_model_len_to_draft``.
    """
    if drafter is None or drafter.method != DRAFT_MODEL or drafter.model is None:
        return settings
    longest = drafter.model.max_context_tokens or settings.max_model_len
    return replace(settings, max_model_len=min(settings.max_model_len, longest))


def with_drafter(model: ModelSpec, drafter: Drafter | None) -> ModelSpec:
    """``model`` with the drafter's caches on its last layer, and with states that keep the drafted tokens."""
    if drafter is None:
        return model
    layers = [tuple(_remembering(layer, drafter.tokens) for layer in kept) for kept in model.layers]
    layers[-1] = (*layers[-1], *(layer for kept in drafter.layers for layer in kept))
    heads = drafter.model.query_heads if drafter.model is not None else ()
    return replace(model, layers=tuple(layers), query_heads=(*model.query_heads, *heads))


def _remembering(layer: Layer, tokens: int) -> Layer:
    """``layer`` with a convolution that keeps kernel − 1 + tokens steps; Mamba-1's is unchanged."""
    if isinstance(layer, Mamba2State | GatedDeltaState | KdaState | ShortConvState):
        return replace(layer, conv_kernel=layer.conv_kernel + tokens)
    return layer
