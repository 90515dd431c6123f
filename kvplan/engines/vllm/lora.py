"""LoRA slots: what vLLM sets aside on a rank for adapters, whether or not any is loaded."""

from collections.abc import Iterable

from kvplan.model import WeightPart

ADAPTER_BYTES = 2
_MLP_MATRICES = 3


def lora_bytes(
    parts: Iterable[WeightPart], hidden: int, *, tensor_parallel: int, slots: int, rank: int, stage: range | None = None
) -> int:
    """Slots × rank × Σ (inputs + outputs) × 2 B over the adapted matrices of the rank's layers.

    A matrix of inputs × outputs gets A (inputs × rank) and B (rank × outputs); the side that tensor parallelism splits
    is split, the other is whole on every rank. Attention and dense MLP are adapted; vLLM's experts are not counted.
    ``stage`` names the layers of a pipeline stage. Source: vLLM 0.33, ``lora/layers``.

    >>> q = WeightPart(name="self_attn.q_proj", parameters=4096 * 4096, split="heads", layer=0)
    >>> lora_bytes([q], 4096, tensor_parallel=1, slots=1, rank=16) == 16 * (4096 + 4096) * 2
    True
    """
    widths = 0
    for part in parts if hidden else ():
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
