"""vLLM's log lines, V0 and V1, from 0.5 to 0.33.

Source: the loggers of ``worker.py``, ``gpu_worker.py``, ``gpu_model_runner.py``, ``kv_cache_utils.py``,
``kv_cache_planning.py``, ``topk_topp_sampler.py`` and ``llm_engine.py`` in the wheels of 0.5.5, 0.6.6, 0.7.3, 0.8.5,
0.9.2, 0.11.0, 0.13.0, 0.17.0, 0.19.0, 0.24.0 to 0.32.0 and 0.33.0, vllm-ascend's ``worker.py``, and start-up logs in
public repositories. "GB" in the older ones is a GiB.
"""

import re
from dataclasses import replace

from kvplan.engine_logs.wording import Observations, Wording, pattern, patterns

_GIB = r"-?[\d.]+"
_LAST_V0_RELEASE = "0.7.3"
"""The last release with the V0 engine by default, whose lines show it where a log does not print a release."""


def _combine(seen: Observations) -> Observations:
    """Subtracts the graph estimate from the peak that includes it (0.27 and later), and the weights from 0.6's peak;
    of the capacities that the engine's core printed for its ranks, the smallest is the pool's.

    Source: ``gpu_worker.py`` 0.28: ``peak_activation_memory`` is the transient peak plus the applied graph estimate;
    ``worker.py`` 0.6.4: ``peak_torch_memory``; ``kv_cache_utils.py`` 0.10: one line a worker, without its name.
    """
    last = {item.name: item for item in seen}
    values = {name: item.value for name, item in last.items()}
    combined = list(seen)
    peak, estimate = values.get("activation_with_graphs_bytes"), values.get("graph_estimate_bytes", 0)
    if isinstance(peak, int) and isinstance(estimate, int):
        share = estimate if values.get("graphs_inside", True) else 0
        combined.append(replace(last["activation_with_graphs_bytes"], name="activation_bytes", value=peak - share))
    peak, weights = values.get("peak_bytes"), values.get("weight_bytes")
    if isinstance(peak, int) and isinstance(weights, int) and "activation_bytes" not in values:
        combined.append(replace(last["peak_bytes"], name="activation_bytes", value=peak - weights))
    if "version" not in values and "v0_release" in values:
        combined.append(replace(last["v0_release"], name="version"))
    loaded = [item for item in seen if item.name == "loaded_model"]
    if "model" not in values and loaded:  # a draft model is loaded after the model
        combined.append(replace(loaded[0], name="model"))
    for name in ("kv_tokens", "concurrency"):
        printed = [(item.value, item) for item in seen if item.name == name and isinstance(item.value, int | float)]
        if len(printed) > 1:
            combined.append(min(printed, key=lambda pair: pair[0])[1])
    return tuple(combined)


WORDING = Wording(
    engine="vllm",
    triggers=(
        "LLM API server|LLM engine (v|LLM engine with config|non-default args|Namespace(|KV cache size"
        "|KV cache memory|KV cache is|kv cache memory|GPU blocks|CUDA blocks|cuda blocks|num_gpu_blocks"
        "|cache blocks|Maximum concurrency|weights took|loading took|memory-utilization="
        "|Starting to load model|total_gpu_memory|model weights take|Memory profiling takes"
        "|Memory profiling results|Graph capturing|CUDA graph|Free memory on device|device on startup"
        "|larger than|attention block size|Chunked prefill|max model len|Asynchronous scheduling"
        "|CUDA out of memory|OutOfMemoryError|█  version|█  model |Total non KV cache memory|device_name="
        "|Actual usage|Desired GPU memory|Num GPUs = |rocm"
    ),
    marker=re.compile(r"LLM API server version|Initializing (?:an|a V\d) LLM engine|█  version \d"),
    argument_line=re.compile(r"LLM engine (?:\(v|with config)|non-default args|Namespace\("),
    early_settings=frozenset(
        {
            "model",
            "loaded_model",
            "kv_dtype",
            "quantization",
            "tensor_parallel",
            "pipeline_parallel",
            "data_parallel",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "memory_utilization",
            "enforce_eager",
            "performance_mode",
            "prefix_caching",
            "async_scheduling",
            "has_lora",
            "asked_block_tokens",
            "has_speculation",
            "speculative_method",
            "speculative_tokens",
        }
    ),
    arguments=patterns(
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
        r"[ ({,]'?quantization'?[=:] ?'?(?P<quantization_text>[A-Za-z0-9_-]+)",
        r"'?enforce_eager'?[=:] ?(?P<enforce_eager_flag>True|False)",
        r"'?performance_mode'?[=:] ?'(?P<performance_mode_text>\w+)'",
        r"'?enable_prefix_caching'?[=:] ?(?P<prefix_caching_flag>True|False)",
        r"'?async_scheduling'?[=:] ?(?P<async_scheduling_flag>True|False)",
        r"'?enable_lora'?[=:] ?(?P<has_lora_flag>True|False)",
        r"[ ({,]'?block_size'?[=:] ?(?P<asked_block_tokens>\d+)",
        pattern(r"speculative_config'?[=:] ?\{", has_speculation=True),
        r"speculative_config'?[=:] ?\{[^}]*'method': '(?P<speculative_method_text>\w+)'",
        r"speculative_config'?[=:] ?\{[^}]*'num_speculative_tokens': (?P<speculative_tokens_count>\d+)",
        # The end of the last range is max_num_batched_tokens (0.13 and later; 0.22 and later print it nowhere else).
        r"'compile_ranges_(?:split_points|endpoints)': \[(?:\d+, )*(?P<max_num_batched_tokens>\d+)\]",
    ),
    patterns=patterns(
        r"LLM engine \(v(?P<version_text>[^)\s]+)\)",
        pattern(r"LLM engine with config: ", version="0.4.0"),  # the last release that did not say which it is
        r"LLM API server version (?P<version_text>[\w.+-]+)",
        r"█  version (?P<version_text>\d[\w.+-]+)",
        pattern(r"Automatically detected platform rocm|\[rocm\.py:\d+\]", is_rocm=True),
        r"device_config=(?P<platform_text>npu|xpu|hpu|tpu|cpu)\b",
        r"█  model +(?P<model_text>\S+)",
        r"device_name=(?P<gpu_text>(?:NVIDIA|AMD)_[A-Za-z0-9_-]+)",
        # Unsloth, which starts vLLM inside a training process; its GB is a GiB.
        r"(?P<gpu_text>(?:NVIDIA|Tesla|AMD) [\w -]+)\. Num GPUs = \d+\. Max memory: (?P<total_gib>[\d.]+) GB",
        r"Starting to load model (?P<loaded_model_text>\S+?)\.\.\.",
        r"Using max model len (?P<max_model_len_count>\d+)",
        r"Chunked prefill is enabled with max_num_batched_tokens=(?P<max_num_batched_tokens>\d+)",
        pattern(r"Asynchronous scheduling is enabled", async_scheduling=True),
        pattern(r"Asynchronous scheduling is disabled", async_scheduling=False),
        # The driver's total, the share asked for, and the parts: V0's summary (0.6 to 0.9).
        r"total_gpu_memory \((?P<total_gib>[\d.]+)GiB\)(?:.*?= (?P<requested_gib>[\d.]+)GiB)?",
        rf"model weights take (?P<weight_gib>{_GIB})GiB; non_torch_memory takes (?P<non_torch_gib>{_GIB})GiB;"
        rf" PyTorch activation peak memory takes (?P<activation_gib>{_GIB})GiB;"
        rf" the rest of the memory reserved for KV Cache is (?P<kv_gib>{_GIB})GiB",
        r"(?:Loading model weights|Model loading) took (?P<weight_gib>[\d.]+) Gi?B",
        rf"torch peak memory increase: (?P<activation_gib>{_GIB})GiB; "
        rf"non-torch forward increase memory: (?P<non_torch_gib>{_GIB})GiB; "
        rf"weights memory: (?P<weight_gib>{_GIB})GiB",
        # 0.6.4 in one line; 0.27 and later without what is not torch's, at debug level.
        rf"total_gpu_memory=(?P<total_gib>{_GIB})GiB initial_memory_usage=\S+ "
        rf"peak_torch_memory=(?P<peak_gib>{_GIB})GiB memory_usage_post_profile=\S+ "
        rf"non_torch_memory=(?P<non_torch_gib>{_GIB})Gi[Bb] kv_cache_size=(?P<kv_gib>{_GIB})GiB "
        r"gpu_memory_utilization=(?P<memory_utilization_number>[\d.]+)",
        rf"torch peak memory increase: (?P<activation_gib>{_GIB})GiB; total consumed \(from mem_get_info\): "
        rf"(?P<consumed_gib>{_GIB})GiB; weights memory: (?P<weight_gib>{_GIB})GiB",
        rf"Available KV cache memory: (?P<kv_gib>{_GIB}) GiB",
        # What a start tells at its end (0.11 and later, at debug level until 0.13).
        rf"Free memory on device (?:\S+ )?\((?P<free_before_gib>{_GIB})/(?P<total_gib>{_GIB}) GiB\) on startup",
        rf"Desired GPU memory utilization is \((?P<memory_utilization_number>[\d.]+), (?P<requested_gib>{_GIB}) GiB\)",
        rf"Actual usage is (?P<weight_gib>{_GIB}) GiB for weight, (?P<activation_gib>{_GIB}) GiB for peak activation,"
        rf" (?P<non_torch_gib>{_GIB}) GiB for non-torch memory, and (?P<graph_gib>{_GIB}) GiB for CUDAGraph",
        rf"Actual usage is (?P<consumed_gib>{_GIB}) GiB for consumed memory \(weights \+ non-torch\), "
        rf"(?P<activation_with_graphs_gib>{_GIB}) GiB for peak activation, "
        rf"and (?P<graph_gib>{_GIB}) GiB for CUDAGraph",
        rf"Actual usage: (?P<weight_gib>{_GIB}) GiB for weights, "
        rf"(?P<activation_gib>{_GIB}) GiB for peak activation, "
        rf"(?P<non_torch_gib>{_GIB}) GiB for non-torch memory, "
        rf"(?P<graph_gib>{_GIB}) GiB for NPU graph memory"
        rf"(?:.*?Current KV cache memory: (?P<kv_gib>{_GIB}) GiB)?",
        rf"Current kv cache memory in use is (?P<kv_gib>{_GIB}) GiB",
        r"Current kv cache memory in use is (?P<kv_bytes>\d+) bytes",
        r"reserved (?P<kv_gib>[\d.]+) GiB memory for KV Cache as specified by kv_cache_memory_bytes",
        rf"Graph capturing finished in \S+ secs?, took (?P<graph_gib>{_GIB}) GiB",
        rf"Estimated CUDA graph memory: (?P<graph_estimate_gib>{_GIB}) GiB total",
        rf"CUDA graph pool memory: (?P<graph_pool_gib>{_GIB}) GiB \(actual\), (?P<graph_estimate_gib>{_GIB}) GiB",
        pattern(r"CUDA graph memory profiling is enabled", graphs_inside=True),
        r"--gpu-memory-utilization=(?P<memory_utilization_number>[\d.]+) is equivalent to",
        pattern(
            r"CUDA graph memory profiling is disabled|In v0\.19, CUDA graph memory profiling will be",
            graphs_inside=False,
        ),
        pattern(r"# CPU blocks: |the rest of the memory reserved for KV Cache is", v0_release=_LAST_V0_RELEASE),
        r"# (?:GPU|CUDA|cuda|ROCM|rocm|NPU|npu|XPU|xpu) blocks: (?P<blocks>[\d,]+)",
        r"num_gpu_blocks is: (?P<blocks>\d+)",
        r"exceeds available Mamba cache blocks \((?P<blocks>\d+)\)",
        r"Overriding num_gpu_blocks=[1-9]\d* with num_gpu_blocks_override=(?P<blocks>\d+)",
        r"Overriding num_gpu_blocks=0 with num_gpu_blocks_override=(?P<profiled_blocks>\d+)",
        r"(?:[A-Z]+) KV cache size: (?P<kv_tokens>[\d,]+) tokens",
        r"Maximum concurrency for (?P<concurrency_tokens>[\d,]+) tokens per request: (?P<concurrency_number>[\d.]+)x",
        r"Setting attention block size to (?P<block_tokens>\d+) tokens",
        r"Multiplying the GPU KV cache size by the \w+_world_size (?P<context_parallel_count>\d+)",
        pattern(r"speculative_config=SpeculativeConfig\(", has_speculation=True),
        r"SpeculativeConfig\(method='(?P<speculative_method_text>\w+)', model=[^,]+, "
        r"num_spec_tokens=(?P<speculative_tokens_count>\d+)\)",
    ),
    refusals=(
        ("no_kv_memory", pattern(r"No available memory for the cache blocks")),
        (
            "window_too_long",
            pattern(
                rf"max seq len \((?P<max_model_len_count>\d+)\), \((?P<needed_gib>{_GIB}) Gi?B KV cache is needed,"
                rf" which is larger than the available KV cache memory \((?P<available_gib>{_GIB}) Gi?B\)"
                r"(?:.*?estimated maximum model length is (?P<estimated_max_model_len_count>\d+))?"
            ),
        ),
        (
            "window_too_long",
            pattern(
                r"max seq len \((?P<max_model_len_count>\d+)\) is larger than the maximum number of tokens that can"
                r" be stored in KV cache \((?P<pool_tokens>\d+)\)"
            ),
        ),
        (
            "not_enough_free",
            pattern(
                rf"Free memory on device (?:\S+ )?\((?P<available_gib>{_GIB})/{_GIB} GiB\) on startup is less"
                rf" than desired GPU memory utilization \([\d.]+, (?P<needed_gib>{_GIB}) GiB\)"
            ),
        ),
        (
            "too_many_sequences",
            pattern(r"max_num_seqs \(\d+\) exceeds available Mamba cache blocks \((?P<most_sequences_count>\d+)\)"),
        ),
        ("out_of_memory", pattern(r"(?:torch\.(?:cuda\.)?)?OutOfMemoryError|CUDA out of memory")),
    ),
    combine=_combine,
)
