"""What engines other than vLLM share: on every rank, the memory that the weights leave is one pool of tokens."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import Budget, BudgetTerm, CacheGroup, CacheLayout, EnginePlan, Finding, Settings
from kvplan.engines.lora import adapters_are_priced, lora_bytes
from kvplan.engines.memory_share import others_term
from kvplan.engines.ranks import CacheSizes, cache_sizes, rank_stages
from kvplan.engines.weights import LoadedRank
from kvplan.errors import InputError
from kvplan.layers import KvTypes, StoredType
from kvplan.model import ModelSpec, Shape
from kvplan.units import GIB

CONTEXT = BudgetTerm(name="context", bytes=GIB // 2, formula="the driver's and the libraries' own")
"""What a process holds on an NVIDIA GPU before it allocates anything: by SGLang's logs 0.45 GiB on an L40S, 0.7 on an
H100."""


def pool_bytes(deployment: Deployment, budget: Budget | None) -> int:
    """Memory of one rank's pool: what the budget leaves, or what was given, where there is no budget."""
    if budget is not None:
        return budget.kv_bytes
    assert deployment.kv_memory_bytes is not None
    return deployment.kv_memory_bytes


def step_bytes(shape: Shape, tokens: int, tensor_parallel: int) -> int:
    """A step's widest layer in 16 bits: T × 2 B × (3 × intermediate / tp + 3 × hidden).

    The first three are gate, up and their product, as wide as 4 × hidden where the config has no width; the others are
    the residual, the layer's input and its output.
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


def windows_as_full(kept: CacheSizes) -> CacheSizes:
    """``kept`` where windows only mask and every layer keeps every token."""
    return replace(
        kept,
        growing_per_token=kept.token_bytes,
        windowed_per_token=kept.windowed_per_token * 0,
        growing_layers=kept.growing_layers + kept.window_layers,
        window_layers=0,
        window_tokens=None,
    )


def one_pool(kept: CacheSizes, block_tokens: int, *, reserved_blocks: int) -> CacheLayout:
    """One group, in which a request of L tokens is charged ceil(L / block)."""
    group = CacheGroup(
        kind="full attention",
        layers=kept.growing_layers,
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


def one_pool_plan(
    model: ModelSpec,
    deployment: Deployment,
    settings: Settings,
    kv: KvTypes,
    *,
    block_tokens: int,
    budget_of: Callable[[int], Budget],
    findings: tuple[Finding, ...],
) -> EnginePlan:
    """The plan of an engine where windows only mask, for the pipeline stage with the fewest blocks.

    ``budget_of`` a stage is asked for only where the pool's memory was not given.
    """
    stages = []
    for index, layers in enumerate(rank_stages(model, deployment)):
        layout = one_pool(windows_as_full(cache_sizes(layers, kv)), block_tokens, reserved_blocks=0)
        budget = None if deployment.kv_memory_bytes is not None else budget_of(index)
        memory = pool_bytes(deployment, budget)
        stages.append((max(0, memory // layout.bytes_per_block), layout, memory, budget))
    blocks, layout, memory, budget = min(stages, key=lambda stage: stage[0])
    return EnginePlan(
        settings=settings,
        kv_types=kv,
        layout=layout,
        kv_bytes=memory,
        blocks=blocks,
        budget=budget,
        findings=findings,
        tokens=blocks * block_tokens,
    )


def free_share_budget(
    deployment: Deployment, loaded: LoadedRank, requested_bytes: int, step: BudgetTerm, share: Fraction
) -> Budget:
    """The budget of an engine that measures what is free after loading and takes ``share`` of it for the pool.

    Free = requested − others − weights − context − ``step``; the pool has no band yet.
    """
    weights = BudgetTerm(name="weights", bytes=loaded.weights.bytes, formula=loaded.weights.formula)
    taken = (weights, CONTEXT, *others_term(deployment), step)
    free = requested_bytes - sum(term.bytes for term in taken)
    kv = int(free * share) if free > 0 else free
    left = BudgetTerm(
        name="left_free", bytes=free - kv, formula=f"{float(1 - share):g} × what is free after loading and one step"
    )
    return Budget(
        rank=loaded.rank,
        total_bytes=loaded.total_bytes,
        requested_bytes=requested_bytes,
        terms=(*taken, left),
        kv_bytes=kv,
        kv_bytes_low=kv,
        kv_bytes_high=kv,
    )


def dense_adapters_are_priced(model: ModelSpec) -> bool:
    """Whether adapters can be counted by ``adapters_term``: for attention and dense MLPs with known matrices. Buffers
    for experts depend on the kernel."""
    return not model.shape.experts and adapters_are_priced(model)


def adapters_term(model: ModelSpec, deployment: Deployment, layers: range, tensor_parallel: int) -> BudgetTerm:
    """Slots × rank × Σ (inputs + outputs) × 2 B over attention and MLP of the decoder ``layers``.

    SGLang allocates them before it sizes the pools; A of the joined q, k, v has three ranks, A of gate and up two
    (``LoRAMemoryPool.init_buffers`` of ``lora/mem_pool.py`` 0.5.23); embedding and head are adapted only with
    ``--lora-target-modules all``. llama.cpp loads each tensor of a file to where its layer is (``llama-adapter.cpp``).
    """
    amount = lora_bytes(
        (part for part in model.weights.parts if part.layer is not None),
        model.shape.hidden,
        tensor_parallel=tensor_parallel,
        slots=deployment.lora_slots,
        rank=deployment.lora_rank,
        stage=layers,
    )
    return BudgetTerm(name="adapters", bytes=amount, formula="slots × rank × Σ (inputs + outputs) × 2 B")


def model_notes(model: ModelSpec) -> list[Finding]:
    """What the model's source leaves uncertain."""
    return [Finding(code="model-note", severity="warning", message=note) for note in model.notes]


def window_layers(model: ModelSpec) -> int:
    """Layers with a window or chunks."""
    return sum(layer.window_tokens is not None for layer in model.caches)


def windows_kept_whole(engine: str, layers: int, hint: str | None = None) -> Iterator[Finding]:
    """The finding for a model with ``layers`` window layers that save no memory on ``engine``."""
    if layers:
        yield Finding(
            code="windows-kept-whole",
            severity="info",
            message=f"{layers} window layers keep every token: {engine} stores them like full attention",
            hint=hint,
        )


def free_memory_estimated(engine: str, evidence: str) -> Finding:
    """The finding for an engine that measures at start-up what kvplan can only estimate."""
    return Finding(
        code="free-memory-estimated",
        severity="warning",
        message=f"{engine} measures what is free after loading; here it is estimated ({evidence})",
        hint="start it once, then plan with its own figure: kvplan calibrate LOG",
    )
