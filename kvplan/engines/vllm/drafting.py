"""Speculative decoding: what guesses ahead, the caches and weights it adds, and what guessing does to states.

A drafter's layers page like the model's own, after them, on the last pipeline stage. A recurrent layer keeps the steps
of its convolution for every token guessed, and a state for each of them.
Source: vLLM 0.33, ``config/speculative.py``, ``v1/worker/gpu/spec_decode`` and ``MambaBase.get_kv_cache_spec``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from kvplan.engines.base import Deployment, Finding, Settings
from kvplan.engines.weights import MTP_NAMES, part_bytes, rank_share, rank_weights
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import GatedDeltaState, KdaState, Layer, Mamba2State, RecurrentLayer, ShortConvState
from kvplan.model import ModelSpec

NGRAM, MTP, DRAFT_MODEL, EAGLE = "ngram", "mtp", "draft_model", "eagle"
METHODS = (NGRAM, MTP, DRAFT_MODEL, EAGLE)
_AUXILIARY_STATES = 3
"""EAGLE-3 joins the hidden states of three of the model's layers."""


@dataclass(frozen=True, kw_only=True)
class Drafter:
    """What guesses ``tokens`` ahead: ``layers`` are its caches, ``model`` the checkpoint they come from, if another.

    ``retained_tokens`` are kept below every window: modules that run one after the other read that far back.
    """

    method: str
    tokens: int
    layers: tuple[tuple[Layer, ...], ...] = ()
    model: ModelSpec | None = None
    retained_tokens: int = 0

    @property
    def engine_word(self) -> str:
        """The method as vLLM spells it: EAGLE-3 has a name of its own."""
        return "eagle3" if self.model is not None and self.method == EAGLE and _is_third(self.model) else self.method

    @property
    def lookahead_tokens(self) -> int:
        """Slots that are reserved past a request's tokens."""
        return 0 if self.method == NGRAM else self.tokens


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


def method_of(model: ModelSpec, deployment: Deployment) -> str:
    """How tokens are guessed ahead: as asked for, or as the draft model or the model's own layers imply it.

    Raises UnsupportedModelError for a method that is not modelled, InputError where it and the draft model disagree.
    """
    draft = deployment.draft_model
    method = deployment.speculative_method or _implied(model, draft)
    if method not in METHODS:
        raise UnsupportedModelError(
            f"cannot tell: tokens guessed ahead by {method!r} are not modelled",
            hint=f"one of {', '.join(METHODS)}",
            key="speculative_method",
        )
    if (draft is None) == (method in (DRAFT_MODEL, EAGLE)):
        raise InputError(
            f"{method} needs a draft model" if draft is None else f"{method} takes no draft model",
            hint="--draft-model org/name goes with draft_model and eagle",
            key="draft_model",
        )
    return method


def _implied(model: ModelSpec, draft: ModelSpec | None) -> str:
    if draft is not None:
        return EAGLE if "Eagle" in draft.architecture else DRAFT_MODEL
    if model.next_token_layers:
        return MTP
    raise UnsupportedModelError(
        f"cannot tell what guesses ahead: no next-token layers are read from {model.id}",
        hint="--speculative-method ngram, or --draft-model org/name",
        key="speculative_tokens",
    )


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
    kept = [layer for layers in draft.layers for layer in layers]
    if draft.is_encoder_decoder or draft.next_token_layers or any(isinstance(each, RecurrentLayer) for each in kept):
        raise UnsupportedModelError(
            f"cannot tell: how vLLM pages {draft.id} as a drafter is not known (recurrent state, an encoder, or "
            "next-token layers of its own)",
            hint="plan with a plain decoder as the draft model",
            key="draft_model",
        )


def drafting_findings(drafter: Drafter | None, settings: Settings, window: int) -> Iterator[Finding]:
    """What guesses ahead, that its caches are in the pool, and a ``window`` asked for that it shortens."""
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
    kept = f"its {caches} caches are part of the pool" if caches else "it keeps no caches"
    yield Finding(
        code="speculation",
        severity="info",
        message=f"{drafter.engine_word} guesses {drafter.tokens} tokens ahead: {kept}, and every sequence's recurrent "
        "state, if any, is kept once more for each",
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


@dataclass(frozen=True, kw_only=True)
class DraftWeights:
    """What the drafter's own weights take on a rank of the last stage; embedding and head are the model's."""

    bytes: int
    formula: str


def draft_weights(model: ModelSpec, drafter: Drafter | None, tensor_parallel: int) -> DraftWeights:
    """Bytes of the drafter on one rank.

    Next-token layers share the model's embedding and head; so does EAGLE's, which joins hidden states with the token by
    a matrix of its own (EAGLE-3: 3 × hidden × hidden, and queries, keys and values of twice the width).
    """
    if drafter is None or drafter.method == NGRAM:
        return DraftWeights(bytes=0, formula="nothing is loaded to guess ahead")
    if drafter.model is None:
        return DraftWeights(
            bytes=_next_token_bytes(model, tensor_parallel),
            formula=f"{len(drafter.layers)} next-token layers, embedding and head shared",
        )
    whole = rank_weights(drafter.model, tensor_parallel=tensor_parallel)
    if drafter.method == DRAFT_MODEL or not drafter.model.weights.parts:
        return DraftWeights(bytes=whole.bytes, formula=f"{drafter.model.id}: {whole.formula}")
    return DraftWeights(
        bytes=_eagle_bytes(drafter.model, tensor_parallel),
        formula=f"{drafter.model.id}: its layers and what joins them, embedding shared",
    )


def _next_token_bytes(model: ModelSpec, tensor_parallel: int) -> int:
    """The multi-token parts, without their copies of embedding and head; of file sizes their share."""
    weights, vocabulary = model.weights, model.shape.vocabulary
    width = model.shape.expert_intermediate or model.shape.intermediate
    own = [part for part in weights.parts if part.name.startswith(MTP_NAMES) and part.split != "vocabulary"]
    shares = (rank_share(part, tensor_parallel, vocabulary, expert_width=width) for part in own)
    counted = sum((part_bytes(part, share, model.dtype) for part, share in zip(own, shares, strict=True)), Fraction(0))
    if weights.quantization is not None and weights.stored_bytes is not None and weights.parts:
        every = sum((part_bytes(part, Fraction(part.parameters), model.dtype) for part in weights.parts), Fraction(0))
        counted = counted * weights.stored_bytes / every
    return int(counted)


def _is_third(draft: ModelSpec) -> bool:
    return "Eagle3" in draft.architecture


def _eagle_bytes(draft: ModelSpec, tensor_parallel: int) -> int:
    hidden, third = draft.shape.hidden, _is_third(draft)
    total = sum(
        part_bytes(part, rank_share(part, tensor_parallel, draft.shape.vocabulary), draft.dtype)
        * (2 if third and part.name.endswith(("q_proj", "kv_proj")) else 1)
        for part in draft.weights.parts
        if part.name != "embed_tokens" and (third or part.name != "lm_head")
    )
    return int(total) + (_AUXILIARY_STATES if third else 2) * hidden * hidden * 2
