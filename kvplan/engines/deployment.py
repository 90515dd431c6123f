"""What the user asks of an engine: every option of a deployment is declared here, once."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated

from kvplan.engines.option_types import (
    AMOUNT,
    AMOUNT_OR_NONE,
    AMOUNTS,
    COUNT,
    COUNT_OR_NONE,
    COUNTS,
    ENGINE,
    GPU,
    KV_TYPE,
    MEDIA,
    MEMORY_SHARE,
    MODEL,
    RATIO,
    SWITCH,
    TOKENS,
    TYPE,
    WORD,
    MemoryPart,
    OptionType,
)
from kvplan.model import ModelSpec
from kvplan.profiles.kinds import GpuProfile


@dataclass(frozen=True, kw_only=True)
class Option:
    """How one option of a deployment is given.

    ``key`` is its name in a traffic file and, with dashes, on the command line; by default the field's name without
    its unit. ``short`` are further flags; ``aliases`` are other engines' names for it, valid as keys and as flags.
    ``rare``: only engines that list it in ``Engine.has`` have it; every engine has the other options.
    """

    type: OptionType
    help: str
    group: str = "engine"
    key: str = ""
    short: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    rare: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineVersion:
    """An engine and the release whose rules are used, ``(0, 33)`` for 0.33; None means the newest known."""

    name: str = "vllm"
    release: tuple[int, ...] | None = None

    def __str__(self) -> str:
        """As ``parse_engine`` reads it.

        >>> str(EngineVersion(name="vllm", release=(0, 33))), str(EngineVersion(name="tgi"))
        ('vllm@0.33', 'tgi')
        """
        return self.name if self.release is None else f"{self.name}@{'.'.join(map(str, self.release))}"


def is_since(release: tuple[int, ...] | None, first: tuple[int, ...]) -> bool:
    """Whether ``release`` is ``first`` or newer; None is the newest, and 0.5 the newest of its line.

    >>> is_since(None, (0, 5, 9)), is_since((0, 5, 6), (0, 5, 9)), is_since((0, 5), (0, 5, 9))
    (True, False, True)
    """
    return release is None or release >= first[: len(release)]


@dataclass(frozen=True, kw_only=True)
class MediaLimit:
    """At most ``items`` of a ``modality`` (image, video, audio) in a prompt, each up to ``item_tokens`` where known."""

    modality: str
    items: int
    item_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What the user asks for; None means the engine's default. A new option is one field here, and an entry in
    ``Engine.has`` where not every engine has it.

    ``gpu_memory_bytes`` replaces the profile's figure: one value per rank, or one for all. ``other_processes_bytes``
    are held on each GPU by other processes. ``kv_memory_bytes`` is the KV pool of one GPU and replaces the budget.
    ``weight_bytes`` are the weights of all ranks together. ``max_num_seqs`` are llama.cpp's slots.
    ``window_pool_ratio`` (SGLang): the window pool's tokens per token of the full pool; ``state_pool_ratio``: the state
    pool's memory per byte of KV. ``pipeline_layers``: decoder layers of each stage where stages are uneven.
    ``speculative_method``: ngram, mtp, draft_model or eagle; the last two need ``draft_model``. ``corrections``: bytes
    by which the terms of a start-up log differ from the budget's, from a calibration.
    """

    gpu: Annotated[GpuProfile | None, Option(type=GPU, help="The kind of GPU (kvplan list gpus).")] = None
    engine: Annotated[EngineVersion, Option(type=ENGINE, help="vllm, sglang, ... (kvplan list engines).")] = field(
        default_factory=EngineVersion
    )
    tensor_parallel: Annotated[
        int, Option(type=COUNT, group="parallel", short=("--tp",), help="GPUs that share a layer.")
    ] = 1
    max_model_len: Annotated[
        int | None, Option(type=TOKENS, short=("--context",), help="The engine's window, in tokens.")
    ] = None
    max_num_seqs: Annotated[int | None, Option(type=COUNT, help="Concurrent sequences.")] = None
    kv_dtype: Annotated[str, Option(type=KV_TYPE, help="KV type: auto, bfloat16, fp8, ...")] = "auto"
    kv_memory_bytes: Annotated[
        int | None, Option(type=AMOUNT_OR_NONE, group="memory", help="KV pool of one GPU; skips the budget.")
    ] = None
    gpu_memory_bytes: Annotated[
        tuple[int, ...] | None,
        Option(type=AMOUNTS, group="memory", help="As the driver reports: for all, or per rank."),
    ] = None
    other_processes_bytes: Annotated[
        int, Option(type=AMOUNT_OR_NONE, group="memory", help="Held on each GPU by other processes.")
    ] = 0
    memory_utilization: Annotated[
        Fraction | MemoryPart | None,
        Option(
            rare=True,
            type=MEMORY_SHARE,
            group="memory",
            key="gpu_memory_utilization",
            aliases=(
                "mem_fraction_static",
                "free_gpu_memory_fraction",
                "kv_cache_free_gpu_memory_fraction",
                "cuda_memory_fraction",
            ),
            help="The engine's share: 0.9, 0.5free or 40GiB.",
        ),
    ] = None
    weight_bytes: Annotated[
        int | None,
        Option(
            type=AMOUNT,
            group="memory",
            key="weights_bytes",
            aliases=("weight_bytes",),
            help="The weights, all ranks together.",
        ),
    ] = None
    pipeline_parallel: Annotated[
        int, Option(type=COUNT, group="parallel", short=("--pp",), help="Stages that share the layers.")
    ] = 1
    pipeline_layers: Annotated[
        tuple[int, ...] | None,
        Option(rare=True, type=COUNTS, group="parallel", key="pp_layers", help="Layers of each pipeline stage."),
    ] = None
    data_parallel: Annotated[
        int, Option(type=COUNT, group="parallel", short=("--dp",), help="Attention replicas, each with a KV pool.")
    ] = 1
    context_parallel: Annotated[
        int, Option(type=COUNT, group="parallel", short=("--dcp",), help="Ranks that share a sequence's tokens.")
    ] = 1
    expert_parallel: Annotated[
        bool,
        Option(
            rare=True,
            type=SWITCH,
            group="parallel",
            short=("--enable-expert-parallel",),
            help="Whole experts per rank.",
        ),
    ] = False
    max_num_batched_tokens: Annotated[int | None, Option(type=TOKENS, help="Tokens of one step.")] = None
    async_scheduling: Annotated[bool | None, Option(rare=True, type=SWITCH, help="Two batches in flight.")] = None
    prefix_caching: Annotated[bool | None, Option(rare=True, type=SWITCH, help="Reuse the KV of earlier prompts.")] = (
        None
    )
    chunked_prefill: Annotated[bool | None, Option(rare=True, type=SWITCH, help="Split prompts over steps.")] = None
    hybrid_kv_cache_manager: Annotated[
        bool, Option(rare=True, type=SWITCH, help="Page windows and states separately.")
    ] = True
    performance_mode: Annotated[
        str, Option(rare=True, type=WORD, help="vLLM's: balanced, interactivity or throughput.")
    ] = "balanced"
    block_size: Annotated[int | None, Option(rare=True, type=COUNT, help="Tokens per block.")] = None
    enforce_eager: Annotated[bool, Option(type=SWITCH, help="No CUDA graphs.")] = False
    kv_offload_bytes: Annotated[int | None, Option(rare=True, type=AMOUNT, help="KV offloaded to host memory.")] = None
    speculative_tokens: Annotated[int, Option(type=COUNT_OR_NONE, group="load", help="Tokens to draft per step.")] = 0
    speculative_method: Annotated[
        str | None, Option(type=WORD, group="load", help="ngram, mtp, draft_model or eagle.")
    ] = None
    draft_model: Annotated[ModelSpec | None, Option(type=MODEL, group="load", help="The draft model.")] = None
    lora_slots: Annotated[
        int, Option(type=COUNT_OR_NONE, group="load", key="max_loras", help="LoRA adapters loaded at once.")
    ] = 0
    lora_rank: Annotated[int, Option(type=COUNT, group="load", key="max_lora_rank", help="Largest adapter rank.")] = 16
    media_limits: Annotated[
        tuple[MediaLimit, ...] | None,
        Option(
            rare=True,
            type=MEDIA,
            group="load",
            key="limit_mm_per_prompt",
            help='Most items: {"image": 2}; 0 leaves them out.',
        ),
    ] = None
    cache_type_k: Annotated[str | None, Option(rare=True, type=TYPE, group="llama", help="Type of the keys.")] = None
    cache_type_v: Annotated[str | None, Option(rare=True, type=TYPE, group="llama", help="Type of the values.")] = None
    kv_unified: Annotated[
        bool | None, Option(rare=True, type=SWITCH, group="llama", help="One KV buffer for all slots.")
    ] = None
    swa_full: Annotated[bool, Option(rare=True, type=SWITCH, group="llama", help="Full-size caches for windows.")] = (
        False
    )
    window_pool_ratio: Annotated[
        Fraction | None,
        Option(
            rare=True,
            type=RATIO,
            group="sglang",
            key="swa_full_tokens_ratio",
            help="Window pool's tokens per full token.",
        ),
    ] = None
    state_pool_ratio: Annotated[
        Fraction | None,
        Option(rare=True, type=RATIO, group="sglang", key="mamba_full_memory_ratio", help="State pool per byte of KV."),
    ] = None
    corrections: tuple[tuple[str, int], ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of one replica: tp × pp × dp."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel
