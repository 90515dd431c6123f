"""What the start-up memory of a vLLM rank depends on, as plain numbers, and how they follow from a model."""

from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import Settings
from kvplan.engines.lora import expert_slots
from kvplan.engines.vllm.budget_constants import DELTA_CHUNK_TOKENS, PLAIN_ENCODER
from kvplan.engines.vllm.kv_types import kv_types
from kvplan.engines.vllm.releases import is_second_runner, release_of
from kvplan.layers import FullAttention, GatedDeltaState, KdaState, LatentAttention, RecurrentLayer, SlidingAttention
from kvplan.model import EncoderShape, ModelSpec

_HOPPER, _BLACKWELL, _SMALL_BLACKWELL = 9, 10, 12
_LATENT_HEAD_WIDTH = 256
"""K and V values of one MLA head made from a latent: 128 + 128 in every published DeepSeek-like model but GLM-5."""


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """What one rank's start-up depends on. Widths are the whole model's; ``weight_bytes`` are this rank's.

    ``sampler``: torch, triton or flashinfer where a log names it, else None: the release's default. ``is_linked``:
    NVLink joins the cards. ``recurrent_width``: values per token that this rank's recurrent layer works with.
    ``latent_context_width``: K and V values per token that this rank's MLA heads make of a latent, 0 without MLA.
    ``sparse_latent_width``: width of a sparse MLA's latent, else 0. ``runs_flashinfer``: FlashInfer's attention runs.
    ``captures_every_size``: small batches have a CUDA graph each (performance mode interactivity).
    ``is_drafter_captured``: the drafter has CUDA graphs of its own.
    """

    release: tuple[int, ...]
    total_bytes: int
    utilization: Fraction
    weight_bytes: int
    sequences: int
    batched_tokens: int
    window_tokens: int
    hidden: int
    vocabulary: int = 0
    intermediate: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    expert_slices: int = 1
    recurrent_width: int = 0
    tensor_parallel: int = 1
    gpus: int = 1
    rank: int = 0
    vendor: str = "nvidia"
    capability: tuple[int, int] | None = None
    unified_memory: bool = False
    is_linked: bool = False
    sampler: str | None = None
    is_second_runner: bool = False
    runs_flashinfer: bool = False
    runs_sampler: bool = True
    encoder: EncoderShape | None = None
    enforce_eager: bool = False
    captures_every_size: bool = False
    query_tokens: int = 1
    latent_context_width: int = 0
    sparse_latent_width: int = 0
    speculative_bytes: int = 0
    speculative_formula: str = "weights of the drafter"
    is_drafter_captured: bool = False
    lora_bytes: int = 0
    weight_uncertainty_share: Fraction = Fraction(0)
    weight_formula: str = "as given"


def rank_facts(model: ModelSpec, deployment: Deployment, settings: Settings) -> RankFacts:
    """The facts that all ranks share; those of one rank (its memory, weights and adapters) are left at 0."""
    shape, gpu, release = model.shape, deployment.gpu, release_of(deployment)
    latent = next((layer for layer in model.caches if isinstance(layer, LatentAttention)), None)
    sparse = model.has_sparse_latents
    heads = max(model.query_heads, default=0) // deployment.tensor_parallel
    return RankFacts(
        release=release,
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
            release,
            model.architecture,
            has_experts=bool(shape.experts),
            has_states=model.keeps(RecurrentLayer),
            is_pooling=shape.is_pooling,
        ),
        runs_flashinfer=_runs_flashinfer(model, deployment),
        runs_sampler=not shape.is_pooling,
        encoder=shape.encoder or PLAIN_ENCODER if shape.has_vision else None,
        enforce_eager=deployment.enforce_eager,
        captures_every_size=deployment.performance_mode == "interactivity",
        query_tokens=1 + deployment.speculative_tokens,
        latent_context_width=heads * _LATENT_HEAD_WIDTH if latent is not None and not sparse else 0,
        sparse_latent_width=latent.latent_dim + latent.rope_dim if latent is not None and sparse else 0,
    )


def _recurrent_width(model: ModelSpec, tensor_parallel: int) -> int:
    """Of gated delta nets and KDA, which work on whole steps; other recurrent layers scan, and are not counted."""
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


def delta_width(*, key_heads: int, key_dim: int, value_heads: int, value_dim: int) -> int:
    """Values per token of a gated delta net's heads on one rank: 10 × keys + 9 × values + those of its chunks of 64.

    Keys: queries and keys as projected, joined, convolved, laid out by heads and normed. Values: the same without the
    norm, plus the gate, the output and three of the chunked kernel. Each head has 64 products of a token with its chunk
    in 32 and in 16 bit, a row of keys, and its share of the chunk's state, dk × dv / 64. Source: vLLM 0.20 and 0.33,
    ``chunk_gated_delta_rule_fwd``; with steps of 32,768 tokens two starts of Qwen3.6-35B-A3B take 240 and 270 kB a
    token including their experts, with 65,536 one of Qwen3.6-27B takes 230 kB.

    >>> delta_width(key_heads=16, key_dim=128, value_heads=32, value_dim=128)
    75776
    """
    chunk = DELTA_CHUNK_TOKENS
    kept = 10 * key_heads * key_dim + 9 * value_heads * value_dim
    return kept + value_heads * (3 * chunk + key_dim + key_dim * value_dim // chunk)


def _runs_flashinfer(model: ModelSpec, deployment: Deployment) -> bool:
    """Whether FlashInfer's attention is the default: on capability 10.x, and elsewhere with 8-bit KV, which
    FlashAttention reads on Hopper only. MLA has other kernels, except sparse MLA on 12.x; heads of several sizes use
    Triton.

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
