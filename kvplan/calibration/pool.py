"""The pool that a log's figures determine, and whether it can be the model's at all."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from kvplan.capacity import Fit
from kvplan.engine_logs import EngineStart
from kvplan.engines import engine_plan
from kvplan.engines.engine_plan import Finding
from kvplan.errors import InputError
from kvplan.layers import LatentAttention
from kvplan.units import GIB, MIB, format_bytes

_ROUNDING_BYTES = GIB // 200
"""Engines print GiB with two digits: half of the last one."""
_ROUNDED = Fraction(5, 1000)
"""Half of a concurrency's last printed digit."""
_TOLERANCE = Fraction(2, 100)
"""By how much a log's capacity may differ from the plan's before the log is of another model."""
_NEAR = Fraction(3, 100)
"""How far from the printed memory a pool that fits the printed tokens is looked for."""
_MAX_BLOCKS = 1 << 32
"""No pool has as many."""


def measured_pool(start: EngineStart, planned: Fit) -> int | None:
    """KV memory of one rank, in whole blocks where the log determines their number.

    The blocks as printed; else the number of blocks for which the engine prints the log's tokens, within the rounding
    of the memory printed.
    """
    layout = planned.plan.layout
    size = layout.bytes_per_block
    if start.engine == "llama.cpp":
        return start.kv_bytes
    if start.blocks is not None:
        return start.blocks * size
    if start.engine == "sglang" and start.kv_tokens is not None:
        return start.kv_tokens // layout.block_tokens * size
    refused = (refusal.available_bytes for refusal in start.refusals if refusal.reason == "window_too_long")
    memory = start.kv_bytes if start.kv_bytes is not None else next(filter(None, refused), None)
    if memory is None:
        return _blocks_of(start, planned, 0, _MAX_BLOCKS)
    near = int(memory * _NEAR) // size
    for least, most in (
        ((memory - _ROUNDING_BYTES) // size, (memory + _ROUNDING_BYTES) // size + 1),
        # a rank printed another memory than the one that decides, or a draft's layers share the blocks
        (memory // size - near, memory // size + near),
    ):
        blocks = _blocks_of(start, planned, least, most)
        if blocks is not None:
            return blocks
    return memory


def _blocks_of(start: EngineStart, planned: Fit, first: int, last: int) -> int | None:
    """Bytes of the fewest blocks, from ``first`` to ``last``, that give the log's tokens and concurrency; else None."""
    if start.kv_tokens is None:
        return None
    first, highest = max(0, first), last
    while first < last:
        middle = (first + last) // 2
        if _printed(planned, middle) < start.kv_tokens:
            first = middle + 1
        else:
            last = middle
    if first > highest or _printed(planned, first) != start.kv_tokens:
        return None
    # older releases divide by the number of groups: several pools print the same tokens, but not the same concurrency
    layout = planned.plan.layout
    if start.concurrency is not None and start.concurrency_tokens == planned.max_model_len:
        least = math.ceil((Fraction(str(start.concurrency)) - _ROUNDED) * layout.request_blocks(planned.max_model_len))
        first = min(max(first, least), first + len(layout.groups) - 1)
    return first * layout.bytes_per_block


def _printed(planned: Fit, blocks: int) -> int:
    """The token figure that the engine would print for a pool of ``blocks``."""
    if blocks < 1:
        return 0
    memory = blocks * planned.plan.layout.bytes_per_block
    plan = engine_plan(planned.model, replace(planned.deployment, kv_memory_bytes=memory))
    return plan.tokens if plan.tokens is not None else 0


class _Capacity(NamedTuple):
    """What a pool holds by the plan's rules and by the log; rounding may put them ``allowed`` apart."""

    planned: Fraction
    logged: Fraction
    what: str
    allowed: Fraction


def check_model(start: EngineStart, planned: Fit) -> tuple[Finding, ...]:
    """Refuses a log whose pool cannot be that of the model: its memory and its capacity contradict the layers.

    It is only a finding where releases differ (with several groups of layers, or a draft's layers among them) or GGUF
    files do (MLA).
    """
    memory = start.kv_bytes
    if memory is None or memory <= 4 * _ROUNDING_BYTES:
        return ()
    if start.engine == "sglang":
        memory = _with_scales(start, memory)
    found = _capacity(start, planned, memory)
    if found is None:
        return ()
    # two per cent, and what the memory's own two digits leave open
    near = abs(found.planned) * (_TOLERANCE + Fraction(_ROUNDING_BYTES, memory))
    if abs(found.logged - found.planned) <= near + found.allowed:
        return ()
    differs = (
        f"KV memory of {format_bytes(memory)} would give {float(found.planned):,.2f} {found.what}{{}}, "
        f"the log says {float(found.logged):,.2f}"
    )
    if start.engine == "llama.cpp" and planned.model.keeps(LatentAttention):
        return (
            Finding(
                code="latents-expanded",
                severity="warning",
                message=f"{differs.format(' for the latents of this MLA model')}: its GGUF file keeps full keys and "
                "values for every head, as files from before April 2025 do",
                hint="plan for the file (org/name/file.gguf)",
            ),
        )
    groups = planned.plan.layout.groups
    if len(groups) > 1 or groups[0].rule != "full" or start.has_speculation:
        drafts = start.has_speculation and not planned.deployment.speculative_tokens
        why = "a draft's layers share its blocks" if drafts else "its release pages this model differently"
        rules = differs.format(" by the plan's rules")
        return (
            Finding(
                code="capacity-differs",
                severity="warning",
                message=f"{rules}: {why}, or it is of another model",
                hint=_left_out(start),
            ),
        )
    raise InputError(
        f"this log is not of {planned.model.id}: its {differs.format('')}",
        hint=f"{f'the log names {start.model}; ' if start.model else ''}name its model with --model, and check the "
        "KV type and the parallelism",
        key="model",
    )


def _left_out(start: EngineStart) -> str | None:
    """The settings that a pool's capacity depends on and the log does not print."""
    settings = {
        "--kv-dtype": start.kv_dtype,
        "--prefix-caching": start.prefix_caching,
        "--tp": start.tensor_parallel,
    }
    missing = [flag for flag, value in settings.items() if value is None]
    return f"say what the log leaves out: {', '.join(missing)}" if missing else None


def _capacity(start: EngineStart, planned: Fit, memory: int) -> _Capacity | None:
    """The pool in the unit that the engine prints next to its memory; None where it prints none."""
    plan, layout = planned.plan, planned.plan.layout
    if start.engine == "llama.cpp":
        return _Capacity(Fraction(plan.kv_bytes, MIB), Fraction(memory, MIB), "MiB of KV buffers", Fraction(0))
    if start.engine == "sglang" and start.kv_tokens is not None:
        held = Fraction(layout.bytes_per_block, layout.block_tokens) * start.kv_tokens
        return _Capacity(held / MIB, Fraction(memory, MIB), "MiB for its tokens", Fraction(0))
    if start.blocks is not None:
        return _Capacity(Fraction(memory, layout.bytes_per_block), Fraction(start.blocks), "blocks", Fraction(1))
    if start.concurrency is not None and start.concurrency_tokens == plan.settings.max_model_len:
        windows = Fraction(memory // layout.bytes_per_block, layout.request_blocks(start.concurrency_tokens))
        return _Capacity(windows, Fraction(str(start.concurrency)), "× the window", Fraction(1, 100))
    if start.kv_tokens is not None and start.engine != "vllm":
        tokens = Fraction(memory * layout.block_tokens, layout.bytes_per_block)
        return _Capacity(tokens, Fraction(start.kv_tokens), "tokens", Fraction(0))
    return None


def _with_scales(start: EngineStart, memory: int) -> int:
    """SGLang prints 4-bit KV without its scales, one byte for 16 values: an eighth more."""
    return memory * 9 // 8 if "float4" in (start.kv_dtype or "") or "fp4" in (start.kv_dtype or "") else memory
