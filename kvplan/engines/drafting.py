"""Speculative decoding on any engine: the method, given or implied by the models, and the drafter's weights.

How an engine pages a drafter's caches is up to each engine.
"""

from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.weights import MTP_NAMES, RankWeights, all_bytes, part_bytes, rank_share, rank_weights
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import Layer
from kvplan.model import ModelSpec

NGRAM, MTP, DRAFT_MODEL, EAGLE = "ngram", "mtp", "draft_model", "eagle"
METHODS = (NGRAM, MTP, DRAFT_MODEL, EAGLE)
_AUXILIARY_STATES = 3
"""EAGLE-3 joins the hidden states of three of the model's layers."""


@dataclass(frozen=True, kw_only=True)
class Drafter:
    """What drafts ``tokens`` per step: ``layers`` are its caches; ``model`` is its checkpoint, where that is another.

    ``retained_tokens`` are kept below every window: modules that run one after the other read that far back.
    """

    method: str
    tokens: int
    layers: tuple[tuple[Layer, ...], ...] = ()
    model: ModelSpec | None = None
    retained_tokens: int = 0

    @property
    def engine_word(self) -> str:
        """The method as vLLM spells it: EAGLE-3 has its own name."""
        return "eagle3" if self.model is not None and self.method == EAGLE and _is_eagle3(self.model) else self.method

    @property
    def lookahead_tokens(self) -> int:
        """Slots reserved past a request's tokens."""
        return 0 if self.method == NGRAM else self.tokens


def method_of(model: ModelSpec, deployment: Deployment) -> str:
    """The method of drafting: the one asked for, else the one that the draft model or the model's own layers imply.

    Raises UnsupportedModelError for a method that is not modelled, InputError where it contradicts the draft model.
    """
    draft = deployment.draft_model
    method = deployment.speculative_method or _implied(model, draft)
    if method not in METHODS:
        raise UnsupportedModelError(
            f"cannot tell: speculative decoding by {method!r} is not modelled",
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
        f"cannot tell what drafts tokens: no next-token layers are read from {model.id}",
        hint="--speculative-method ngram, or --draft-model org/name",
        key="speculative_tokens",
    )


def counted(amount: int, noun: str) -> str:
    """``amount`` with its noun.

    >>> counted(1, "token"), counted(3, "token")
    ('1 token', '3 tokens')
    """
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


def draft_weights(model: ModelSpec, drafter: Drafter | None, tensor_parallel: int) -> RankWeights:
    """Weights of the drafter on one rank.

    Next-token layers and EAGLE share the model's embedding and head. EAGLE joins hidden states with the token by a
    matrix of its own (EAGLE-3: 3 × hidden × hidden, and queries, keys and values of twice the width).
    """
    if drafter is None or drafter.method == NGRAM:
        return RankWeights(bytes=0, formula="no drafter is loaded")
    if drafter.model is None:
        return RankWeights(
            bytes=_next_token_bytes(model, tensor_parallel),
            formula=f"{counted(len(drafter.layers), 'next-token layer')}, embedding and head shared",
        )
    whole = rank_weights(drafter.model, tensor_parallel=tensor_parallel)
    if drafter.method == DRAFT_MODEL or not drafter.model.weights.parts:
        return RankWeights(bytes=whole.bytes, formula=f"{drafter.model.id}: {whole.formula}")
    return RankWeights(
        bytes=_eagle_bytes(drafter.model, tensor_parallel),
        formula=f"{drafter.model.id}: its layers and the matrix that joins them, embedding shared",
    )


def _next_token_bytes(model: ModelSpec, tensor_parallel: int) -> int:
    """The multi-token parts without their copies of embedding and head, scaled to the file sizes where quantised."""
    weights, vocabulary = model.weights, model.shape.vocabulary
    width = model.shape.expert_intermediate or model.shape.intermediate
    own = [part for part in weights.parts if part.name.startswith(MTP_NAMES) and part.split != "vocabulary"]
    shares = (rank_share(part, tensor_parallel, vocabulary, expert_width=width) for part in own)
    loaded = sum((part_bytes(part, share, model.dtype) for part, share in zip(own, shares, strict=True)), Fraction(0))
    if weights.quantization is not None and weights.stored_bytes is not None and weights.parts:
        loaded = loaded * weights.stored_bytes / all_bytes(weights.parts, model.dtype)
    return int(loaded)


def _is_eagle3(draft: ModelSpec) -> bool:
    return "Eagle3" in draft.architecture


def _eagle_bytes(draft: ModelSpec, tensor_parallel: int) -> int:
    hidden, is_eagle3 = draft.shape.hidden, _is_eagle3(draft)
    total = sum(
        part_bytes(part, rank_share(part, tensor_parallel, draft.shape.vocabulary), draft.dtype)
        * (2 if is_eagle3 and part.name.endswith(("q_proj", "kv_proj")) else 1)
        for part in draft.weights.parts
        if part.name != "embed_tokens" and (is_eagle3 or part.name != "lm_head")
    )
    return int(total) + (_AUXILIARY_STATES if is_eagle3 else 2) * hidden * hidden * 2
