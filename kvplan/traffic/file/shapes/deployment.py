"""How a file writes the engine: the options of ``kvplan fit`` by their names, and what was measured."""

from typing import Annotated, Literal, Self

from pydantic import AliasChoices, Field, model_validator

from kvplan.traffic.file.shapes.base import Bytes, Count, CountOrNone, NotNegative, Positive, Section


class PoolShape(Section):
    blocks: Annotated[int, Field(ge=2, le=2**40)] | None = None
    block_tokens: Count | None = None
    memory: Bytes | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.blocks is None) == (self.memory is None):
            raise ValueError("give either blocks or memory")
        if self.memory is not None and self.block_tokens is not None:
            raise ValueError("block_tokens goes with blocks; with memory the model's own groups are used")
        return self


class ServiceShape(Section):
    base_s: NotNegative
    prefill_token_s: NotNegative
    decode_sequence_s: NotNegative
    kv_token_s: NotNegative

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.base_s + self.prefill_token_s + self.decode_sequence_s + self.kv_token_s <= 0:
            raise ValueError("a step that takes no time cannot be simulated")
        return self


class MediaShape(Section):
    count: CountOrNone = 1
    tokens: Count | None = None


class DeploymentShape(Section):
    gpu: str | Count | None = None  # 4090 is a number to YAML
    gpu_memory: Bytes | list[Bytes] | None = None
    engine: str = "vllm"
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    data_parallel: Count = 1
    context_parallel: Count = 1
    expert_parallel: bool = False
    pp_layers: Annotated[list[Count], Field(min_length=1)] | None = None
    replicas: Count = 1
    router: Literal["round_robin", "least_reserved"] = "round_robin"
    kv_dtype: str = "auto"
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    max_model_len: Count | None = None
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    gpu_memory_utilization: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        Field(
            validation_alias=AliasChoices(
                "gpu_memory_utilization",
                "mem_fraction_static",
                "free_gpu_memory_fraction",
                "cuda_memory_fraction",
            )
        ),
    ] = None
    async_scheduling: bool | None = None
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    hybrid_kv_cache_manager: bool = True
    block_size: Count | None = None
    enforce_eager: bool = False
    speculative_tokens: CountOrNone = 0
    speculative_method: str | None = None
    draft_model: Annotated[str, Field(min_length=1)] | None = None
    max_loras: CountOrNone = 0
    max_lora_rank: Count = 16
    limit_mm_per_prompt: dict[str, CountOrNone | MediaShape] | None = None
    kv_memory: Bytes | None = None
    kv_offload: Bytes | None = None
    kv_unified: bool | None = None
    swa_full: bool = False
    swa_full_tokens_ratio: Positive | None = None
    mamba_full_memory_ratio: Positive | None = None
    weight_bytes: Annotated[
        Count | Bytes | None, Field(validation_alias=AliasChoices("weight_bytes", "weights_bytes"))
    ] = None
    calibration: str | None = None
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    long_prefill_token_threshold: CountOrNone = 0
    max_queued_requests: CountOrNone | None = None
    max_queued_tokens: CountOrNone | None = None
    kv_pool: PoolShape | None = None
    service: ServiceShape | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.kv_memory is not None and self.kv_pool is not None:
            raise ValueError("kv_memory is kv_pool: {memory: …} in short; give one of them")
        return self
