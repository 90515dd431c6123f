"""Speculative decoding: what guesses ahead, the caches and weights it adds, and what guessing does to states.

A drafter's layers page like the model's own, after them, on the last pipeline stage. A recurrent layer keeps the steps
of its convolution for every token guessed, and a state for each of them.
Source: vLLM 0.33, ``config/speculative.py``, ``v1/worker/gpu/spec_decode`` and ``MambaBase.get_kv_cache_spec``.
"""

from collections.abc import Iterator
from dataclasses import replace

from kvplan.engines.base import Deployment, Finding, Settings
from kvplan.engines.drafting import DRAFT_MODEL, MTP, NGRAM, Drafter, counted, method_of
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
    """What guesses ahead on ``deployment``, None where nothing does.

    Raises InputError for what vLLM refuses, UnsupportedModelError where it is not known what would guess.
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
            "cannot tell how a draft model's caches are dealt to ranks of context parallelism",
            hint="leave out --dcp, or guess with ngram or the model's own next-token layers",
            key="context_parallel",
        )
    _check_draft(model, draft, method)
    return Drafter(method=method, tokens=tokens, layers=draft.layers, model=draft)


def _next_token_drafter(model: ModelSpec, tokens: int) -> Drafter:
    """The model's own multi-token layers; more tokens than layers run the same layers again."""
    layers = model.next_token_layers
    if not layers:
        raise InputError(
            f"{model.id} has no next-token layers that vLLM loads",
            hint="--speculative-method ngram, or --draft-model org/name",
            key="speculative_method",
        )
    if tokens > len(layers) and tokens % len(layers):
        raise InputError(
            f"{tokens} tokens are no multiple of the {len(layers)} next-token layers of {model.id}: vLLM refuses them",
            hint=f"--speculative-tokens {tokens // len(layers) * len(layers)}",
            key="speculative_tokens",
        )
    several = min(len(layers), tokens) > 1
    return Drafter(method=MTP, tokens=tokens, layers=layers, retained_tokens=tokens - 1 if several else 0)


def _check_draft(model: ModelSpec, draft: ModelSpec, method: str) -> None:
    """A draft model shares the vocabulary, and is a plain decoder."""
    mine, its = model.shape.vocabulary, draft.shape.vocabulary
    if method == DRAFT_MODEL and mine is not None and its is not None and mine != its:
        raise InputError(
            f"{draft.id} has a vocabulary of {its:,} tokens, {model.id} one of {mine:,}: vLLM refuses the pair",
            hint="a draft model has the model's own vocabulary",
            key="draft_model",
        )
    if draft.is_encoder_decoder or draft.next_token_layers or _outgrows(draft, model):
        raise UnsupportedModelError(
            f"cannot tell: how vLLM pages {draft.id} as a drafter is not known (recurrent states larger than the "
            "model's own, an encoder, or next-token layers of its own, which vLLM loads in its place)",
            hint="plan with a plain decoder as the draft model",
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


def drafting_findings(
    drafter: Drafter | None, settings: Settings, window: int, *, has_states: bool
) -> Iterator[Finding]:
    """What guesses ahead, that its caches are in the pool, what recurrent ``has_states`` add, and a ``window`` asked
    for that it shortens."""
    if drafter is None:
        return
    if settings.max_model_len < window and drafter.model is not None:
        yield Finding(
            code="window-cut-to-draft",
            severity="warning",
            message=f"{drafter.model.id} was made for {settings.max_model_len:,} tokens: vLLM shortens the window of "
            f"{window:,} to that",
            hint="take a draft model of a longer context",
        )
    caches = sum(len(kept) for kept in drafter.layers)
    kept = f"{counted(caches, 'cache')} of its own in the pool" if caches else "it keeps no caches"
    states = ", and every sequence's recurrent state is kept once more for each" if has_states else ""
    yield Finding(
        code="speculation",
        severity="info",
        message=f"{drafter.engine_word} guesses {counted(drafter.tokens, 'token')} ahead: {kept}{states}",
    )


def check_lookahead(drafter: Drafter | None, settings: Settings) -> None:
    """A step must hold the tokens guessed and one more (vLLM 0.33, ``_set_max_num_scheduled_tokens``)."""
    if drafter is not None and settings.max_num_batched_tokens <= drafter.lookahead_tokens:
        raise InputError(
            f"{drafter.lookahead_tokens:,} tokens guessed ahead leave no room in a step of "
            f"{settings.max_num_batched_tokens:,}: vLLM refuses to start",
            hint="raise --max-num-batched-tokens, or guess fewer",
            key="max_num_batched_tokens",
        )


def cut_to_drafter(settings: Settings, drafter: Drafter | None) -> Settings:
    """A draft model of a shorter context shortens the window; other drafters share the model's positions.

    Source: vLLM 0.33, ``VllmConfig._limit_max_model_len_to_draft``.
    """
    if drafter is None or drafter.method != DRAFT_MODEL or drafter.model is None:
        return settings
    longest = drafter.model.max_context_tokens or settings.max_model_len
    return replace(settings, max_model_len=min(settings.max_model_len, longest))


def with_drafter(model: ModelSpec, drafter: Drafter | None) -> ModelSpec:
    """``model`` with the drafter's caches on its last layer, and with states that remember the tokens guessed."""
    if drafter is None:
        return model
    layers = [tuple(_remembering(layer, drafter.tokens) for layer in kept) for kept in model.layers]
    layers[-1] = (*layers[-1], *(layer for kept in drafter.layers for layer in kept))
    heads = drafter.model.query_heads if drafter.model is not None else ()
    return replace(model, layers=tuple(layers), query_heads=(*model.query_heads, *heads))


def _remembering(layer: Layer, tokens: int) -> Layer:
    """A convolution keeps kernel − 1 + tokens steps; Mamba-1's keeps its own."""
    if isinstance(layer, Mamba2State | GatedDeltaState | KdaState | ShortConvState):
        return replace(layer, conv_kernel=layer.conv_kernel + tokens)
    return layer
