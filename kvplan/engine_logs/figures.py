"""What a start-up log says: one ``EngineStart`` per start of an engine, and the line of each figure."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One figure as one line gave it. The end of ``name`` is the unit of ``value``: bytes, tokens, or a count."""

    name: str
    value: int | float | str | bool
    line: int
    text: str
    rank: str | None = None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The engine's own refusal to start: what it needed and had, and the longest window that it says would fit."""

    reason: str
    line: int
    text: str
    max_model_len: int | None = None
    needed_bytes: int | None = None
    available_bytes: int | None = None
    estimated_max_model_len: int | None = None
    pool_tokens: int | None = None
    most_sequences: int | None = None


@dataclass(frozen=True, kw_only=True)
class EngineStart:
    """One start of one engine. Memory is that of one GPU: usage of the fullest rank, pools of the smallest.

    A figure that the log does not give is null. ``consumed_bytes`` is weights and non-torch memory together (vLLM from
    0.28). ``graph_estimate_bytes`` was estimated before the capture, ``graph_bytes`` is what the capture took.
    ``asked_block_tokens`` is the block size of a setting, ``block_tokens`` the one in use. ``compute_bytes`` are
    llama.cpp's compute buffers, and ``layers_on_gpu`` those of its ``layers`` (counting the head) that are not left on
    the host.
    """

    engine: str
    first_line: int
    last_line: int
    version: str | None = None
    model: str | None = None
    gpu: str | None = None
    kv_dtype: str | None = None
    quantization: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    context_parallel: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    memory_utilization: float | None = None
    enforce_eager: bool | None = None
    performance_mode: str | None = None
    prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    has_speculation: bool = False
    speculative_method: str | None = None
    speculative_tokens: int | None = None
    has_lora: bool | None = None
    total_bytes: int | None = None
    requested_bytes: int | None = None
    free_before_bytes: int | None = None
    free_after_load_bytes: int | None = None
    weight_bytes: int | None = None
    activation_bytes: int | None = None
    non_torch_bytes: int | None = None
    consumed_bytes: int | None = None
    peak_bytes: int | None = None
    graph_estimate_bytes: int | None = None
    graph_bytes: int | None = None
    compute_bytes: int | None = None
    kv_bytes: int | None = None
    key_bytes: int | None = None
    value_bytes: int | None = None
    state_bytes: int | None = None
    kv_tokens: int | None = None
    window_pool_tokens: int | None = None
    blocks: int | None = None
    block_tokens: int | None = None
    asked_block_tokens: int | None = None
    concurrency: float | None = None
    concurrency_tokens: int | None = None
    layers: int | None = None
    layers_on_gpu: int | None = None
    slots: int | None = None
    kv_unified: bool | None = None
    refusals: tuple[Refusal, ...] = ()
    observations: tuple[Observation, ...] = ()

    @property
    def is_version_inferred(self) -> bool:
        """Whether ``version`` is not printed, but the last release whose lines look like this log's."""
        inferred, release = self.line_of("v0_release"), self.line_of("version")
        return inferred is not None and release is not None and release.line == inferred.line

    def line_of(self, name: str) -> Observation | None:
        """The last line that gave figure ``name``."""
        return next((seen for seen in reversed(self.observations) if seen.name == name), None)
