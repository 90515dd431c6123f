"""Where the memory of each rank goes on vLLM; the rank with the smallest pool decides."""

from dataclasses import replace

from kvplan.engines.base import Budget, Deployment, Settings
from kvplan.engines.drafting import EAGLE, MTP, Drafter, draft_weights
from kvplan.engines.lora import expert_slots, lora_bytes
from kvplan.engines.ranks import stage_layers
from kvplan.engines.vllm.budget_constants import PLAIN_ENCODER
from kvplan.engines.vllm.budget_terms import rank_budget
from kvplan.engines.vllm.peaks import RankFacts, delta_width
from kvplan.engines.vllm.runner import is_second_runner
from kvplan.engines.vllm.settings import release_of
from kvplan.engines.vllm.storage import kv_types
from kvplan.engines.weights import load_rank
from kvplan.layers import FullAttention, GatedDeltaState, KdaState, LatentAttention, RecurrentLayer, SlidingAttention
from kvplan.model import ModelSpec

_HOPPER, _BLACKWELL, _SMALL_BLACKWELL = 9, 10, 12
_LATENT_HEAD_WIDTH = 256
"""K and V values of one MLA head made from a latent: 128 + 128 in every published DeepSeek-like model but GLM-5."""


def stage_budgets(
    model: ModelSpec,
    deployment: Deployment,
    settings: Settings,
    *,
    lora_slots: int = 0,
    drafter: Drafter | None = None,
) -> tuple[Budget, ...]:
    """Each pipeline stage's budget, of its smallest device. ``lora_slots`` adapters can be loaded at once.

    Ranks of one stage differ only by their device's memory; stages differ by layers, embedding and head, only the first
    one encodes, and only the last one samples and holds the ``drafter``. Raises InputError where no memory is known,
    UnsupportedModelError where weights are not.
    """
    facts, stages = rank_facts(model, deployment, settings), deployment.pipeline_parallel
    experts = expert_slots(model, deployment)
    shares = stage_layers(len(model.layers), stages, deployment.pipeline_layers)
    budgets = []
    for stage in range(stages):
        loaded = load_rank(model, deployment, stage)
        here = replace(
            facts,
            rank=loaded.rank,
            total_bytes=loaded.total_bytes,
            weight_bytes=loaded.weights.bytes,
            weight_formula=loaded.weights.formula,
            weight_share_unsure=loaded.weights.unsure_share,
            lora_bytes=lora_bytes(
                model.weights.parts,
                model.shape.hidden,
                tensor_parallel=deployment.tensor_parallel,
                slots=lora_slots,
                rank=deployment.lora_rank,
                stage=shares[stage],
                experts=experts,
            ),
            encoder=facts.encoder if stage == 0 else None,
        )
        last = stage == stages - 1
        budgets.append(rank_budget(_with_drafter(here, model, drafter) if last else replace(here, runs_sampler=False)))
    return tuple(budgets)


def _with_drafter(facts: RankFacts, model: ModelSpec, drafter: Drafter | None) -> RankFacts:
    """The drafter's weights, and whether it has graphs of its own: a draft model runs without, and n-grams are looked
    up (vLLM 0.33, ``StandaloneARSpeculator`` and ``TargetDependentARSpeculator``)."""
    weights = draft_weights(model, drafter, facts.tensor_parallel)
    return replace(
        facts,
        speculative_bytes=weights.bytes,
        speculative_formula=weights.formula,
        is_drafter_captured=drafter is not None and drafter.method in (MTP, EAGLE),
    )


def rank_facts(model: ModelSpec, deployment: Deployment, settings: Settings) -> RankFacts:
    """The plain numbers that all ranks share; memory and weights are filled in per rank."""
    shape, gpu = model.shape, deployment.gpu
    latent = next((layer for layer in model.caches if isinstance(layer, LatentAttention)), None)
    sparse = model.has_sparse_latents
    heads = max(model.query_heads, default=0) // deployment.tensor_parallel
    return RankFacts(
        release=release_of(deployment),
        total_bytes=0,
        utilization=settings.memory_utilization,
        weight_bytes=0,
        sequences=settings.max_num_seqs,
        batched_tokens=settings.max_num_batched_tokens,
        window_tokens=settings.max_model_len,
        hidden=shape.hidden,
        vocabulary=shape.vocabulary or 0,
        intermediate=shape.intermediate or 0,
        experts_per_token=(shape.experts_per_token or 0) if shape.experts else 0,
        expert_intermediate=shape.expert_intermediate or shape.intermediate or 0,
        expert_slices=expert_slots(model, deployment).slices,
        recurrent_width=_recurrent_width(model, deployment.tensor_parallel),
        tensor_parallel=deployment.tensor_parallel,
        gpus=deployment.gpus,
        vendor=gpu.vendor.lower() if gpu is not None else "nvidia",
        capability=gpu.compute_capability if gpu is not None else None,
        unified_memory=gpu is not None and gpu.unified_memory,
        is_linked=gpu is not None and gpu.link_bytes_per_s is not None,
        is_second_runner=is_second_runner(
            release_of(deployment),
            model.architecture,
            has_experts=bool(shape.experts),
            has_states=model.keeps(RecurrentLayer),
            is_pooling=shape.is_pooling,
        ),
        runs_flashinfer=_runs_flashinfer(model, deployment),
        runs_sampler=not shape.is_pooling,
        encoder=shape.encoder or PLAIN_ENCODER if shape.has_vision else None,
        enforce_eager=deployment.enforce_eager,
        query_tokens=1 + deployment.speculative_tokens,
        latent_context_width=heads * _LATENT_HEAD_WIDTH if latent is not None and not sparse else 0,
        sparse_latent_width=latent.latent_dim + latent.rope_dim if latent is not None and sparse else 0,
    )


def _recurrent_width(model: ModelSpec, tensor_parallel: int) -> int:
    """Of gated delta nets, which work on whole steps; other recurrent layers scan, and are not counted."""
    for kept in model.caches:
        if isinstance(kept, GatedDeltaState):
            rank = kept.shard(tensor_parallel)
            return delta_width(
                key_heads=rank.key_heads,
                key_dim=rank.key_dim,
                value_heads=rank.value_heads,
                value_dim=rank.value_dim,
            )
        if isinstance(kept, KdaState):
            heads = kept.shard(tensor_parallel).heads
            return delta_width(key_heads=heads, key_dim=kept.dim, value_heads=heads, value_dim=kept.dim)
    return 0


def _runs_flashinfer(model: ModelSpec, deployment: Deployment) -> bool:
    """Whether FlashInfer's attention is the default: on capability 10.x; else with 8-bit KV, which FlashAttention reads
    on Hopper only. MLA has kernels of its own but for the sparse one of 12.x; heads of several sizes go to Triton.

    Source: vLLM 0.20 and 0.33, ``_get_backend_priorities`` of ``platforms/cuda.py``, and the classes' own choices.
    """
    gpu = deployment.gpu
    if gpu is None or gpu.vendor.lower() != "nvidia" or gpu.compute_capability is None:
        return False
    generation = gpu.compute_capability[0]
    if model.keeps(LatentAttention):
        return generation == _BLACKWELL or (generation == _SMALL_BLACKWELL and model.has_sparse_latents)
    heads = {kept.head_dim for kept in model.caches if isinstance(kept, FullAttention | SlidingAttention)}
    is_8_bit = kv_types(model, deployment.kv_dtype, capability=gpu.compute_capability).key.bytes_per_group == 1
    return len(heads) == 1 and (generation == _BLACKWELL or (is_8_bit and generation != _HOPPER))
