"""What the reader of a llama.cpp plan should know: a cache that does not fit, slots that share one, no output cap."""

from kvplan.engines.base import CacheLayout, Finding
from kvplan.engines.llama_cpp.slots import PADDING_CELLS, Slots
from kvplan.engines.token_pool import model_notes, windows_kept_whole
from kvplan.model import ModelSpec
from kvplan.units import format_bytes


def plan_findings(
    model: ModelSpec,
    slots: Slots,
    held: int,
    asked: int,
    layout: CacheLayout,
    whole_windows: int,
    *,
    has_budget: bool,
) -> tuple[Finding, ...]:
    """Findings on a cache of ``asked`` cells where memory is left for ``held``."""
    findings = model_notes(model)
    if whole_windows:
        findings.append(windows_kept_whole("llama.cpp", whole_windows))
    if held < asked:
        per_slot = held // slots.streams // PADDING_CELLS * PADDING_CELLS
        most = per_slot * slots.streams
        findings.append(
            Finding(
                code="cache-does-not-fit",
                severity="error",
                message=f"the cache of {asked:,} cells takes {format_bytes(asked * layout.bytes_per_block)}, "
                f"memory is left for {held:,}: with all layers on the GPU the server does not start (newer builds move "
                "layers to system memory instead, unless --n-gpu-layers is given)",
                hint=f"--ctx-size {most}" if most else "smaller weights, a smaller cache type, or more GPUs",
            )
        )
    elif has_budget and held > asked and layout.groups[0].rule == "full":
        findings.append(
            Finding(
                code="memory-to-spare",
                severity="info",
                message=f"the cache is static: {asked:,} cells are allocated, the memory left would hold {held:,}",
            )
        )
    if has_budget and not model.id.endswith(".gguf"):
        findings.append(
            Finding(
                code="weights-of-the-checkpoint",
                severity="info",
                message=f"weights are priced in the checkpoint's own types; a GGUF file of {model.id} may have others",
                hint="plan for the file (org/name/file.gguf), or give its size: --weights-bytes",
            )
        )
    if slots.is_unified and slots.slots > 1:
        findings.append(
            Finding(
                code="slots-share-one-cache",
                severity="warning",
                message=f"{slots.slots} slots share one cache of {slots.cells:,} cells: each may use all of it, and "
                "when it is full all generations are aborted",
                hint="--no-kv-unified divides it; --parallel 1 gives it to one request",
            )
        )
    elif slots.slots > 1:
        findings.append(
            Finding(
                code="context-divided-by-slots",
                severity="info",
                message=f"the context is divided: each of {slots.slots} slots has {slots.window_tokens:,} tokens",
            )
        )
    findings.append(
        Finding(
            code="no-output-cap-by-default",
            severity="warning",
            message="a request without max_tokens may run to the end of its window (n_predict is −1)",
            hint="set a server-side default: --predict N",
        )
    )
    return tuple(findings)
