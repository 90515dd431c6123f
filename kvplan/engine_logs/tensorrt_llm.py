"""TensorRT-LLM's log lines: the C++ runtime's and the PyTorch backend's.

Source: ``kvCacheManager.cpp``, ``trtGptModelInflightBatching.cpp`` and ``_torch/pyexecutor/_util.py`` of the public
repository, and start-up logs quoted in its issues (#224, #1400, #2268).
"""

import re

from kvplan.engine_logs.wording import Wording, pattern, patterns

WORDING = Wording(
    engine="tensorrt-llm",
    triggers="TensorRT-LLM|TRT-LLM|tensorrt_llm|paged KV cache|KV cache primary pool|memory usage profiling",
    marker=re.compile(r"TensorRT-LLM\]? (?:LLM API )?version:? \d|Engine version [\d.]+ found in the config file"),
    patterns=patterns(
        r"TensorRT-LLM\]? (?:LLM API )?version:? (?P<version_text>\d[\w.]*)",
        r"Engine version (?P<version_text>\d[\w.]*) found in the config file",
        r"Loaded engine size: (?P<weight_mib>\d+) MiB",
        r"Memory (?:usage when loading weights|used after loading model weights)[^:]*: (?P<weight_gib>[\d.]+) GiB",
        r"Allocated (?P<activation_mib>[\d.]+) MiB for execution context memory",
        r"Memory usage when calculating max tokens in paged kv cache: total: (?P<total_gib>[\d.]+) GiB, "
        r"available: (?P<free_after_load_gib>[\d.]+) GiB",
        r"Peak memory during memory usage profiling \(torch \+ non-torch\): (?P<peak_gib>[\d.]+) GiB, "
        r"available KV cache memory when calculating max tokens: (?P<kv_gib>[\d.]+) GiB"
        r"(?:, fraction is set (?P<memory_utilization_number>[\d.]+))?"
        r"(?:.*?device total memory (?P<total_gib>[\d.]+) GiB)?",
        r"Number of blocks in KV cache primary pool: (?P<blocks>\d+)",
        r"Max KV cache blocks per sequence: \d+ \[window size=\d+\], tokens per block=(?P<block_tokens>\d+), "
        r"primary blocks=(?P<blocks>\d+)(?:.*?max sequence length=(?P<max_model_len_count>\d+))?",
        r"Number of tokens per block: (?P<block_tokens>\d+)",
        r"Allocated (?P<kv_gib>[\d.]+) GiB for max tokens (?:in paged KV cache )?\((?P<kv_tokens>\d+)\)",
        r"Allocate (?P<kv_bytes>\d+) bytes for k/v cache",
        r"Using (?P<kv_tokens>\d+) (?:total )?tokens in paged KV cache",
        r"TRTGptModel maxBatchSize: (?P<max_num_seqs_count>\d+)",
        r"TRTGptModel (?:max|computed max)NumTokens: (?P<max_num_batched_tokens>\d+)",
        r"TRTGptModel maxSequenceLen: (?P<max_model_len_count>\d+)",
        r"max_seq_len=(?P<max_model_len_count>\d+), max_num_requests=(?P<max_num_seqs_count>\d+), "
        r"max_num_tokens=(?P<max_num_batched_tokens>\d+)",
    ),
    refusals=(
        (
            "window_too_long",
            pattern(
                r"too large for at least one sequence to fit in kvCache\. they are reduced to (?P<pool_tokens>\d+)"
            ),
        ),
        ("no_kv_memory", pattern(r"Failed to allocate.*KV cache|available KV cache memory.*: -")),
        ("out_of_memory", pattern(r"CUDA out of memory|OutOfMemoryError|cudaMalloc.*out of memory")),
    ),
)
