"""What SGLang, TensorRT-LLM and TGI have in common: on every rank, what the weights leave is one pool of tokens."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kvplan.engines.base import Budget, BudgetTerm, CacheGroup, CacheLayout, Deployment, Finding
from kvplan.engines.ranks import Kept
from kvplan.errors import InputError
from kvplan.layers import StoredType
from kvplan.model import ModelSpec, Shape
from kvplan.units import GIB

CONTEXT = BudgetTerm(name="context", bytes=GIB // 2, formula="the driver's and the library's own")
"""What a process holds on an NVIDIA card before it allocates anything: 0.45 on an L40S and 0.7 on an H100 by SGLang's
logs."""


def pool_bytes(deployment: Deployment, budget: Budget | None) -> int:
    """Memory of one rank's pool: what the budget leaves, or what was given, for which no budget is made."""
    if budget is not None:
        return budget.kv_bytes
    assert deployment.kv_memory_bytes is not None
    return deployment.kv_memory_bytes


def step_bytes(shape: Shape, tokens: int, tensor_parallel: int) -> int:
    """A step's widest layer, 16-bit: T × 2 B × (3 × intermediate / tp + 3 × hidden); 4 × hidden where no width is said.

    Gate, up and their product; residual, the layer's input and its output.
    """
    width = 3 * (shape.intermediate or 4 * shape.hidden) // tensor_parallel + 3 * shape.hidden
    return 2 * tokens * width


def named_type(word: str, types: Mapping[str, StoredType], engine: str) -> StoredType:
    """The KV type that ``engine`` calls ``word``."""
    if word not in types:
        raise InputError(
            f"{word!r} is not a KV type of {engine} that kvplan knows",
            hint=f"one of auto, {', '.join(types)}",
            key="kv_dtype",
        )
    return types[word]


def windows_as_full(kept: Kept) -> Kept:
    """What is kept where a window only masks, so that every layer keeps every token."""
    growing, windows, states = kept.counts
    return replace(
        kept,
        growing_per_token=kept.token_bytes,
        windowed_per_token=kept.windowed_per_token * 0,
        counts=(growing + windows, 0, states),
        window_tokens=None,
    )


def one_pool(kept: Kept, block_tokens: int, *, reserved_blocks: int) -> CacheLayout:
    """One group, of which a request of L tokens is charged ceil(L / block)."""
    group = CacheGroup(
        kind="full attention",
        layers=kept.counts[0],
        rule="full",
        block_tokens=block_tokens,
        page_bytes=max(1, int(kept.growing_per_token * block_tokens)),
    )
    return CacheLayout(
        block_tokens=block_tokens,
        bytes_per_block=group.page_bytes,
        groups=(group,),
        in_flight_tokens=0,
        reserved_blocks=reserved_blocks,
    )


def model_notes(model: ModelSpec) -> list[Finding]:
    """What the model's source leaves open."""
    return [Finding(code="model-note", severity="warning", message=note) for note in model.notes]


def windows_kept_whole(engine: str, layers: int, hint: str | None = None) -> Iterator[Finding]:
    """The finding for a model of whose windows ``layers`` save no memory on ``engine``."""
    if layers:
        yield Finding(
            code="windows-kept-whole",
            severity="info",
            message=f"{layers} window layers keep every token: {engine} stores them like full attention",
            hint=hint,
        )


def free_memory_estimated(engine: str, evidence: str) -> Finding:
    """The finding for an engine that measures, when it starts, what kvplan can only estimate."""
    return Finding(
        code="free-memory-estimated",
        severity="warning",
        message=f"{engine} measures what is free after loading; here it is estimated ({evidence})",
        hint="start it once, then plan with its own figure: kvplan calibrate LOG",
    )
