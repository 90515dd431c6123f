"""How llama.cpp divides a model among GPUs: whole layers in proportion to their memory, the head after the last layer;
the input embedding stays on the host."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate

from kvplan.engines.ranks import stage_layers
from kvplan.engines.weights import RankWeights, all_bytes, rank_weights
from kvplan.errors import InputError
from kvplan.model import ModelSpec, Weights

_EMBEDDING = "embed_tokens"


def device_layers(layers: int, memories: Sequence[int], sizes: Sequence[int] | None = None) -> tuple[range, ...]:
    """The decoder layers of each device: ``sizes`` where given (``--tensor-split``), else llama.cpp's default.

    With the head there are L + 1 layers; layer i goes to the first device whose cumulative share of the memory is more
    than i / (L + 1). Source: ``load_tensors`` of ``llama-model.cpp``.

    >>> [len(part) for part in device_layers(32, (24, 24))], [len(part) for part in device_layers(80, (80, 40, 40))]
    ([17, 15], [41, 20, 19])
    """
    if sizes is not None or len(memories) > layers:
        return stage_layers(layers, len(memories), sizes)
    ends = list(accumulate(memories))
    owners = [bisect_right(ends, Fraction(layer * ends[-1], layers + 1)) for layer in range(layers)]
    parts = tuple(
        range(bisect_right(owners, device - 1), bisect_right(owners, device)) for device in range(len(memories))
    )
    if not all(parts):
        raise InputError(
            f"by their memory, {', '.join(str(len(part)) for part in parts)} layers go to the GPUs: one has none",
            hint="leave out the smallest GPU, or give the layers of each: --pp-layers",
            key="gpu_memory",
        )
    return parts


def device_weights(
    model: ModelSpec, parts: Sequence[range], device: int, given_bytes: int | None = None
) -> RankWeights:
    """Weights of the layers ``parts[device]``, and of the head and the last norm on the last device.

    Where head and embedding differ, the embedding stays on the host; a tied head is a copy of it on the device.
    Qwen3.8-27B in 8 bits: 26,402.70 MiB on the GPU, 1,288.28 MiB (248,320 × 5,120 × 34 / 32 B) on the host.
    """
    counted = rank_weights(
        replace(model, weights=_on_devices(model.weights, model.dtype)),
        tensor_parallel=1,
        pipeline_parallel=len(parts),
        stage=device,
        stage_sizes=[len(part) for part in parts],
        given_bytes=given_bytes,
    )
    if given_bytes is None and _has_tensors(model.weights):
        return replace(counted, uncertainty_share=Fraction(0), formula="the file's tensors")
    return counted


def _has_tensors(weights: Weights) -> bool:
    """Whether the parts are a GGUF file's own tensors, each with its type, so that nothing is estimated."""
    return bool(weights.parts) and all(part.stored is not None for part in weights.parts)


def _on_devices(weights: Weights, dtype: str) -> Weights:
    """The part of ``weights`` that the devices hold."""
    if not any(part.name == "lm_head" for part in weights.parts):
        tied = (replace(part, name="lm_head") if part.name == _EMBEDDING else part for part in weights.parts)
        return replace(weights, parts=tuple(tied))
    kept = tuple(part for part in weights.parts if part.name != _EMBEDDING)
    if weights.stored_bytes is None:
        return replace(weights, parts=kept)
    share = all_bytes(kept, dtype) / all_bytes(weights.parts, dtype)
    return replace(weights, parts=kept, stored_bytes=int(weights.stored_bytes * share))
