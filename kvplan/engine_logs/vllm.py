"""vLLM's wordings, V0 and V1, from 0.5 to 0.33.

Source: the loggers of ``worker.py``, ``gpu_worker.py``, ``gpu_model_runner.py``, ``kv_cache_utils.py``,
``kv_cache_planning.py``, ``topk_topp_sampler.py`` and ``llm_engine.py`` in the wheels of 0.5.5, 0.6.6, 0.7.3, 0.8.5,
0.9.2, 0.11.0, 0.13.0, 0.17.0, 0.19.0, 0.24.0 to 0.32.0 and 0.33.0, vllm-ascend's ``worker.py``, and start-up logs in
public repositories. "GB" in the older ones is a GiB.
"""

import re
from dataclasses import replace

from kvplan.engine_logs.patterns import Observations, Pattern, Wording, pattern, patterns

NUMBER = r"-?[\d.]+"

TRIGGER = re.compile(
    r"vLLM API server version|LLM engine (?:\(v|with config)|LLM API server|non-default args|Namespace\("
    r"|KV cache (?:size|memory|is)|kv cache memory|GPU blocks|Maximum concurrency"
    r"|oading (?:model )?(?:weights )?took|total_gpu_memory|model weights take|Memory profiling takes"
    r"|Graph capturing|CUDA graph|Free memory on device|cache blocks|larger than|attention block size"
    r"|Chunked prefill|max model len|top-k sampling|num_gpu_blocks|Asynchronous scheduling|CUDA out of memory"
    r"|OutOfMemoryError|cuda blocks|CUDA blocks|█  (?:version|model) |Total non KV cache memory"
    r"|Memory profiling results|device_name=|device on startup|Actual usage|Num GPUs = |rocm"
)

MARKERS = re.compile(
    r"vLLM API server version|Initializing (?:an|a V\d) LLM engine|LLM API server version|█  version \d"
)

ARGUMENTS = patterns(
    r"'?\bmodel(?:_tag)?'?[=:] ?'(?P<model_text>[^']+)'",
    r"'?max_(?:model|seq)_len'?[=:] ?(?P<max_model_len_count>\d+)",
    r"'?max_num_seqs'?[=:] ?(?P<max_num_seqs_count>\d+)",
    r"'?max_num_batched_tokens'?[=:] ?(?P<max_num_batched_tokens>\d+)",
    r"'?gpu_memory_utilization'?[=:] ?(?P<memory_utilization_number>[\d.]+)",
    r"'?tensor_parallel_size'?[=:] ?(?P<tensor_parallel_count>\d+)",
    r"'?pipeline_parallel_size'?[=:] ?(?P<pipeline_parallel_count>\d+)",
    r"'?data_parallel_size'?[=:] ?(?P<data_parallel_count>\d+)",
    r"'?decode_context_parallel_size'?[=:] ?(?P<context_parallel_count>\d+)",
    r"'?kv_cache_dtype'?[=:] ?'?(?P<kv_dtype_text>[a-z0-9_]+)",
    r"[ ({,]'?dtype'?[=:] ?'?(?:torch\.)?(?P<dtype_text>[a-z]+\d+)",
    r"[ ({,]'?quantization'?[=:] ?'?(?P<quantization_text>[A-Za-z0-9_-]+)",
    r"'?enforce_eager'?[=:] ?(?P<enforce_eager_flag>True|False)",
    r"'?enable_prefix_caching'?[=:] ?(?P<prefix_caching_flag>True|False)",
    r"'?async_scheduling'?[=:] ?(?P<async_scheduling_flag>True|False)",
    r"'?enable_lora'?[=:] ?(?P<has_lora_flag>True|False)",
    r"[ ({,]'?block_size'?[=:] ?(?P<asked_block_tokens>\d+)",
)

PATTERNS: tuple[Pattern, ...] = (
    pattern(r"LLM engine \(v(?P<version_text>[^)\s]+)\)"),
    pattern(r"LLM engine with config: ", version="0.4.0"),  # the last release that did not say which it is
    pattern(r"LLM API server version (?P<version_text>\S+)"),
    pattern(r"█  version (?P<version_text>\d\S+)"),
    pattern(r"Automatically detected platform rocm|\[rocm\.py:\d+\]", is_rocm=True),
    pattern(r"device_config=(?P<platform_text>npu|xpu|hpu|tpu|cpu)\b"),
    pattern(r"█  model +(?P<model_text>\S+)"),
    pattern(r"device_name=(?P<gpu_text>(?:NVIDIA|AMD)_[A-Za-z0-9_-]+)"),
    # Unsloth, which starts vLLM inside a training process; its GB is a GiB.
    pattern(r"(?P<gpu_text>(?:NVIDIA|Tesla|AMD) [\w -]+)\. Num GPUs = \d+\. Max memory: (?P<total_gib>[\d.]+) GB"),
    pattern(r"Using max model len (?P<max_model_len_count>\d+)"),
    pattern(r"Chunked prefill is enabled with max_num_batched_tokens=(?P<max_num_batched_tokens>\d+)"),
    pattern(r"Asynchronous scheduling is enabled", async_scheduling=True),
    pattern(r"Asynchronous scheduling is disabled", async_scheduling=False),
    # The driver's total, the share asked for, and the parts: V0's summary (0.6 to 0.9).
    pattern(r"total_gpu_memory \((?P<total_gib>[\d.]+)GiB\)(?:.*?= (?P<requested_gib>[\d.]+)GiB)?"),
    pattern(
        rf"model weights take (?P<weight_gib>{NUMBER})GiB; non_torch_memory takes (?P<non_torch_gib>{NUMBER})GiB;"
        rf" PyTorch activation peak memory takes (?P<activation_gib>{NUMBER})GiB;"
        rf" the rest of the memory reserved for KV Cache is (?P<kv_gib>{NUMBER})GiB"
    ),
    pattern(r"(?:Loading model weights|Model loading) took (?P<weight_gib>[\d.]+) Gi?B"),
    pattern(
        rf"torch peak memory increase: (?P<activation_gib>{NUMBER})GiB; "
        rf"non-torch forward increase memory: (?P<non_torch_gib>{NUMBER})GiB; weights memory:"
        rf" (?P<weight_gib>{NUMBER})GiB"
    ),
    # 0.6.4 in one line; 0.27 and later without what is not torch's, at debug level.
    pattern(
        rf"total_gpu_memory=(?P<total_gib>{NUMBER})GiB initial_memory_usage=\S+ "
        rf"peak_torch_memory=(?P<peak_gib>{NUMBER})GiB memory_usage_post_profile=\S+ "
        rf"non_torch_memory=(?P<non_torch_gib>{NUMBER})Gi[Bb] kv_cache_size=(?P<kv_gib>{NUMBER})GiB "
        r"gpu_memory_utilization=(?P<memory_utilization_number>[\d.]+)"
    ),
    pattern(
        rf"torch peak memory increase: (?P<activation_gib>{NUMBER})GiB; total consumed \(from mem_get_info\): "
        rf"(?P<consumed_gib>{NUMBER})GiB; weights memory: (?P<weight_gib>{NUMBER})GiB"
    ),
    pattern(rf"Available KV cache memory: (?P<kv_gib>{NUMBER}) GiB"),
    # What a start tells at its end (0.11 and later, at debug level until 0.13).
    pattern(
        rf"Free memory on device (?:\S+ )?\((?P<free_before_gib>{NUMBER})/(?P<total_gib>{NUMBER}) GiB\) on startup\."
        rf" Desired GPU memory utilization is \((?P<memory_utilization_number>[\d.]+),"
        rf" (?P<requested_gib>{NUMBER}) GiB\)"
    ),
    pattern(
        rf"Actual usage is (?P<weight_gib>{NUMBER}) GiB for weight, (?P<activation_gib>{NUMBER}) GiB for peak"
        rf" activation,"
        rf" (?P<non_torch_gib>{NUMBER}) GiB for non-torch memory, and (?P<graph_gib>{NUMBER}) GiB for CUDAGraph"
    ),
    pattern(
        rf"Actual usage is (?P<consumed_gib>{NUMBER}) GiB for consumed memory \(weights \+ non-torch\),"
        rf" (?P<activation_with_graphs_gib>{NUMBER}) GiB for peak activation, and (?P<graph_gib>{NUMBER}) GiB"
        rf" for CUDAGraph"
    ),
    pattern(
        rf"Actual usage: (?P<weight_gib>{NUMBER}) GiB for weights, "
        rf"(?P<activation_gib>{NUMBER}) GiB for peak activation, "
        rf"(?P<non_torch_gib>{NUMBER}) GiB for non-torch memory, "
        rf"(?P<graph_gib>{NUMBER}) GiB for NPU graph memory"
        rf"(?:.*?Current KV cache memory: (?P<kv_gib>{NUMBER}) GiB)?"
    ),
    pattern(rf"Current kv cache memory in use is (?P<kv_gib>{NUMBER}) GiB"),
    pattern(r"Current kv cache memory in use is (?P<kv_bytes>\d+) bytes"),
    pattern(r"reserved (?P<kv_gib>[\d.]+) GiB memory for KV Cache as specified by kv_cache_memory_bytes"),
    pattern(rf"Graph capturing finished in \S+ secs?, took (?P<graph_gib>{NUMBER}) GiB"),
    pattern(rf"Estimated CUDA graph memory: (?P<graph_estimate_gib>{NUMBER}) GiB total"),
    pattern(
        rf"CUDA graph pool memory: (?P<graph_pool_gib>{NUMBER}) GiB \(actual\), (?P<graph_estimate_gib>{NUMBER}) GiB"
    ),
    pattern(r"CUDA graph memory profiling is enabled", graphs_inside=True),
    pattern(
        r"CUDA graph memory profiling is disabled|In v0\.19, CUDA graph memory profiling will be", graphs_inside=False
    ),
    pattern(r"# (?:GPU|CUDA|cuda|ROCM|rocm|NPU|npu|XPU|xpu) blocks: (?P<blocks>[\d,]+)"),
    pattern(r"num_gpu_blocks is: (?P<blocks>\d+)"),
    pattern(
        rf"Free memory on device (?:\S+ )?\((?P<free_before_gib>{NUMBER})/(?P<total_gib>{NUMBER}) GiB\) on startup is"
        r" less"
    ),
    pattern(r"exceeds available Mamba cache blocks \((?P<blocks>\d+)\)"),
    pattern(r"Overriding num_gpu_blocks=[1-9]\d* with num_gpu_blocks_override=(?P<blocks>\d+)"),
    pattern(r"Overriding num_gpu_blocks=0 with num_gpu_blocks_override=(?P<profiled_blocks>\d+)"),
    pattern(r"(?:[A-Z]+) KV cache size: (?P<kv_tokens>[\d,]+) tokens"),
    pattern(
        r"Maximum concurrency for (?P<concurrency_tokens>[\d,]+) tokens per request: (?P<concurrency_number>[\d.]+)x"
    ),
    pattern(r"Setting attention block size to (?P<block_tokens>\d+) tokens"),
    pattern(r"Multiplying the GPU KV cache size by the \w+_world_size (?P<context_parallel_count>\d+)"),
    pattern(r"Using FlashInfer for top-p & top-k sampling", sampler="flashinfer"),
    pattern(
        r"(?:Using|Falling back to the) PyTorch-native implementation of top-p & top-k sampling", sampler="pytorch"
    ),
    pattern(r"speculative_config=SpeculativeConfig\(", has_speculation=True),
    pattern(
        r"SpeculativeConfig\(method='(?P<speculative_method_text>\w+)', model=[^,]+, "
        r"num_spec_tokens=(?P<speculative_tokens_count>\d+)\)"
    ),
)

# Each refusal's wording, with what it gives.
REFUSALS: tuple[tuple[str, Pattern], ...] = (
    ("no_kv_memory", pattern(r"No available memory for the cache blocks")),
    (
        "window_too_long",
        pattern(
            rf"max seq len \((?P<max_model_len_count>\d+)\), \((?P<needed_gib>{NUMBER}) Gi?B KV cache is needed,"
            rf" which is"
            rf" larger than the available KV cache memory \((?P<available_gib>{NUMBER}) Gi?B\)"
            r"(?:.*?estimated maximum model length is (?P<estimated_max_model_len_count>\d+))?"
        ),
    ),
    (
        "window_too_long",
        pattern(
            r"max seq len \((?P<max_model_len_count>\d+)\) is larger than the maximum number of tokens that can"
            r" be stored"
            r" in KV cache \((?P<pool_tokens>\d+)\)"
        ),
    ),
    (
        "not_enough_free",
        pattern(
            rf"Free memory on device (?:\S+ )?\((?P<available_gib>{NUMBER})/{NUMBER} GiB\) on startup is less"
            rf" than desired"
            rf" GPU memory utilization \([\d.]+, (?P<needed_gib>{NUMBER}) GiB\)"
        ),
    ),
    (
        "too_many_sequences",
        pattern(r"max_num_seqs \(\d+\) exceeds available Mamba cache blocks \((?P<most_sequences_count>\d+)\)"),
    ),
    ("out_of_memory", pattern(r"(?:torch\.(?:cuda\.)?)?OutOfMemoryError|CUDA out of memory")),
)


def _fold(seen: Observations) -> Observations:
    """Takes the graph estimate out of the peak in which 0.27 and later print it, and the weights out of the peak that
    0.6 printed; of a capacity that the engine's core printed for each of its ranks, the smallest is the pool's.

    Source: ``gpu_worker.py`` 0.28: ``peak_activation_memory`` is the transient peak plus the applied graph estimate;
    ``worker.py`` 0.6.4: ``peak_torch_memory``; ``kv_cache_utils.py`` 0.10: one line a worker, without its name.
    """
    last = {item.name: item for item in seen}
    values = {name: item.value for name, item in last.items()}
    folded = list(seen)
    peak, estimate = values.get("activation_with_graphs_bytes"), values.get("graph_estimate_bytes", 0)
    if isinstance(peak, int) and isinstance(estimate, int):
        share = estimate if values.get("graphs_inside", True) else 0
        folded.append(replace(last["activation_with_graphs_bytes"], name="activation_bytes", value=peak - share))
    peak, weights = values.get("peak_bytes"), values.get("weight_bytes")
    if isinstance(peak, int) and isinstance(weights, int) and "activation_bytes" not in values:
        folded.append(replace(last["peak_bytes"], name="activation_bytes", value=peak - weights))
    for name in ("kv_tokens", "concurrency"):
        printed = [(item.value, item) for item in seen if item.name == name and isinstance(item.value, int | float)]
        if len(printed) > 1:
            folded.append(min(printed, key=lambda pair: pair[0])[1])
    return tuple(folded)


WORDING = Wording(
    engine="vllm",
    trigger=TRIGGER,
    marker=MARKERS,
    patterns=PATTERNS,
    refusals=REFUSALS,
    argument_line=re.compile(r"LLM engine (?:\(v|with config)|non-default args|Namespace\("),
    arguments=ARGUMENTS,
    fold=_fold,
)
