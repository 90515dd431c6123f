"""LoRA slots: the memory that an engine allocates on a rank for adapters, whether or not any is loaded."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvplan.engines.deployment import Deployment
from kvplan.layers import LatentAttention, RecurrentLayer
from kvplan.model import ModelSpec, WeightPart

ADAPTER_BYTES = 2
_MLP_MATRICES = 3
_TABLES = frozenset({"embed_tokens", "lm_head"})
_JOINED = frozenset(
    {
        "GptOssForCausalLM",
        "InternS1ProForConditionalGeneration",
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
    }
)
"""Classes whose adapters hold one A for gate and up (vLLM 0.33, ``is_3d_moe_weight``)."""


def adapters_are_priced(model: ModelSpec) -> bool:
    """Whether adapters can be counted: for attention, MLPs and experts of a class whose matrices are known. Recurrent
    layers, and MLA beside experts, have adapters of other shapes."""
    own = model.keeps(RecurrentLayer) or (bool(model.shape.experts) and model.keeps(LatentAttention))
    has_matrices = any(part.name.endswith("proj") for part in model.weights.parts)
    return not own and has_matrices and bool(model.shape.hidden)


@dataclass(frozen=True, kw_only=True)
class ExpertSlots:
    """The experts that a rank's adapters cover: ``held`` experts, each cut into ``slices``, with ``inputs`` matrices as
    wide as the model that are whole on every rank (A of gate and of up, B of down; gate and up joined have one A)."""

    experts: int = 0
    held: int = 0
    slices: int = 1
    inputs: int = 3


def expert_slots(model: ModelSpec, deployment: Deployment) -> ExpertSlots:
    """Slices of every expert, or under expert parallelism some whole experts."""
    experts = model.shape.experts or 0
    ranks = deployment.tensor_parallel * deployment.data_parallel
    whole = deployment.expert_parallel
    return ExpertSlots(
        experts=experts,
        held=-(-experts // ranks) if whole else experts,
        slices=1 if whole else ranks,
        inputs=2 if model.architecture in _JOINED else 3,
    )


def lora_bytes(
    parts: Iterable[WeightPart],
    hidden: int,
    *,
    tensor_parallel: int,
    slots: int,
    rank: int,
    stage: range | None = None,
    experts: ExpertSlots = ExpertSlots(),
) -> int:
    """Slots × rank × Σ (inputs + outputs) × 2 B over the adapted matrices of the rank's layers.

    A matrix of inputs × outputs gets A (inputs × rank) and B (rank × outputs). The side that tensor parallelism splits
    is split; the other is whole on every rank. All linear layers are adapted, each expert by itself (vLLM 0.33,
    ``FusedMoEWithLoRA``: held × (3 × hidden + 3 × expert width / slices)). ``stage``: the layers of a pipeline stage.
    Embedding and head, where among ``parts``, get rank × (vocabulary + hidden), whole on every rank and counted on
    every stage; classes that do not adapt them take less. Source: vLLM 0.33, ``lora/layers``.

    >>> q = WeightPart(name="self_attn.q_proj", parameters=4096 * 4096, split="heads", layer=0)
    >>> lora_bytes([q], 4096, tensor_parallel=1, slots=1, rank=16) == 16 * (4096 + 4096) * 2
    True
    """
    if not hidden:
        return 0
    held = [part for part in parts if part.layer is None or stage is None or part.layer in stage]
    widths = sum(_widths(part, hidden, tensor_parallel, experts) for part in held)
    return slots * rank * widths * ADAPTER_BYTES


def _widths(part: WeightPart, hidden: int, tensor_parallel: int, experts: ExpertSlots) -> int:
    """Inputs + outputs of one part's adapters on a rank; 0 where the part is not a linear layer."""
    outputs = part.parameters // hidden
    if part.name in _TABLES:
        return outputs + hidden
    if part.layer is None:
        return 0
    if part.name.endswith("experts") and experts.experts:
        return experts.held * (experts.inputs * hidden + outputs // experts.experts // experts.slices)
    if part.name.endswith("gate"):
        return hidden + outputs
    if part.split == "none" or not part.name.endswith("proj"):
        return 0
    whole_sides = _MLP_MATRICES if part.name.endswith(".proj") else 2 if "kv_proj" in part.name else 1
    if part.split == "kv_heads":
        heads = part.kv_heads or 1
        return whole_sides * hidden + outputs * max(1, heads // tensor_parallel) // heads
    return whole_sides * hidden + outputs // tensor_parallel
