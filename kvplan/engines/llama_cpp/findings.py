"""Findings on a llama.cpp plan: a cache that does not fit, slots that share one, requests without an output cap."""

from collections.abc import Iterator, Sequence

from kvplan.engines.engine_plan import CacheLayout, Finding
from kvplan.engines.llama_cpp.cache import PADDING_CELLS, Slots, served_tokens
from kvplan.layers import LatentAttention
from kvplan.model import ModelSpec
from kvplan.units import MIB, format_bytes


def cache_findings(slots: Slots, held: int, asked: int, layout: CacheLayout, *, has_budget: bool) -> Iterator[Finding]:
    """Findings on a cache of ``asked`` cells where memory is left for ``held``."""
    if held < asked:
        per_slot = held // slots.streams // PADDING_CELLS * PADDING_CELLS
        most = per_slot * slots.streams
        yield Finding(
            code="cache-does-not-fit",
            severity="error",
            message=f"the cache of {asked:,} cells takes {format_bytes(asked * layout.bytes_per_block)}, and there is "
            f"memory for {held:,}: with all layers on the GPU the server does not start (newer builds move layers to "
            "system memory instead, unless --n-gpu-layers is given)",
            hint=f"--ctx-size {most}" if most else "smaller weights, a smaller cache type, or more GPUs",
        )
    elif has_budget and held > asked and layout.groups[0].rule == "full":
        yield Finding(
            code="memory-to-spare",
            severity="info",
            message=f"the cache is static: {asked:,} cells are allocated, and there is memory for {held:,}",
        )


def weights_findings(model: ModelSpec) -> Iterator[Finding]:
    """Where a checkpoint's weights and latents stand in for a GGUF file's. Old files of DeepSeek-V2-Lite need 540 MiB
    for 2,048 cells instead of 61."""
    if not model.id.endswith(".gguf"):
        yield Finding(
            code="weights-of-the-checkpoint",
            severity="info",
            message=f"weights are priced in the checkpoint's types; a GGUF file of {model.id} may use others",
            hint="plan for the file (org/name/file.gguf), or give its size: --weights-bytes",
        )
    if not model.id.endswith(".gguf") and model.keeps(LatentAttention):
        yield Finding(
            code="latents-of-a-new-conversion",
            severity="warning",
            message="a GGUF file of this MLA model from before April 2025, or converted without its latents, keeps "
            "full keys and values for every head: several times this cache",
            hint="plan for the file (org/name/file.gguf)",
        )


def slot_findings(slots: Slots) -> Iterator[Finding]:
    """How slots share the context, and how long a request may become."""
    if slots.is_unified and slots.slots > 1:
        yield Finding(
            code="slots-share-one-cache",
            severity="warning",
            message=f"{slots.slots} slots share one cache of {slots.cells:,} cells: each may use all of it, and "
            "when it is full, all generations are aborted",
            hint="--no-kv-unified divides it; --parallel 1 gives it to one request",
        )
    elif slots.slots > 1:
        yield Finding(
            code="context-divided-by-slots",
            severity="info",
            message=f"the context is divided: each of {slots.slots} slots has {slots.window_tokens:,} tokens",
        )
    yield Finding(
        code="no-output-cap-by-default",
        severity="warning",
        message="a request without max_tokens may run to the end of its window (n_predict is −1)",
        hint="set a server-side default: --predict N",
    )


def training_findings(model: ModelSpec, slots: Slots) -> Iterator[Finding]:
    """A window longer than the model's own: the server warns of a "possible training context overflow" and caps the
    slot. Slots that share one cache can together use what none may use alone.
    """
    served = served_tokens(model, slots)
    if served == slots.window_tokens:
        return
    idle = slots.all_cells - slots.slots * served
    wasted = f"; {idle:,} of {slots.all_cells:,} cells are never used" if idle > 0 else ""
    yield Finding(
        code="slot-capped-at-training-context",
        severity="warning" if idle > 0 else "info",
        message=f"a window of {slots.window_tokens:,} tokens is longer than the {served:,} that {model.id} was made "
        f"for: the server warns and ends every request there{wasted}",
        hint=f"--context {served * (1 if slots.is_unified else slots.slots)}" if idle > 0 else None,
    )


def device_findings(stages: Sequence[range], kv_bytes: Sequence[int]) -> Iterator[Finding]:
    """How much KV each of several GPUs keeps."""
    if len(stages) > 1:
        shares = (f"{len(part)} layers {held / MIB:,.2f} MiB" for part, held in zip(stages, kv_bytes, strict=True))
        yield Finding(
            code="kv-by-gpu",
            severity="info",
            message=f"KV by GPU: {', '.join(shares)}",
            hint="--pp-layers sets the layers of each (--tensor-split)",
        )
