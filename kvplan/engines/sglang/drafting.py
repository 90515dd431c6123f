"""SGLang's speculative decoding: a draft's layers widen every token of the pool, each by one of the model's layers.

Source: ``DefaultPoolConfigurator`` of ``pool_configurator.py``, ``speculative_hook.py`` and
``spec_aux_hidden_state.py``, 0.5.16 to 0.5.23.
"""

from dataclasses import replace
from fractions import Fraction

from kvplan.engines.deployment import Deployment, is_since
from kvplan.engines.drafting import DRAFT_MODEL, EAGLE, MTP, NGRAM, Drafter, draft_weights, method_of
from kvplan.engines.engine_plan import BudgetTerm
from kvplan.engines.ranks import CacheSizes
from kvplan.engines.sglang.classes import Release
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import IndexKeys, KvTypes, LatentAttention, RecurrentLayer
from kvplan.model import ModelSpec

MAX_SEQUENCES = 48
"""Concurrent requests by default, over all replicas, with speculative decoding."""
_FIRST_WIDENED: Release = (0, 5, 16)
"""The first release whose rule for a draft's share of the pool was read."""
_ALGORITHMS = {NGRAM: "NGRAM", MTP: "EAGLE", DRAFT_MODEL: "STANDALONE", EAGLE: "EAGLE"}


def drafter_of(model: ModelSpec, deployment: Deployment) -> Drafter | None:
    """What drafts tokens on ``deployment``, None where nothing does.

    Raises UnsupportedModelError where the memory that it takes is not known, InputError for what SGLang refuses.
    """
    tokens, draft = deployment.speculative_tokens, deployment.draft_model
    if not tokens:
        return None
    if not is_since(deployment.engine.release, _FIRST_WIDENED):
        raise UnsupportedModelError(
            "cannot tell: speculative decoding is not modelled for SGLang before 0.5.16",
            hint="--engine sglang@0.5.16, or leave out --speculative-tokens",
            key="speculative_tokens",
        )
    method = method_of(model, deployment)
    if deployment.data_parallel > 1 and method in (NGRAM, DRAFT_MODEL):
        raise InputError(
            f"SGLang does not combine {method} speculation with attention data parallelism",
            hint="plan one replica, without --data-parallel",
            key="speculative_method",
        )
    if method == NGRAM:
        return Drafter(method=method, tokens=tokens)
    layers = model.next_token_layers if draft is None else draft.layers
    if not layers:
        raise InputError(
            f"no next-token layers are read from {model.id}",
            hint="--speculative-method ngram",
            key="speculative_method",
        )
    if any(isinstance(layer, RecurrentLayer) for each in layers for layer in each):
        raise UnsupportedModelError(
            "cannot tell: a draft model with recurrent states is not modelled",
            hint="plan with a plain decoder as the draft model",
            key="draft_model",
        )
    return Drafter(method=method, tokens=tokens, layers=layers, model=draft)


def algorithm_of(drafter: Drafter) -> str:
    """The method as SGLang spells it: next-token layers are an EAGLE draft, a draft model is STANDALONE."""
    return "EAGLE3" if drafter.engine_word == "eagle3" else _ALGORITHMS[drafter.method]


def with_draft(kept: CacheSizes, drafter: Drafter | None, model: ModelSpec, kv: KvTypes) -> CacheSizes:
    """What a rank keeps, with the draft's layers. Each is as wide as the model's on average; beside sparse MLA it has
    one latent and index keys of its own (``_compute_dsa_indexer_cell_size``).

    DeepSeek-V3, one next-token layer: 61 × 1,152 B + 1,152 B.
    """
    layers = 0 if drafter is None else len(drafter.layers)
    if not layers:
        return kept
    if kept.window_layers or kept.state_layers or not kept.growing_layers:
        raise UnsupportedModelError(
            f"cannot tell: a draft beside pools for windows or states is not modelled for SGLang ({model.id})",
            hint="--speculative-method ngram, or start the engine once and read its log: kvplan calibrate LOG",
            key="speculative_tokens",
        )
    wider: Fraction | int = kept.growing_per_token * layers // kept.growing_layers
    if model.has_sparse_latents:
        latent = next(layer for layer in model.caches if isinstance(layer, LatentAttention))
        index = next(layer for layer in model.caches if isinstance(layer, IndexKeys))
        wider = (latent.growing_bytes_per_token(kv) + index.growing_bytes_per_token(kv)) * layers
    return replace(kept, growing_per_token=kept.growing_per_token + wider)


def draft_term(model: ModelSpec, deployment: Deployment) -> BudgetTerm | None:
    """Weights of the draft. Its own embedding and head exist while the pool is sized and are then replaced by the
    model's: 16 bits each, whatever the model is quantised to (sglang issue 36452).

    DeepSeek-V3 over 8 ranks: 1.55 GiB of layer, and 2 × 129,280 × 7,168 × 2 B / 8.
    """
    drafter = drafter_of(model, deployment)
    if drafter is None or drafter.method == NGRAM:
        return None
    weights = draft_weights(model, drafter, deployment.tensor_parallel)
    source = drafter.model or model
    if drafter.method == DRAFT_MODEL or not source.shape.vocabulary:
        return BudgetTerm(name="draft_weights", bytes=weights.bytes, formula=weights.formula)
    tied = bool(source.weights.parts) and not any(part.name == "lm_head" for part in source.weights.parts)
    copies = 1 if tied or drafter.engine_word == "eagle3" else 2
    dropped = copies * 2 * source.shape.vocabulary * source.shape.hidden // deployment.tensor_parallel
    return BudgetTerm(
        name="draft_weights",
        bytes=weights.bytes + dropped,
        formula=f"{weights.formula} after the pool is sized",
    )
