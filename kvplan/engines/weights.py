"""Bytes of weights on each rank: the share of a model's parts under tensor, pipeline and expert parallelism."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.devices import device_memories
from kvplan.engines.ranks import stage_layers
from kvplan.errors import UnsupportedModelError
from kvplan.model import ModelSpec, WeightPart
from kvplan.units import GIB

VOCABULARY_PADDING = 64
"""Embedding rows are padded to a multiple of this (vLLM 0.33, ``DEFAULT_VOCAB_PADDING_SIZE``)."""

EXPERT_PADDING = 64
"""Columns of a slice of an MXFP4 expert are padded to a multiple of this."""

_MIN_SHOWN_GIB = Fraction(1, 200)
"""Less rounds to 0.00."""

BYTES_PER_ELEMENT = {"float32": 4, "bfloat16": 2, "float16": 2}
MTP_NAMES = "mtp."
"""Prefix of the parts of multi-token prediction layers, which are loaded only for speculative decoding."""

# Relative uncertainties of each way of counting, from the residuals of start-up logs.
ARITHMETIC_WEIGHT_SHARE = Fraction(1, 100)
QUANTIZED_WEIGHT_SHARE = Fraction(4, 100)
PADDED_WEIGHT_SHARE = Fraction(8, 100)
"""The kernel in use pads MXFP4 experts once more: a loaded gpt-oss is 6 to 9% above the count."""
FILE_WEIGHT_SHARE = Fraction(2, 100)
"""File sizes, divided among ranks by the config's arithmetic."""
UNKNOWN_WEIGHT_SHARE = Fraction(3, 100)
"""File sizes or parameters of a class whose parts are not known."""


@dataclass(frozen=True, kw_only=True)
class RankWeights:
    """Bytes on one rank, without multi-token prediction layers. ``uncertainty_share``: relative, of the count."""

    bytes: int
    formula: str
    uncertainty_share: Fraction = Fraction(0)


def padded_vocabulary(vocabulary: int) -> int:
    """Rows of the embedding in vLLM: the next multiple of 64.

    >>> padded_vocabulary(32000), padded_vocabulary(73448)
    (32000, 73472)
    """
    return -(-vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING


def rank_share(
    part: WeightPart,
    tensor_parallel: int,
    vocabulary: int | None,
    *,
    expert_ranks: int = 0,
    expert_width: int | None = None,
    whole_experts: int = 0,
) -> Fraction:
    """Parameters of ``part`` on one tensor-parallel rank.

    heads, columns: parameters / tp. kv_heads: parameters × max(1, kv_heads // tp) / kv_heads. vocabulary: parameters ×
    padded vocabulary / vocabulary / tp. none: all. Experts are divided over ``expert_ranks`` = tp × dp where given:
    into slices of every expert, or under expert parallelism into ``whole_experts``, of which the first ranks hold one
    more where they do not divide (vLLM 0.33, ``FusedMoEParallelConfig.make`` and ``determine_expert_map``). A slice of
    an MXFP4 expert is padded to multiples of 64 columns (``Mxfp4MoEMethod``).
    """
    if part.split == "none":
        return Fraction(part.parameters)
    if part.split == "kv_heads":
        heads = part.kv_heads or 1
        return Fraction(part.parameters * max(1, heads // tensor_parallel), heads)
    if part.split == "vocabulary" and vocabulary and part.parameters % vocabulary == 0:
        return Fraction(part.parameters // vocabulary * padded_vocabulary(vocabulary), tensor_parallel)
    if part.name.endswith("experts"):
        ranks = expert_ranks or tensor_parallel
        if whole_experts:
            return Fraction(part.parameters * -(-whole_experts // ranks), whole_experts)
        if expert_width and part.stored is not None and part.stored.name == "mxfp4":
            columns = -(-expert_width // ranks)
            padded = -(-columns // EXPERT_PADDING) * EXPERT_PADDING
            return Fraction(part.parameters * padded, expert_width)
        return Fraction(part.parameters, ranks)
    if part.kv_heads and part.kv_heads % tensor_parallel:
        return Fraction(part.parameters)  # an encoder whose heads do not divide is copied to every rank
    return Fraction(part.parameters, tensor_parallel)


def part_bytes(part: WeightPart, elements: Fraction, dtype: str) -> Fraction:
    """Bytes of ``elements`` in the part's own type, else in the model's ``dtype``."""
    if part.stored is not None:
        return elements * part.stored.bytes_per_group / part.stored.elements_per_group
    return elements * BYTES_PER_ELEMENT.get(dtype, 2)


def all_bytes(parts: Iterable[WeightPart], dtype: str) -> Fraction:
    """Bytes of whole ``parts``."""
    return sum((part_bytes(part, Fraction(part.parameters), dtype) for part in parts), Fraction(0))


def stage_parts(
    parts: Iterable[WeightPart], layers: int, stages: int, stage: int, sizes: Sequence[int] | None = None
) -> list[WeightPart]:
    """The parts on pipeline stage ``stage``: its layers; the embedding on the first stage, norm and head on the last,
    where a tied head is a copy of the embedding."""
    held = list(parts)
    if stages == 1:
        return held
    mine = stage_layers(layers, stages, sizes)[stage]
    ends_last = {"lm_head", "lm_head.bias", "final_norm"}
    is_tied = not any(part.name == "lm_head" for part in held if part.layer is None)

    def holds(part: WeightPart) -> bool:
        if part.layer is not None:
            return part.layer in mine
        first = stage == 0 and part.name not in ends_last
        last = stage == stages - 1 and (part.name in ends_last or (is_tied and part.name == "embed_tokens"))
        return first or last

    return [part for part in held if holds(part)]


def rank_weights(
    model: ModelSpec,
    *,
    tensor_parallel: int,
    pipeline_parallel: int = 1,
    stage: int = 0,
    stage_sizes: Sequence[int] | None = None,
    data_parallel: int = 1,
    whole_experts: int = 0,
    given_bytes: int | None = None,
) -> RankWeights:
    """Weights on a rank of one pipeline stage.

    ``stage_sizes``: layers of each stage where stages are uneven. ``given_bytes`` (one copy of the model) and a
    quantised checkpoint's file sizes are divided in proportion to the parts. A 16-bit model is counted from its parts.
    Without parts, bytes are the published size / ranks.
    """
    weights, ranks = model.weights, tensor_parallel * pipeline_parallel
    if not weights.parts:
        return _without_parts(model, ranks, given_bytes)

    def of_stage(each: int, replicas: int = data_parallel) -> Mapping[str, Fraction]:
        parts = stage_parts(weights.parts, len(model.layers), pipeline_parallel, each, stage_sizes)
        expert_ranks = tensor_parallel * replicas
        return _loaded_bytes(model, parts, tensor_parallel, expert_ranks=expert_ranks, whole_experts=whole_experts)

    kinds = of_stage(stage)
    mine = sum(kinds.values(), Fraction(0))
    if given_bytes is not None:
        stages = (sum(of_stage(each, 1).values()) for each in range(pipeline_parallel))
        whole = sum(stages, Fraction(0)) * tensor_parallel
        formula = f"given × {float(mine / whole):.3g}" if mine < whole else "given"
        return RankWeights(
            bytes=int(given_bytes * mine / whole), formula=f"given / {ranks} ranks" if ranks > 1 else formula
        )
    if weights.quantization is not None and weights.stored_bytes is not None:
        scale = weights.stored_bytes / all_bytes(weights.parts, model.dtype)
        return RankWeights(
            bytes=int(mine * scale),
            uncertainty_share=FILE_WEIGHT_SHARE,
            formula=f"file sizes, divided by the config's arithmetic: {_listed(kinds, scale)}",
        )
    return RankWeights(
        bytes=int(mine),
        uncertainty_share=_arithmetic_share(weights.quantization),
        formula=f"config arithmetic, {weights.quantization or model.dtype}: {_listed(kinds, Fraction(1))}",
    )


def _loaded_bytes(
    model: ModelSpec, parts: Iterable[WeightPart], tensor_parallel: int, *, expert_ranks: int, whole_experts: int
) -> dict[str, Fraction]:
    """Bytes that a rank loads of ``parts``, by kind, without multi-token prediction layers."""
    width = model.shape.expert_intermediate or model.shape.intermediate
    loaded: dict[str, Fraction] = {}
    for part in parts:
        if not part.name.startswith(MTP_NAMES):
            share = rank_share(
                part,
                tensor_parallel,
                model.shape.vocabulary,
                expert_ranks=expert_ranks,
                expert_width=width,
                whole_experts=whole_experts,
            )
            kind = _kind_of(part, tensor_parallel)
            loaded[kind] = loaded.get(kind, Fraction(0)) + part_bytes(part, share, model.dtype)
    return loaded


def _kind_of(part: WeightPart, tensor_parallel: int) -> str:
    """The kind of weight that the formula lists it under."""
    if part.name.startswith(("vision.", "audio.")):
        return "encoder"
    if part.split == "vocabulary":
        return "embedding and head"
    if part.name.endswith("experts"):
        return "experts"
    return "copied on every rank" if part.split == "none" and tensor_parallel > 1 else "layers"


def _listed(kinds: Mapping[str, Fraction], scale: Fraction) -> str:
    """Each kind and its GiB, largest first; kinds that round to 0 are left out."""
    largest = sorted(((amount * scale / GIB, kind) for kind, amount in kinds.items()), reverse=True)
    shown = [f"{kind} {float(amount):.2f}" for amount, kind in largest if amount >= _MIN_SHOWN_GIB] or ["below 0.01"]
    return " + ".join(shown) + " GiB"


def _arithmetic_share(quantization: str | None) -> Fraction:
    """The uncertainty of the config's arithmetic, by the checkpoint's quantisation."""
    if quantization is None:
        return ARITHMETIC_WEIGHT_SHARE
    return PADDED_WEIGHT_SHARE if "mxfp4" in quantization else QUANTIZED_WEIGHT_SHARE


def _without_parts(model: ModelSpec, ranks: int, given_bytes: int | None) -> RankWeights:
    """Bytes where the class's parts are not known: given, file sizes, or parameters × type, divided by the ranks."""
    weights = model.weights
    if given_bytes is not None:
        known, formula, unsure = given_bytes, "given", Fraction(0)
    elif weights.stored_bytes is not None:
        known, formula, unsure = weights.stored_bytes, "file sizes", UNKNOWN_WEIGHT_SHARE
    elif weights.parameters is not None and weights.quantization is None:
        size = BYTES_PER_ELEMENT.get(model.dtype, 2)
        known = weights.parameters * size
        formula, unsure = f"{weights.parameters:,} parameters × {size} B", UNKNOWN_WEIGHT_SHARE
    else:
        raise UnsupportedModelError(
            f"cannot tell the weights of {model.id}: kvplan cannot count them from its config, and no total is known",
            hint="give them: --weights-bytes 16GiB (all ranks together)",
            key="weights_bytes",
        )
    return RankWeights(
        bytes=known // ranks,
        uncertainty_share=unsure if ranks == 1 else unsure + FILE_WEIGHT_SHARE,
        formula=formula if ranks == 1 else f"{formula} / {ranks} ranks",
    )


@dataclass(frozen=True, kw_only=True)
class LoadedRank:
    """The rank of a pipeline stage with the least memory, and its weights."""

    rank: int
    total_bytes: int
    weights: RankWeights


def load_rank(model: ModelSpec, deployment: Deployment, stage: int = 0) -> LoadedRank:
    """The weights on the rank of ``stage`` with the least memory."""
    first = stage * deployment.tensor_parallel
    memories = device_memories(deployment)[first : first + deployment.tensor_parallel]
    total = min(memories)
    weights = rank_weights(
        model,
        tensor_parallel=deployment.tensor_parallel,
        pipeline_parallel=deployment.pipeline_parallel,
        stage=stage,
        stage_sizes=deployment.pipeline_layers,
        data_parallel=deployment.data_parallel,
        whole_experts=(model.shape.experts or 0) if deployment.expert_parallel else 0,
        given_bytes=deployment.weight_bytes,
    )
    return LoadedRank(rank=first + memories.index(total), total_bytes=total, weights=weights)
