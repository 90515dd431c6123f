"""LoRA slots: what vLLM sets aside on a rank for adapters, whether or not any is loaded."""

from collections.abc import Iterable

from kvplan.errors import InputError
from kvplan.layers import RecurrentLayer
from kvplan.model import ModelSpec, WeightPart

ADAPTER_BYTES = 2
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM 0.33 takes (``config/lora.py``)."""
_MLP_MATRICES = 3
_TABLES = frozenset({"embed_tokens", "lm_head"})


def adapters_are_priced(model: ModelSpec) -> bool:
    """Whether the slots of adapters can be counted: plain attention and dense MLPs of a known class. Experts and
    recurrent layers have adapters of their own shape."""
    plain = not model.shape.experts and not model.keeps(RecurrentLayer)
    return plain and bool(model.weights.parts) and bool(model.shape.hidden)


def check_rank(rank: int) -> None:
    """Refuse a rank that vLLM refuses."""
    if rank not in RANKS:
        raise InputError(
            f"vLLM has no adapters of rank {rank}",
            hint=f"--max-lora-rank is one of {', '.join(map(str, RANKS))}",
            key="lora_rank",
        )


def lora_bytes(
    parts: Iterable[WeightPart], hidden: int, *, tensor_parallel: int, slots: int, rank: int, stage: range | None = None
) -> int:
    """Slots × rank × Σ (inputs + outputs) × 2 B over the adapted matrices of the rank's layers.

    A matrix of inputs × outputs gets A (inputs × rank) and B (rank × outputs); the side that tensor parallelism splits
    is split, the other is whole on every rank. Attention and dense MLP are adapted; vLLM's experts are not counted.
    ``stage`` names the layers of a pipeline stage. Embedding and head (those among ``parts``) get rank × (vocabulary +
    hidden), whole on every rank and counted on every stage; classes that do not adapt them take less. Source: vLLM
    0.33, ``lora/layers``.

    >>> q = WeightPart(name="self_attn.q_proj", parameters=4096 * 4096, split="heads", layer=0)
    >>> lora_bytes([q], 4096, tensor_parallel=1, slots=1, rank=16) == 16 * (4096 + 4096) * 2
    True
    """
    widths = 0
    for part in parts if hidden else ():
        if part.name in _TABLES:
            widths += part.parameters // hidden + hidden
            continue
        if part.layer is None or (stage is not None and part.layer not in stage) or not part.name.endswith("proj"):
            continue
        if part.split == "none":
            continue
        others = part.parameters // hidden
        whole_sides = _MLP_MATRICES if part.name.endswith(".proj") else 2 if "kv_proj" in part.name else 1
        split = others // tensor_parallel
        if part.split == "kv_heads":
            heads = part.kv_heads or 1
            split = others * max(1, heads // tensor_parallel) // heads
        widths += whole_sides * hidden + split
    return slots * rank * widths * ADAPTER_BYTES
